"""Tensor subclasses: calls of `__torch_function__`, instances made by the frame, and how they leave the graph."""

from smelt.capture.subclasses import torch_function as torch_function
