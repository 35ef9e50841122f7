"""Values and graphs that several stages share: metadata, the trace tensor, checks and printing of fx graphs."""

from smelt.graph.trace import special_operators as special_operators  # it fills the table of `trace`
