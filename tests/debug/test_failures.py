"""smelt repro, smelt minify and smelt check, on faults that are planted in each stage."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

import smelt as compiler
from smelt import driver, pipeline
from smelt.base.options import Options
from smelt.cli.main import app
from smelt.codegen.cpp import target
from smelt.debug.case import make_inputs, read_case
from smelt.graph.ir.repro_script import describe_inputs, repro_script, settings_of


def smelt(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Failures fall back, and their reports lie in a folder of the test."""
    monkeypatch.setenv("SMELT_STRICT", "0")
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "failures"


def program(x: torch.Tensor, w: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a = (x.sin() @ w).relu()
    with torch.no_grad():
        b = torch.cat([a, a + 1], 1)[at]
    c = b.exp().tanh() * 2
    a.mul_(3)
    return c.sum(), (c - b).reshape(2, -1), a


def arguments() -> tuple[torch.Tensor, ...]:
    return torch.randn(4, 6, requires_grad=True), torch.randn(8, 6).T, torch.tensor([3, 0, 1, 1])


def raising(stage: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A stage of the pipeline that raises for graphs with a tanh."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        original = getattr(pipeline, stage)

        def planted(first: Any, *args: Any, **kwargs: Any) -> Any:
            if "tanh" in _text(first):
                raise ValueError(f"planted in {stage}")
            return original(first, *args, **kwargs)

        patch.setattr(pipeline, stage, planted)

    return plant


def _text(value: Any) -> str:
    return str(value.graph) if isinstance(value, torch.fx.GraphModule) else repr(value)


def rendering(tanh: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setitem(target.FLOAT_OPS, "tanh", tanh)


FAULTS = {
    "joint": (raising("trace_joint"), "ValueError in smelt/pipeline.py: traced"),
    "decomposition": (raising("decompose"), "ValueError in smelt/pipeline.py: traced"),
    "loops": (raising("lower"), "ValueError in smelt/pipeline.py: "),
    "schedule": (raising("schedule"), "ValueError in smelt/pipeline.py: "),
    "code": (rendering("{0.no}"), "AttributeError in smelt/codegen/"),
    "build": (rendering("no_such_function({0})"), "BuildError in smelt/runtime/build.py: "),
}


@pytest.mark.parametrize("stage", FAULTS)
def test_a_failure_of_each_stage_runs_again_and_becomes_small(
    stage: str, lenient: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, kind = FAULTS[stage]
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.warns(compiler.SmeltWarning, match="report in"):
            compiler.compile(program)(*arguments())
        report = lenient / "program"
        again = smelt("repro", str(report))
        assert again.exit_code == 1, again.output
        assert f"program still fails: {kind}" in again.output
        made = smelt("minify", str(report))
        assert made.exit_code == 0, made.output
        small = read_case(report / "minified.py")
        assert small.kind.startswith(kind)
        body = next(f for f in ast.parse(small.text).body if isinstance(f, ast.FunctionDef)).body
        assert [ast.unparse(line).split(" = ")[-1].split("(")[0].split(".")[-1] for line in body[:-1]] == ["tanh"]
        assert all(x.numel() == 1 for x in small.inputs())
        assert smelt("repro", str(report / "minified.py")).exit_code == 1
        assert sorted(each.name for each in lenient.iterdir()) == ["program", "smelt_repro"]
    assert smelt("repro", str(report)).exit_code == 0
    assert smelt("minify", str(report)).exit_code == 1


def test_an_error_of_another_kind_is_distinguished(lenient: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        raising("lower")(patch)
        with pytest.warns(compiler.SmeltWarning):
            compiler.compile(program)(*arguments())
    raising("decompose")(monkeypatch)
    found = smelt("repro", str(lenient / "program"))
    assert found.exit_code == 1 and "program fails otherwise: ValueError in smelt/pipeline.py: traced" in found.output


def test_failures_under_fullgraph_have_a_report(lenient: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raising("lower")(monkeypatch)
    with pytest.raises(ValueError, match="planted") as raised:
        compiler.compile(program, fullgraph=True)(*arguments())
    assert raised.value.__notes__ == [f"report in {lenient / 'program'}"]
    assert smelt("repro", str(lenient / "program")).exit_code == 1


def test_a_subgraph_of_a_graph_that_is_cut_has_a_report(lenient: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        if y.sum() > 0:
            return y.tanh()
        return y.cos()

    raising("lower")(monkeypatch)
    with pytest.warns(compiler.SmeltWarning, match="report in") as told:
        compiler.compile(branch)(torch.ones(3))
    folder = str(told[0].message).split("report in ")[1].splitlines()[0]
    assert smelt("repro", folder).exit_code == 1


def _views() -> list[Any]:
    base = torch.randn(300)
    leaf = torch.randn(3, 5, requires_grad=True)
    return [
        base[70:100].view(5, 6).T,
        base[80:90],
        leaf,
        leaf * 2,
        nn.Parameter(torch.randn(2, 3)),
        torch.randn(4, 1).expand(4, 6),
        torch.randn(8, 8)[::2, 1::3],
        torch.arange(12).view(3, 4).T,
        torch.tensor([True, False]),
        torch.empty(0, 3),
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.randn(3, dtype=torch.complex64),
        torch.randn(100, 100).abs().half(),
        7,
        None,
        float("-inf"),
    ]


def test_inputs_are_made_as_they_were() -> None:
    given = _views()
    gm = torch.fx.symbolic_trace(lambda x: x)
    text = repro_script(gm, describe_inputs(given), settings_of(Options()), "f", {"kind": "", "message": ""})
    facts = ast.literal_eval(text.split("CASE = ", 1)[1].split("\n\n", 1)[0])
    made = make_inputs(facts)
    for x, y in zip(given, made, strict=True):
        if not isinstance(x, torch.Tensor):
            assert x == y
            continue
        assert (x.shape, x.stride(), x.dtype, x.device) == (y.shape, y.stride(), y.dtype, y.device)
        assert (x.requires_grad, x.is_leaf, type(x)) == (y.requires_grad, y.is_leaf, type(y))
        assert x.storage_offset() % 64 == y.storage_offset() % 64 or x.requires_grad
        if x.numel() <= 64 and x.untyped_storage().nbytes() < 256 or not x.is_floating_point():
            assert torch.equal(x, y)
    assert made[0].untyped_storage().data_ptr() == made[1].untyped_storage().data_ptr()
    assert bool((made[12] >= 0).all())
    with torch.no_grad():
        made[1].fill_(9.0)
    assert int((made[0] == 9.0).sum()) == int(torch.tensor([True] * 10).sum())


def test_names_and_numbers_of_the_program_are_no_code() -> None:
    class Number(int):
        def __repr__(self) -> str:
            return "__import__('os').abort()"

    gm = torch.fx.symbolic_trace(lambda x: x)
    text = repro_script(
        gm, describe_inputs([Number(3)]), settings_of(Options()), 'f\'\n"""\'', {"kind": "'\n", "message": "\n)\n"}
    )
    facts = ast.literal_eval(text.split("CASE = ", 1)[1].split("\n\n", 1)[0])
    assert facts["name"] == 'f\'\n"""\'' and facts["inputs"] == [{"missing": "input 0: a Number"}]


def test_symbols_of_sizes_are_symbols_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scripts: list[str] = []

    def keep(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        described, settings = describe_inputs(inputs, gm), settings_of(Options())
        scripts.append(repro_script(gm, described, settings, "f", {"kind": "", "message": ""}))
        return gm.forward

    compiler.compile(lambda x: x.tanh() * x.shape[0], dynamic=True, backend=keep)(torch.randn(5, 1))
    (tmp_path / "repro.py").write_text(scripts[0])
    symbols: list[bool] = []
    lower = pipeline.lower

    def noted(gm: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
        symbols.extend(getattr(n.meta["val"], "symbolic", True) for n in gm.graph.find_nodes(op="placeholder"))
        return lower(gm, *args, **kwargs)

    monkeypatch.setattr(pipeline, "lower", noted)
    found = smelt("repro", str(tmp_path))
    assert found.exit_code == 0 and symbols and all(symbols), found.output


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "there is no"),
        ("print('hello')\n", "is no script of a report"),
        ("CASE = {'format': 1}\n", "is no script of a report"),
        ("CASE = __import__('os').abort()\n", "is no script of a report"),
        ("could not be printed: ValueError: x\n", "is no script of a report"),
        ("\x00", "is no script of a report"),
    ],
)
def test_invalid_report_is_refused(text: str | None, told: str, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    if text is not None:
        folder.mkdir()
        (folder / "repro.py").write_text(text)
    for command in ("repro", "minify"):
        found = smelt(command, str(folder))
        assert found.exit_code == 2 and told in found.output, found.output


def _script(**changed: Any) -> str:
    gm = torch.fx.symbolic_trace(lambda x: x.tanh())
    text = repro_script(gm, describe_inputs([torch.ones(3)]), settings_of(Options()), "f", {"kind": "", "message": ""})
    head, rest = text.split("CASE = ", 1)
    literal, rest = rest.split("\n\n", 1)
    return f"{head}CASE = {ast.literal_eval(literal) | changed!r}\n\n{rest}"


def test_an_operator_that_is_not_registered_here_is_named(tmp_path: Path) -> None:
    file = tmp_path / "repro.py"
    file.write_text(_script().replace("x.tanh()", "torch.ops.smelt_nowhere.twice(x)"))
    for command in ("repro", "minify"):
        found = smelt(command, str(file))
        assert found.exit_code == 2 and "smelt_nowhere::twice, which is not registered here" in found.output
    register = "torch.library.define('smelt_nowhere::twice', '(Tensor x) -> Tensor')\n"
    implement = "torch.library.impl('smelt_nowhere::twice', 'CompositeExplicitAutograd')(lambda x: x * 2)\n"
    file.write_text(file.read_text().replace("import torch\n", f"import torch\n{register}{implement}", 1))
    assert smelt("repro", str(file)).exit_code == 0


def test_reports_of_other_versions_and_folders(tmp_path: Path) -> None:
    file = tmp_path / "repro.py"
    file.write_text(_script())
    assert smelt("repro", str(file)).exit_code == 0
    file.write_text(_script(smelt="0.0.1"))
    other = smelt("repro", str(file))
    assert other.exit_code == 0 and "written by smelt 0.0.1" in other.output
    for changed, told in (
        ({"format": 99}, "of another version"),
        ({"missing": ["functions['f']: <function f>"]}, "cannot run by itself"),
        ({"backend": "mine"}, "was registered by the program"),
        ({"buffers": []}, "cannot be made here"),
        ({"buffers": [{"numel": 3, "dtype": "float32", "device": "nowhere:0", "seed": 0}]}, "cannot be made here"),
    ):
        file.write_text(_script(**changed))
        found = smelt("repro", str(file))
        assert found.exit_code == 2 and told in found.output, found.output


def test_a_report_of_a_capture_error_states_that_it_has_no_graph(tmp_path: Path) -> None:
    (tmp_path / "traceback.txt").write_text("Traceback")
    found = smelt("repro", str(tmp_path))
    assert found.exit_code == 2 and "capture itself failed" in found.output


CHECKED = """
import sys
import torch

@torch.compile
def f(x, w):
    y = x @ w
    torch.nn.functional.dropout(y, 0.5)
    z = y.exp()
    z = z.tanh() + y.abs()
    x.detach().add_(1)
    return z * y

x = torch.randn(4, 5, requires_grad=True)
try:
    for _ in range(2):
        f(x, torch.randn(5, 6)).sum().backward()
except Exception:
    print("caught")
print("done")
if "own" in sys.argv:
    sys.exit(7)
"""


Checked = Callable[..., Result]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Checked]:
    """Runs the script in this process, which is then as it was."""
    for name, value in (("argv", [*sys.argv]), ("path", [*sys.path])):
        monkeypatch.setattr(sys, name, value)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    script = tmp_path / "script.py"
    script.write_text(CHECKED)
    yield lambda *args: smelt("check", str(script), *args)
    compiler.uninstall()


def test_check_goes_through_a_right_program_and_keeps_its_exit_status(
    check: Checked,
) -> None:
    right = check("own")
    assert right.exit_code == 7 and right.stdout == "done\n", right.output
    assert "2 calls of 1 graph agree with eager" in right.stderr
    assert driver.beside is None


def test_check_names_the_first_line_whose_gradient_differs(
    check: Checked, lenient: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(target.FLOAT_OPS, "sign", "-m_sign({0})")
    wrong = check()
    assert wrong.exit_code == 3 and wrong.stdout == "", wrong.output
    assert "first: abs_1, gradient of input 0: error" in wrong.stderr
    assert f"script.py:{LINE}\n" in wrong.stderr


LINE = 1 + CHECKED.splitlines().index("    z = z.tanh() + y.abs()")


def test_check_names_the_line_of_a_wrong_result_which_becomes_small(
    check: Checked, lenient: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        rendering("m_sigmoid({0})")(patch)
        wrong = check()
        assert wrong.exit_code == 3 and "first: tanh, result 0: error" in wrong.stderr, wrong.output
        assert f"script.py:{LINE}\n" in wrong.stderr
        made = smelt("minify", str(lenient / "f_differs"), "--out", str(tmp_path / "small.py"))
        assert made.exit_code == 0 and "1 operation on 1 input" in made.output, made.output
        small = smelt("repro", str(tmp_path / "small.py"))
        assert small.exit_code == 1 and "still fails: wrong result" in small.output
    assert smelt("repro", str(tmp_path / "small.py")).exit_code == 0


def test_check_refuses_a_script_that_is_not_there() -> None:
    found = smelt("check", "no_such_script.py")
    assert found.exit_code == 2 and "there is no file" in found.output
