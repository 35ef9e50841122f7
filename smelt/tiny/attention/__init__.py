"""Attention, layer norm, functions by table, added constants and low-rank adapters: rules of quantisation, torch, C."""
