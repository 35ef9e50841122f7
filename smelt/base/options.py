"""The options of a compilation: one frozen value, made from arguments and environment; its key enters cache hashes."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt.base.errors import OptionError, shown, unknown_name

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"cuda_graphs": True, "max_autotune": True},
    "max-autotune-no-cudagraphs": {"cuda_graphs": False, "max_autotune": True},
}
"""Name of a mode -> the options that the mode sets."""


def _user(default: Any, help: str) -> Any:
    """A field of Options that users may set through `options={...}`; `help` describes it."""
    return dataclasses.field(default=default, metadata={"user": True, "help": help})


class Owner:
    """Identifies one call of `smelt.compile`: the GPU memory that its programs retain is counted under this object."""


@dataclass(frozen=True)
class Options:
    """All settings of one compilation, and its owner. Fields made by `_user` are the keys of `options={...}`."""

    backend: str = "smelt"
    mode: str = "default"
    fullgraph: bool = False
    dynamic: bool | None = None
    eager_rng: bool = _user(False, "random operators give eager's bits for the same seed")
    activation_memory_budget: float = _user(1.0, "0 saves as little as possible for backward, 1 what is fastest")
    recompile_limit: int = _user(8, "compiled versions per code location before eager takes over")
    gemm: str = _user("auto", "matrix products: auto (measured once per shape), aten, onednn, own or template")
    cuda_graphs: bool = _user(True, "record and replay CUDA graphs where that is safe; no effect on a CPU")
    target: str = _user("auto", "auto: C++ on a CPU, Triton on a GPU; cpp; triton (on a CPU through its interpreter)")
    contract: bool = _user(False, "a product and a sum of two operators may be rounded once, which eager never does")
    max_autotune: bool = _user(False, "time more kernel candidates on a GPU; no effect on a CPU")
    stages: int = _user(-1, "bytes of gradients that a backward hands out at once: 0 all at its end, -1 a DDP bucket")
    owner: Owner = dataclasses.field(default_factory=Owner, compare=False, repr=False)

    @property
    def templates(self) -> bool:
        """Whether generated kernels of a GPU may compute matrix products."""
        return self.gemm == "template" or (self.max_autotune and self.gemm == "auto")

    def key(self) -> str:
        """A text that is equal exactly when two options compile the same."""
        return ";".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.compare)


def user_options() -> dict[str, str]:
    """The keys that `options={...}` accepts, with their help."""
    return {f.name: f.metadata["help"] for f in dataclasses.fields(Options) if f.metadata.get("user")}


def list_options() -> dict[str, str]:
    """The keys that `smelt.compile(options={...})` takes, each with what it does, its default and its values."""
    defaults = Options()
    listed = {}
    for name, help in user_options().items():
        values = f"; one of {', '.join(CHOICES[name])}" if name in CHOICES else ""
        listed[name] = f"{help} (default {getattr(defaults, name)!r}{values})"
    return listed


def list_mode_options(mode: str | None = None) -> dict[str, Any]:
    """The options that a mode of `smelt.compile` sets, by name; for None, the options of every mode, by mode.

    Raises:
        OptionError: the mode is unknown (the message names the nearest one).
    """
    if mode is None:
        return {name: dict(values) for name, values in MODES.items()}
    if mode not in MODES:
        raise unknown_name("mode", mode, MODES)
    return dict(MODES[mode])


_KEYS = "smelt.list_options() names its keys"


def resolve_options(
    *,
    backend: str = "smelt",
    mode: str | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> Options:
    """Check the values that a user passed, and return the frozen Options.

    Raises:
        OptionError: unknown mode or option key (names the nearest), a value of the wrong type,
            `mode` together with `options`, or an invalid environment variable.
    """
    environment()
    mode = _characters(mode)
    if mode is not None and not isinstance(mode, str):
        raise OptionError(f"mode wants a name, got {shown(mode)}", hint=f"one of {', '.join(MODES)}")
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(f"options wants a dict, got {shown(options)}", hint=f'such as {{"gemm": "aten"}}; {_KEYS}')
    if type(fullgraph) is not bool:
        raise OptionError(f"fullgraph wants True or False, got {shown(fullgraph)}")
    if dynamic is not None and type(dynamic) is not bool:
        raise OptionError(f"dynamic wants True, False or None, got {shown(dynamic)}")
    if mode is not None and options:
        raise OptionError("mode and options were both given", hint="a mode is a set of options: pass one of the two")
    if mode is not None and mode not in MODES:
        raise unknown_name("mode", mode, MODES)
    base = Options(backend=backend, mode=mode or "default", fullgraph=fullgraph, dynamic=dynamic)
    return dataclasses.replace(base, **MODES[mode or "default"], **_checked(options or {}))


def _characters(name: Any) -> Any:
    """A name as a plain `str`: subclasses of `str` may override comparison. Other objects are returned as given."""
    return str.__str__(name) if isinstance(name, str) else name


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    defaults = Options()
    valid = user_options()
    values: dict[str, Any] = {}
    for name, value in options.items():
        name = _characters(name)
        if not isinstance(name, str) or name not in valid:
            raise unknown_name("option", name, valid)
        want = type(getattr(defaults, name))
        if want is float and type(value) is int:
            value = float(value) if abs(value) <= 1 else math.inf  # a larger int may not fit a float
        if type(value) is not want:
            raise OptionError(f"option {name!r} wants {want.__name__}, got {shown(value)}", hint=valid[name])
        values[name] = value
    for name, choices in CHOICES.items():
        if values.get(name, "auto") not in choices:
            raise unknown_name(f"value of option {name!r}", values[name], choices)
    if values.get("recompile_limit", 1) < 1:
        raise OptionError(f"recompile_limit wants a positive number, got {shown(values['recompile_limit'])}")
    if not -1 <= values.get("stages", 0) < 2**63:
        raise OptionError(f"stages wants a number of bytes, 0 or -1, got {shown(values['stages'])}")
    if not 0.0 <= values.get("activation_memory_budget", 1.0) <= 1.0:
        wrong = shown(options["activation_memory_budget"])
        raise OptionError(f"activation_memory_budget wants a number between 0 and 1, got {wrong}")
    return values


CHOICES = {"gemm": ("auto", "aten", "onednn", "own", "template"), "target": ("auto", "cpp", "triton")}
"""Option -> its allowed values, for options with few values."""


@dataclass(frozen=True)
class Environment:
    """The SMELT_* variables. They set folders, limits, checks and logging, never what is compiled."""

    strict: bool
    verify: bool
    trace: bool
    trace_dir: Path
    cache_dir: Path
    cache_bytes: int | None
    build_timeout_s: float
    log: frozenset[str]
    cxx: str | None
    ptxas: str | None
    triton_interpret: bool
    debug_memory: bool
    nvtx: bool


def environment() -> Environment:
    """Read the SMELT_* variables, CXX and two of Triton's; no other code reads them.

    Raises:
        OptionError: a folder's name is empty or begins with a tilde, a number is not positive or not a number, a
            switch is neither on nor off, or SMELT_LOG names an unknown topic.
    """
    return Environment(
        strict=_flag("SMELT_STRICT"),
        verify=_flag("SMELT_VERIFY" if "SMELT_VERIFY" in os.environ else "SMELT_STRICT"),
        trace=_flag("SMELT_TRACE"),
        trace_dir=_folder("SMELT_TRACE_DIR", "smelt_trace"),
        cache_dir=_folder("SMELT_CACHE_DIR", None),
        cache_bytes=_number("SMELT_CACHE_BYTES", None, int),
        build_timeout_s=min(_number("SMELT_BUILD_TIMEOUT_S", DEFAULT_BUILD_TIMEOUT_S, float), _LONGEST_S),
        log=_topics("SMELT_LOG"),
        cxx=os.environ.get("CXX"),
        ptxas=os.environ.get("TRITON_PTXAS_PATH"),
        triton_interpret=os.environ.get("TRITON_INTERPRET", "").lower() in _ON,  # Triton reads every other value as off
        debug_memory=_flag("SMELT_DEBUG_MEMORY"),
        nvtx=_flag("SMELT_NVTX"),
    )


DEFAULT_BUILD_TIMEOUT_S = 120.0
"""Seconds after which a C++ or Triton compiler is assumed to hang and is ended."""


def _folder(name: str, default: str | None) -> Path:
    text = os.environ.get(name)
    if text is not None and not text.strip():
        raise OptionError(f"{name} is set and empty", hint="name a folder, or unset it to use the default")
    if text is not None and text.startswith("~"):  # else a folder named `~` would be made in the current one
        raise OptionError(f"{name} wants a folder, got {shown(text)}", hint="write out the home that ~ stands for")
    return Path(text or default or _default_cache())


def _default_cache() -> str:
    """The default cache folder: in XDG_CACHE_HOME, else in `~/.cache`, else in /tmp. Relative paths are ignored."""
    for home in (os.environ.get("XDG_CACHE_HOME", ""), os.path.join(os.path.expanduser("~"), ".cache")):
        if os.path.isabs(home):
            return os.path.join(home, "smelt")
    return os.path.join("/tmp", f"smelt-{os.getuid()}")


def _number(name: str, default: Any, kind: type) -> Any:
    """The positive number in an environment variable."""
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not value > 0:  # also rejects NaN
        raise OptionError(f"{name} wants a positive number, got {shown(text)}")
    return value


_LONGEST_S = 1e6
"""Maximum timeout in seconds (eleven days): the system rejects longer timeouts."""


LOG_TOPICS = ("graphs", "breaks", "recompiles", "sizes", "attempts")
"""The topics that `SMELT_LOG` accepts."""


def _topics(name: str) -> frozenset[str]:
    topics = frozenset(filter(None, (word.strip() for word in os.environ.get(name, "").split(","))))
    for topic in topics.difference(LOG_TOPICS):
        raise unknown_name(f"topic of {name}", topic, LOG_TOPICS)
    return topics


_ON = ("1", "true", "yes", "on", "y")
_OFF = ("", "0", "false", "no", "off", "n")


def _flag(name: str) -> bool:
    text = os.environ.get(name, "")
    value = text.strip().lower()
    if value not in _ON and value not in _OFF:
        raise OptionError(f"{name} wants 1 or 0, got {shown(text)}", hint="yes, no, true, false, on and off do as well")
    return value in _ON
