"""Compiles generated C++ to loaded shared objects. Each distinct source is compiled once and kept in the store.

The key covers everything that determines the machine code: source, flags, compiler, processor features, OpenMP runtime.
A process that finds all its kernels in the store starts no compiler, not even to ask for its version.
"""

from __future__ import annotations

import _ctypes
import ctypes
import errno
import functools
import os
import platform
import re
import shlex
import shutil
import signal
import time
import warnings
import weakref
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from smelt.base.errors import BuildError, SmeltWarning
from smelt.base.eviction import new_build_folder
from smelt.base.locks import new_lock
from smelt.base.options import Options, environment
from smelt.base.private_folder import read_private
from smelt.base.store import MAX_ENTRY_BYTES, content_key, store
from smelt.base.version import VERSION
from smelt.runtime import elf
from smelt.runtime.compiler_process import CompilerProcess, is_stopped
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
"""Flags of kernels whose operators round one by one, as eager's do; without these flags compilers contract a*b+c."""

_HINT = "install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; conda: gxx) or set CXX"
_lock = new_lock()
_libraries: weakref.WeakValueDictionary[str, Library] = weakref.WeakValueDictionary()
"""The libraries in use, by their key."""


class Library:
    """A loaded shared object. It is unloaded with its last reference, so users of its addresses must keep one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = ctypes.CDLL(str(path))
        self.close = weakref.finalize(self, _ctypes.dlclose, self._handle._handle)
        """Unloads the library immediately; no function of it may be in use."""
        self.close.atexit = False  # threads may still run kernels

    def address(self, name: str) -> int:
        """Returns the address of an exported function.

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
    """A C++ compiler: how it is called, its `version`, and the `flags` that fit this processor and OpenMP runtime."""

    command: tuple[str, ...]
    version: str
    flags: tuple[str, ...]

    @property
    def path(self) -> str:
        """The command as text, for messages."""
        return shlex.join(self.command)


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
    """Returns the flags of generated kernels, in addition to those of every build."""
    return () if options.contract else SEPARATE


def build(sources: Sequence[str], flags: Sequence[str] = ()) -> list[Library]:
    """Compile (in parallel) and load C++ sources; result i belongs to source i. Equal sources share one library.

    Args:
        sources: complete translation units that use libraries of C, none of C++; their exported functions must be
            `extern "C"`.
        flags: flags in addition to `FLAGS`.

    Raises:
        BuildError: no compiler was found, or it refused a source (the message contains the compiler's message).
    """
    compiler = find_compiler()
    wanted = {_key(source, compiler, flags): source for source in sources}
    with _lock:
        found = {key: library for key in wanted if (library := _libraries.get(key)) is not None}
    missing = {key: source for key, source in wanted.items() if key not in found and not _take_stored(key, found)}
    if missing:
        _compile(missing, compiler, flags, found)
    return [found[_key(source, compiler, flags)] for source in sources]


def stored_library(source: str, options: Options) -> tuple[str, bytes]:
    """Returns the key and the content of the library that `build` has made of a source.

    The source is compiled a second time if the store does not have the library: because another process evicted it,
    SMELT_CACHE_DIR has changed, or storing it failed.

    Raises:
        BuildError: the source cannot be compiled a second time.
    """
    compiler, flags = find_compiler(), flags_for(options)
    key = _key(source, compiler, flags)
    body = store().get("kernels", key, ".so")
    if body is None:
        with closing(_built({key: source}, compiler, flags)) as jobs:
            body = next(jobs).built.read_bytes()
        store().put("kernels", key, body, ".so")
    return key, body


def take_library(key: str, body: bytes) -> Library:
    """Load a library that `stored_library` returned, possibly in another process; no compiler is needed.

    Raises:
        BuildError: the key is invalid, or the library cannot be loaded.
    """
    if _KEY.fullmatch(key) is None:
        raise BuildError(f"{key[:80]!r} is no key of a library")
    with _lock:
        known = _libraries.get(key)
    if known is not None:
        return known
    problem = elf.problem_of(body)
    if problem is not None:
        raise BuildError(f"a library cannot be loaded: {problem}")
    path = store().get_library("kernels", key) or store().put("kernels", key, body, ".so")
    try:
        if path is not None:
            return _known(key, Library(path))
        with new_build_folder(store().root) as folder:
            file = folder / f"{key[:16]}.so"
            file.write_bytes(body)
            return _known(key, Library(file))
    except OSError as error:
        raise BuildError(f"a library cannot be loaded: {error}", hint=_FOLDER_HINT) from error


_KEY = re.compile("[0-9a-f]{64}")


