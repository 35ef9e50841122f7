"""Builds, loads, tunes and launches programs. Cached programs run with only this package and `base`."""

try:
    # imported for their entries in externs.EXTERNS
    from smelt.runtime import launch  # noqa: F401
    from smelt.runtime.library import (  # noqa: F401
        collectives,
        concatenation,
        convolution,
        fallback,
        fused_attention,
        gemm,
        nonzero,
        tiled_attention,
    )
except ImportError as error:
    if "_native" not in str(error):  # without the C extension `build` still works, and `smelt verify` reports the error
        raise
