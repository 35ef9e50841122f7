"""Parts of PyTorch with a meaning of their own under capture: modules, hooks, autograd functions, optimizers ...

Each module enters its meanings in the registry (`core.registry`); `session` imports them all.
"""
