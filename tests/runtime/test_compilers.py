"""Compilers that misbehave: servers that they leave, much output, a version that never comes; one build a kernel."""

from __future__ import annotations

import ctypes
import gc
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from smelt.base.errors import BuildError
from smelt.base.store import store
from smelt.runtime import build as module
from smelt.runtime.build import build, find_compiler
from smelt.runtime.compiler_process import CompilerGroup, CompilerProcess

SOURCE = 'extern "C" long answer() { return 42; }'


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_libraries", {})
    find_compiler.cache_clear()
    yield
    find_compiler.cache_clear()


def use(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str, version: str = "echo wrapped 1.0; exit 0") -> Path:
    """A compiler that is a script: `body` runs for all but `--version`; `$real` is the real one, also a command."""
    path = folder / "g++"
    real = shlex.quote(find_compiler().path)
    alone = '[ -z "$LD_PRELOAD" ] || { unset LD_PRELOAD; exec "$0" "$@"; }'  # a sanitizer is not for tools
    path.write_text(f'#!/bin/sh\n{alone}\nreal={real}\ncase "$*" in *--version*) {version};; esac\n{body}\n')
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    find_compiler.cache_clear()
    return path


def answer(library: module.Library) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_long)(library.address("answer"))()


def is_alive(mark: Path) -> bool:
    mark.unlink(missing_ok=True)
    time.sleep(0.5)
    return mark.exists()


LOOP = "while :; do sleep 0.05; touch {mark}; done"


@pytest.mark.parametrize("start", ["", "setsid "])
def test_a_server_that_a_compiler_leaves_does_not_keep_a_build_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """It has the compiler's standard error (sccache, distcc's pump mode)."""
    use(monkeypatch, tmp_path, f'{start}sleep 60 &\nexec $real "$@"')
    started = time.monotonic()
    assert answer(build([SOURCE])[0]) == 42
    assert time.monotonic() - started < 40


def test_processes_left_by_a_compiler_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "mark"
    use(monkeypatch, tmp_path, f'( {LOOP.format(mark=mark)} ) >/dev/null 2>&1 &\nexec $real "$@"')
    assert answer(build([SOURCE])[0]) == 42
    assert not is_alive(mark)


@pytest.mark.parametrize("stream", [1, 2])
def test_only_the_beginning_of_compiler_output_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: int
) -> None:
    use(monkeypatch, tmp_path, f"echo first >&2; head -c 200000000 /dev/zero >&{stream}; exit 1")
    with pytest.raises(BuildError, match="first") as raised:
        build([SOURCE])
    assert len(str(raised.value)) < 100_000


@pytest.mark.parametrize(
    ("end", "told"),
    [("kill -SEGV $$", "ended by SIGSEGV"), ("kill -ABRT $$", "ended by SIGABRT"), ("exit 3", "exit status 3")],
)
def test_the_exit_status_of_a_silent_compiler_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, told: str
) -> None:
    use(monkeypatch, tmp_path, end)
    with pytest.raises(BuildError, match=told):
        build([SOURCE])


@pytest.mark.parametrize("output", ["yes", "yes >&2", "sleep 100 & wait", "trap '' TERM INT HUP; sleep 100"])
def test_a_process_that_goes_on_ends_in_time(output: str) -> None:
    process = CompilerProcess(["/bin/sh", "-c", output], 0.5)
    assert process.wait() != 0 and process.timed_out
    assert len(process.output) + len(process.errors) < 1_000_000


def test_a_thread_that_takes_no_signals_hears_of_the_end() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        process = CompilerProcess(["/bin/sh", "-c", "sleep 0.1; exit 3"], 5.0)
        assert process.wait() == 3 and not process.timed_out
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_reasons_for_an_unknown_compiler_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = 'i=0; while [ $i -lt 99 ]; do echo "Configured with: --prefix=/usr" >&2; i=$((i + 1)); done'
    use(monkeypatch, tmp_path, "exit 1", version=f'{said}; echo "cannot execute as" >&2; exit 1')
    with pytest.raises(BuildError, match="cannot execute as"):
        build([SOURCE])


