"""The cache entries of a model or function to which an artefact was applied, and the action if no entry fits a call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import torch

from smelt.artefact.codec import Decoder
from smelt.artefact.container import ArtefactError
from smelt.artefact.guards import GuardReader, Slots, Texts
from smelt.base import torch_c
from smelt.base.errors import SmeltError
from smelt.capture import _native as native
from smelt.capture.core.compiler_marks import written_as_graph
from smelt.capture.guards.flag import Flag
from smelt.capture.hook import prepare
from smelt.capture.residual.code_locations import with_location

ORIGINAL, ERROR = "original", "error"
OTHERWISE = (ERROR, ORIGINAL)
"""The possible actions for a call that fits no version."""


class Version(NamedTuple):
    """One compiled version: its entry for the frame hook, and the texts of its guards."""

    guards: native.Guards
    code: CodeType
    constants: SimpleNamespace
    texts: Texts


class _At(NamedTuple):
    code: CodeType
    offset: int


class Owner:
    """Owns the entries of one application of an artefact.

    Args:
        function: the function whose frame is replaced.
        otherwise: the action for a call that fits no version: "error" raises, "original" runs the function in eager.
    """

    def __init__(self, function: FunctionType, otherwise: str) -> None:
        prepare()
        self.function, self.otherwise = function, otherwise
        self.versions: list[Version] = []
        self._entries: list[native.Entry] = []

    def add(self, version: Version) -> None:
        """Add a version."""
        self.versions.append(version)
        self._enter(version)

    def _enter(self, version: Version) -> None:
        entry = native.add_entry(self.function.__code__, version.guards, version.code, version.constants, self)
        self._entries.append(entry)

    # -- the interface of a capture session, which the frame hook calls -------------------------------------------

    raised: dict[int, Any] = {}

    def frame(self, code: CodeType, function: FunctionType, slots: Slots, globals: dict[str, object]) -> None:
        """Called when a frame that fits no version is about to start.

        Raises:
            ArtefactError: the frame runs `function`, and `otherwise` is "error"; the message says what differs.
        """
        if function is not self.function or _is_traced_or_exported():
            return
        if not all(entry.alive for entry in self._entries):  # `smelt.reset()` has released the entries
            self._entries.clear()
            for version in self.versions:
                self._enter(version)
            if any(version.guards.check(slots, globals, function) is not None for version in self.versions):
                return
        if self.otherwise == ERROR:
            self._refuse(slots, globals)

    def resumed(self, *_: Any) -> None:
        """Do nothing: artefacts contain whole functions, whose frames are never resumed."""

    def _refuse(self, slots: Slots, globals: dict[str, object]) -> NoReturn:
        changes = [_difference(version, slots, globals, self.function) for version in self.versions]
        hint = 'add a version for such calls, or apply(model, otherwise="original") runs them in eager'
        if any(_orders_differ(version, slots, globals, self.function) for version in self.versions):
            hint = (
                "outside of the function, store tuple(sorted(...)) of the set and use that in its place: the order of "
                "a set of strings differs in each process, unless PYTHONHASHSEED has the same number in all of them"
            )
        raise ArtefactError(
            f"a call of {self.function.__qualname__} fits no version of the artefact",
            why="; ".join(dict.fromkeys(changes))[:2000],
            hint=hint,
        )


def _is_traced_or_exported() -> bool:
    """Whether the program is being traced or exported: then the original function has to run."""
    return torch_c.get_tracing_state() is not None or written_as_graph()


def _orders_differ(version: Version, slots: Slots, globals: dict[str, object], function: FunctionType) -> bool:
    """Whether the first check that fails is about the order of a set."""
    failure = version.guards.failure(slots, globals, function)
    if failure is None or failure[0] == "fetch":
        return False
    fetch, kind, operand = version.guards.checks[failure[1]]
    if kind == native.PYTHON:
        return isinstance(operand, Flag) and operand.fn is hash
    items = fetch >= 0 and version.texts.source(fetch).startswith("tuple(") and isinstance(failure[2], tuple)
    return items and isinstance(operand, tuple) and set(operand) == set(failure[2])


def _difference(version: Version, slots: Slots, globals: dict[str, Any], function: FunctionType) -> str:
    failure = version.guards.failure(slots, globals, function)
    if failure is None:
        return "nothing that is checked differs"
    what, index, found = failure
    if what == "fetch":
        return f"{version.texts.source(index)} is not there"
    fetch, kind, operand = version.guards.checks[index]
    subject = version.texts.source(fetch) if fetch >= 0 else ""
    if kind == native.STATE:
        modes = zip(native.state_names(), operand, found, strict=False)
        return next(
            (f"{name} was {before}, and is {now}" for name, before, now in modes if before != now), "modes differ"
        )
    if isinstance(operand, native.TensorSpec) and isinstance(found, torch.Tensor):
        return f"{subject}: {operand.mismatch(found) or 'its metadata differs'}"
    shown = f", and is now {str(found)[:80]}" if type(found) in (bool, int, float, str) else ""
    return f"{version.texts.line(index).partition('  # ')[0]}{shown}"


# -- versions from data -----------------------------------------------------------------------------------------------


class VersionReader:
    """Rebuilds one version from its data. The constructor reads the objects that the guards compare.

    Raises:
        ArtefactError: the version was made for another model.
    """

    def __init__(self, decode: Decoder, data: dict[str, Any], slots: Slots, function: FunctionType) -> None:
        self.decode, self.data, self.function = decode, data, function
        self.texts = Texts(decode.blobs, data["texts"])
        self.reader = GuardReader(decode, data["guards"], self.texts, slots, function)

    def version(self, graphs: Sequence[Callable[..., Any]]) -> Version:
        """The version. It runs at most one of `graphs`, the callables of the artefact's graphs."""
        residual, number = self.data["residual"], self.data["graph"]
        constants = {name: _constant(self.decode, value) for name, value in residual["constants"].items()}
        if number is not None:
            constants |= _own(graphs[number], [f"smelt: {self.function.__qualname__}", *residual["named"]])
        module = compile(residual["source"], "<smelt residual>", "exec")
        code = next(c for c in module.co_consts if isinstance(c, CodeType))
        code = with_location(code, _At(self.function.__code__, residual["offset"]))
        return Version(self.reader.guards(), code, SimpleNamespace(**constants), self.texts)


def _constant(decode: Decoder, data: Any) -> Any:
    return _raise if data == ["failed"] else decode(data)


def _raise(error: Exception, *_: Any) -> NoReturn:
    raise error


def _expect_failure(error: Exception, inputs: Any) -> None:
    """Return if eager may fail on these inputs as well: the function then runs in eager and raises eager's error.

    Raises:
        Exception: `error` itself, if eager would not raise such an error.
    """
    expected = isinstance(error, (IndexError, RuntimeError))
    if not expected or isinstance(error, (torch.OutOfMemoryError, SmeltError)):
        raise error


def _own(graph: Callable[..., Any], names: list[str]) -> dict[str, Any]:
    """The globals of residual code besides its constants."""

    def shown(*inputs: Any) -> Any:
        with contextlib.ExitStack() as regions:
            for name in names:
                regions.enter_context(torch.autograd.profiler.record_function(name))
            return graph(*inputs)

    return {
        "graph": native.Quiet(graph),
        "profiler": torch.autograd.profiler,
        "shown": native.Quiet(shown),
        "Error": Exception,
        "explain_error": _raise,
        "expect_failure": _expect_failure,
        "expect_lost": _raise,
    }
