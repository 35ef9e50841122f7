"""Third stage: the closed set of primitives, and the decompositions of ATen operators into them."""
