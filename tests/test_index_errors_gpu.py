"""An index out of range on a GPU: no value is read, the error names check and line, and is that of the right program.

The context is lost, as in eager, so each case is a process.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.gpu

HEAD = """
import sys, torch, smelt
from torch.nn import functional as F
x, w, t = torch.randn(8, 4, device="cuda"), torch.randn(4, 3, device="cuda"), torch.randn(4, device="cuda")
good = torch.tensor([[0, 3]] * 8, device="cuda")
def bad(n, of=good):
    of = of.clone()
    of.view(-1)[3] = n
    return of
other = smelt.compile(lambda a: torch.gather(a, 0, torch.zeros_like(a, dtype=torch.int64)) + 1)
other(t)
def fn(i): return CASE  # the user's line
run = smelt.compile(fn, mode=MODE)
for _ in range(CALLS):
    assert torch.isfinite(run(good)).all()
"""
CASES = {
    "gather": "torch.gather(x, 1, i) * 2",
    "index_select": "x.index_select(1, i[:, 1][:2]) * 2",
    "embedding": "F.embedding(i, w) * 2",
    "index": "t[i] * 2",
    "index_put": "t.index_put((i,), torch.ones(8, 2, device='cuda')) * 2",
    "sums by index_put": "t.index_put((i,), torch.ones(8, 2, device='cuda'), accumulate=True) * 2",
    "scatter": "x.scatter(1, i, 1.0) * 2",
    "scatter_add": "x.scatter_add(1, i, torch.ones(8, 2, device='cuda')) * 2",
    "cross_entropy": "F.cross_entropy(x, i[:, 1]) * 2",
}
USES = {
    "item": "y = run(bad(7)); print('VALUE', y.sum().item())",
    "another program": "y = run(bad(7))\nfor _ in range(1000): z = other(t); torch.cuda.synchronize()",
    "the same again": "y = run(bad(7))\nfor _ in range(1000): y = run(good); torch.cuda.synchronize()",
    "synchronize": "y = run(bad(7)); torch.cuda.synchronize(); print('VALUE', y)",
}


def process(case: str, use: str, calls: int = 1, mode: str | None = None) -> tuple[str, str, int]:
    """(output, errors, the number of the user's line)"""
    source = HEAD.replace("CASE", case).replace("MODE", repr(mode)).replace("CALLS", str(calls)) + use
    line = 1 + next(n for n, text in enumerate(source.splitlines()) if "# the user's line" in text)
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, timeout=300)
    assert done.returncode
    return done.stdout, done.stderr, line


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("case", CASES)
def test_the_check_and_the_line_are_reported(case: str, use: str) -> None:
    out, err, line = process(CASES[case], USES[use])
    assert "VALUE" not in out and f"<string>:{line}: index 7 is out of range for a dimension of size 4" in err, err


@pytest.mark.parametrize("use", USES)
def test_the_check_of_unused_sums(use: str) -> None:
    """The kernel that stands for them knows only that there is such an index."""
    out, err, line = process("(t.index_put((i,), t[0], accumulate=True), t * 2)[1]", USES[use])
    assert "VALUE" not in out and f"<string>:{line}: an index is out of range" in err, err


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("case", ["gather", "embedding", "cross_entropy"])
def test_a_replay_of_a_cuda_graph(case: str, mode: str) -> None:
    out, err, line = process(CASES[case], USES["item"], calls=5, mode=mode)
    assert "VALUE" not in out and f"<string>:{line}: index 7 is out of range for a dimension of size 4" in err, err


@pytest.mark.parametrize("number", [-1, -5, 4, 2**40, -(2**40)])
def test_which_numbers(number: int) -> None:
    """Negative ones count from the end only in x[i]."""
    case = "t[i] * 2" if number == -5 else CASES["gather"]
    out, err, _ = process(case, f"print('VALUE', run(bad({number})).sum().item())")
    assert "VALUE" not in out and f"index {number} is out of range" in err, err


def test_a_program_that_goes_on_gets_no_value() -> None:
    """`except` clauses see an error of CUDA's, as in eager, and the message comes at the end."""
    use = """
try:
    print('VALUE', run(bad(7)).sum().item())
except IndexError:
    print('INDEX ERROR')
except RuntimeError as error:
    print('RUNTIME ERROR')
sys.exit(3)
"""
    out, err, _ = process(CASES["gather"], use)
    assert out.strip() == "RUNTIME ERROR" and "index 7 is out of range for a dimension of size 4" in err, err


def test_except_clauses_inside_of_compiled_code() -> None:
    use = """
def caught(i):
    try:
        return torch.gather(x, 1, i).sum().item()
    except IndexError:
        return "INDEX ERROR"
    except RuntimeError:
        return "RUNTIME ERROR"
inside = smelt.compile(caught)
inside(good)
print(inside(bad(7)))
sys.exit(3)
"""
    out, err, _ = process(CASES["gather"], use)
    assert out.strip() == "RUNTIME ERROR" and "index 7 is out of range for a dimension of size 4" in err, err


LOOKED_AT = {
    "torch.normal(0.0, i.float())": "RuntimeError",
    "torch.normal(torch.zeros(8, 2, device='cuda'), i.float())": "RuntimeError",
    "(torch.normal(0.0, i.float()), t * 2)[1]": "RuntimeError",
}


@pytest.mark.parametrize("case", LOOKED_AT)
def test_check_that_eager_reads_first_leaves_the_gpu_usable(case: str) -> None:
    """Deviations: an error of the processor, after which everything goes on."""
    use = """
for n in range(3):
    try:
        print('VALUE', run(bad(-7)))
    except Exception as error:
        print(type(error).__name__)
    torch.cuda.synchronize()
    assert torch.isfinite(run(good)).all()
sys.exit(3)
"""
    out, err, _ = process(case, use)
    assert out.split() == [LOOKED_AT[case]] * 3 and "smelt:" not in err, out + err
