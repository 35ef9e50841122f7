"""Calls of equal modules: the first ones are interpreted, further ones copy the nodes and guards of an earlier one."""
