"""Compiles Triton kernels in separate processes: the script that `triton/pool.py` runs.

It imports neither smelt nor torch. Started with the number of a socket, it imports Triton once and then forks a worker
for each pair of descriptors (a connection, a log) that arrives on that socket: a fork answers within 0.03 s where
importing Triton takes 0.4 s. A worker answers requests until its connection closes, as it does when the process that
started it dies.

Messages are a header of two lengths, JSON and bytes. Kernels are driven through Triton's stages directly: `compile`
would first hash all of Triton, half a second or more in each process, for a cache that smelt does not use.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import linecache
import os
import re
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

_HEADER = struct.Struct("!II")
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)", re.S)
_PACKED = re.compile(r"^(\s*)(add|min|max)\.([su])16x2\s+(%\w+), (%\w+), (%\w+);", re.M)
_SIGNS = re.compile(r"^(\s*)(neg|abs)\.(?:ftz\.)?b?f16x2\s+(%\w+), (%\w+);", re.M)
_LOG_BYTES = 4000

Reply = tuple[dict[str, Any], bytes]
Stages = tuple[dict[str, Any], dict[str, Any]]


def send(connection: socket.socket, head: dict[str, Any], body: bytes = b"") -> None:
    """Write one message."""
    text = json.dumps(head).encode()
    connection.sendall(_HEADER.pack(len(text), len(body)) + text + body)


def receive(connection: socket.socket) -> Reply:
    """Read one message.

    Raises:
        EOFError: the other side has closed the connection.
    """
    text, body = _HEADER.unpack(_exactly(connection, _HEADER.size))
    return json.loads(_exactly(connection, text)), _exactly(connection, body)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        received = connection.recv(count - len(data))
        if not received:
            raise EOFError("the other process is gone")
        data += received
    return bytes(data)


def triton_module(name: str) -> Any:
    """Import a module of Triton, an optional package that takes 0.4 s to import."""
    return importlib.import_module(f"triton.{name}")


def compile_kernel(request: dict[str, Any]) -> Reply:
    """Build one kernel.

    Args:
        request: `source`, `signature` (pairs), `divisible`, `constants` (pairs), `num_warps`, `num_stages`, `name`,
            `contract`, `flushes` and `arch` (90 for compute capability 9.0).

    Returns:
        The facts that a launch needs, and the cubin; {"error": text} if Triton refused the kernel.
    """
    output = io.StringIO()
    try:
        # Triton prints the whole text that ptxas refuses
        with contextlib.redirect_stdout(output), _subnormals(request["flushes"]):
            metadata, assembly = _stages(request)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}".strip()}, b""
    return _facts(request, metadata, assembly), assembly["cubin"]


def _stages(request: dict[str, Any]) -> Stages:
    """Returns the metadata and the text (bytes for the cubin) after each of Triton's stages."""
    compiler = triton_module("compiler.compiler")
    source = _ast_source(request)
    target = triton_module("backends.compiler").GPUTarget("cuda", request["arch"], 32)
    wanted = {"num_warps": request["num_warps"], "num_stages": request["num_stages"]}
    wanted["enable_fp_fusion"] = request["contract"]  # whether a * b + c may be one instruction
    wanted["enable_reflect_ftz"] = request["flushes"]  # whether the device library flushes subnormal numbers to 0
    try:
        context, backend = compiler.ir.context(), compiler.make_backend(target)
        options = backend.parse_options(wanted)
        for dialects in (compiler.ir, backend):
            dialects.load_dialects(context)
        stages: dict[str, Any] = {}
        backend.add_stages(stages, options, source.language)
        code, modules = backend.get_codegen_implementation(options), backend.get_module_map()
        make_ir = source.make_ir
    except (AttributeError, TypeError):
        return _compiled(compiler, source, target, wanted)  # this version of Triton has other internals
    metadata: dict[str, Any] = {"hash": "", "target": target, **options.__dict__}
    module = make_ir(target, options, code, modules, context)
    results: dict[str, Any] = {}
    for name, stage in stages.items():
        module = stage(module, metadata)
        if name == "ptx":
            module = unpacked(module)
        results[name] = module if isinstance(module, (str, bytes)) else None
    return metadata, results


def unpacked(ptx: str) -> str:
    """Returns the PTX without those instructions on two packed 16-bit numbers that ptxas assembles wrongly.

    LLVM packs additions of small indices. If the other half is not read, ptxas 12.8 drops the constant of such an
    addition: a kernel that pads then silently reads the element before its row. Two scalar instructions replace it.
    If two float16 numbers are negated together and one of them is then packed with another number, ptxas 12.8 and 12.9
    drop its sign, so that gradients have the wrong sign. Integer instructions that change the sign bits replace such
    negations and absolute values.
    """

    def apart(found: re.Match[str]) -> str:
        space, op, sign, to, a, b = found.groups()
        halves = [f"{op}.{sign}16 %packed{i}, %packed{i}, %packed{i + 2};" for i in (0, 1)]
        lines = ["{", ".reg .b16 %packed<4>;", f"mov.b32 {{%packed0, %packed1}}, {a};"]
        lines += [f"mov.b32 {{%packed2, %packed3}}, {b};", *halves, f"mov.b32 {to}, {{%packed0, %packed1}};", "}"]
        return space + f"\n{space}".join(lines)

    def as_bits(found: re.Match[str]) -> str:
        space, op, to, a = found.groups()
        change = "xor.b32 {}, {}, -2147450880;" if op == "neg" else "and.b32 {}, {}, 2147450879;"
        return space + change.format(to, a)

    return _SIGNS.sub(as_bits, _PACKED.sub(apart, ptx))


