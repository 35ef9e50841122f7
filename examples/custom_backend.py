"""A compiler of your own behind smelt's capture: this one counts operators and runs the graph as it is."""

from collections import Counter

import torch
from torch import nn

import smelt

counts = Counter()


def counting(graph, example_inputs):
    counts.update(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
    return graph.forward


model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
compiled = smelt.compile(model, backend=smelt.aot_autograd(fw_compiler=counting))
compiled(torch.randn(3, 4)).sum().backward()
for name, times in counts.most_common(3):
    print(f"{times} x {name}")
assert counts["aten.addmm.default"] == 2
