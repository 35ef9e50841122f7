"""Generated C++ in, loaded shared objects out. Each distinct source is compiled once and kept in the store.

The key covers everything that decides the machine code: source, flags, compiler, processor features, OpenMP runtime.
A process that finds all its kernels in the store starts no compiler, not even to ask for its version.
"""

from __future__ import annotations

import _ctypes
import ctypes
import functools
import os
import platform
import re
import shutil
import signal
import subprocess
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from smelt.base.errors import BuildError, SmeltWarning
from smelt.base.eviction import new_build_folder
from smelt.base.locks import new_lock
from smelt.base.options import Options, environment
from smelt.base.store import content_key, store
from smelt.base.version import VERSION
from smelt.runtime import elf
from smelt.runtime.compiler_process import CompilerProcess
from smelt.runtime.openmp import torch_openmp

FLAGS = (
    "-O3",
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-fno-math-errno",  # kernels never read errno: lets sqrt become one instruction
    "-fno-trapping-math",  # nor floating-point exception flags: lets comparisons and selects be vectorised
    "-fvisibility=default",
    "-w",
)
"""Flags of every build. None changes a floating-point value."""

SEPARATE = ("-ffp-contract=off",)
"""Flags of kernels whose operators round one by one, as eager's do; without them compilers contract a*b+c."""

_HINT = "install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; conda: gxx) or set CXX"
_lock = new_lock()
_libraries: dict[str, Library] = {}


class Library:
    """A loaded shared object. It stays loaded for the life of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = ctypes.CDLL(str(path))

    def close(self) -> None:
        """Unload; no function of it may be in use."""
        _ctypes.dlclose(self._handle._handle)

    def address(self, name: str) -> int:
        """The address of an exported function.

        Raises:
            BuildError: the library does not export `name`.
        """
        try:
            function = getattr(self._handle, name)
        except AttributeError as error:
            raise BuildError(f"{self.path.name} has no function {name!r}") from error
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        return address


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: `path`, its one-line `version`, and the `flags` that fit this processor and OpenMP runtime."""

    path: str
    version: str
    flags: tuple[str, ...]


@dataclass
class _Job:
    source: str
    key: str
    folder: Path

    @property
    def text(self) -> Path:
        return self.folder / f"{self.key[:16]}.cpp"

    @property
    def built(self) -> Path:
        return self.folder / f"{self.key[:16]}.so"


def flags_for(options: Options) -> tuple[str, ...]:
    """The flags of generated kernels, besides those of every build."""
    return () if options.contract else SEPARATE


def build(sources: Sequence[str], flags: Sequence[str] = ()) -> list[Library]:
    """Compile (in parallel) and load C++ sources; result i belongs to source i. Equal sources share one library.

    Args:
        sources: complete translation units; what they export must be `extern "C"`.
        flags: added to `FLAGS`.

    Raises:
        BuildError: no compiler was found, or it refused a source (the message holds the compiler's own).
    """
    compiler = find_compiler()
    keys = [_key(source, compiler, flags) for source in sources]
    missing: dict[str, str] = {}
    with _lock:
        for key, source in zip(keys, sources, strict=True):
            if key not in _libraries:
                missing[key] = source
    missing = {key: source for key, source in missing.items() if not _take_stored(key)}
    if missing:
        _compile(missing, compiler, flags)
    return [_libraries[key] for key in keys]


@functools.cache
def find_compiler() -> Compiler:
    """The compiler named by CXX, else the first of c++, g++, clang++ on the PATH.

    Raises:
        BuildError: there is none.
    """
    wanted = environment().cxx
    for name in [wanted] if wanted else ["c++", "g++", "clang++"]:
        path = shutil.which(name)
        if path is not None:
            version = _version(path)
            return Compiler(path, version, _target_flags(version))
    what = f"CXX names {wanted!r}, which is not on the PATH" if wanted else "no C++ compiler was found"
    raise BuildError(what, hint=_HINT)


