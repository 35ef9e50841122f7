"""Print what pyproject.toml asks for, except the packages that the Makefile installs by itself."""

import re
import tomllib
from pathlib import Path

BY_HAND = {"torch", "torchvision", "timm"}
"""Installed before, one by one, so that no second torch is fetched."""


def requirements(pyproject: Path) -> list[str]:
    """The dependencies of the project and of all its extras, without the ones in BY_HAND."""
    project = tomllib.loads(pyproject.read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [line for group in groups for line in group if re.split(r"[<>=!~ \[;]", line)[0] not in BY_HAND]


if __name__ == "__main__":
    print(" ".join(requirements(Path(__file__).parent.parent / "pyproject.toml")))
