"""Faults injected into compilations and compiled calls: `python -m tests.faults`."""
