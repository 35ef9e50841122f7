"""Functions and classes of PyTorch with captured forms: modules, hooks, autograd functions, optimizers ...

Each module enters its forms in the registry (`core.registry`); `session` imports them all.
"""
