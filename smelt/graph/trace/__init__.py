"""The trace tensor, on which PyTorch programs run without data, and operators that need more than a metadata rule."""