@functools.cache
def cpu_features() -> str:
    """Model name and instruction-set flags of this processor, as one text."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = file.read().split("\n\n", 1)[0].splitlines()
        kept = [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
        return "\n".join(kept)
    except OSError:
        return f"{platform.machine()} {platform.processor()}"


def _version(path: str) -> str:
    """First line of the compiler's `--version`, remembered in the store under the file's identity.

    A wrapper (ccache, distcc, a script) says which compiler it runs each time: that may change, the wrapper does not.
    """
    real = os.path.realpath(path)
    if _COMPILER_NAME.search(os.path.basename(real)) is None or not _is_elf(real):
        return _ask_version(path)
    state = os.stat(real)
    key = content_key(real, str(state.st_size), str(state.st_mtime_ns))
    known = store().get_text("compiler", key)
    if known is None:
        known = _ask_version(path)
        store().put_text("compiler", key, known)
    return known


_COMPILER_NAME = re.compile(r"(g\+\+|c\+\+|clang)(-\d+(\.\d+)*)?$")


def _is_elf(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def _ask_version(path: str) -> str:
    try:
        ran = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=_VERSION_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{path} --version failed", why=str(error), hint=_HINT) from error
    if ran.returncode != 0 or not ran.stdout.strip():
        raise BuildError(f"{path} --version failed", why=ran.stderr.strip() or None, hint=_HINT)
    return ran.stdout.splitlines()[0]


_VERSION_S = 30.0
"""A compiler that has not told its version after so many seconds hangs."""


def _target_flags(version: str) -> tuple[str, ...]:
    native = "-mcpu=native" if platform.machine() in ("aarch64", "arm64", "ppc64le") else "-march=native"
    return (native, *_vector_flags(), *_openmp_flags(version))


def _vector_flags() -> tuple[str, ...]:
    # GCC and clang stay at 256-bit vectors by default; 512 wins on processors whose AVX-512 does not lower the clock
    return ("-mprefer-vector-width=512",) if "avx512" in cpu_features() else ()


def _openmp_flags(version: str) -> tuple[str, ...]:
    """Flags that compile OpenMP and link the runtime torch already loaded; none where the two do not fit."""
    runtime = torch_openmp()
    if runtime is None:
        return ()
    clang = "clang" in version
    if clang and runtime.name.startswith("libgomp"):
        return ()  # clang's OpenMP calls do not exist in libgomp: serial kernels rather than a second runtime
    return ("-Xpreprocessor", "-fopenmp") if clang and platform.system() == "Darwin" else ("-fopenmp",)


def _link(compiler: Compiler) -> list[str]:
    """Link the loaded OpenMP file itself (its soname is what the loader finds loaded), not the compiler's own copy.

    The compiler appends its own copy at the end; `--as-needed` drops it, because nothing is left for it to define.
    """
    runtime = torch_openmp()
    if runtime is None or "-fopenmp" not in compiler.flags:
        return []
    return [str(runtime)] if platform.system() == "Darwin" else ["-Wl,--as-needed", str(runtime)]


def _key(source: str, compiler: Compiler, flags: Sequence[str]) -> str:
    runtime = torch_openmp()
    parts = (*FLAGS, *compiler.flags, *flags, compiler.version, runtime.name if runtime else "no openmp")
    return content_key(VERSION, source, cpu_features(), *parts)


def _compile(missing: dict[str, str], compiler: Compiler, flags: Sequence[str]) -> None:
    """Compile what is missing: first what no other process is compiling, then what others have not made meanwhile."""
    limit = environment().build_timeout_s
    ours, theirs = ExitStack(), dict[str, str]()
    with ours:
        jobs: dict[str, str] = {}
        for key, source in missing.items():
            if ours.enter_context(store().building("kernels", key, 0.0)):
                jobs[key] = source
            else:
                theirs[key] = source
        _compile_here({key: source for key, source in jobs.items() if not _take_stored(key)}, compiler, flags)
    for key, source in theirs.items():
        with store().building("kernels", key, limit):
            if not _take_stored(key):
                _compile_here({key: source}, compiler, flags)


def _take_stored(key: str) -> bool:
    """Load a library from the store, if it is there and loads; one that does not is made again."""
    path = store().get_library("kernels", key)
    if path is None:
        return False
    try:
        library = Library(path)
    except OSError as error:
        warnings.warn(SmeltWarning(f"smelt cannot load {path} ({error}) and makes it again"), stacklevel=2)
        store().discard("kernels", key, ".so")
        return False
    with _lock:
        _libraries.setdefault(key, library)
    return True


def _compile_here(sources: dict[str, str], compiler: Compiler, flags: Sequence[str]) -> None:
    if not sources:
        return
    with new_build_folder() as name:
        jobs = [_Job(source, key, Path(name)) for key, source in sources.items()]
        _run_all(jobs, compiler, flags)
        for job in jobs:
            if _unloadable(job.built) is not None:
                _run_all([job], compiler, flags)  # a disk that was full for a moment, a wrapper's mistake
            if (problem := _unloadable(job.built)) is not None:
                raise BuildError(f"{compiler.path} wrote a library that cannot be used: {problem}", hint=_HINT)
            # loaded before the folder goes away: when nothing can be stored, the path is the built file itself
            library = Library(store().put_library("kernels", job.key, job.built))
            with _lock:
                _libraries.setdefault(job.key, library)


def _unloadable(built: Path) -> str | None:
    """Why a library does not load, or None: what is published was loaded once."""
    try:
        problem = elf.problem_of(built.read_bytes())
        if problem is None:
            Library(built).close()
    except OSError as error:
        problem = str(error)
    return problem


def _run_all(jobs: list[_Job], compiler: Compiler, flags: Sequence[str]) -> None:
    """Run the compiler on every job, as many at a time as there are processors."""
    waiting = list(reversed(jobs))
    running: list[tuple[_Job, CompilerProcess]] = []
    try:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                job = waiting.pop()
                running.append((job, _start(job, compiler, flags)))
            job, process = running[0]
            status = process.wait()
            running.pop(0)
            if status != 0:
                raise _refused(process, status, compiler)
    finally:
        for _, process in running:
            process.stop()


def _start(job: _Job, compiler: Compiler, flags: Sequence[str]) -> CompilerProcess:
    job.text.write_text(job.source)
    command = [compiler.path, *FLAGS, *compiler.flags, *flags, str(job.text), *_link(compiler), "-o", str(job.built)]
    return CompilerProcess(command, environment().build_timeout_s)


def _refused(process: CompilerProcess, status: int, compiler: Compiler) -> BuildError:
    if process.timed_out:
        what = f"{compiler.path} did not end within {process.limit_s:g} s and was stopped"
        return BuildError(what, hint="SMELT_BUILD_TIMEOUT_S allows more; CXX names another compiler")
    if process.stopped:
        return BuildError(f"{compiler.path} was stopped, as nobody waited for it any more")
    lines = process.errors.decode(errors="replace").strip().splitlines()
    shown = "\n".join(lines[:30])
    if status in (-signal.SIGKILL, 128 + signal.SIGKILL) or "Killed signal terminated" in shown:
        what = f"{compiler.path} was killed, as the system does when memory runs out"
        return BuildError(what, why=shown or None, hint="fewer processes at a time, or more memory")
    return BuildError(f"{compiler.path} refused a generated kernel:\n{shown}", why=f"compiler: {compiler.version}")
