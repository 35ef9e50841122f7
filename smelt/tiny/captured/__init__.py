"""Models as functional graphs: the capture with the ranges of its values, and views as indices of elements."""
