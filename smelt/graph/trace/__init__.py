"""The trace tensor, on which PyTorch programs run without data, and operators that need more than a metadata rule."""

from smelt.graph.trace import collectives as collectives  # the next import also adds its rules to the table of `trace`
from smelt.graph.trace import special_operators as special_operators
