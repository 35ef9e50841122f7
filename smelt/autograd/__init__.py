"""Torch-level graph in; the functional joint ATen graph, its forward and backward graphs, and the call wrapper out."""
