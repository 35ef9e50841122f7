"""What generated code, `codegen` and `runtime` agree on: kernels as data, the arena, faults, random bits, operators.

Neither side may know the other, so what both must know has a package of its own above `base`.
"""
