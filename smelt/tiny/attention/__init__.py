"""Attention, layer norm, functions by table, constants that are added, low-rank adapters: what they mean, and as C."""
