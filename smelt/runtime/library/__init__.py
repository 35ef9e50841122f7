"""Operations that are not generated: kernels of libraries and of smelt, each bound to its fastest implementation."""
