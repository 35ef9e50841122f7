"""Compilation of whole models and of their repeated blocks: the rows of Accelerate's table of regional compilation."""
