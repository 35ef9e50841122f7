"""`smelt explain`: a script as it is, then what became of it; whatever the script does."""

from __future__ import annotations

import html
import io
import linecache
import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import smelt
from smelt.abi.ceilings import Ceilings
from smelt.base.errors import BuildError
from smelt.cli.explain import explain_script, write_whole
from smelt.cli.main import app
from smelt.page import page as pages

KNOWN = """
    import sys, time, torch

    def rest(y):
        time.sleep(0)
        return y * 2

    @torch.compile
    def f(x):
        y = x.sin() + 1
        return rest(y).sum()

    for n in (3, 4, 4):
        print("result", f(torch.ones(n)).item())
"""


@pytest.fixture(autouse=True)
def same_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a script that runs here leaves behind."""
    main, path, argv = sys.modules["__main__"], [*sys.path], sys.argv
    yield
    sys.modules["__main__"], sys.path[:], sys.argv = main, path, argv
    smelt.uninstall()


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str, name: str = "script.py", encoding: str = "utf-8") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text), encoding=encoding)
        return path

    return write


def told(capsys: Any, path: Path, *args: str) -> tuple[int, str, str]:
    status = explain_script(str(path), args, False, None)
    out, err = capsys.readouterr()
    return status, out, err


def page_of(path: Path, *args: str) -> tuple[int, str]:
    page = path.with_name("page.html")
    status = explain_script(str(path), args, False, page)
    return status, html.unescape(page.read_text())


def test_text(script: Callable[..., Path], capsys: Any) -> None:
    path = script(KNOWN)
    status, out, err = told(capsys, path)
    assert status == 0 and out.count("result") == 3 and err == ""
    assert "== f ==" in out and "a call of time.sleep" in out and f"{path}:5" in out
    assert "compiled again:" in out and "x.shape[0] was 3, is 4" in out
    assert "tensor x: float32" in out and "def residual(" in out


def test_page(script: Callable[..., Path], capsys: Any) -> None:
    path = script(KNOWN)
    status, page = page_of(path)
    assert status == 0 and page.startswith(pages.BEGIN) and page.rstrip().endswith("</html>")
    assert "y = x.sin() + 1" in page and "a call of time.sleep" in page and "kernel0" in page
    out, err = capsys.readouterr()
    assert out.count("result") == 3 and "page.html" in err and "1 break" in err
    assert [each.name for each in path.parent.iterdir() if each.suffix == ".html"] == ["page.html"]


def test_nothing_compiled(script: Callable[..., Path], capsys: Any) -> None:
    path = script("import sys\nprint(sys.argv[1:], __name__)\n")
    status, out, _ = told(capsys, path, "--html", "-m", "x")
    assert status == 0 and "['--html', '-m', 'x'] __main__" in out and "nothing was compiled" in out
    status, page = page_of(path)
    assert status == 0 and "Nothing was compiled" in page
    assert "nothing was compiled" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("raise ValueError('<b>bad</b>')", 1, "ValueError: <b>bad</b>"),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('gone')", 1, "gone"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ("1 / 0", 1, "ZeroDivisionError"),
    ],
    ids=["error", "status", "text", "interrupt", "division"],
)
def test_a_script_that_fails(script: Callable[..., Path], end: str, status: int, said: str, capfd: Any) -> None:
    path = script(textwrap.dedent(KNOWN) + f"\n{end}\n")
    found, page = page_of(path)
    assert found == status and "y = x.sin() + 1" in page
    assert (f"exit status {status}" in page) == bool(status)
    err = capfd.readouterr().err
    assert said in err and "cli/run.py" not in err


def test_syntax_error(script: Callable[..., Path], capsys: Any) -> None:
    status, page = page_of(script("def f(:\n"))
    err = capsys.readouterr().err
    assert status == 1 and "Nothing was compiled" in page and "SyntaxError" in err
    assert "Traceback" not in err and "run.py" not in err


@pytest.mark.parametrize("kind", ["lambda", "exec", "late reset", "thread", "long line", "latin", "argparse"])
def test_kinds_of_scripts(script: Callable[..., Path], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head, encoding, args = "import torch, smelt\nx = torch.ones(3)\n", "utf-8", []
    match kind:
        case "lambda":
            text, shown = "torch.compile(lambda x: x.sin() + 40)(x)", "lambda x: x.sin() + 40"
        case "exec":
            monkeypatch.setitem(linecache.cache, "<string>", (8, None, ["import os\n"], "<string>"))  # as `python -c`
            text = "exec('def f(x): return x.sin() + 1')\ntorch.compile(f)(x)"
            shown = "There is no source"
        case "late reset":
            text, shown = "torch.compile(lambda x: x.sin() + 40)(x)\nsmelt.reset()", "lambda x: x.sin() + 40"
        case "thread":
            text = "import threading, time\nf = torch.compile(lambda x: x.sin() + 40)\n"
            text += "threading.Thread(target=lambda: (time.sleep(0.3), f(x))).start()"
            shown = "lambda x: x.sin() + 40"
        case "long line":
            text, shown = f"def f(x):\n    return x + len('{'a' * 50_000}')\ntorch.compile(f)(x)", "more characters)"
        case "latin":
            head, encoding = "# -*- coding: latin-1 -*-\n" + head, "latin-1"
            text, shown = "def f(x):\n    return x.sin() + len('größe')\ntorch.compile(f)(x)", "größe"
        case _:
            args = ["--n", "5"]
            text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--n', type=int)\n"
            text += "if __name__ == '__main__':\n    n = p.parse_args().n\n    torch.compile(lambda x: x * n)(x)"
            shown = "lambda x: x * n"
    status, page = page_of(script(head + text + "\n", encoding=encoding), *args)
    assert status == 0 and shown in page
    assert len(page) < 200_000


def test_closed_streams(script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for end in ("sys.exit('gone')", "1 / 0"):
        monkeypatch.setattr(sys, "stderr", closed)
        monkeypatch.setattr(sys, "stdout", closed)
        path = script("import sys, torch\ntorch.compile(lambda x: x.sin() + 40)(torch.ones(3))\n" + end)
        status, page = page_of(path)
        monkeypatch.undo()
        assert status == 1 and "sin() + 40" in page


def test_a_forked_child_writes_nothing(script: Callable[..., Path]) -> None:
    child = "import os\nif os.fork() == 0:\n    os._exit(0)\nos.wait()\n"
    status, page = page_of(script(textwrap.dedent(KNOWN) + child))
    assert status == 0 and "y = x.sin() + 1" in page


def test_a_process_of_its_own(script: Callable[..., Path]) -> None:
    """A closed stream, a child of multiprocessing, threads and a script that ends by an exit status, at once."""
    text = """
        import multiprocessing, sys, torch

        def work(n):
            f = torch.compile(lambda x: x.cos() * n)
            return f(torch.ones(2)).sum().item()

        if __name__ == "__main__":
            with multiprocessing.get_context("fork").Pool(1) as pool:
                print(pool.map(work, [1, 2]), flush=True)
            torch.compile(lambda x: x.sin() + 40)(torch.ones(3))
            sys.stdout.close()
            sys.exit(5)
    """
    path = script(text)
    page = path.with_name("page.html")
    command = [sys.executable, "-c", "from smelt.cli.main import app; app()", "explain", "--html", str(page), str(path)]
    environment = os.environ | {"PYTHONPATH": str(Path(smelt.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 5, done.stderr
    assert done.stdout.count("[") == 1 and "Traceback" not in done.stderr
    assert done.stderr.count("page.html") == 1 and "sin() + 40" in html.unescape(page.read_text())


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["explain", *arguments])


def test_paths_are_looked_at_before_the_script_runs(script: Callable[..., Path], tmp_path: Path) -> None:
    path = script("raise SystemError('ran')\n")
    for page, why in (
        (tmp_path / "none" / "x.html", "there is no folder"),
        (tmp_path, "is a folder"),
        (path, "no HTML page"),
    ):
        result = run("--html", str(page), str(path))
        told = " ".join(result.output.replace("│", " ").split())  # long paths are broken into lines of a box
        assert result.exit_code == 2 and why in told, result.output
    assert "ran" in path.read_text()
    result = run("--html", str(tmp_path / "x.html"), str(tmp_path / "missing.py"))
    assert result.exit_code == 2 and "there is no file" in " ".join(result.output.split())
    assert not (tmp_path / "x.html").exists()


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.html"
    write_whole(page, "one")
    assert stat.S_IMODE(page.stat().st_mode) == 0o666 & ~_umask()
    os.chmod(page, 0o640)
    write_whole(page, "two \udcff")
    assert page.read_text() == "two \\udcff" and stat.S_IMODE(page.stat().st_mode) == 0o640

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError):
        write_whole(page, "three")
    assert page.read_text().startswith("two") and [*tmp_path.iterdir()] == [page]


def test_a_page_that_cannot_be_written_is_reported(script: Callable[..., Path], monkeypatch: Any, capsys: Any) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = script("raise SystemExit(3)\n")
    monkeypatch.setattr(os, "replace", fail)
    assert explain_script(str(path), [], False, path.with_name("p.html")) == 3
    assert "No space left" in capsys.readouterr().err
    assert explain_script(str(script("pass\n")), [], False, path.with_name("p.html")) == 1


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to(tmp_path / "real.html")
    write_whole(tmp_path / "link.html", "x")
    assert (tmp_path / "link.html").is_symlink() and (tmp_path / "real.html").read_text() == "x"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_explain_in_python() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 3).sum()

    x = torch.ones(4, requires_grad=True)
    found = smelt.explain(fn)(x)
    before = html.unescape(found.html())
    assert "return (x.sin() * 3).sum()" in before and "kernel0" in before and "1 call" in before
    found.result.backward()
    assert x.grad is not None and torch.allclose(x.grad, 3 * x.detach().cos())
    assert "backward" in html.unescape(found.html("again"))


NAMES = """
    import types, torch, smelt

    ESCAPES = "\\x1b]0;title\\x07\\x1b[2J\\r\\x08\\x9b31m\\u202e\\nforged: line"

    @smelt.disable
    def opaque(*args):
        return args

    class Kind:
        pass

    Kind.__qualname__ = Kind.__module__ = ESCAPES

    def inner(x):
        opaque()
        return x

    inner.__name__ = inner.__qualname__ = inner.__module__ = ESCAPES
    scope = {"opaque": opaque, "inner": inner, "__name__": ESCAPES}
    exec(compile("def f(x, o): y = x * o.k; opaque(y); return inner(y) + 1", ESCAPES, "exec"), scope)
    code = scope["f"].__code__.replace(co_name=ESCAPES, co_qualname=ESCAPES)
    run = torch.compile(types.FunctionType(code, scope, ESCAPES))
    for n in range(12):
        kind = Kind()
        kind.k = n
        kind.__dict__[ESCAPES] = n
        run(torch.ones(n + 2), kind)
