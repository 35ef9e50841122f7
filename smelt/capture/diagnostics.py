"""Reports on the captures of a compiled callable: graph breaks, recompilations, frames that run in eager."""

from __future__ import annotations

import functools
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from types import CodeType

from smelt.base.class_tables import isinstance
from smelt.base.errors import CompileError, SmeltError, SmeltWarning, Unsupported
from smelt.base.log import log
from smelt.base.options import Options
from smelt.base.stats import count, count_named
from smelt.base.text import on_one_line
from smelt.capture import _native as native
from smelt.capture.cache import CompileSite, Reader
from smelt.capture.core.breaks import Break, BreakReason, UserError
from smelt.capture.guards.guard_failures import GuardFailure


class Diagnostics:
    """Counts and logs the graph breaks, recompilations and eager frames of one compiled callable.

    Attributes:
        options: the options of the callable; with `fullgraph`, a graph break or an eager frame is an error.
        breaks: the distinct graph breaks so far, and other reasons for which frames ran in eager.
        raised: thread id -> reasons to report for frames that raised during capture, but not in eager, in the thread's
            present call.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.breaks: list[BreakReason] = []
        self.raised: dict[int, list[BreakReason]] = {}

    def record_recompile(self, site: CompileSite, read: Reader) -> None:
        """Count and log a recompilation, with the failing guards of the entries that the site has."""
        changes = read.changes(site.versions)
        site.recompiles += changes[-1:]  # the newest entry's failing guard: the change since the last compilation
        count("recompiles")
        count_named("recompile_reasons", {on_one_line(f"{site.name}: {change}"): 1 for change in changes[-1:]})
        log("recompiles", lambda: on_one_line(f"{site.name}: {'; '.join(map(str, changes))}"))

    def record_attempt(self, site: CompileSite, number: int, how: str) -> None:
        """Record a repeated attempt to capture a frame, with a weaker plan.

        Args:
            number: the number of the attempt, from 2 on.
            how: the difference of its plan from the previous plan.
        """
        text = on_one_line(f"attempt {number}: {how}")
        log("attempts", lambda: f"{site.name}, {text}")
        site.attempts.append(f"{site.name}, {text}")

    def over_limit(self, site: CompileSite, read: Reader) -> None:
        """Let a site that has reached the recompile limit run in eager, with one warning if it had tensor work.

        Raises:
            Unsupported: with `fullgraph`.
        """
        idle = all(version.residual.gm is None for version in site.versions)
        site.given_up = idle or not self.options.fullgraph
        if idle:
            return  # without tensor work nothing is lost
        text = f"{site.name} was compiled {len(site.versions)} times: it runs in eager from now on"
        why = _kept_failing([*site.recompiles, *read.changes(site.versions)[-1:]])
        if self.options.fullgraph:
            raise Unsupported(text, why=why, hint="raise options recompile_limit, or make the value stable")
        self.add_break(BreakReason(text, "", why, "options={'recompile_limit': n}"))
        warnings.warn(SmeltWarning(str(SmeltError(text, why=why, hint="options={'recompile_limit': n}"))), stacklevel=2)

    def add_break(self, reason: BreakReason) -> None:
        """Count, log and store a break, unless an equal one is stored already."""
        if reason not in self.breaks:
            count("breaks")
            count_named("break_reasons", {f"{reason.title} ({reason.at})" if reason.at else reason.title: 1})
            log("breaks", lambda: str(reason))
            self.breaks.append(reason)

    def refuse(self, site: CompileSite, refused: Break) -> None:
        """Report a frame that runs in eager because it cannot be captured, even with graph breaks."""
        self.report_eager(BreakReason.of(refused))
        site.failed += 1
        if site.failed >= self.options.recompile_limit:
            site.given_up = True

    def report_eager(self, reason: BreakReason) -> None:
        """Record a reason for which a frame runs in eager as a break.

        Raises:
            Unsupported: with `fullgraph`.
        """
        if self.options.fullgraph:
            raise reason.error()
        self.add_break(reason)

    def leaves_body(self, kind: str, fn: Callable[..., object]) -> None:
        """Report that the body of the compiled function, a generator or coroutine, runs uncompiled.

        Raises:
            Unsupported: with `fullgraph`.
        """
        while isinstance(fn, functools.partial):
            fn = fn.func
        code: CodeType = fn.__code__
        why = f"a {kind} is suspended between its steps; the functions that it calls are captured"
        at = f"{code.co_filename}:{code.co_firstlineno}"
        self.report_eager(
            BreakReason(f"the body of the {kind} {code.co_qualname}", at, why, "compile the functions it calls")
        )

    def only_capture_raised(self, reason: BreakReason) -> None:
        """Store the reason to report for a frame that raised during capture but returned in eager."""
        self.raised.setdefault(threading.get_ident(), []).append(reason)

    def call_ended(self, returned: bool) -> None:
        """Report, at the end of a call, the frames that raised only during capture.

        Args:
            returned: whether the call returned; if False, an exception propagates and nothing is reported.

        Raises:
            Unsupported: with `fullgraph`, if the call returned.
        """
        if native.owner() is self:
            return  # the outermost call of this thread will report
        reasons = self.raised.pop(threading.get_ident(), [])
        for reason in reasons if returned else ():
            self.report_eager(reason)

    def fall_back(self, site: CompileSite, error: CompileError) -> None:
        """Let a compile site run in eager because the compiler failed on it, with a warning."""
        site.given_up = True
        self.add_break(BreakReason(error.what, error.at or "", error.why or "", error.hint or ""))
        self.warn(error)

    def warn(self, error: SmeltError) -> None:
        """Warn that a frame runs in eager because of an error that the program did not cause."""
        count("fallbacks")
        warnings.warn(SmeltWarning(f"{error}\n  the frame runs in eager"), stacklevel=3)


def _kept_failing(changes: list[GuardFailure]) -> str:
    """A text that names the guard that failed most often, and the values for which it failed."""
    if not changes:
        return "which guard kept failing is not known"
    subject, times = Counter(change.subject for change in changes).most_common(1)[0]
    same = [change for change in changes if change.subject == subject]
    values = dict.fromkeys([same[0].before, *(change.now for change in same)])
    at = f"  # {same[-1].at}" if same[-1].at else ""
    return f"the guard on {subject} failed {times} times, for {', '.join(values)}{at}"


def only_captured(site: CompileSite, raised: UserError) -> BreakReason:
    """The reason to report for a frame that raised during capture, in case it does not raise in eager."""
    error = raised.error
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    at = f"{entry.tb_frame.f_code.co_filename}:{entry.tb_lineno}" if entry is not None else ""
    why = f"it raised {type(error).__name__}: {error}; while a frame is captured, tensors have no values"
    return BreakReason(f"{site.name} cannot be captured", at, why, "smelt.disable what raises")
