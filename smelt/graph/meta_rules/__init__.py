"""What an operator returns, as metadata, and what it refuses: `infer` asks rules first, then PyTorch's meta kernels."""
