"""Compiling and loading: results, sharing, the store, errors, and only one OpenMP runtime in the process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

import pytest

from smelt.base.errors import BuildError, SmeltWarning
from smelt.base.options import Options
from smelt.base.store import store
from smelt.runtime import build as module
from smelt.runtime.build import build, find_compiler
from smelt.runtime.compiler_process import CompilerGroup
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


def test_libraries_of_c_are_linked() -> None:
    source = """
        extern "C" double cbrt(double) noexcept;
        extern "C" void *memmove(void *, const void *, unsigned long) noexcept;
        extern "C" long mixed(long n) {  // of libm, libc, and of the compiler's own library: a division of 128 bits
            long copy[8] = {0, 1, 2, 3, 4, 5, 6, 7};
            memmove(copy, copy + n, 8 * (unsigned long)n);
            return (long)(((__int128)n << 100) / ((__int128)copy[0] << 98)) + (long)cbrt(27.0 * (double)n);
        }
    """
    (library,) = build([source])
    assert function(library.address("mixed"))(2) == 4 + 3


@pytest.mark.parametrize(
    ("version", "only_c"),
    [
        ("g++ (Debian 12.2.0-14+deb12u1) 12.2.0", True),
        ("x86_64-conda-linux-gnu-c++ (conda-forge gcc 13.3.0-1) 13.3.0 -m64", True),
        ("Debian clang version 14.0.6", False),
        ("Intel(R) oneAPI DPC++/C++ Compiler 2024.1.0 (2024.1.0.20240308)", False),
    ],
)
def test_only_gcc_is_told_which_libraries(monkeypatch: pytest.MonkeyPatch, version: str, only_c: bool) -> None:
    monkeypatch.setattr(module.platform, "system", lambda: "Linux")
    assert ("-nodefaultlibs" in module._link(module.Compiler(("c++",), version, ()))) == only_c


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


@pytest.mark.parametrize("cxx", ["c++", "c++ -fno-plt -g0"])
def test_warm_process_starts_no_compiler(cxx: str) -> None:
    program = """
import subprocess, sys
from smelt.runtime.build import build
if sys.argv[1] == "warm":
    def forbidden(*args, **kwargs): raise AssertionError("started a process")
    subprocess.run = subprocess.Popen = forbidden
