"""Accelerate: `Accelerator(dynamo_plugin=SmeltPlugin())` compiles with smelt in `prepare`.

Accelerate calls `torch.compile(model, **plugin.to_kwargs())`, recognises compiled models by the class of the result,
and names backends by an enumeration. Importing this module adds smelt to all three: the backend "smelt" of
`torch.compile` uses smelt's own capture, Accelerate recognises models compiled by smelt, and "smelt" becomes a
`DynamoBackend`, so that `Accelerator(dynamo_backend="smelt")` and `ACCELERATE_DYNAMO_BACKEND=smelt` work as well.
"""

from __future__ import annotations

from typing import Any

try:
    from accelerate.utils import DynamoBackend, TorchDynamoPlugin
except ImportError as error:
    raise ImportError("smelt.integrations.accelerate needs accelerate: pip install accelerate") from error

import smelt
from smelt.integrations.accelerate_models import take_functions
from smelt.integrations.patches import take_named


def _add_backend() -> None:
    """Add the member `DynamoBackend("SMELT")` to the enumeration, which has no interface for new members."""
    if "SMELT" not in DynamoBackend.__members__:
        member = str.__new__(DynamoBackend, "SMELT")
        member._name_ = member._value_ = "SMELT"
        DynamoBackend._member_map_["SMELT"] = member
        DynamoBackend._value2member_map_["SMELT"] = member
        DynamoBackend._member_names_.append("SMELT")


class SmeltPlugin(TorchDynamoPlugin):
    """The settings with which `Accelerator.prepare` compiles models by smelt.

    Args:
        mode: as in `smelt.compile`; default: `ACCELERATE_DYNAMO_MODE`, else "default".
        fullgraph: default: `ACCELERATE_DYNAMO_USE_FULLGRAPH`, else False.
        dynamic: default: True if `ACCELERATE_DYNAMO_USE_DYNAMIC` is true, else None: sizes that change become symbols.
            (`accelerate launch` always sets that variable, by default to False.)
        options: as in `smelt.compile`, instead of a mode.
        disable: compile nothing.
        use_regional_compilation: `smelt.compile_regions`; default: `ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION`, else
            False.

    Raises:
        OptionError: an unknown mode or option, or both.
    """

    def __init__(
        self,
        mode: str | None = None,
        fullgraph: bool | None = None,
        dynamic: bool | None = None,
        options: dict[str, Any] | None = None,
        disable: bool = False,
        use_regional_compilation: bool | None = None,
    ) -> None:
        take_named()  # `smelt.uninstall` may have been called since the import
        super().__init__("smelt", mode, fullgraph, dynamic, options, disable, use_regional_compilation)
        if dynamic is None:
            self.dynamic = True if vars(self)["dynamic"] else None
        if options is not None and mode is None:
            self.mode = None
        smelt.compile(**self.to_kwargs())  # raises for wrong arguments

    def to_kwargs(self) -> dict[str, Any]:
        """The keyword arguments for `torch.compile`."""
        names = ("mode", "fullgraph", "dynamic", "options", "disable")
        return {"backend": "smelt", **{name: getattr(self, name) for name in names}}


_add_backend()
take_named()
take_functions()
