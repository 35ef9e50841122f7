"""Operators ask methods that are written in Python in the order of Python, each once, also beside tensors."""

from __future__ import annotations

import copy
import itertools
import operator

import pytest
import torch

from tests.capture.harness import compiled

X = torch.arange(6.0).reshape(2, 3)
LOG: list[object] = []
ALL = ["__add__", "__radd__", "__iadd__", "__mul__", "__rmul__", "__eq__", "__lt__", "__gt__"]


def _class(name, base, answer, methods=ALL):
    def method(called):
        def ask(self, other):
            LOG.append((name, called, type(other).__name__))
            return answer

        ask.__name__ = called
        return ask

    return type(name, (base,), {called: method(called) for called in methods})


First = _class("First", object, NotImplemented)
Later = _class("Later", First, NotImplemented)
Silent = _class("Silent", First, NotImplemented, [])
Answers = _class("Answers", First, 7)
Reflects = _class("Reflects", object, 9, ["__radd__", "__eq__", "__gt__"])
Whole = _class("Whole", int, 9, ["__radd__", "__eq__", "__gt__"])
Items = _class("Items", list, NotImplemented, ["__radd__", "__add__"])
OPERANDS = [First(), First(), Later(), Silent(), Answers(), Reflects(), Whole(), Items(), X, 3, "text", None, (1,)]
OPERATORS = [
    (operator.add, lambda a, b: a + b),
    (operator.iadd, lambda a, b: operator.iadd(a, b)),
    (operator.mul, lambda a, b: a * b),
    (operator.eq, lambda a, b: a == b),
    (operator.ne, lambda a, b: a != b),
    (operator.lt, lambda a, b: a < b),
]


@pytest.mark.parametrize("fn", [fn for _, fn in OPERATORS], ids=[op.__name__ for op, _ in OPERATORS])
def test_order_of_questions(fn):
    for left, right in itertools.product(OPERANDS, repeat=2):
        seen = []
        for run in (fn, compiled(fn)):
            for _ in range(2):
                LOG.clear()
                fresh = copy.copy(left) if isinstance(left, list) else left.clone() if left is X else left
                try:
                    out = str(run(fresh, fresh if right is left else right))
                except (TypeError, RuntimeError) as error:
                    out = repr(error)
                seen.append((out, list(LOG)))
        assert all(each == seen[0] for each in seen), f"{left!r}, {right!r}: {seen}"
