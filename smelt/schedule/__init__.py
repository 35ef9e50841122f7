"""Loop program in, kernels out: which values get buffers, what shares a loop nest, in which order, at which address."""
