"""The libraries that the census supports: names of their architectures, and a function that builds one."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from smelt.base.errors import SmeltError, unknown_name
from smelt.bench.census.examine import Subject
from smelt.bench.census.hf_models import transformers_names, transformers_subject
from smelt.bench.census.images import timm_names, timm_subject
from smelt.bench.census.suites import suite_names, suite_subject
from smelt.bench.torchvision_schemas import define_torchvision_schemas


@dataclass(frozen=True)
class Library:
    """A source of architectures.

    Args:
        needs: names of the required packages, for imports and for `pip install`.
        names: function that lists the names of its architectures.
        build: function that builds the architecture of a name, with inputs.
    """

    needs: tuple[str, ...]
    names: Callable[[], Sequence[str]]
    build: Callable[[str], Subject]


LIBRARIES = {
    "timm": Library(("timm",), timm_names, timm_subject),
    "transformers": Library(("transformers",), transformers_names, transformers_subject),
    "suites": Library(("timm", "transformers"), suite_names, suite_subject),
}
"""The libraries by name."""


def find_library(name: str) -> Library:
    """Returns the library of that name.

    Raises:
        OptionError: no library has the name.
        SmeltError: its package is not installed.
    """
    if name not in LIBRARIES:
        raise unknown_name("library", name, LIBRARIES)
    library = LIBRARIES[name]
    missing = [package for package in library.needs if importlib.util.find_spec(package) is None]
    if missing:
        raise SmeltError(f"the census of {name} needs {', '.join(missing)}", hint=f"pip install {' '.join(missing)}")
    define_torchvision_schemas()
    return library
