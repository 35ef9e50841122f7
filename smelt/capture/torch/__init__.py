"""Captured forms of PyTorch's functions and classes: modules, hooks, autograd functions, optimizers and others.

Each module enters its forms in the registry (`core.registry`); `session` imports them all.
"""
