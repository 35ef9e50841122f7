"""Source text in, a running program out: build, launch, tune, external kernels, memory. Imports base only."""

from smelt.runtime import convolution, fallback, gemm, launch  # noqa: F401  importing them sets up externs.EXTERNS and the launcher