build(['extern "C" int f() { return 1; }'])
"""
    for state in ("cold", "warm"):
        subprocess.run([sys.executable, "-c", program, state], check=True, env={**os.environ, "CXX": cxx})


SLOW = """#!/bin/sh
case "$*" in *--version*) echo "slow g++ 1.0"; exit 0;; esac
{body}
"""


def use_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> None:
    path = folder / "g++"
    path.write_text(SLOW.format(body=body))
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    find_compiler.cache_clear()


@pytest.fixture
def other_compiler() -> Iterator[None]:
    yield
    find_compiler.cache_clear()


ALIVE = "while :; do sleep 0.05; touch {mark}; done"


def is_alive(mark: Path) -> bool:
    """Whether something goes on touching a file."""
    mark.unlink(missing_ok=True)
    time.sleep(0.4)
    return mark.exists()


@pytest.mark.usefixtures("other_compiler")
def test_a_compiler_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "mark"
    loop = ALIVE.format(mark=mark)
    use_compiler(monkeypatch, tmp_path, f"( {loop} ) & wait")
    monkeypatch.setenv("SMELT_BUILD_TIMEOUT_S", "0.5")
    with pytest.raises(BuildError, match=r"did not end within 0.5 s.*\n.*SMELT_BUILD_TIMEOUT_S"):
        build(["int x;"])
    assert not is_alive(mark)


@pytest.mark.usefixtures("other_compiler")
def test_an_interrupt_ends_compilers_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "mark"
    use_compiler(monkeypatch, tmp_path, ALIVE.format(mark=mark))
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), ThreadPoolExecutor(1) as pool, CompilerGroup():
        pool.submit(copy_context().run, build, ["int x;"])
        while not mark.exists():
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert time.monotonic() - started < 60  # not the compiler's 120 s
    assert not is_alive(mark)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_compiler_outlives_a_killed_process(tmp_path: Path, how: int) -> None:
    mark, compiler = tmp_path / "mark", tmp_path / "g++"
    compiler.write_text(SLOW.format(body=ALIVE.format(mark=mark)))
    compiler.chmod(0o755)
    code = "from smelt.runtime.build import build; build(['int x;'])"
    environment = {**os.environ, "CXX": str(compiler), "SMELT_CACHE_DIR": str(tmp_path / "cache")}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    while not mark.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(how)
    process.wait()
    time.sleep(0.2)
    assert not is_alive(mark)


@pytest.mark.usefixtures("other_compiler")
@pytest.mark.parametrize("kept", [0, 20, 0.5, 0.95])
def test_truncated_library_is_never_loaded_or_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: float
) -> None:
    real = find_compiler().path
    out = 'for last; do :; done; cp "$last" "$last.whole"'
    size = f"{kept}" if kept in (0, 20) else f'$(($(stat -c %s "$last") * {int(kept * 100)} / 100))'
    use_compiler(monkeypatch, tmp_path, f'{real} "$@"; {out}; head -c {size} "$last.whole" > "$last"; exit 0')
    with pytest.raises(BuildError, match="library that cannot be used"):
        build([SOURCE.replace("NAME", "whole") % 9])
    assert not list(store().root.rglob("*.so"))


@pytest.mark.usefixtures("other_compiler")
def test_a_compiler_that_failed_once_without_saying_so_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, mark = find_compiler().path, tmp_path / "mark"
    once = f'if [ ! -e {mark} ]; then touch {mark}; for last; do :; done; echo garbage > "$last"; exit 0; fi'
    use_compiler(monkeypatch, tmp_path, f'{once}; exec {real} "$@"')
    (library,) = build([SOURCE.replace("NAME", "again") % 9])
    assert function(library.address("again"))(1) == 9


@pytest.mark.parametrize("how", ["another folder", "no folder", "evicted"])
def test_an_artefact_is_given_a_library_that_the_store_has_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    source = SOURCE.replace("NAME", "gone") % 4
    build([source])
    key = module._key(source, find_compiler(), ())
    if how == "evicted":
        store().discard("kernels", key, ".so")
    else:
        monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "other"))
    if how == "no folder":
        (tmp_path / "other").write_text("")
        with pytest.warns(SmeltWarning, match="cannot use the cache directory"):
            store()
    assert store().get("kernels", key, ".so") is None
    found, body = module.stored_library(source, Options(contract=True))
    assert found == key and store().get("kernels", key, ".so") == body
    made = tmp_path / "made.so"
    made.write_bytes(body)
    assert function(module.Library(made).address("gone"))(1) == 4


def test_an_entry_that_does_not_load_is_made_again() -> None:
    source = SOURCE.replace("NAME", "loads") % 4
    store().put("kernels", module._key(source, find_compiler(), ()), b"text with a valid checksum", ".so")
    with pytest.warns(SmeltWarning, match="cannot load"):
        (library,) = build([source])
    assert function(library.address("loads"))(1) == 4


@pytest.mark.usefixtures("other_compiler")
def test_a_wrapper_is_known_by_the_compiler_that_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiler(monkeypatch, tmp_path, "exit 1")
    assert find_compiler().version.startswith("slow g++ 1.0")
    path = Path(find_compiler().path)
    path.write_text(path.read_text().replace("1.0", "2.0"))
    find_compiler.cache_clear()
    assert find_compiler().version.startswith("slow g++ 2.0")


@pytest.mark.usefixtures("other_compiler")
def test_a_compiler_killed_for_memory_is_named_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_compiler(monkeypatch, tmp_path, "kill -KILL $$")
    with pytest.raises(BuildError, match="was killed, as the system does when memory runs out"):
        build(["int x;"])
