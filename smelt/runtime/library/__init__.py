"""Operations that are not generated: kernels of libraries and of smelt, of which each operation uses the fastest."""