def test_a_process_that_ended_before_the_check_did_not_time_out() -> None:
    process = CompilerProcess(["/bin/sh", "-c", "exit 3"], 0.01)
    time.sleep(1.0)
    assert process.wait() == 3 or process.timed_out  # the machine may be busy
    process = CompilerProcess(["/bin/sh", "-c", "exit 3"], 1.0)
    time.sleep(1.5)
    assert process.wait() == 3 and not process.timed_out


def test_a_version_that_never_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "mark"
    use(monkeypatch, tmp_path, "exit 1", version=f"( {LOOP.format(mark=mark)} ) & wait")
    monkeypatch.setattr(module, "_VERSION_S", 0.5)
    with pytest.raises(BuildError, match="did not end within 0.5 s"):
        build([SOURCE])
    assert not is_alive(mark)


def test_temporary_files_of_a_compiler_are_in_its_removed_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, tmp_path, f'echo "$TMPDIR" > {tmp_path}/told; exec $real "$@"')
    build([SOURCE])
    folder = Path((tmp_path / "told").read_text().strip())
    assert folder.name.startswith("smelt-build-") and not folder.exists()


def program(code: str, **variables: object) -> subprocess.Popen[str]:
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True)


BUILD = f"from smelt.runtime.build import build; build([{SOURCE!r}])"


def test_one_process_of_several_runs_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = use(monkeypatch, tmp_path, f'echo run >> {tmp_path}/runs; sleep 3; exec $real "$@"')
    code = f"import sys, pathlib; from smelt.runtime.build import build; sys.stdin.readline(); build([{SOURCE!r}])"
    running = [
        subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "CXX": str(path)}, stdin=subprocess.PIPE)
        for _ in range(3)
    ]
    for process in running:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
    assert [process.wait() for process in running] == [0, 0, 0]
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_wait_for_many_kernels_has_one_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [SOURCE.replace("42", str(number)) for number in range(6)]
    monkeypatch.setenv("SMELT_BUILD_TIMEOUT_S", "2")
    compiled: list[str] = []

    def built(sources: dict[str, str], *_: object) -> Iterator[None]:
        compiled.extend(sources)
        yield from ()

    monkeypatch.setattr(module, "_built", built)
    keys = {module._key(source, find_compiler(), ()): source for source in sources}
    held = [store().building("kernels", key) for key in keys]
    for each in held:
        assert each.__enter__()
    started = time.monotonic()
    module._compile(keys, find_compiler(), (), {})
    assert set(compiled) == set(keys) and time.monotonic() - started < 8
    for each in held:
        each.__exit__(None, None, None)


def test_an_interrupt_ends_a_wait_for_another_process(tmp_path: Path) -> None:
    key = module._key(SOURCE, find_compiler(), ())
    code = f"""
import sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from smelt.runtime.build import build
from smelt.runtime.compiler_process import CompilerGroup
with ThreadPoolExecutor(1) as pool, CompilerGroup():
    future = pool.submit(copy_context().run, build, [{SOURCE!r}])
    time.sleep(0.5)
    print("waiting", file=sys.stderr, flush=True)
    future.result()
"""
    with store().building("kernels", key) as alone:
        assert alone
        process = program(code)
        assert process.stderr is not None and process.stderr.readline() == "waiting\n"
        started = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.wait()
    assert time.monotonic() - started < 10  # a second on an idle machine; the time limit is 120


