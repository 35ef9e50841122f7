"""Compares the machine and installation for which an artefact was made with the present ones."""

from __future__ import annotations

import hashlib
import platform
import sys
from typing import Any

import torch

from smelt.artefact.container import ArtefactError
from smelt.base.version import VERSION
from smelt.runtime.build import cpu_features
from smelt.runtime.openmp import torch_openmp

_WORDS = {
    "smelt": "the version of smelt",
    "torch": "the version of torch",
    "python": "the version of Python",
    "machine": "the machine",
    "cpu": "the processor or its features",
    "openmp": "the OpenMP runtime",
}


def present() -> dict[str, str]:
    """The facts about this machine and installation that an artefact made here records."""
    runtime = torch_openmp()
    features = cpu_features()
    model = next((line.partition(":")[2].strip() for line in features.splitlines() if "model name" in line), "")
    return {
        "smelt": VERSION,
        "torch": torch.__version__,
        "python": f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}",
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": f"{model} {hashlib.sha256(features.encode()).hexdigest()[:16]}".strip(),
        "openmp": runtime.name if runtime else "none",
    }


def check(header: dict[str, Any], path: str) -> None:
    """Compare the header of an artefact with this process.

    Raises:
        ArtefactError: the artefact was made for another machine or installation; the message names a difference.
    """
    differing = [(name, header.get(name), here) for name, here in present().items() if header.get(name) != here]
    if differing:
        name, there, here = differing[0]
        raise ArtefactError(
            f"{path} was made for another machine or installation",
            why=f"{_WORDS[name]} was {str(there)[:100]!r}, and here it is {here!r}",
            hint="make it on this machine: compiled.aot_compile(...).save(...)",
        )
