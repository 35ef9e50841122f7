"""Interface between `codegen`, generated code and `runtime`: kernels as data, arena, faults, random bits, operators.

`codegen` and `runtime` may not import each other, so this package, which depends only on `base`, contains the
definitions that both need.
"""
