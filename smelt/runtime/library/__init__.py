"""Operations that are not generated: library kernels and smelt's own, each bound to its fastest way."""
