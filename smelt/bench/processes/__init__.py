"""Measuring processes: each task runs in a fresh one, forked from a server that has imported the libraries."""
