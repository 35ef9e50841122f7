"""Small networks in the form of the pretrained ones, and where those are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PRETRAINED = Path(os.environ.get("SMELT_MCU_MODELS", Path(__file__).parents[3] / "shared" / "data" / "mcu_models"))
NAMES = ("mcunet-5fps", "proxyless-w0.3", "mbv2-w0.35")


def pretrained(name: str) -> Path:
    """The file of a pretrained network; the test is skipped where there is none."""
    path = PRETRAINED / f"{name}.json"
    if not path.exists():
        pytest.skip(f"no pretrained networks in {PRETRAINED} (SMELT_MCU_MODELS names their folder)")
    return path


def write(folder: Path, *, size: int = 9, classes: int = 5, dead: bool = False, **changes: Any) -> Path:
    """A network of two blocks, the second with a sum around it, as a file in `folder`."""
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}

    def conv(
        name: str, inputs: int, outputs: int, kernel: int, stride: int, x: tuple[float, int], y: tuple[float, int]
    ) -> Any:
        depthwise = name.endswith("depthwise")
        shape = (outputs, 1 if depthwise else inputs, kernel, kernel)
        arrays[f"{name}.w"] = random.integers(-127, 128, shape, np.int8)
        arrays[f"{name}.b"] = random.integers(-900, 900, outputs).astype(np.int32)
        fan = shape[1] * kernel * kernel
        arrays[f"{name}.s"] = (random.uniform(0.5, 1.5, outputs) * y[0] / (x[0] * 90 * fan**0.5)).astype(np.float32)
        if dead:
            arrays[f"{name}.b"][0], arrays[f"{name}.s"][0] = -(2**31), 4e-9
        params = {key: {"array": f"{name}.{key[0]}"} for key in ("weight", "bias")}
        params |= {"w_scales": {"array": f"{name}.s"}, "x_scale": x[0], "x_zero": x[1], "y_scale": y[0], "y_zero": y[1]}
        entry = {"in_channel": inputs, "in_shape": size, "out_channel": outputs, "kernel_size": [kernel, kernel]}
        return {**entry, "stride": stride, "groups": outputs if depthwise else 1, "params": params}

    image, wide, thin = (1 / 128, 0), (0.02, -128), (0.05, 3)

    def block(number: int, inputs: int, outputs: int, residual: Any) -> Any:
        at = f"blocks.{number}"
        return {
            "pointwise1": conv(f"{at}.pointwise1", inputs, 12, 1, 1, thin if number else wide, wide),
            "depthwise": conv(f"{at}.depthwise", 12, 12, 5 if number else 3, 1 if number else 2, wide, wide),
            "pointwise2": conv(f"{at}.pointwise2", 12, outputs, 1, 1, wide, thin),
            "residual": residual,
            "se": None,
        }

    config = {
        "first_conv": conv("first_conv", 3, 8, 3, 1, image, wide),
        "blocks": [block(0, 8, 6, None), block(1, 6, 6, {"params": {"y_scale": 0.08, "y_zero": -4}})],
        "feature_mix": None,
        "classifier": conv("classifier", 6, classes, 1, 1, (0.08, -4), (0.1, 0)),
        **changes,
    }
    path = folder / "net.json"
    path.write_text(json.dumps(config))
    np.savez(path.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]
    return path
