"""The program of docs/how-it-works.md: a block that scales, adds a bias and takes a softmax, and one gradient step."""

import torch

import smelt


@smelt.compile(fullgraph=True)
def block(x, bias, scale):
    return torch.softmax(x * scale + bias, dim=-1)


torch.manual_seed(0)
x = torch.randn(64, 32, requires_grad=True)
bias = torch.zeros(32, requires_grad=True)

out = block(x, bias, 0.5)
out.square().sum().backward()
