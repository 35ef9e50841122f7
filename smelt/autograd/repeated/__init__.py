"""Repeated blocks of a torch-level graph: the graph is traced with four of them, the other blocks are copied."""
