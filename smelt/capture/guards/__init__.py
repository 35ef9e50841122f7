"""Guards, the conditions under which a captured graph is valid: their collection, evaluable form, and text.

The interpreter adds guards while it reads external objects; `session` installs them; `guard_failures` names the guard
that fails at a later call.
"""
