"""The frame hook of this process, and the functions that answer it.

Sessions do, once something is compiled here; where only artefacts are loaded, their owners answer without the rest of
capture.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CodeType, FunctionType

from smelt.capture import _native as native
from smelt.capture.core import policy
from smelt.capture.guards.calibrate import calibrate


@functools.cache
def prepare() -> None:
    """Set up the hook with torch's memory layout and the files to ignore; owners of artefacts answer it."""
    calibrate()
    native.skip_prefixes(policy.skipped_prefixes())
    native.quiet_prefixes(policy.quiet_prefixes())
    native.set_callback(_ask_owner)


def answer(frame: native.FrameCallback, resumed: native.ResumeCallback, watched: Callable[[], None]) -> None:
    """Let these functions answer the hook from here on."""
    prepare()
    native.set_callback(frame)
    native.set_resume_callback(resumed)
    native.set_watch_callback(watched)


def _ask_owner(
    code: CodeType, function: FunctionType, slots: tuple[object, ...], globals: dict[str, object], builtins: object
) -> object:
    owner = native.owner()
    return None if owner is None else owner.frame(code, function, slots, globals)
