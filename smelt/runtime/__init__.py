"""Source text in, a running program out: build, launch, tune, external kernels, memory. Imports base only."""

from smelt.runtime import convolution, fallback, gemm  # noqa: F401  each enters its operations in externs.EXTERNS
