"""Prim graph in, loop program out: each prim as a body over index expressions."""