def test_a_fork_does_not_keep_the_compilers_of_a_killed_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    code = f"""
import os, signal, sys, time
from smelt.runtime.compiler_process import CompilerProcess
process = CompilerProcess(["/bin/sh", "-c", {LOOP.format(mark=mark)!r}], 100)
child = os.fork()
if child == 0:
    time.sleep(100)
print(child, file=sys.stderr, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    process = program(code)
    assert process.stderr is not None
    child = int(process.stderr.readline())
    process.wait()
    time.sleep(0.3)
    try:
        assert not is_alive(mark)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("thing", ["mkfifo", "mkdir", "ln -s /dev/zero", "true"])
def test_compiler_output_that_is_no_regular_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thing: str
) -> None:
    use(monkeypatch, tmp_path, f'for last; do :; done; [ -e "$last" ] || {thing} "$last"; exit 0')
    with pytest.raises(BuildError, match="library that cannot be used"):
        build([SOURCE])
    assert not list(store().root.rglob("*.so"))


def test_a_library_of_another_architecture_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch = r"printf '\267\000' | dd of=\"$last\" bs=1 seek=18 conv=notrunc"  # e_machine: AArch64
    use(monkeypatch, tmp_path, f'$real "$@"; for last; do :; done; {patch}; exit 0'.replace('\\"', '"'))
    with pytest.raises(BuildError, match="library that cannot be used"):
        build([SOURCE])
    assert not list(store().root.rglob("*.so"))


@pytest.mark.parametrize("kept", [5, 30, 60, 90, 95])
def test_a_library_whose_end_was_never_filled_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """It has its length, and zeros (a disk's quota, a lost connection): the loader reads at address 0 then."""
    fill = 'size=$(stat -c %s "$last"); truncate -s $((size * PART / 100)) "$last"; truncate -s $size "$last"'
    use(monkeypatch, tmp_path, f'$real "$@"; for last; do :; done; {fill.replace("PART", str(kept))}; exit 0')
    with pytest.raises(BuildError, match="library that cannot be used"):
        build([SOURCE])
    assert not list(store().root.rglob("*.so"))


@pytest.mark.parametrize("words", ["{path}", "env {path}", "env {path} -DX", "'{path}'"])
def test_a_compiler_may_be_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    real = find_compiler().command[0]
    monkeypatch.setenv("CXX", words.format(path=real))
    find_compiler.cache_clear()
    assert answer(build([SOURCE])[0]) == 42


def test_a_path_with_a_space_is_one_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my compilers").mkdir()
    use(monkeypatch, tmp_path / "my compilers", 'exec $real "$@"')
    assert answer(build([SOURCE])[0]) == 42


def test_a_wrapper_that_adds_flags_has_kernels_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = 'extern "C" long answer() { return WHICH; }'
    for which in (1, 2):
        use(monkeypatch, tmp_path, f'exec $real -DWHICH={which} "$@"', version='exec $real "$@"')
        monkeypatch.setattr(module, "_libraries", {})
        assert answer(build([source])[0]) == which
        monkeypatch.delenv("CXX")
        find_compiler.cache_clear()


@pytest.mark.skipif(shutil.which("ccache") is None, reason="no ccache")
@pytest.mark.parametrize("how", ["copy", "link", "command"])
def test_ccache_is_known_by_the_compiler_that_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    ccache, folder = shutil.which("ccache"), tmp_path / "bin"
    assert ccache is not None
    folder.mkdir()
    if how == "copy":
        shutil.copy(ccache, folder / "g++")
    elif how == "link":
        (folder / "g++").symlink_to(ccache)
    monkeypatch.setenv("CXX", f"{ccache} g++" if how == "command" else str(folder / "g++"))
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
    first, second = tmp_path / "first", tmp_path / "second"
    for number, real in enumerate((first, second)):
        real.mkdir()
        (real / "g++").write_text(f'#!/bin/sh\ncase "$*" in *--version*) echo "g++ {number}.0";; esac\n')
        (real / "g++").chmod(0o755)
    path = os.environ["PATH"]
    for number, real in enumerate((first, second)):
        monkeypatch.setenv("PATH", f"{real}:{path}")
        find_compiler.cache_clear()
        assert find_compiler().version.startswith(f"g++ {number}.0")


def test_a_compiler_over_its_memory_limit_is_named_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, tmp_path, 'ulimit -v 60000; exec $real "$@"')
    with pytest.raises(BuildError, match="memory"):
        build(["#include <map>\n#include <regex>\n" + SOURCE])


