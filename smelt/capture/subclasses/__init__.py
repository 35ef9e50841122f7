"""Tensor subclasses: calls of `__torch_function__` and `__torch_dispatch__`, and instances that the frame makes."""

from smelt.capture.subclasses import torch_function as torch_function
