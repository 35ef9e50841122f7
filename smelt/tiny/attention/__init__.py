"""Attention, layer norm, functions by table, added constants and low-rank adapters, computed in torch and in C."""
