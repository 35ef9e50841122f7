"""What is said to torch.compiler is heard by smelt, or one warning says that it is not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt

X = torch.ones(4)


@pytest.fixture(autouse=True)
def default_stance() -> Iterator[None]:
    yield
    torch.compiler.set_stance("default")


def graphs() -> int:
    count: int = smelt.stats()["graphs"]
    return count


def scaled(x: Tensor) -> Tensor:
    return x * 2 + 1


def test_force_eager() -> None:
    run = smelt.compile(scaled)
    with torch.compiler.set_stance("force_eager"):
        run(X)
    assert graphs() == 0
    run(X)
    seen = []

    @smelt.compile
    def asks(x: Tensor) -> Tensor:
        seen.append(smelt.is_compiling())
        return x + 1

    asks(X)
    torch.compiler.set_stance("force_eager")  # also where a version fits
    asks(X)
    torch.compiler.set_stance("default")
    asks(X)
    assert seen == [True, False, True]


def test_misses() -> None:
    run = smelt.compile(scaled, dynamic=False)
    run(X)
    with torch.compiler.set_stance("fail_on_recompile"):
        run(X)
        with pytest.raises(smelt.RecompileError):
            run(torch.ones(5))
    with torch.compiler.set_stance("eager_on_recompile"):
        run(torch.ones(5))
    assert graphs() == 1


@pytest.mark.parametrize("stance", [torch.compiler.set_stance, smelt.stance])
def test_decorators_hold_while_the_function_runs(stance: Any) -> None:
    run = smelt.compile(scaled)

    @stance("force_eager")
    def evaluate(n: int) -> Tensor:
        """Doc."""
        return run(torch.ones(n))

    assert evaluate.__doc__ == "Doc." and evaluate(3).shape == (3,)
    assert graphs() == 0
    run(X)
    evaluate(3)
    assert graphs() == 1


@pytest.mark.parametrize("kwargs", [{"stance": "eager_then_compile"}, {"skip_guard_eval_unsafe": True}], ids=str)
def test_unsupported_stances_warn_once(kwargs: dict[str, Any]) -> None:
    run = smelt.compile(scaled)
    with pytest.warns(smelt.SmeltWarning, match="smelt has no") as told:
        for _ in range(2):
            with torch.compiler.set_stance(**kwargs):
                run(X)
    assert len(told) == 1 and graphs() == 1


SIZES = (4, 5, 6)


def called_with(mark: Any, dynamic: bool | None, sizes: tuple[int, ...] = SIZES) -> int:
    run = smelt.compile(scaled, dynamic=dynamic)
    for n in sizes:
        x = torch.randn(n, 3)
        mark(x)
        torch.testing.assert_close(run(x), scaled(x))
    return graphs()


def test_marks_of_sizes() -> None:
    from torch._dynamo import mark_dynamic, mark_static, maybe_mark_dynamic

    assert called_with(lambda x: mark_dynamic(x, 0), None) == 1
    smelt.reset()
    assert called_with(lambda x: mark_dynamic(x, 0), False) == 1
    smelt.reset()
    assert called_with(lambda x: mark_dynamic(x, [0, 1]), None) == 1
    smelt.reset()
    assert called_with(lambda x: maybe_mark_dynamic(x, 0), None) == 1
    smelt.reset()
    assert called_with(lambda x: mark_static(x, 0), True) == len(SIZES)
    smelt.reset()
    assert called_with(lambda x: mark_dynamic(x, 0, min=3, max=6), None) == 1
    for from_the_end in (
        lambda x: mark_dynamic(x, -2),
        lambda x: mark_dynamic(x, -2, min=3),
        lambda x: maybe_mark_dynamic(x, -2),
    ):
        smelt.reset()
        assert called_with(from_the_end, None) == 1
    smelt.reset()
    assert called_with(lambda x: mark_static(x, -2), True) == len(SIZES)
    smelt.reset()
    with pytest.raises(smelt.OptionError, match="outside of 3 to 5"):
        called_with(lambda x: mark_dynamic(x, 0, min=3, max=5), None, (6,))


def test_marked_sizes_that_the_program_fixes() -> None:
    from torch._dynamo import mark_dynamic, maybe_mark_dynamic

    def fixes(x: Tensor) -> Tensor:
        return x + torch.ones(4)

    marked, likely = torch.ones(4), torch.ones(4)
    mark_dynamic(marked, 0)
    maybe_mark_dynamic(likely, 0)
    with pytest.raises(smelt.SpecializationError):
        smelt.compile(fixes)(marked)
    torch.testing.assert_close(smelt.compile(fixes)(likely), fixes(likely))


def test_substitutes() -> None:
    calls = []

    def seven() -> int:
        calls.append(1)
        return 7

    torch.compiler.substitute_in_graph(sys.getallocatedblocks, skip_signature_check=True)(seven)
    run = smelt.compile(lambda x: x * sys.getallocatedblocks(), fullgraph=True)
    assert run(X).tolist() == [7.0] * 4 and calls and sys.getallocatedblocks() > 7
    with pytest.raises(TypeError, match="a function"):
        smelt.substitute_in_graph(3)  # type: ignore[arg-type]


def test_regions_are_one_graph() -> None:
    @torch.compiler.nested_compile_region
    def block(x: Tensor, scale: float = 2.0) -> Tensor:
        return x.sin() * scale

    run = smelt.compile(lambda x: block(block(x), scale=3.0), fullgraph=True)
    torch.testing.assert_close(run(X), block(block(X), scale=3.0))
    assert graphs() == 1


def test_a_reset_of_torchs_compiler_is_one_of_ours() -> None:
    run = smelt.compile(scaled)
    run(X)
    torch.compiler.reset()
    assert graphs() == 0
    run(X)
    assert graphs() == 1


def test_other_functions_of_the_compiler() -> None:
    @smelt.compile(fullgraph=True)
    def run(x: Tensor) -> Tensor:
        return x + 1 if torch.compiler.is_compiling() else x

    torch.compiler.cudagraph_mark_step_begin()
    assert run(X).tolist() == [2.0] * 4
    with pytest.raises(smelt.OptionError, match="guard_filter_fn"):
        smelt.compile(scaled, options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe})
