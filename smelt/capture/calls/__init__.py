"""Captured calls by kind of callable: Python functions are inlined, classes make objects, builtins have captured forms.

`calls.call_function` chooses how a Python function is called. Calls of torch are handled in `tensors` and `torch`.
"""
