"""Messages about what the compiler does, for people who ask: `SMELT_LOG=graphs,breaks,recompiles`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from smelt.base.options import environment

TOPICS = ("graphs", "breaks", "recompiles", "sizes")
"""What `SMELT_LOG` may name."""


def log(topic: str, text: Callable[[], str]) -> None:
    """Write one line to standard error if SMELT_LOG names the topic; `text` is called only then."""
    if topic in environment().log:
        print(f"smelt {topic}: {text()}", file=sys.stderr)
