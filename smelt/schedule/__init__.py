"""Loop program in, kernels out: which values get buffers, what runs in one loop nest, in which order, at which address."""
