"""Semantics of Python objects under capture: attributes, containers, operators, and deferred writes.

The interpreter uses these modules for operations without tensors; residual code carries out the deferred writes.
"""
