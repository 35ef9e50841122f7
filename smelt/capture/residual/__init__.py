"""The Python source that replaces the frame: runs the graph, repeats effects, returns or resumes."""
