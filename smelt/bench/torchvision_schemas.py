"""Used by bench and tests: lets torchvision's Python modules, which timm and transformers import, load with any torch.

torchvision registers fake kernels for two of its compiled operators when it is imported. If its compiled library does
not match the installed torch (a CPU-only torch with the registry's CUDA build), the operators do not exist and the
import fails. It succeeds if their schemas are defined first.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_libraries: list[torch.library.Library] = []
"""Keeps the definitions alive: a library removes its operators when it is collected."""


def define_torchvision_schemas() -> None:
    """Define `torchvision::nms` and `torchvision::qnms` unless torchvision is loaded or already has them.

    Call it before the first import of torchvision, timm or transformers. A second call does nothing.
    """
    if _libraries or "torchvision" in sys.modules or _binary_part_loads():
        return
    library = torch.library.Library("torchvision", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    _libraries.append(library)


def _binary_part_loads() -> bool:
    """Load torchvision's compiled operators if they fit this torch; returns True even if torchvision is not
    installed.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True
    binaries = list(Path(spec.origin).parent.glob("_C*.so"))
    try:
        for binary in binaries:
            torch.ops.load_library(str(binary))
    except (OSError, RuntimeError):
        return False
    return bool(binaries)
