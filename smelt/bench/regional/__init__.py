"""Compares compilation of whole models and of their repeated blocks, with the models of a table by Accelerate."""
