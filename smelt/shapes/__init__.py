"""Symbolic integers: sizes with the assumptions made about them, and index expressions over loop variables."""
