"""Interface between `codegen`, generated code and `runtime`: kernels as data, arena, faults, random bits, operators.

`codegen` and `runtime` may not import each other, so the definitions that both need are in this package, above `base`.
"""
