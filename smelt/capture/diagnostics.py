"""What a compiled callable reports of its captures: breaks, recompilations, frames that run in eager, exceptions."""

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
    """The graph breaks and other reasons for eager of one compiled callable.

    Attributes:
        options: `fullgraph` makes each of them an error.
        breaks: the distinct graph breaks so far, and other reasons for which frames ran in eager.
        raised: thread -> exceptions of its present call that frames raised while they were captured, but not when they
            ran.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.breaks: list[BreakReason] = []
        self.raised: dict[int, list[BreakReason]] = {}

    def record_recompile(self, site: CompileSite, read: Reader) -> None:
        """An entry is about to be added: count and log which guards of the others fail."""
        changes = read.changes(site.versions)
        site.recompiles += changes[-1:]  # of the newest entry: what changed since the last compilation
        count("recompiles")
        count_named("recompile_reasons", {on_one_line(f"{site.name}: {change}"): 1 for change in changes[-1:]})
        log("recompiles", lambda: on_one_line(f"{site.name}: {'; '.join(map(str, changes))}"))

    def record_attempt(self, site: CompileSite, number: int, how: str) -> None:
        """Record that a frame is captured once more, by a weaker plan."""
        text = on_one_line(f"attempt {number}: {how}")
        log("attempts", lambda: f"{site.name}, {text}")
        site.attempts.append(f"{site.name}, {text}")

    def over_limit(self, site: CompileSite, read: Reader) -> None:
        """The recompile limit is exceeded: eager from now on, with one warning.

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
        """Count and log a break, unless it is known already."""
        if reason not in self.breaks:
            count("breaks")
            count_named("break_reasons", {f"{reason.title} ({reason.at})" if reason.at else reason.title: 1})
            log("breaks", lambda: str(reason))
            self.breaks.append(reason)

    def refuse(self, site: CompileSite, refused: Break) -> None:
        """The frame cannot be captured, not even with graph breaks: eager, and a break for `explain`."""
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
        """The body of the compiled function (a generator or coroutine) runs uncompiled.

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
        """A frame that raised during capture has returned in eager."""
        self.raised.setdefault(threading.get_ident(), []).append(reason)

    def call_ended(self, returned: bool) -> None:
        """A call has ended in which frames raised only during capture. `returned`: no exception of the program is
        propagating.

        Raises:
            Unsupported: with `fullgraph`, if the call returned.
        """
        if native.owner() is self:
            return  # the outermost call of this thread will report
        reasons = self.raised.pop(threading.get_ident(), [])
        for reason in reasons if returned else ():
            self.report_eager(reason)

    def fall_back(self, site: CompileSite, error: CompileError) -> None:
        """A compile site runs in eager because the compiler failed."""
        site.given_up = True
        self.add_break(BreakReason(error.what, error.at or "", error.why or "", error.hint or ""))
        self.warn(error)

    def warn(self, error: SmeltError) -> None:
        """Warn that a frame runs in eager because of an error that is not the program's."""
        count("fallbacks")
        warnings.warn(SmeltWarning(f"{error}\n  the frame runs in eager"), stacklevel=3)


def _kept_failing(changes: list[GuardFailure]) -> str:
    """The guard that failed most often, with the values that it met."""
    if not changes:
        return "which guard kept failing is not known"
    subject, times = Counter(change.subject for change in changes).most_common(1)[0]
    same = [change for change in changes if change.subject == subject]
    values = dict.fromkeys([same[0].before, *(change.now for change in same)])
    at = f"  # {same[-1].at}" if same[-1].at else ""
    return f"the guard on {subject} failed {times} times, for {', '.join(values)}{at}"


def only_captured(site: CompileSite, raised: UserError) -> BreakReason:
    """The reason to report for a frame that raises during capture, if it does not raise in eager."""
    error = raised.error
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    at = f"{entry.tb_frame.f_code.co_filename}:{entry.tb_lineno}" if entry is not None else ""
    why = f"it raised {type(error).__name__}: {error}; while a frame is captured, tensors have no values"
    return BreakReason(f"{site.name} cannot be captured", at, why, "smelt.disable what raises")
