"""The Python source that takes the frame's place: runs the graph, repeats effects, returns or resumes."""
