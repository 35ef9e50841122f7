"""Processes that measure: each task in a fresh one, forked from a server that has imported the libraries."""
