"""Foundations of capture: sources and values, frames and decoded bytecode, breaks, policy, the registry.

No module here depends on opcodes, guards or tensor operations; the sibling folders implement those.
"""
