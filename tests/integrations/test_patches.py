"""`smelt.install()` and `smelt run`: programs that call torch.compile, compiled by smelt."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.integrations import patches


@pytest.fixture
def installed() -> Iterator[None]:
    smelt.uninstall()
    own = torch.compile
    smelt.install()
    yield
    smelt.uninstall()
    assert torch.compile is own


X = torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"backend": "inductor"},
        {"backend": "smelt"},
        {"mode": "reduce-overhead"},
        {"dynamic": True, "fullgraph": True},
    ],
    ids=str,
)
def test_calls_come_here(installed: None, kwargs: dict[str, Any]) -> None:
    smelt.install()  # once more changes nothing
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    run = torch.compile(model, **kwargs)
    assert smelt.is_compiled(run)
    torch.testing.assert_close(run(X), model(X))

    @torch.compile(**kwargs)
    def decorated(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    torch.testing.assert_close(decorated(X), X.sin() + 1)
    assert smelt.stats()["graphs"] == 2


def test_a_module_compiles_itself(installed: None) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    want = model(X)
    model.compile()
    torch.testing.assert_close(model(X), want)
    model(X).sum().backward()
    assert smelt.stats()["graphs"] == 1 and list(model.state_dict()) == ["0.weight", "0.bias"]


def test_other_backends_pass_through(installed: None) -> None:
    seen: list[Any] = []

    def own(gm: Any, inputs: Any) -> Any:
        seen.append(gm)
        return gm.forward

    for backend in (own, "eager"):
        torch.testing.assert_close(torch.compile(lambda x: x * 2, backend=backend)(X), X * 2)
    assert len(seen) == 1 and smelt.stats()["graphs"] == 0
    if hasattr(torch.compiler, "set_default_backend"):
        torch.compiler.set_default_backend("eager")
        try:
            assert not smelt.is_compiled(torch.compile(lambda x: x * 3))
        finally:
            torch.compiler.set_default_backend(None)
        assert smelt.is_compiled(torch.compile(lambda x: x * 3))


def test_options_of_torchs_backend_warn_and_are_ignored(installed: None) -> None:
    patches._warn_unknown.cache_clear()
    options = {"triton.cudagraphs": True, "max_autotune": False}
    with pytest.warns(smelt.SmeltWarning, match="triton.cudagraphs"):
        run = torch.compile(lambda x: x.cos(), options=options)
    torch.testing.assert_close(run(X), X.cos())
    with pytest.raises(smelt.OptionError):
        torch.compile(lambda x: x, backend="smelt", options={"triton.cudagraphs": True})
    with pytest.raises((RuntimeError, smelt.OptionError)):
        torch.compile(lambda x: x, mode="default", options={"max_autotune": True})


def test_compiled_functions_work_after_uninstall() -> None:
    smelt.uninstall()
    own = torch.compile
    smelt.install()
    kept = torch.compile
    run = kept(lambda x: x * 2 + 1)
    smelt.uninstall()
    smelt.uninstall()
    torch.testing.assert_close(run(X), X * 2 + 1)
    assert not smelt.is_compiled(torch.compile(lambda x: x, backend="eager"))
    assert torch.compile is own
    torch.testing.assert_close(kept(lambda x: x * 2, backend="eager")(X), X * 2)


# -- smelt run


def ran(folder: Path, text: str, *args: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(text)
    (folder / "beside.py").write_text("WORD = 'beside'\n")
    command = [sys.executable, "-c", "from smelt.cli.main import app; app()", "run", *before]
    path = os.pathsep.join(p for p in [str(Path(smelt.__file__).parent.parent), os.environ.get("PYTHONPATH", "")] if p)
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([*command, *args], cwd=folder, env=env, capture_output=True, text=True, timeout=300)


SCRIPT = """
import sys, time
import torch
import beside

@torch.compile
def f(x):
    y = x.sin()
    time.sleep(0)
    return y * 2

print(beside.WORD, sys.argv, __name__, f(torch.zeros(3)).tolist())
if len(sys.argv) > 1 and sys.argv[1] == "--fail":
    raise ValueError("of the script")
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else None)
"""


AFTER_ITS_END = """
import atexit, os, pickle, sys, threading, time

class Data: pass

def late(who):
    print(who, type(pickle.loads(pickle.dumps(Data()))) is Data)

os.chdir("/")
print(os.path.exists(__file__), os.path.isabs(sys.path[0]), sys.argv[1:])
import beside
atexit.register(late, "atexit")
threading.Thread(target=lambda: (threading.main_thread().join(), late("thread"))).start()
"""


@pytest.mark.parametrize("args", [("script.py", "-m"), ("-m", "script", "-m"), ("script.zip", "-m")], ids=str)
def test_main_is_the_script_after_its_end_and_elsewhere(tmp_path: Path, args: tuple[str, ...]) -> None:
    """The process had smelt's own `__main__` again, relative paths led nowhere after `os.chdir`."""
    with zipfile.ZipFile(tmp_path / "script.zip", "w") as archive:
        archive.writestr("__main__.py", AFTER_ITS_END.replace("os.path.exists(__file__)", "'.zip' in __file__"))
        archive.writestr("beside.py", "")
    done = ran(tmp_path, AFTER_ITS_END, str(tmp_path / args[0]) if "zip" in args[0] else args[0], *args[1:])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True True ['-m']", "thread True", "atexit True"], done.stderr


