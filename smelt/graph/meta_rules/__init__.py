"""Metadata inference: results and argument errors of operators. `infer` tries rules, then PyTorch's meta kernels."""
