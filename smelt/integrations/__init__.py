"""Doors through which users of other libraries come: they compile by `smelt.compile`, as anybody does."""
