"""Third stage: the closed set of primitives and the decompositions that bring ATen down to it."""
