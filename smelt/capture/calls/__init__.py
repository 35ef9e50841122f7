"""Calls, by the kind of callable: Python functions are inlined, classes make objects, builtins have captured forms.

`calls.call_function` decides; calls of torch go to `tensors` and `torch`.
"""
