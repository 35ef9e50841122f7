"""Foundations of capture: sources and values, frames and decoded bytecode, breaks, policy, the registry.

Nothing here knows an opcode, a guard or a tensor operation; the folders beside it do.
"""
