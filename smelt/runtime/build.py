"""Generated C++ in, loaded shared objects out. Each distinct source is compiled once and kept in the store.

The key covers everything that decides the machine code: source, flags, compiler, processor features, OpenMP runtime.
A process that finds all its kernels in the store starts no compiler, not even to ask for its version.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from smelt.base.errors import BuildError
from smelt.base.options import environment
from smelt.base.store import content_key, store
from smelt.base.version import VERSION
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
"""Flags of every build. None changes a floating-point value beyond contracting a*b+c, the compilers' default."""

_HINT = "install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; conda: gxx) or set CXX"
_lock = threading.Lock()
_libraries: dict[str, Library] = {}


class Library:
    """A loaded shared object. It stays loaded for the life of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = ctypes.CDLL(str(path))

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
    process: subprocess.Popen[bytes] | None = None

    @property
    def text(self) -> Path:
        return self.folder / f"{self.key[:16]}.cpp"

    @property
    def built(self) -> Path:
        return self.folder / f"{self.key[:16]}.so"


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
            if key not in _libraries and key not in missing:
                path = store().get_library("kernels", key)
                if path is None:
                    missing[key] = source
                else:
                    _libraries[key] = Library(path)
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
            version = _version(os.path.realpath(path))
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
    """First line of `path --version`, remembered in the store under the file's identity."""
    state = os.stat(path)
    key = content_key(path, str(state.st_size), str(state.st_mtime_ns))
    known = store().get_text("compiler", key)
    if known is None:
        ran = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise BuildError(f"{path} --version failed", why=ran.stderr.strip() or None, hint=_HINT)
        known = ran.stdout.splitlines()[0]
        store().put_text("compiler", key, known)
    return known


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
    with tempfile.TemporaryDirectory(prefix="smelt-build-") as name:
        jobs = [_Job(source, key, Path(name)) for key, source in missing.items()]
        _run_all(jobs, compiler, flags)
        for job in jobs:
            # loaded before the folder goes away: when nothing can be stored, the path is the built file itself
            library = Library(store().put_library("kernels", job.key, job.built))
            with _lock:
                _libraries.setdefault(job.key, library)


def _run_all(jobs: list[_Job], compiler: Compiler, flags: Sequence[str]) -> None:
    """Run the compiler on every job, as many at a time as there are processors."""
    waiting = list(reversed(jobs))
    running: list[_Job] = []
    try:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                job = waiting.pop()
                job.process = _start(job, compiler, flags)
                running.append(job)
            job = running.pop(0)
            assert job.process is not None
            _, errors = job.process.communicate()
            if job.process.returncode != 0:
                raise _refused(job, compiler, errors.decode(errors="replace"))
    finally:
        for job in running:
            assert job.process is not None
            job.process.kill()
            job.process.communicate()


def _start(job: _Job, compiler: Compiler, flags: Sequence[str]) -> subprocess.Popen[bytes]:
    job.text.write_text(job.source)
    command = [compiler.path, *FLAGS, *compiler.flags, *flags, str(job.text), *_link(compiler), "-o", str(job.built)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def _refused(job: _Job, compiler: Compiler, errors: str) -> BuildError:
    lines = errors.strip().splitlines()
    shown = "\n".join(lines[:30])
    return BuildError(f"{compiler.path} refused a generated kernel:\n{shown}", why=f"compiler: {compiler.version}")