"""


def test_names_cannot_steer_a_terminal(script: Callable[..., Path], capsys: Any, monkeypatch: Any) -> None:
    """Nor forge a line of what is told: in the text, in logs, in warnings."""
    monkeypatch.setenv("SMELT_LOG", "graphs,breaks,recompiles,attempts,sizes")
    monkeypatch.delenv("SMELT_STRICT")
    status, out, err = told(capsys, script(NAMES))
    assert status == 0 and "31m" in out and "31m" in err
    for text in (out, err):
        assert all(each.isprintable() for each in text.splitlines()), ascii(text)
    assert "\nforged" not in out


def test_times_are_compared_with_the_limits_of_the_machine(
    script: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Ceilings("this machine", ((1, 1e9),), {"float32": 1e9}, 1e9)
    monkeypatch.setattr("smelt.cli.explain.ceilings", lambda device: known)
    path = script(KNOWN)
    assert explain_script(str(path), [], False, None, perf=True) == 0
    shown = capsys.readouterr().out
    assert "this machine: memory" in shown and "script.py:10 sin+add" in shown and "bound by" in shown
    page = path.with_suffix(".html")
    assert explain_script(str(path), [], False, page, perf=True) == 0
    assert "% of the limit" in page.read_text()


def test_limits_without_a_compiler_or_a_program(
    script: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(device: torch.device) -> Ceilings:
        raise BuildError("no C++ compiler was found")

    monkeypatch.setattr("smelt.cli.explain.ceilings", refused)
    assert explain_script(str(script("print(1)")), [], False, None, perf=True) == 0
    assert "nothing was compiled" in capsys.readouterr().out
    assert explain_script(str(script(KNOWN)), [], False, None, perf=True) == 1
    assert "no C++ compiler was found" in capsys.readouterr().err
    page = script(KNOWN).with_suffix(".html")
    assert explain_script(str(script(KNOWN)), [], False, page, perf=True) == 1
    assert "no C++ compiler was found" in capsys.readouterr().err and "script.py" in page.read_text()
