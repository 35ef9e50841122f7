"""Sets up the frame hook of this process and the functions that it calls.

These are functions of `compiled` as soon as the process compiles. In a process that only loads artefacts, the hook
calls the owners of the artefacts, without the rest of capture.
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
    """Set up the hook with torch's memory layout and the files to ignore; until `answer`, it calls the present
    owner.
    """
    calibrate()
    native.skip_prefixes(policy.skipped_prefixes())
    native.quiet_prefixes(policy.quiet_prefixes())
    native.set_callback(_ask_owner)


def answer(frame: native.FrameCallback, resumed: native.ResumeCallback, watched: Callable[[], None]) -> None:
    """Let the hook call these functions.

    Args:
        frame: called when a frame starts for which no entry fits.
        resumed: called when a frame resumes after a graph break and no entry fits.
        watched: called once if frames run uncompiled because a debugger or coverage tool follows the lines.
    """
    prepare()
    native.set_callback(frame)
    native.set_resume_callback(resumed)
    native.set_watch_callback(watched)


def _ask_owner(
    code: CodeType, function: FunctionType, slots: tuple[object, ...], globals: dict[str, object], builtins: object
) -> object:
    owner = native.owner()
    return None if owner is None else owner.frame(code, function, slots, globals)