def test_a_script_from_standard_input(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'beside'\n")
    command = [sys.executable, "-m", "smelt", "run", "--saved", "-", "0", "-m"]
    env = {**os.environ, "PYTHONPATH": str(Path(smelt.__file__).parent.parent)}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, input=SCRIPT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "beside ['-', '0', '-m'] __main__ [0.0, 0.0, 0.0]\n"
    assert "smelt: 2 graphs, 1 break" in done.stderr and "<stdin>:9" in done.stderr, done.stderr
    assert "time saved: " in done.stderr and "not known" not in done.stderr, done.stderr


def test_a_script_runs_as_it_is(tmp_path: Path) -> None:
    done = ran(tmp_path, SCRIPT, "script.py", "7", "--quiet", "-m")
    assert done.returncode == 7, done.stderr
    assert done.stdout == "beside ['script.py', '7', '--quiet', '-m'] __main__ [0.0, 0.0, 0.0]\n"
    assert "smelt: 2 graphs, 1 break, 0 recompiles, 0 fallbacks; compiled for" in done.stderr
    assert "break: a call of time.sleep" in done.stderr and "script.py:9" in done.stderr


def test_a_script_that_fails(tmp_path: Path) -> None:
    done = ran(tmp_path, SCRIPT, "script.py", "--fail", before=("--quiet",))
    assert done.returncode == 1
    assert "ValueError: of the script" in done.stderr and 'script.py", line 14' in done.stderr
    assert "runpy" not in done.stderr and "smelt:" not in done.stderr


@pytest.mark.parametrize(
    ("end", "status"),
    [("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT), ("sys.exit(130)", 130)],
    ids=["interrupt", "status"],
)
def test_a_script_ends_by_an_interrupt_as_under_python(tmp_path: Path, end: str, status: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"import atexit, os, signal, sys\natexit.register(print, 'the end')\n{end}\n")
    for before in ([], ["-m", "smelt", "run"]):
        done = subprocess.run([sys.executable, *before, str(script)], capture_output=True, text=True, timeout=120)
        assert done.returncode == status and done.stdout == "the end\n", (before, done)
        assert done.stderr.count("KeyboardInterrupt") == (status != 130)


def test_modules_and_missing_files(tmp_path: Path) -> None:
    done = ran(tmp_path, SCRIPT, "-m", "script", "3")
    assert done.returncode == 3, done.stderr
    (tmp_path / "folder").mkdir()
    done = ran(tmp_path, SCRIPT, "folder")  # without a __main__.py
    assert done.returncode == 2 and "there is no file folder" in done.stderr
    (tmp_path / "folder" / "__main__.py").write_text("import beside, sys; print(sys.argv, __name__)")
    (tmp_path / "folder" / "beside.py").touch()
    done = ran(tmp_path, SCRIPT, "folder", "-m")
    assert done.returncode == 0 and done.stdout == "['folder', '-m'] __main__\n", done.stderr
    done = ran(tmp_path, SCRIPT, "no_such.py")
    assert done.returncode == 2 and "no_such.py" in done.stderr


TIMED = """
import sys, time, torch, smelt

@torch.compile
def f(x):
    return x + 1

f(torch.ones(3))
print("arguments", sys.argv[1:])
if "--slow" in sys.argv:
    time.sleep(0 if smelt.stats()["graphs"] else 1.5)
if "--twice" in sys.argv:
    open(sys.argv[-1], "x")
"""


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_the_time_saved_is_that_of_a_run_in_eager(quiet: list[str], tmp_path: Path) -> None:
    done = ran(tmp_path, TIMED, "script.py", "--slow", "two words", before=("--saved", *quiet))
    assert done.returncode == 0 and done.stdout.count("arguments ['--slow', 'two words']") == 1
    found = re.search(
        r"time saved: (-?[0-9.]+) s [(]([0-9.]+) s, ([0-9.]+) s of them compiling; in eager ([0-9.]+) s", done.stderr
    )
    assert found is not None, done.stderr
    saved, seconds, compiling, eager = map(float, found.groups())
    assert eager >= 1.5 and compiling <= seconds and saved == pytest.approx(eager - seconds, abs=0.11)
    assert ("1 graph" in done.stderr) is not bool(quiet)


def test_a_script_that_fails_is_not_run_again(tmp_path: Path) -> None:
    done = ran(tmp_path, TIMED + "sys.exit(3)", "script.py", before=("--saved",))
    assert done.returncode == 3 and "time saved" not in done.stderr


def test_a_script_that_cannot_run_twice_is_reported(tmp_path: Path) -> None:
    done = ran(tmp_path, TIMED, "script.py", "--twice", str(tmp_path / "made"), before=("--saved",))
    assert done.returncode == 0 and "time saved: not known" in done.stderr


SPAWNS = """
import multiprocessing, sys, torch

@torch.compile
def doubled(x):
    return x * 2

def work(queue):
    import smelt
    result = doubled(torch.ones(3)).tolist()
    queue.put((result, smelt.stats()["graphs"], "torch._dynamo" in sys.modules))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
    print(process.exitcode)
"""


def test_processes_that_a_script_spawns_compile_with_smelt(tmp_path: Path) -> None:
    """They import the script anew, in a process in which nothing was installed."""
    done = ran(tmp_path, SPAWNS, "script.py")
    assert done.returncode == 0 and done.stdout.splitlines() == ["([2.0, 2.0, 2.0], 1, False)", "0"], done.stderr
