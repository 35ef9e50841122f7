"""Text with a tensor's values, which are unknown during capture: a placeholder until the program reads the text.

Programs contain calls such as `check(ok, f"{count} images for {tokens.sum()} tokens")`, whose text is made on every
call and read only if the check fails. Therefore formatting a tensor returns an UnknownText. Reading it restarts the
capture, which then ends its graph before the instruction that made the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from smelt.capture.core.breaks import Break, Restart
from smelt.capture.core.conditional_value import PhiValue
from smelt.capture.core.interface import Interpreter


class UnknownText(str):
    """A placeholder for text that is not known yet; every use of it restarts the capture.

    Args:
        step: number of the captured frame's instruction that made the text, counted from the frame's start.
        stop: the break at that instruction in the next attempt.
    """

    step: int
    stop: Break

    @classmethod
    def of(cls, vm: Interpreter) -> UnknownText:
        """A placeholder for the text that the present instruction makes."""
        text = cls("<a tensor>")
        text.step, text.stop = vm.step, text_break()
        text.stop.at = vm.where()
        return text

    def read(self, *args: object, **kwargs: object) -> Any:
        """Restart the capture because the text is needed.

        Raises:
            Restart: always.
        """
        raise Restart(self.step, self.stop)


def text_break() -> Break:
    """The break where a tensor is turned into text that the program reads."""
    return Break(
        "a tensor is turned into text",
        "the graph is captured before values are known",
        "format it outside of the compiled function",
    )


_KEPT = frozenset(
    {"__new__", "__init__", "__class__", "__getattribute__", "__setattr__", "__delattr__", "__init_subclass__"}
    | {"__subclasshook__", "__dir__", "__doc__", "__getnewargs__", "__sizeof__", "__reduce__", "__reduce_ex__"}
)
for _name in dir(str):
    if _name not in _KEPT and callable(getattr(str, _name)):
        setattr(UnknownText, _name, UnknownText.read)
for _name in ("__radd__", "__rmod__"):
    setattr(UnknownText, _name, UnknownText.read)


def refuse_unknown(values: Iterable[object]) -> None:
    """Check that values about to be read are known.

    Raises:
        Restart: one of them, or an item of a list or tuple among them, is unknown text or a phi value.
    """
    for value in values:
        if type(value) is UnknownText or type(value) is PhiValue:
            value.read()
        elif type(value) is list or type(value) is tuple:
            for item in value:
                if type(item) is UnknownText or type(item) is PhiValue:
                    item.read()
