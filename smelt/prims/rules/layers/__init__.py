"""Decompositions of the layers of neural networks, and of operators that are others under another name."""