@contextlib.contextmanager
def _subnormals(flushes: bool) -> Iterator[None]:
    """Suppress flushing of subnormals in versions of Triton that always enable it: those without the option
    `enable_reflect_ftz`.
    """
    backend = triton_module("backends.nvidia.compiler")
    if flushes or hasattr(backend.CUDAOptions, "enable_reflect_ftz"):
        yield
        return
    sets = backend.nvidia.set_nvvm_reflect_ftz
    backend.nvidia.set_nvvm_reflect_ftz = lambda module: None
    try:
        yield
    finally:
        backend.nvidia.set_nvvm_reflect_ftz = sets


def _compiled(compiler: Any, source: Any, target: Any, options: dict[str, Any]) -> Stages:
    """Compile through Triton's public entry, with its cache in a temporary folder."""
    before = os.environ.get("TRITON_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="smelt-triton-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            built = compiler.compile(source, target=target, options=options)
            if _PACKED.search(built.asm["ptx"]) or _SIGNS.search(built.asm["ptx"]):
                raise RuntimeError("ptxas may assemble operations on two 16 bit numbers at once wrongly")
            return built.metadata._asdict(), {name: built.asm[name] for name in ("ptx", "cubin")}
        finally:
            if before is None:
                del os.environ["TRITON_CACHE_DIR"]
            else:
                os.environ["TRITON_CACHE_DIR"] = before


def load_module(source: str) -> dict[str, Any]:
    """Execute the text of a kernel's module so that `inspect` finds its lines, since Triton reads functions as text."""
    filename = f"<smelt kernel {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    scope: dict[str, Any] = {"__name__": filename}
    exec(compile(source, filename, "exec"), scope)
    return scope


def _ast_source(request: dict[str, Any]) -> Any:
    function = load_module(request["source"])["kernel"]
    names, types, constants = function.arg_names, dict(request["signature"]), dict(request["constants"])
    if list(types) != names[: len(types)] or set(names[len(types) :]) != set(constants):
        raise ValueError(f"parameters {names} do not fit signature {list(types)} and constants {list(constants)}")
    if "name" in request:  # the name that profilers show
        function._repr = lambda _: request["name"]
    return triton_module("compiler").ASTSource(
        fn=function,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in request["divisible"]},
    )


def _facts(request: dict[str, Any], metadata: dict[str, Any], assembly: dict[str, Any]) -> dict[str, Any]:
    found = {name: parameters for name, parameters in _ENTRY.findall(assembly["ptx"])}
    name = metadata["name"]
    scratch = [metadata.get(f"{kind}_scratch_size") or 0 for kind in ("global", "profile")]
    return {
        "entry": name,
        "shared": metadata["shared"],
        "threads": metadata["num_warps"] * 32,
        # versions of Triton append different parameters: pointers to scratch memory of the grid and of a profiler
        "appended": found[name].count(".param") - len(request["signature"]),
        "scratch": sum(scratch),
        "plain": metadata.get("num_ctas", 1) == 1
        and not metadata.get("launch_cooperative_grid")
        and not metadata.get("launch_pdl"),
    }


def _work(connection: socket.socket, log: int) -> None:
    """Answer requests until the connection closes."""
    os.setpgid(0, 0)
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    os.dup2(log, 1)
    os.dup2(log, 2)  # MLIR and ptxas write here; the parent reads it if this process dies
    while True:
        try:
            request, _ = receive(connection)
        except (EOFError, OSError):
            return
        os.ftruncate(log, 0)
        os.lseek(log, 0, os.SEEK_SET)
        head, body = compile_kernel(request)
        if "error" in head:
            head["log"] = log_tail(log)
        try:
            send(connection, head, body)
        except OSError:
            return


def _end_with(connection: socket.socket) -> None:
    """End this worker and its assembler as soon as the connection closes, even during a compilation."""
    closed = select.poll()
    closed.register(connection, 0)  # only the closing of the other end, not data
    closed.poll()
    os.killpg(0, signal.SIGKILL)


def log_tail(log: int) -> str:
    """Returns the last lines of a log."""
    size = os.fstat(log).st_size
    return os.pread(log, _LOG_BYTES, max(0, size - _LOG_BYTES)).decode(errors="replace").strip()


def _serve(control: socket.socket) -> None:
    """Import Triton, report whether that worked, then fork a worker for each connection that arrives."""
    try:
        triton_module("compiler")
    except BaseException as error:
        send(control, {"error": f"{type(error).__name__}: {error}"})
        return
    send(control, {})
    # finished children are reaped automatically, so that no zombies remain
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not message:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # Triton waits for ptxas
            control.close()
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            code = 1
            try:
                _work(socket.socket(fileno=descriptors[0]), descriptors[1])
                code = 0
            finally:
                os._exit(code)
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program; this process ends with it
    _serve(socket.socket(fileno=int(sys.argv[1])))
