"""Files of results: writes dataclasses as JSON and reads them, with errors that name the value that is wrong."""

from __future__ import annotations

import dataclasses
import json
import os
import types
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from smelt.base.errors import OptionError

T = TypeVar("T")

WORDS = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    dict: "an object",
    list: "a list",
}


def write_dataclass(value: Any, path: Path) -> None:
    """Write JSON and replace the file atomically, so that an interrupted run leaves a readable file."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(dataclasses.asdict(value), indent=1) + "\n")
    os.replace(partial, path)


def file_to_resume(path: Path | None, resume: bool) -> Path | None:
    """Returns the file of the run to resume; None for a new run.

    Raises:
        OptionError: there is no file to resume, the folder does not exist, or a file would be overwritten.
    """
    if path is None:
        if resume:
            raise OptionError("--resume goes on with a file of results, and none is named", hint="--json FILE")
        return None
    if not path.exists():
        if not path.resolve().parent.is_dir():
            raise OptionError(f"{path}: there is no such folder", hint="make it, or name another file")
        return None
    if not resume:
        raise OptionError(f"{path} exists already", hint="--resume goes on with it; or name another file")
    return path


def read_dataclass(cls: type[T], data: Any, where: str) -> T:
    """Make an instance of the dataclass `cls` from the dictionary `data`, with nested dataclasses.

    Fields that `data` lacks take their defaults.

    Raises:
        ValueError: a value is missing, unknown or of another type; the message names it and `where`.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{where} is {_shown(data)}, not an object")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if unknown := [name for name in data if name not in fields]:
        raise ValueError(f"{where} has an unknown field {unknown[0]!r}")
    for name, field in fields.items():
        if name not in data and field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where} has no {name!r}")
    hints = get_type_hints(cls)
    return cls(**{name: read_value(hints[name], value, f"{where}, {name}") for name, value in data.items()})


def read_value(hint: Any, value: Any, where: str) -> Any:
    """Convert `value` to the type `hint`. Integers are accepted where floating-point numbers are expected."""
    if hint is Any:
        return value
    if get_origin(hint) in (types.UnionType, Union):
        if value is None:
            return None
        (hint,) = [option for option in get_args(hint) if option is not type(None)]
    if dataclasses.is_dataclass(hint):
        return read_dataclass(hint, value, where)  # type: ignore[arg-type]
    base = get_origin(hint) or hint
    accepted: Any = (int, float) if base is float else base
    if not isinstance(value, accepted) or (isinstance(value, bool) and base is not bool):
        raise ValueError(f"{where} is {_shown(value)}, not {WORDS[base]}")
    return _read_items(get_args(hint), value, where) if get_args(hint) else value


def _read_items(hints: tuple[Any, ...], value: Any, where: str) -> Any:
    """Convert the values of a dictionary or the items of a list to the container's type arguments."""
    if isinstance(value, dict):
        return {key: read_value(hints[1], item, f"{where} {key!r}") for key, item in value.items()}
    if isinstance(value, list):
        return [read_value(hints[0], item, f"{where} {index + 1}") for index, item in enumerate(value)]
    return value


def _shown(value: Any) -> str:
    """Shorten a value to a few words for a message."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
