"""Whole compilation beside that of the repeated blocks: the rows of Accelerate's table of regional compilation."""
