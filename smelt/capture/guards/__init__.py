"""What a captured graph depends on: guards as they are collected, as C evaluates them, and as text.

The interpreter adds guards while it reads; `session` installs them; `guard_failures` explains why a later call misses.
"""
