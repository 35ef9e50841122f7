"""Measures the maximum speeds of this machine and compares compiled programs with them (the roofline model)."""
