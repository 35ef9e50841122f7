"""Phi values: values of a variable, attribute or dictionary item that differ between the two arms of a branch.

`skip = True` in only one arm makes `skip` a phi value, and so does a cache that only one arm fills. The program may
test a phi value's truth, which is another branch on the same condition, or let it leave the frame. Every other use ends
the graph before the branch.
"""

from __future__ import annotations

from typing import Any

from smelt.base.class_tables import isinstance
from smelt.capture._native import NULL
from smelt.capture.core.breaks import Break, Restart
from smelt.capture.core.values import LEAVES
from smelt.graph.ir.symint import SYMBOLIC

TRUTH_TESTS = frozenset(
    {f"POP_JUMP_{direction}IF_{truth}" for direction in ("", "FORWARD_", "BACKWARD_") for truth in ("TRUE", "FALSE")}
    | {"TO_BOOL"}
)
"""Instructions that only test the truth of the value on top of the stack."""

FORWARDING = frozenset({"STORE_FAST", "RETURN_VALUE", "POP_TOP", "UNARY_NOT"})
"""Instructions that may also take an unknown bool result (for example of `torch.equal`), since they do not read it."""


class PhiValue:
    """A value that is `true` where the condition is true, else `false`; NULL means that the arm leaves no value.

    Attributes:
        tensor_output: the graph output with the tensor of the arm that leaves one; it is None in the other arm.
        born: number of the captured frame's instruction that contains the branch, counted from the frame's start.
        function: name of the function that returned this bool; None if the value comes from a branch.
    """

    __slots__ = ("condition", "true", "false", "tensor_output", "born", "function")

    def __init__(
        self,
        condition: object,
        true: object,
        false: object,
        tensor_output: object,
        born: int,
        function: str | None = None,
    ) -> None:
        self.condition, self.true, self.false = condition, true, false
        self.tensor_output, self.born, self.function = tensor_output, born, function

    @property
    def plain(self) -> bool:
        """Whether both values are plain immutable data, which neither arm can have changed."""
        return is_plain(self.true) and is_plain(self.false)

    @property
    def optional(self) -> bool:
        """Whether one of the arms leaves no value in this location."""
        return self.true is NULL or self.false is NULL

    def read(self, *args: object, **kwargs: object) -> Any:
        """Restart the capture and end its graph before the branch, because the value itself is needed."""
        if self.function is not None:
            raise Restart(self.born, values_needed(self.function))
        raise Restart(
            self.born,
            Break(
                "a branch on a tensor's value",
                "its two arms give different values, which are not tensors",
                "torch.where(condition, a, b), or move the decision out of the compiled function",
            ),
        )

    __bool__ = __len__ = __iter__ = __call__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = read
    __int__ = __float__ = __index__ = __str__ = __repr__ = __format__ = __getitem__ = __contains__ = read
    __hash__ = None  # type: ignore[assignment]


def values_needed(function: str) -> Break:
    """The break where a bool computed from tensors' values is used as a number or as an object."""
    return Break(
        f"{function} needs the values of tensors",
        "only a branch, or the caller, can take an answer that the graph computes",
        "use it as a condition (`if`), or (a == b).all(), which is a tensor",
    )


def is_plain(value: object) -> bool:
    """Whether the value is immutable data without symbols."""
    return type(value) in LEAVES and not isinstance(value, SYMBOLIC)


def refuse_undecided(f: Any) -> None:
    """Check, after an instruction, that the next one may take a phi value on top of the stack without reading it.

    Raises:
        Restart: the next instruction needs the phi value itself.
    """
    if f.stack and type(f.stack[-1]) is PhiValue and f.decoded.names[f.pc] not in TRUTH_TESTS:
        if f.stack[-1].function is None or f.decoded.names[f.pc] not in FORWARDING:
            f.stack[-1].read()