def test_a_kernel_is_used_though_the_cache_has_no_room_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_BYTES", "1")
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "small"))
    assert answer(build([SOURCE])[0]) == 42


@pytest.mark.parametrize("name", ["with spaces", "new\nline", "ünï→", "quo'te\"s", "$HOME`id`;"])
def test_folders_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / name).mkdir(mode=0o700)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / name / "cache"))
    (library,) = build([SOURCE])
    assert answer(library) == 42 and library.path.is_relative_to(tmp_path / name)


@pytest.mark.parametrize("kind", ["noexec", "open", "missing"])
def test_where_temporary_files_go_may_be_unfit_for_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place = tmp_path / "tmp"
    if kind != "missing":
        place.mkdir(mode=0o700)
    if kind == "open":
        place.chmod(0o777)
    if kind == "noexec":
        mounted = ["mount", "-t", "tmpfs", "-o", "noexec,mode=700", "tmpfs", str(place)]
        if os.getuid() != 0 or subprocess.run(mounted, capture_output=True, check=False).returncode != 0:
            pytest.skip("nothing can be mounted here")
    monkeypatch.setattr("tempfile.tempdir", str(place))
    try:
        (library,) = build([SOURCE])
        assert answer(library) == 42 and library.path.is_relative_to(store().root)
        assert not list(store().root.glob("smelt-build-*"))
    finally:
        if kind == "noexec":
            subprocess.run(["umount", str(place)], check=True)


FULL = {
    "told": 'echo "cc1plus: fatal error: error closing x.s: No space left on device" >&2; exit 1',
    "quota": 'echo "Assembler: cannot write x.o: Disk quota exceeded" >&2; exit 1',
    "limit": "kill -XFSZ $$",
}


@pytest.mark.parametrize("how", FULL)
@pytest.mark.parametrize("everywhere", [False, True])
def test_where_temporary_files_go_may_be_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, everywhere: bool
) -> None:
    """Kernels are built in the cache then; where that is full, too, the error says which folder to change."""
    place = tmp_path / "tmp"
    place.mkdir(mode=0o700)
    monkeypatch.setattr("tempfile.tempdir", str(place))
    where = "*" if everywhere else f"{place}/*"
    use(monkeypatch, tmp_path, f'case "$TMPDIR" in {where}) {FULL[how]};; esac; exec $real "$@"')
    sources = [SOURCE, SOURCE.replace("42", "43")]
    if everywhere:
        with pytest.raises(BuildError, match="no room for its files") as caught:
            build(sources)
        assert "TMPDIR" in str(caught.value)
    else:
        assert [answer(library) for library in build(sources)] == [42, 43]
    assert not list(place.iterdir()) and not list(store().root.glob("smelt-build-*"))


def test_a_compiler_that_cannot_be_started_leaves_nothing_open() -> None:
    """Descriptors are counted over many attempts: threads of earlier tests open and close a few at any time."""
    gc.collect()  # what other tests have left open is closed
    attempts = 200
    before = len(os.listdir("/proc/self/fd"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        for _ in range(attempts):
            with pytest.raises(ValueError, match="null"):
                CompilerProcess(["a\0b"], 1.0)
        gc.collect()
    assert not told and len(os.listdir("/proc/self/fd")) < before + attempts // 2


def test_children_that_the_program_ignores(tmp_path: Path) -> None:
    process = program(f"import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); {BUILD}")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


def test_a_group_that_ended_starts_nothing_that_stays() -> None:
    with pytest.raises(KeyboardInterrupt), CompilerGroup() as group:
        group.stop()
        process = CompilerProcess(["/bin/sh", "-c", "sleep 100"], 100)
        started = time.monotonic()
        assert process.wait() != 0 and process.stopped and time.monotonic() - started < 20
        raise KeyboardInterrupt
