"""Liveness of local variables: those that the code may still read after an instruction survive a graph break."""

from __future__ import annotations

import sys

from smelt.capture.core.bytecode import Decoded

_READS = {"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CLOSURE", "LOAD_FAST_AND_CLEAR", "DELETE_FAST", "MAKE_CELL"}
_WRITES = {"STORE_FAST", "STORE_FAST_MAYBE_NULL"}
_STOPS = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
_ALWAYS = {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}


def live_slots(decoded: Decoded, index: int) -> set[int]:
    """Slots that some path from instruction `index` reads before it writes them."""
    if decoded.live is None:
        decoded.live = [_all_slots(decoded)] * len(decoded.names) if _looks(decoded) else _iterate(decoded)
    return decoded.live[index]


_LOOKING = frozenset("set_trace _getframe currentframe f_locals tb_frame".split())
"""Functions that may inspect the variables of the calling frame, and attributes that show them. A frame whose code
names one of them keeps all of its variables."""
_LOOKING_OF_MODULES = {
    "builtins": frozenset("eval exec locals vars dir breakpoint".split()),
    "inspect": frozenset("stack trace".split()),
}
"""Module -> functions that may inspect the calling frame and whose names are common elsewhere (`torch.stack`,
`model.eval`): only plain names and attributes of the module are considered.
"""
_LOOKING_METHODS = {"pandas": frozenset("eval query".split()), "numexpr": frozenset({"evaluate"})}
"""Library -> methods that may inspect the calling frame. They are considered only if the library is loaded, because
their names are common elsewhere: attention layers are often called `query`.
"""


def _looks(decoded: Decoded) -> bool:
    """Whether the code names a function that may inspect its frame's variables."""
    named = set(decoded.attributes)
    opcodes = zip(decoded.names, decoded.raw, strict=True)
    alone = {decoded.attributes[raw >> 1] for name, raw in opcodes if name == "LOAD_GLOBAL"}
    if named & _LOOKING:
        return True
    if any(functions & (named if module in named else alone) for module, functions in _LOOKING_OF_MODULES.items()):
        return True
    return any(module in sys.modules and named & methods for module, methods in _LOOKING_METHODS.items())


def _all_slots(decoded: Decoded) -> set[int]:
    return set().union(*(slots for at in range(len(decoded.names)) for slots in _accesses(decoded, at)))


def _iterate(decoded: Decoded) -> list[set[int]]:
    count = len(decoded.names)
    after = [successors(decoded, at) for at in range(count)]
    live: list[set[int]] = [set() for _ in range(count)]
    changed = True
    while changed:
        changed = False
        for at in range(count - 1, -1, -1):
            out = set().union(*(live[n] for n in after[at])) if after[at] else set()
            reads, writes = _accesses(decoded, at)
            row = decoded.handler_at(at)
            new = out - writes | reads | (live[row.target] if row is not None else set())
            if new != live[at]:
                live[at] = new
                changed = True
    return live


def _accesses(decoded: Decoded, at: int) -> tuple[set[int], set[int]]:
    name, arg = decoded.names[at], decoded.raw[at]
    if name == "CALL" and not arg and "__class__" in decoded.free:
        return {0}, set()  # `super()` reads the frame's first variable
    if name in _READS:
        return {arg}, set()
    if name in _WRITES:
        return set(), {arg}
    if name == "LOAD_FAST_LOAD_FAST":
        return {arg >> 4, arg & 15}, set()
    if name == "STORE_FAST_LOAD_FAST":
        return ({arg & 15} - {arg >> 4}), {arg >> 4}
    if name == "STORE_FAST_STORE_FAST":
        return set(), {arg >> 4, arg & 15}
    return set(), set()


def successors(decoded: Decoded, at: int) -> list[int]:
    """The indices of the instructions that may run next if the one at `at` raises nothing."""
    name = decoded.names[at]
    if name in _STOPS:
        return []
    target = decoded.targets.get(at)
    if name in _ALWAYS and target is not None:
        return [target]
    following = [at + 1] if at + 1 < len(decoded.names) else []
    return following if target is None else [*following, target]
