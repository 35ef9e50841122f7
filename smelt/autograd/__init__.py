"""Torch-level graph in; functional joint ATen graph, its split into forward and backward, and the call wrapper out."""
