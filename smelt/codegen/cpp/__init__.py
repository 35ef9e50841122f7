"""Kernels for the CPU: a group of the schedule becomes one C++ function over loops."""
