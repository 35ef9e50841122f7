"""Attention, layer norm, functions by table, added constants and low-rank adapters: their computation in torch and in
C.
"""
