"""Reads the script of a failure report: its literal `CASE`, its function, and the inputs of the failed call."""

from __future__ import annotations

import ast
import base64
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

import smelt
from smelt.base.errors import SmeltError
from smelt.base.private_folder import is_trusted
from smelt.base.version import VERSION
from smelt.graph.ir.repro_script import FORMAT_VERSION

SCRIPT = "repro.py"
"""The script's name in the folder of a report."""


class NoCase(SmeltError):
    """The given path is not a failure report, or the report cannot be run here."""


@dataclass
class Case:
    """The script of a failure report.

    Attributes:
        facts: the literal `CASE`.
        text: the source of the script.
    """

    path: Path
    facts: dict[str, Any]
    text: str
    forward: Callable[..., Any]

    def inputs(self) -> list[Any]:
        """Newly created inputs."""
        return make_inputs(self.facts)

    @property
    def kind(self) -> str:
        """The kind of the reported error."""
        return str(self.facts["error"].get("kind", ""))

    def other_versions(self) -> list[str]:
        """The versions in the report that differ from those of this process."""
        here = {"smelt": VERSION, "torch": str(torch.__version__)}
        return [f"{name} {self.facts.get(name)}, here {now}" for name, now in here.items() if self.facts[name] != now]


def read_case(path: Path) -> Case:
    """The case of a report, given by the path of its folder or script. The script's code is run.

    Raises:
        NoCase: the file does not exist, smelt did not write it, or it cannot run here.
    """
    file = path / SCRIPT if path.is_dir() else path
    if not file.is_file():
        hint = "capture itself failed, or an older version wrote it: traceback.txt has what is known"
        known = path.is_dir() and (path / "traceback.txt").is_file()
        raise NoCase(f"there is no {file}", hint=hint if known else "give the folder that the warning names")
    if not is_trusted(file.stat().st_uid):
        raise NoCase(f"{file} belongs to another user", why="its code would run", hint="copy it after you read it")
    try:
        text = file.read_text(encoding="utf-8")
        facts = _facts(text)
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        raise NoCase(
            f"{file} is no script of a report", why=str(error).splitlines()[0] if str(error) else None
        ) from None
    if facts["format"] != FORMAT_VERSION:
        raise NoCase(f"{file} is a report of another version (smelt {facts['smelt']})", hint="run it with that version")
    if facts["missing"]:
        raise NoCase(f"the graph of {file} cannot run by itself", why=f"a script cannot name {facts['missing'][0]}")
    if facts["backend"] not in smelt.list_backends():
        raise NoCase(f"the backend {facts['backend']!r} was registered by the program", hint="import it in the script")
    forward = load_forward(text, str(file))
    called = _OPERATOR.findall(text.partition("def forward(")[2])
    missing = next((names for names in called if not hasattr(getattr(torch.ops, names[0]), names[1])), None)
    if missing is not None:
        hint = "import the module that registers it at the top of the script"
        raise NoCase(f"{file} calls the operator {'::'.join(missing)}, which is not registered here", hint=hint)
    return Case(file, facts, text, forward)


_OPERATOR = re.compile(r"\btorch\.ops\.(\w+)\.(\w+)")


def _facts(text: str) -> dict[str, Any]:
    for statement in ast.parse(text).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="CASE")], value=value):
                facts = ast.literal_eval(value)
                if not isinstance(facts, dict) or not NAMES <= facts.keys():
                    raise ValueError("CASE does not hold what it should")
                return facts
    raise ValueError("it has no CASE")


NAMES = {
    *("format", "smelt", "torch", "name", "error", "backend", "dynamic", "options", "modes", "missing"),
    *("buffers", "inputs"),
}
"""The keys that every case has."""


def load_forward(text: str, name: str) -> Callable[..., Any]:
    """The function of a script.

    Raises:
        NoCase: the script does not run here.
    """
    namespace: dict[str, Any] = {"__name__": "smelt_repro", "__file__": name}
    try:
        exec(compile(text, name, "exec"), namespace)
        forward: FunctionType = namespace["forward"]
    except Exception as error:
        raise NoCase(f"{name} does not run here", why=f"{type(error).__name__}: {error}") from error
    # so that its reports are not saved beside those of the program's functions named `forward`
    forward.__code__ = forward.__code__.replace(co_name="smelt_repro", co_qualname="smelt_repro")
    return forward


def make_inputs(facts: Mapping[str, Any]) -> list[Any]:
    """The inputs that the literals of a case describe.

    Raises:
        NoCase: the descriptions do not fit together, or their device does not exist here.
    """
    try:
        buffers = [_buffer(each) for each in facts["buffers"]]
        return [_input(each, buffers) for each in facts["inputs"]]
    except (RuntimeError, KeyError, TypeError, ValueError, IndexError, AttributeError, zlib.error) as error:
        raise NoCase("the inputs of the report cannot be made here", why=str(error).splitlines()[0]) from error


def _buffer(known: Mapping[str, Any]) -> Tensor:
    dtype, device, numel = getattr(torch, known["dtype"]), torch.device(known["device"]), known["numel"]
    if "data" in known:
        content = bytearray(zlib.decompress(base64.b64decode(known["data"])))
        flat = torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
        return flat.view(dtype).to(device, copy=True)
    generator = torch.Generator().manual_seed(known["seed"])
    if "range" in known:
        low, high = known["range"]
        return torch.randint(low, high + 1, (numel,), generator=generator).to(device, dtype)
    made = torch.randn(numel, generator=generator, dtype=dtype if dtype.is_complex else torch.float32)
    return (made.abs() if known.get("positive") else made).to(device, dtype)


def _input(spec: Mapping[str, Any], buffers: list[Tensor]) -> Any:
    if "number" in spec:
        return float(spec["number"])
    if "value" in spec:
        return spec["value"]
    shape, stride = spec["shape"], spec["stride"]
    tensor = buffers[spec["buffer"]].as_strided(shape, stride, spec["offset"])
    needs = spec.get("requires_grad")
    if spec.get("parameter"):
        return nn.Parameter(tensor, requires_grad=needs is not None)
    if needs == "leaf":
        return tensor.detach().requires_grad_()
    if needs == "computed":
        leaf = tensor.detach().requires_grad_()
        computed = leaf.clone()
        if computed.stride() == tuple(stride):
            return computed
        return buffers[spec["buffer"]].clone().requires_grad_().clone().as_strided(shape, stride, spec["offset"])
    return tensor


@contextmanager
def modes(facts: Mapping[str, Any]) -> Iterator[None]:
    """Context with the modes of the thread in which the failure occurred."""
    known, before = facts["modes"], torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(known.get("grad", True)))
        for device, dtype in known.get("autocast", {}).items():
            stack.enter_context(torch.autocast(device, dtype=getattr(torch, dtype)))
        torch.set_default_dtype(getattr(torch, known.get("default_dtype", "float32")))
        torch.use_deterministic_algorithms(known.get("deterministic", False))
        try:
            yield
        finally:
            torch.set_default_dtype(before)
            torch.use_deterministic_algorithms(deterministic)
