"""Symbolic integers: sizes with the assumptions about them, and index expressions over loop variables."""
