"""The command line of a sweep: random programs, each by its seed, of which those that differ from eager are printed."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def sweep(
    description: str | None, differs: Callable[..., str | None], programs: int = 2000, backend: str | None = None
) -> int:
    """How many programs differ.

    Args:
        description: of the help text.
        differs: seed (and backend) -> the text of a program that differs, or None.
        programs: how many run by default.
        backend: the default of `--backend`, which is passed on; None: the sweep has no such choice.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--programs", type=int, default=programs)
    parser.add_argument("--seed", type=int, default=0)
    if backend is not None:
        parser.add_argument("--backend", default=backend)
    options = parser.parse_args()
    more = () if backend is None else (options.backend,)
    bad = 0
    for seed in range(options.seed, options.seed + options.programs):
        text = differs(seed, *more)
        if text is not None:
            bad += 1
            print(text, flush=True)
    print(f"{options.programs} programs, {bad} differ")
    return bad
