"""What ends a process nowhere: freed memory, recursion as deep as Python without a compiler bears it. In processes of
their own, since a fault would end the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys

BEGIN = """
import gc, sys, torch, smelt
from torch import nn
def freed(*shape):
    x = torch.ones(*shape)
    x.untyped_storage().resize_(0)
    return x
def refuses(run):
    try:
        run()
    except RuntimeError as error:
        assert "has no memory" in str(error) or "not allocated" in str(error), error
    else:
        raise AssertionError("nothing was raised")
"""

FREED = {
    "an input": "refuses(lambda: smelt.compile(lambda x: x * 2)(freed(64)))",
    "a large input": "refuses(lambda: smelt.compile(lambda x: (x * 2).sum(0))(freed(640, 1000)))",
    "a view with an offset": """
x = torch.ones(64)
view = x[3:]
x.untyped_storage().resize_(0)
refuses(lambda: smelt.compile(lambda x: x * 2)(view))""",
    "a factor of a product": "refuses(lambda: smelt.compile(lambda x: x @ x)(freed(64, 64)))",
    "an input that is written": "refuses(lambda: smelt.compile(lambda x: x.add_(1))(freed(64)))",
    "a result's place": "refuses(lambda: smelt.compile(lambda x, o: torch.add(x, x, out=o))(torch.ones(9), freed(9)))",
    "a parameter": """
model = nn.Linear(64, 64)
model.weight.untyped_storage().resize_(0)
refuses(lambda: smelt.compile(model)(torch.ones(2, 64)))""",
    "a parameter after a call": """
model = nn.Linear(64, 64)
run = smelt.compile(model)
run(torch.ones(2, 64))
model.weight.untyped_storage().resize_(0)
refuses(lambda: run(torch.ones(2, 64)))""",
    "a constant": """
constant = torch.ones(64)
run = smelt.compile(lambda x: x * constant)
run(torch.ones(64))
constant.untyped_storage().resize_(0)
refuses(lambda: run(torch.ones(64)))""",
    "a value inside": """
@smelt.compile
def run(x):
    y = x * 2
    y.untyped_storage().resize_(0)
    return y + 1
refuses(lambda: run(torch.ones(64)))""",
    "what a backward reads": """
x = torch.randn(300, 640, requires_grad=True)
y = smelt.compile(lambda x: torch.tanh(x))(x)
loss = y.sum()
y.untyped_storage().resize_(0)
refuses(loss.backward)""",
    "a parameter between forward and backward": """
model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64))
loss = smelt.compile(model)(torch.randn(2, 64, requires_grad=True)).sum()
model[1].weight.untyped_storage().resize_(0)
refuses(loss.backward)""",
}

DEEP = {
    "inlined": """
def down(x, n):
    return x if n == 0 else down(x + 1, n - 1)
assert smelt.compile(down)(torch.zeros(1), DEPTH).item() == DEPTH""",
    "with a break in each": """
def down(x, n):
    if n == 0:
        return x
    seen.append(n)
    eval("1")
    return down(x, n - 1) + 1
seen = []
assert smelt.compile(down)(torch.zeros(1), DEPTH // 10).item() == DEPTH // 10""",
    "around a compiled call": """
run = smelt.compile(lambda x: x + 1)
def down(n):
    return run(torch.zeros(1)) if n == 0 else down(n - 1)
assert down(DEPTH).item() == 1""",
    "without tensors": """
def down(n):
    return 0 if n == 0 else down(n - 1) + 1
assert smelt.compile(lambda x: x + len(str(down(DEPTH))))(torch.zeros(1)).item() == 5""",
}


EACH = """
import json, os, traceback
ended = {}
for what, text in json.loads(sys.stdin.read()).items():
    child = os.fork()
    if not child:
        try:
            exec(text, dict(globals()))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    ended[what] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(ended))
"""


def ended(begin: str, programs: dict[str, str]) -> dict[str, int]:
    """The exit status of each program, run in a process of its own."""
    # the strict verifier would find freed memory before the check that users have
    environment = {**os.environ, "SMELT_VERIFY": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", BEGIN + begin + EACH]
    ran = subprocess.run(
        command, input=json.dumps(programs), capture_output=True, text=True, timeout=500, check=False, env=environment
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    statuses: dict[str, int] = json.loads(ran.stdout)
    assert not any(statuses.values()), f"{statuses}\n{ran.stderr[-2000:]}"
    return statuses


def test_freed_memory_is_an_error() -> None:
    assert ended("", FREED).keys() == FREED.keys()


def test_recursion_is_as_deep_as_without_a_compiler() -> None:
    assert ended("sys.setrecursionlimit(10**6)\nDEPTH = 30_000\n", DEEP).keys() == DEEP.keys()
