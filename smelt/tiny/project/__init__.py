"""Projects: folders with a program, made from a graph and a scheme, that trains on a board and saves its parameters."""
