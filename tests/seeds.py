"""The seeds of random numbers, set for each test and by PyTorch's database of operators for each of its samples."""

from __future__ import annotations

import random

import numpy as np
import torch


def set_seeds(seed: int) -> None:
    """Seed Python's, NumPy's and PyTorch's generators.

    Without a GPU `torch.manual_seed` would format the stack twice, to keep the seed for devices that may come.
    """
    random.seed(seed)
    np.random.seed(seed)
    if torch.cuda.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
