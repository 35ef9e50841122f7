"""The `smelt` command: verify, bench, demo, ops.

Commands import what they run inside of their functions: `smelt --help`, and a command with a mistake in it, answer
without the seconds that torch and the compiler take to load.
"""
