"""`smelt bench bandwidth`: programs that do little but move memory, as a share of what copying reaches."""
