"""What a captured graph depends on: guards as they are collected, as C runs them, and as people read them.

The interpreter adds guards while it reads; `session` installs them; a later call that fails one is told why here.
"""
