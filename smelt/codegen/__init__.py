"""Schedule in, source text out: kernels per target, and the host program that calls them."""
