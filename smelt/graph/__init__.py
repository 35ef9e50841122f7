"""Values and graphs that several stages share: metadata, the trace tensor, checks and printing of fx graphs."""
