"""Calls of compiled programs: inputs, outputs, gradients and second derivatives behave as in eager."""
