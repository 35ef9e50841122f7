"""Integers known at compile time only in part: index expressions over loop variables, with ranges."""
