"""Source text in, a running program out: build, launch, tune, external kernels, memory. Imports base only."""