@functools.cache
def find_compiler() -> Compiler:
    """Returns the compiler named by CXX, which may be a command such as `ccache g++`, else c++, g++ or clang++ on the
    PATH.

    Raises:
        BuildError: no compiler was found.
    """
    wanted = environment().cxx
    for name in [wanted] if wanted else ["c++", "g++", "clang++"]:
        for words in ([name], _words(name)):
            path = shutil.which(words[0]) if words else None
            if path is not None:
                command = (os.path.abspath(path), *words[1:])
                version = _version(command)
                return Compiler(command, version, _target_flags(version))
    what = f"CXX names {wanted!r}, which is not on the PATH" if wanted else "no C++ compiler was found"
    raise BuildError(what, hint=_HINT)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # unbalanced quotation marks
        return []


@functools.cache
def cpu_features() -> str:
    """Returns model name and instruction-set flags of this processor, as one text."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = file.read().split("\n\n", 1)[0].splitlines()
        kept = [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
        return "\n".join(kept)
    except OSError:
        return f"{platform.machine()} {platform.processor()}"


def _version(command: tuple[str, ...]) -> str:
    """Returns the first line of the compiler's `--version`, then its options.

    A wrapper (ccache, distcc, a script) is asked each time, since the compiler that it runs may change without the
    wrapper changing. Options that a script adds to the command also belong to the version.
    """
    real, others = os.path.realpath(command[0]), command[1:]
    if not _is_elf(real) or not all(word.startswith("-") for word in others):
        return " ".join([_ask_version(command)[0], *others, *_script_hash(real)])
    return " ".join([_version_of(command[0], real), *others])


def _version_of(path: str, real: str) -> str:
    """Returns the version of the program `real`, found at `path`; it is kept in the store under the file's identity."""
    state = os.stat(real)
    key = content_key(real, str(state.st_size), str(state.st_mtime_ns))
    known = store().get_text("compiler", key)
    if known is None:
        known, itself = _ask_version((path,))
        if itself:
            store().put_text("compiler", key, known)
    return known


def _is_elf(path: str) -> bool:
    return _begins(path, b"\x7fELF")


def _begins(path: str, beginning: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(beginning)) == beginning
    except OSError:  # executable but not readable
        return False


def _script_hash(path: str) -> list[str]:
    return [content_key(Path(path).read_bytes())] if _begins(path, b"#!") else []


def _ask_version(command: tuple[str, ...]) -> tuple[str, bool]:
    """Returns (version; whether it is the version of this program itself, not of a compiler that a wrapper runs)."""
    what = f"{shlex.join(command)} --version"
    try:
        with ExitStack() as stack:
            process = CompilerProcess([*command, "--version", "-v"], _VERSION_S, _folder_for_files(stack))
            status = process.wait()
    except OSError as error:
        raise BuildError(f"{what} failed", why=str(error), hint=_HINT) from error
    output, errors = (text.decode(errors="replace").strip() for text in (process.output, process.errors))
    if process.timed_out:
        raise BuildError(f"{what} did not end within {process.limit_s:g} s and was stopped", hint=_HINT)
    if status != 0 or not output:
        # drivers print many lines about themselves before the error
        raise BuildError(f"{what} failed", why=errors[-1000:] or None, hint=_HINT)
    named = _DRIVER.search(f"{output}\n{errors}")
    return output.splitlines()[0], named is not None and _is_driver(command[0], named[1], named[2])


def _folder_for_files(stack: ExitStack) -> Path | None:
    """Make a temporary folder for a compiler whose version is asked for, since it leaves files when it is killed; None
    if that fails.
    """
    try:
        return stack.enter_context(new_build_folder(store().root))
    except OSError:
        return None


def _is_driver(path: str, file: str | None, folder: str | None) -> bool:
    """Whether a compiler's output says that it is the program at `path`."""
    real = os.path.realpath(path)
    if file is not None:
        return os.path.realpath(file) == real
    return folder in (os.path.dirname(path), os.path.dirname(real))


_DRIVER = re.compile(r"^(?:COLLECT_GCC=(.+)|InstalledDir: (.+))$", re.MULTILINE)
"""Pattern of lines of a driver's verbose output: its own file (GCC) or folder (clang)."""
_VERSION_S = 30.0
"""Timeout in seconds for a compiler to report its version."""


def _target_flags(version: str) -> tuple[str, ...]:
    native = "-mcpu=native" if platform.machine() in ("aarch64", "arm64", "ppc64le") else "-march=native"
    return (native, *_vector_flags(), *_openmp_flags(version))


