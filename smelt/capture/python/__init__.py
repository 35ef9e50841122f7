"""Python's own objects under capture: attributes, containers, operators, and writes that are put off.

The interpreter comes here for all that has no tensor in it; effects are carried out by residual code.
"""
