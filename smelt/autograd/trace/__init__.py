"""Torch-level graph in; the functional joint graph of forward and backward, and the plan of its calls, out."""