def _vector_flags() -> tuple[str, ...]:
    # GCC and clang stay at 256-bit vectors by default; 512 wins on processors whose AVX-512 does not lower the clock
    return ("-mprefer-vector-width=512",) if "avx512" in cpu_features() else ()


def _openmp_flags(version: str) -> tuple[str, ...]:
    """Returns flags that compile OpenMP and link the runtime that torch loaded; none if compiler and runtime do not
    match.
    """
    runtime = torch_openmp()
    if runtime is None:
        return ()
    clang = "clang" in version
    if clang and runtime.name.startswith("libgomp"):
        return ()  # clang's OpenMP calls do not exist in libgomp, so kernels are serial, instead of a second runtime
    return ("-Xpreprocessor", "-fopenmp") if clang and platform.system() == "Darwin" else ("-fopenmp",)


def _link(compiler: Compiler) -> list[str]:
    """Returns flags that link the loaded OpenMP file itself (its soname is what the loader finds loaded), not the
    compiler's own copy, and the libraries of C.

    Any other compiler than GCC appends its own copy at the end; `--as-needed` drops it, because no undefined symbol is
    left for it.
    """
    runtime = torch_openmp()
    linked = [] if runtime is None or "-fopenmp" not in compiler.flags else [str(runtime)]
    if platform.system() == "Darwin":
        return linked
    only_c = _LIBRARIES_OF_C if _GCC.match(compiler.version) else ()
    return ["-Wl,--as-needed", *linked, *only_c] if linked or only_c else []


_GCC = re.compile(r"\S+ \([^)]*\) \d")
"""Pattern of GCC's version, for example `g++ (Debian 12.2.0-14) 12.2.0`."""
_LIBRARIES_OF_C = ("-nodefaultlibs", "-lm", "-lgcc", "-lc")
"""Flags that link what kernels may use: without them the linker of GCC reads the C++ library too, which took a quarter
of the time of a small build, to find that nothing of it is needed.
"""


def _key(source: str, compiler: Compiler, flags: Sequence[str]) -> str:
    runtime = torch_openmp()
    components = (*FLAGS, *compiler.flags, *flags, compiler.version, runtime.name if runtime else "no openmp")
    return content_key(VERSION, source, cpu_features(), *components)


def _compile(missing: dict[str, str], compiler: Compiler, flags: Sequence[str], found: dict[str, Library]) -> None:
    """Compile missing libraries that no other process compiles; wait for the others, and repeat with those that are
    still missing.
    """
    until = time.monotonic() + environment().build_timeout_s
    while missing:
        with ExitStack() as ours:
            # on a timeout, compile the libraries that another process was to compile
            mine, late = dict[str, str](), time.monotonic() >= until
            for key, source in missing.items():
                if ours.enter_context(store().building("kernels", key)) or late:
                    mine[key] = source
            wanted = {key: source for key, source in mine.items() if not _take_stored(key, found)}
            with closing(_built(wanted, compiler, flags)) as jobs:
                for job in jobs:
                    found[job.key] = _publish(job)
        missing = {key: source for key, source in missing.items() if key not in mine}
        for key in list(missing)[:1]:
            with store().building("kernels", key, until, is_stopped):
                pass
        if missing and is_stopped():
            raise BuildError(_ABANDONED.format(compiler.path))


def _take_stored(key: str, found: dict[str, Library]) -> bool:
    """Load a library from the store into `found`; returns False if the store does not have it. A library that does not
    load is rebuilt.
    """
    path = store().get_library("kernels", key)
    if path is None:
        return False
    try:
        library = Library(path)
    except OSError as error:
        if path.exists():  # otherwise it was evicted meanwhile
            warnings.warn(SmeltWarning(f"smelt cannot load {path} ({error}) and rebuilds it"), stacklevel=2)
            store().discard("kernels", key, ".so")
        return False
    found[key] = _known(key, library)
    return True


def _known(key: str, library: Library) -> Library:
    """Returns this library, or the library of the same key that another thread has loaded meanwhile."""
    with _lock:
        return _libraries.setdefault(key, library)


def _built(sources: dict[str, str], compiler: Compiler, flags: Sequence[str]) -> Generator[_Job, None, None]:
    """Compile sources. Yields each with its library, tested by loading, in a folder that is deleted afterwards."""
    full: list[Path] = []
    disk_full: NoRoom | None = None
    left = dict(sources)
    while left:
        try:
            folder = new_build_folder(store().root, full)
        except OSError as error:
            if disk_full is not None:
                raise disk_full from None
            raise BuildError(f"kernels cannot be built: {error.strerror or error}", hint=_FOLDER_HINT) from error
        try:
            with folder as name:
                jobs = [_Job(source, key, name) for key, source in left.items()]
                _run_all(jobs, compiler, flags)
                for job in jobs:
                    _check(job, compiler, flags)
                    yield job
                    del left[job.key]
        except NoRoom as error:
            full.append(folder.path.parent)
            disk_full = error


