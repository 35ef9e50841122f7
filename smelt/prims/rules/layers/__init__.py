"""Decompositions of neural network layers, and of aliases and variants of other operators."""
