"""`smelt bench bandwidth`: programs limited by memory bandwidth, measured as a share of the speed of a copy."""
