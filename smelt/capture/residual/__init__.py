"""Residual code: the Python source that replaces the frame. It runs the graph, repeats effects, returns or resumes."""
