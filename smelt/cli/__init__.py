"""The `smelt` command: verify, bench, demo, ops.

Commands import torch and the compiler inside of their functions, so that `smelt --help` and error messages about wrong
arguments appear without the seconds that these imports take.
"""
