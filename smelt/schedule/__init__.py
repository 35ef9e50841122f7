"""Loop program in, kernels out: chooses buffers, the values that share a loop nest, the order, and memory addresses."""
