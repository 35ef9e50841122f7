"""Calls, by the kind of callable: Python functions are inlined, classes make objects, builtins have a meaning here.

`calls.call_function` decides; what is torch's own goes to `tensors` and `torch`.
"""
