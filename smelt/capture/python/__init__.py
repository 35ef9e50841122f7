"""Python's own objects under capture: attributes, containers, operators, and writes that are deferred.

The interpreter uses these modules for everything without tensors; residual code carries out the effects.
"""
