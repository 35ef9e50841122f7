"""Compiling and loading: results, sharing, the store, errors, and only one OpenMP runtime in the process."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from smelt.base.errors import BuildError, SmeltWarning
from smelt.base.store import store
from smelt.runtime import build as module
from smelt.runtime.build import build, find_compiler
from smelt.runtime.openmp import loaded_runtimes, torch_openmp

SOURCE = """
#include <omp.h>
extern "C" long NAME(long n) {
    long sum = 0;
    #pragma omp parallel for reduction(+ : sum)
    for (long i = 0; i < n; i++) sum += i + %d;
    return sum;
}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_libraries", {})


def function(address: int):
    return ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long)(address)


def test_builds_in_parallel_and_shares_equal_sources() -> None:
    sources = [SOURCE.replace("NAME", "total") % shift for shift in (0, 1, 0)]
    first, second, again = build(sources)
    assert first is again and first is not second
    assert function(first.address("total"))(10) == 45
    assert function(second.address("total"))(10) == 55


def test_no_second_openmp_runtime() -> None:
    before = {torch_openmp(), *loaded_runtimes()}  # other packages of this process may have brought theirs
    (library,) = build([SOURCE.replace("NAME", "threads") % 7])
    function(library.address("threads"))(1000)
    assert set(loaded_runtimes()) == before


def test_store_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOURCE.replace("NAME", "kept") % 3
    build([source])
    monkeypatch.setattr(module, "_libraries", {})
    monkeypatch.setattr(module, "_compile", lambda *_: pytest.fail("compiled again"))
    (library,) = build([source])
    assert library.path.is_relative_to(store().root)
    assert function(library.address("kept"))(2) == 7


def test_flags_are_part_of_the_key() -> None:
    source = 'extern "C" long which(long) { return WHICH; }'
    (one,), (two,) = build([source], ["-DWHICH=1"]), build([source], ["-DWHICH=2"])
    assert (function(one.address("which"))(0), function(two.address("which"))(0)) == (1, 2)


def test_damaged_library_is_rebuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOURCE.replace("NAME", "mended") % 5
    (library,) = build([source])
    content = library.path.read_bytes()
    library.path.unlink()  # the loaded file stays intact: the damaged one is another file of the same name
    library.path.write_bytes(content[: len(content) // 2])
    monkeypatch.setattr(module, "_libraries", {})
    with pytest.warns(SmeltWarning, match="damaged"):
        (library,) = build([source])
    assert function(library.address("mended"))(1) == 5


def test_unwritable_cache_still_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(SmeltWarning, match="cannot use the cache directory"):
        (library,) = build([SOURCE.replace("NAME", "anyway") % 1])
    assert function(library.address("anyway"))(1) == 1


def test_refused_source_shows_the_compiler_message() -> None:
    with pytest.raises(BuildError, match="nonsense"):
        build(["int f() { return nonsense; }"])


def test_unknown_function() -> None:
    (library,) = build([SOURCE.replace("NAME", "known") % 1])
    with pytest.raises(BuildError, match="no function 'other'"):
        library.address("other")


def test_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    find_compiler.cache_clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="no-such-compiler") as raised:
        find_compiler()
    assert "g++" in str(raised.value)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildError, match="no C\\+\\+ compiler"):
        find_compiler()
    find_compiler.cache_clear()


def test_warm_process_starts_no_compiler(tmp_path: Path) -> None:
    program = """
import subprocess, sys
from smelt.runtime.build import build
if sys.argv[1] == "warm":
    def forbidden(*args, **kwargs): raise AssertionError("started a process")
    subprocess.run = subprocess.Popen = forbidden
build(['extern "C" int f() { return 1; }'])
"""
    for state in ("cold", "warm"):
        subprocess.run([sys.executable, "-c", program, state], check=True)
