"""Log messages of the compiler, enabled by `SMELT_LOG=graphs,breaks,recompiles` or by Python's `logging`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from smelt.base.options import environment
from smelt.base.text import visible


def log(topic: str, text: Callable[[], str]) -> None:
    """Log a message about a topic; `text` is called only if the topic is enabled.

    The loggers are "smelt.graphs", "smelt.breaks" and so on, and the level is DEBUG. Messages about topics in SMELT_LOG
    are written to standard error, unless the program's own log handlers take them.
    """
    logger = logging.getLogger(f"smelt.{topic}")
    if logger.isEnabledFor(logging.DEBUG) and _has_debug_handler(logger):
        logger.debug("%s", visible(text()))
    elif topic in environment().log:
        print(f"smelt {topic}: {visible(text())}", file=sys.stderr)


def _has_debug_handler(logger: logging.Logger) -> bool:
    """Whether some handler takes DEBUG messages of a logger: the program's handlers may have a higher level."""
    each: logging.Logger | None = logger
    while each is not None:
        if any(handler.level <= logging.DEBUG for handler in each.handlers):
            return True
        each = each.parent if each.propagate else None
    return False
