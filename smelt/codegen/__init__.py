"""Schedule in, source text out: the kernels of each target, and the host program that calls them."""