def _check(job: _Job, compiler: Compiler, flags: Sequence[str]) -> None:
    """Raise if a library cannot be loaded even after a second build."""
    if _problem_of(job) is not None:
        _run_all([job], compiler, flags)  # the cause may be temporary: a full disk, an error of a wrapper
    if (problem := _problem_of(job)) is not None:
        raise BuildError(f"{compiler.path} wrote a library that cannot be used: {problem}", hint=_HINT)


def _problem_of(job: _Job) -> str | None:
    """Returns the reason why a built library cannot be loaded, or None. Only libraries that were loaded once are
    published.
    """
    try:
        found = read_private(job.built, MAX_ENTRY_BYTES)
        if found is None:
            return "it is no regular file" if job.built.exists() else "it is not there"
        problem = elf.problem_of(found[0])
        if problem is None:
            Library(job.built).close()
    except OSError as error:
        problem = str(error)
    return problem


def _publish(job: _Job) -> Library:
    """Load a library from the store, or from its folder before that is deleted if the store could not keep it."""
    try:
        library = Library(store().put_library("kernels", job.key, job.built))
    except OSError:  # evicted by another process
        library = Library(job.built)
    return _known(job.key, library)


def _run_all(jobs: list[_Job], compiler: Compiler, flags: Sequence[str]) -> None:
    """Run the compiler on every job, at most one per processor at a time."""
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
    try:
        job.text.write_text(job.source, encoding="utf-8")
        out = ["-o", str(job.built)]
        command = [*compiler.command, *FLAGS, *compiler.flags, *flags, str(job.text), *_link(compiler), *out]
        return CompilerProcess(command, environment().build_timeout_s, job.folder)
    except OSError as error:
        kind = NoRoom if error.errno in _DISK_FULL_ERRNOS else BuildError
        raise kind(f"{compiler.path} cannot be started: {error.strerror or error}", hint=_FOLDER_HINT) from error


_SHOWN = 20_000
"""Maximum number of characters of a compiler's message that an error of smelt quotes."""


class NoRoom(BuildError):
    """Raised when the disk of the build folder is full; that of another folder may not be."""


_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DISK_FULL_TEXT = re.compile("|".join(map(os.strerror, _DISK_FULL_ERRNOS)))
_FOLDER_HINT = "TMPDIR names a folder with space in which libraries can be loaded"
_ABANDONED = "{} was stopped, because its result was not needed any more"
_OUT_OF_MEMORY = re.compile(
    "Killed signal terminated|unable to execute command: Killed|virtual memory exhausted|Cannot allocate memory|"
    "out of memory|bad_alloc",
    re.IGNORECASE,
)


def _refused(process: CompilerProcess, status: int, compiler: Compiler) -> BuildError:
    if process.timed_out:
        what = f"{compiler.path} did not end within {process.limit_s:g} s and was stopped"
        return BuildError(what, hint="SMELT_BUILD_TIMEOUT_S allows more; CXX names another compiler")
    if process.stopped:
        return BuildError(_ABANDONED.format(compiler.path))
    lines = process.errors.decode(errors="replace").strip().splitlines()
    shown = "\n".join(lines[:30])[:_SHOWN]
    killed = status in (-signal.SIGKILL, 128 + signal.SIGKILL)
    if killed or _OUT_OF_MEMORY.search(shown):
        what = "was killed, as the system does when memory runs out" if killed else "ran out of memory"
        hint = "fewer processes at a time, or more memory"
        return BuildError(f"{compiler.path} {what}", why=shown or None, hint=hint)
    if status == 128 + signal.SIGXFSZ or _DISK_FULL_TEXT.search(shown):
        return NoRoom(f"{compiler.path} had no room for its files", why=shown or None, hint=_FOLDER_HINT)
    if (signalled := _signal_of(status)) is not None:
        return BuildError(f"{compiler.path} was ended by {signalled}", why=shown or None, hint=_HINT)
    shown = shown or f"it ended with exit status {status} and printed nothing"
    return BuildError(f"{compiler.path} refused a generated kernel:\n{shown}", why=f"compiler: {compiler.version}")


def _signal_of(status: int) -> str | None:
    """Returns the name of the signal that killed a compiler, or the shell that waits for it; None if it exited."""
    number = -status if status < 0 else status - 128
    return signal.Signals(number).name if number in {each.value for each in signal.Signals} else None
