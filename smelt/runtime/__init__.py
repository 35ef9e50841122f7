"""Builds, loads, chooses and launches. Cached programs run with this package and `base` alone."""

try:
    from smelt.runtime import convolution, fallback, gemm, launch  # noqa: F401  they fill externs.EXTERNS
except ImportError as error:
    if "_native" not in str(error):  # without the C extension `build` still works: `smelt verify` reports the rest
        raise
