"""The frame hook: swapping, callbacks, skipping, activity, resumption. Needs no torch, so every CPython can run it."""

from __future__ import annotations

import copy
import dis
import functools
import gc
import opcode
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from smelt.capture import _native as native
from smelt.capture.core import policy

ALWAYS = native.Guards([], [], [])

DEEPEST = 360 if (3, 12) <= sys.version_info < (3, 12, 3) else 600
"""Calls of Python functions within each other that are compiled. Two of CPython's C calls belong to each, and half of
its limit of C calls is used, which was 1,500 in the first releases of 3.12.
"""


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    native.set_callback(None)
    native.set_resume_callback(None)
    native.clear_all()
    assert not native.is_active()
    compiled = sys.modules.get("smelt.capture.compiled")
    if compiled is not None:  # these tests took the hook away from it: it sets up again at the next compile
        compiled.start.cache_clear()


def swap(fn: Callable[..., Any], replacement: Callable[..., Any], guards: native.Guards = ALWAYS) -> native.Entry:
    return native.add_entry(fn.__code__, guards, replacement.__code__, None)


def active(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return native.call(fn, args, kwargs)


def resident_kilobytes() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


class Thing:
    """A plain object that weak references may point to."""


# ------------------------------------------------------------------------------------------------- swapping


def test_larger_replacement() -> None:
    def f(a, b):
        return a + b

    def g(a, b, _c, _f):
        x, y, z = 1, 2, 3
        return (a, b, x, y, z, [a, b, (x, y, z, a, b, (1, a, b, x, y, z, a, b, x, y, z))][0])

    assert f(1, 2) == 3
    swap(f, g)
    assert active(f, 1, 2) == (1, 2, 1, 2, 3, 1)
    assert f(1, 2) == 3  # outside `call` nothing changes


def test_all_argument_kinds_become_slots() -> None:
    def f(a, /, b, *args, k=5, **kw):
        return 0

    def g(a, b, k, args, kw, _c, _f):
        return a, b, args, k, kw

    assert native.argument_slots(f.__code__) == 5
    swap(f, g)
    assert active(f, 1, 2, 3, 4, k=7, z=8) == (1, 2, (3, 4), 7, {"z": 8})
    assert active(f, 1, b=2) == (1, 2, (), 5, {})


def test_constants_and_fetched_values_arrive() -> None:
    def f(a, b):
        return None

    def g(a, b, _c, _f):
        return a, b, _c, _f

    guards = native.Guards([(-1, native.LOCAL, 0), (-1, native.LOCAL, 1)], [], [1, 0, 1])
    entry = native.add_entry(f.__code__, guards, g.__code__, "constants")
    assert active(f, 1, 2) == (1, 2, "constants", (2, 1, 2))
    assert (entry.hits, entry.constants, entry.replacement, entry.guards) == (1, "constants", g.__code__, guards)


def test_closures_of_one_code_keep_their_cells() -> None:
    def make(v):
        def f(a):
            nonlocal v
            v += 1
            return a + v

        return f

    def g(a, _c, _f):
        _f[0].cell_contents += 100
        return "new", a + _f[0].cell_contents

    first, second = make(1), make(2)
    swap(first, g, native.Guards([(-1, native.CLOSURE_CELL, 0)], [], [0]))
    assert active(first, 0) == ("new", 101)
    assert active(second, 0) == ("new", 102)
    assert active(first, 0) == ("new", 201)
    assert first(0) == 202


def test_replacement_with_captured_argument() -> None:
    def f(a, b):
        return a + b

    def g(a, b, _c, _f):
        c = 10

        def inner():
            return a + b + c

        a += 1
        return inner

    swap(f, g)
    assert active(f, 1, 2)() == 14


def test_original_with_captured_arguments() -> None:
    def f(a, b):
        x = 3
        return lambda: (a, b, x)

    def g(a, b, _c, _f):
        return a * b

    swap(f, g)
    assert active(f, 4, 5) == 20
    assert f(4, 5)() == (4, 5, 3)


def test_recursion() -> None:
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    def fast(n, _c, _f):
        fib = _f[0]
        return n if n < 2 else 0 + fib(n - 1) + fib(n - 2)

    entry = swap(fib, fast, native.Guards([(-1, native.FUNC, None)], [], [0]))
    assert active(fib, 15) == 610
    assert entry.hits == 1973


def test_deep_recursion_and_its_limit() -> None:
    def deep(n):
        return 0 if n == 0 else deep(n - 1)  # where the stack is half full, frames run as they are

    def replaced(n, _c, _f):
        return 0 if n == 0 else 1 + _f[0](n - 1)

    swap(deep, replaced, native.Guards([(-1, native.FUNC, None)], [], [0]))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(3000)
    try:
        depth = min(400, DEEPEST)
        assert active(deep, depth) == depth
        with pytest.raises(RecursionError):
            active(deep, 100_000)
        assert active(deep, depth) == depth
    finally:
        sys.setrecursionlimit(limit)


def test_traceback_shows_the_replacement() -> None:
    def f(a):
        return a

    def g(a, _c, _f):
        k = a * 2
        raise ValueError(k)

    swap(f, g)
    with pytest.raises(ValueError) as caught:
        active(f, 3)
    frame = caught.traceback[-1].frame
    assert frame.code.raw is g.__code__
    assert frame.f_locals == {"a": 3}  # what is only ours would live as long as the traceback


def test_generator_replacement() -> None:
    def f(n):
        yield n

    def g(n, _c, _f):
        a, b, c, d = 1, 2, 3, 4
        for i in range(n):
            yield i, a, b, c, d

    swap(f, g)
    assert [x[0] for x in active(f, 5)] == list(range(5))
    assert [x[0] for x in active(lambda: list(f(5)))] == list(range(5))
    iterator = active(f, 3)
    next(iterator)
    with pytest.raises(KeyError):
        active(iterator.throw, KeyError("x"))


def test_coroutine_replacement() -> None:
    async def f(n):
        return n

    async def helper(n):
        return n

    async def g(n, _c, _f):
        return await _c(n) + 1000

    native.add_entry(f.__code__, ALWAYS, g.__code__, helper)
    with pytest.raises(StopIteration) as caught:
        active(lambda: f(1).send(None))
    assert caught.value.value == 1001


def test_methods_with_super() -> None:
    class A:
        def m(self):
            return "A"

    class B(A):
        def m(self):
            return super().m()

    def g(self, _c, _f):
        return "new" + super(_f[0], self).m()

    swap(B.m, g, native.Guards([(-1, native.CLOSURE, 0)], [(0, native.IS, B)], [0]))
    assert active(B().m) == "newA"


def test_arguments_die_when_the_replacement_drops_them() -> None:
    def f(o):
        return 1

    def g(o, _c, _f):
        reference = weakref.ref(o)
        del o
        return reference

    swap(f, g)
    assert active(lambda: f(Thing()))() is None


def test_getframe_and_escaping_frames() -> None:
    def f(x):
        return 0

    def g(x, _c, _f):
        y = [x]
        return sys._getframe(), y

    swap(f, g)
    frame, _ = active(f, 5)
    assert frame.f_code is g.__code__
    assert frame.f_locals == {"x": 5, "y": [5], "_c": None, "_f": ()}

    def caller():
        return f(1)[0].f_back

    assert active(caller).f_code is caller.__code__


def test_a_traced_frame_runs_as_it_is() -> None:
    def f(x):
        return x

    def g(x, _c, _f):
        return x + 1

    swap(f, g)
    seen = []

    def trace(frame, event, arg):
        seen.append((frame.f_code.co_name, event))
        return trace

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        result = active(f, 1)
    finally:
        sys.settrace(old)
    assert result == 1 and active(f, 1) == 2
    assert ("f", "call") in seen and ("f", "return") in seen and ("g", "call") not in seen


def test_compile_on_first_call() -> None:
    def f(a):
        return a

    def g(a, _c, _f):
        x = [a, a, a, (a, a, (a, a, (a, a, (a, a, (a, a, a)))))]
        b = c = d = e = h = i = j = k = m = 0
        return "cb", x[0], b, c, d, e, h, i, j, k, m

    def compile_f(code, func, slots, globals_, builtins):
        if code is f.__code__:
            assert func is f and slots == (1,) and globals_ is globals() and "len" in builtins
            assert not native.is_active()
            swap(f, g)

    native.set_callback(compile_f)
    assert active(f, 1)[:2] == ("cb", 1)


DEEP = """
def f(a): return a
def g(a, _c, _f):
    x1 = a; x2 = a; x3 = a; x4 = a; x5 = a; x6 = a
    r = (x1, x2, x3, pack(x1, x2, x3, pack(x4, x5, pack(x6, a, pack(a, a), pack(a, pack(a, pack(a, (1, 2, 3))))))))
    return x1, x2, x3, x4, x5, x6, r[0]
def raising(a, _c, _f):
    x1 = a; x2 = a; x3 = a; x4 = a; x5 = a; x6 = a
    raise KeyError(pack(x1, x2, x3, pack(x4, x5, pack(x6, a, pack(a, a)))))
"""


def test_first_call_at_every_depth_of_the_data_stack() -> None:
    """Where the grown frame does not fit behind the last chunk, the replacement is called instead."""

    def at(depth, fn, a):
        return fn(a) if depth == 0 else at(depth - 1, fn, a)

    for depth in range(0, DEEPEST, 3):
        names: dict[str, Any] = {"pack": lambda *a: a}
        exec(DEEP, names)
        f, g, raising = names["f"], names["g"], names["raising"]

        def compile_f(code, func, slots, globals_, builtins, f=f, g=g):
            if code is f.__code__:
                swap(f, g)

        native.set_callback(compile_f)
        thing = Thing()
        assert active(at, depth, f, thing) == (thing,) * 7
        assert active(f, thing) == (thing,) * 7
        native.clear(f.__code__)

        def compile_raising(code, func, slots, globals_, builtins, f=f, raising=raising):
            if code is f.__code__:
                swap(f, raising)

        names2: dict[str, Any] = {"pack": lambda *a: a}
        exec(DEEP, names2)
        f = names2["f"]
        native.set_callback(functools.partial(compile_raising, f=f, raising=names2["raising"]))
        dies = weakref.ref(thing)
        with pytest.raises(KeyError):
            active(at, depth, f, thing)
        del thing, f, g, raising, names, names2, compile_f, compile_raising
        native.set_callback(None)
        gc.collect(0)
        assert dies() is None


def test_threads() -> None:
    def f(a):
        return 0

    def g(a, _c, _f):
        return sum(_c(i) for i in range(50))

    native.add_entry(f.__code__, ALWAYS, g.__code__, lambda i: i)
    results: list[int] = []
    workers = [
        threading.Thread(target=lambda: results.extend(active(f, 1) for _ in range(300))),
        threading.Thread(target=lambda: results.extend(active(f, 1) for _ in range(300))),
        threading.Thread(target=lambda: results.extend(f(1) for _ in range(300))),
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(results) == [0] * 300 + [1225] * 600


def test_no_growth_over_many_calls() -> None:
    def f(a, b, *c, k=None, **kw):
        return a

    def g(a, b, k, c, kw, _c, _f):
        def inner():
            return a

        return [a, b, c, kw, inner][0]

    def fails(a):
        return a

    def fails_too(a, _c, _f):
        raise ValueError([a] * 3)

    fetch = native.Guards([(-1, native.LOCAL, 0), (0, native.ATTR, "__class__")], [], [0, 1])
    native.add_entry(f.__code__, fetch, g.__code__, object())
    swap(fails, fails_too)
    calls_back = []
    native.set_callback(lambda *args: calls_back.append(1))

    def misses(a):
        return a

    def loop(n):
        for i in range(n):
            f(i, [i], 1, 2, k=3, q=4)
            misses(i)
            try:
                fails([i])
            except ValueError:
                pass
            calls_back.clear()

    active(loop, 2000)
    gc.collect()
    before = resident_kilobytes()
    active(loop, 100_000)
    gc.collect()
    assert resident_kilobytes() - before < 400


# ------------------------------------------------------------------------------------------------- callback, entries


def test_callback_exception_is_the_frames_exception() -> None:
    def f(o):
        return 1

    def caller(o):
        try:
            return f(o)
        except LookupError as error:
            return str(error)

    def refuse(code, func, slots, globals_, builtins):
        if code is f.__code__:
            raise LookupError("refused")

    native.set_callback(refuse)
    thing = Thing()
    dies = weakref.ref(thing)
    assert active(caller, thing) == "refused"
    with pytest.raises(LookupError, match="refused"):
        active(f, thing)
    del thing
    gc.collect(0)
    assert dies() is None


def test_callback_sees_each_miss_until_skipped() -> None:
    seen = []

    def f(a):
        return [x for x in (a, a)]

    def note(code, func, slots, globals_, builtins):
        if code is f.__code__:
            seen.append(slots)
            if len(seen) == 2:
                native.skip(code)

    native.set_callback(note)
    for i in range(4):
        assert active(f, i) == [i, i]
    assert seen == [(0,), (1,)]
    assert native.is_skipped(f.__code__)
    native.clear(f.__code__)
    assert not native.is_skipped(f.__code__)
    active(f, 9)
    assert seen[-1] == (9,)


def test_callback_only_for_function_frames() -> None:
    seen = []

    def note(code, *rest):
        if code.co_filename in (__file__, "<string>"):  # torch may hold an audit hook, which is a Python function too
            seen.append(code.co_name)

    native.set_callback(note)

    def generate():
        yield 1
        yield 2

    def body():
        exec("class Body:\n    x = 1\n")
        return list(generate())

    assert active(body) == [1, 2]
    assert seen == ["body", "generate"]  # once per generator, not for its resumptions, modules or class bodies


def test_skip_prefixes() -> None:
    seen = []
    names: dict[str, Any] = {}
    exec(compile("def skipped(): return 1", "/somewhere/library/code.py", "exec"), names)
    exec(compile("def looked_at(): return 2", "/somewhere/else/code.py", "exec"), names)
    native.skip_prefixes(["/nowhere", "/somewhere/lib"])
    try:
        native.set_callback(lambda code, *rest: seen.append(code.co_name))
        assert active(lambda: (names["skipped"](), names["looked_at"]()))[0] == 1
        assert seen == ["<lambda>", "looked_at"]
        assert native.is_skipped(names["skipped"].__code__)
    finally:
        native.skip_prefixes(policy.skipped_prefixes())  # the process has them from its first compilation on


def test_entries_are_tried_in_order_and_the_last_hit_moves_up() -> None:
    def f(a):
        return "original"

    def integer(a, _c, _f):
        return "int"

    def text(a, _c, _f):
        return "str"

    for kind, code in ((int, integer), (str, text)):
        swap(f, code, native.Guards([(-1, native.LOCAL, 0)], [(0, native.TYPE_IS, kind)], []))
    first, second = native.entries(f.__code__)
    assert [active(f, value) for value in (1, "a", 2.0)] == ["int", "str", "original"]
    assert native.entries(f.__code__) == [second, first]
    assert (first.hits, second.hits) == (1, 1)
    assert active(f, 1) == "int"
    assert native.entries(f.__code__) == [first, second]
    first.remove()
    assert (first.alive, second.alive) == (False, True)
    first.remove()
    assert active(f, 1) == "original"
    native.clear(f.__code__)
    assert native.entries(f.__code__) == [] and not second.alive


def test_entries_die_with_the_code() -> None:
    names: dict[str, Any] = {}
    exec("def f(a): return a\ndef g(a, _c, _f): return _c", names)
    constants = Thing()
    dies = weakref.ref(constants)
    entry = native.add_entry(names["f"].__code__, ALWAYS, names["g"].__code__, constants)
    del constants
    assert active(names["f"], 1) is dies()
    names.clear()
    assert not entry.alive
    del entry
    assert dies() is None


def test_guards_may_change_the_entries() -> None:
    def f(a):
        return "original"

    def g(a, _c, _f):
        return "new"

    def meddle(value):
        native.clear(f.__code__)
        swap(f, g)
        return False

    swap(f, g, native.Guards([(-1, native.LOCAL, 0)], [(0, native.PYTHON, meddle)], []))
    assert active(f, 1) in ("original", "new")
    assert active(f, 1) == "new"


def test_bad_replacements_are_refused() -> None:
    def f(a, *rest):
        return a

    def too_few(a, _c, _f):
        return a

    def not_flat(a, rest, _c, *_f):
        return a

    def generator(a, rest, _c, _f):
        yield a

    outer = 1

    def closing(a, rest, _c, _f):
        return outer

    for wrong in (too_few, not_flat, generator, closing):
        with pytest.raises(ValueError):
            swap(f, wrong)

    def fine(a, rest, _c, _f):
        return a

    with pytest.raises(ValueError, match="slot 2"):
        swap(f, fine, native.Guards([(-1, native.LOCAL, 2)], [], []))
    with pytest.raises(TypeError):
        native.add_entry(f, ALWAYS, fine.__code__, None)


# ------------------------------------------------------------------------------------------------- where it acts


def test_compiled_and_quiet() -> None:
    def f():
        return "original"

    def g(_c, _f):
        return "new"

    swap(f, g)
    quiet = native.Quiet(f)
    compiled = native.Compiled(lambda: (f(), quiet(), f(), native.uncaptured_call(f), native.is_active()))
    assert compiled() == ("new", "original", "new", "original", True)
    nested = native.Quiet(lambda: (f(), native.Compiled(f)(), native.is_active()))
    assert native.Compiled(lambda: (nested(), f()))() == (("original", "new", False), "new")
    assert not native.is_active()


def test_activity_survives_exceptions() -> None:
    def fail():
        raise KeyError

    with pytest.raises(KeyError):
        active(fail)
    assert not native.is_active()
    quiet = native.Quiet(fail)

    def inside():
        with pytest.raises(KeyError):
            quiet()
        return native.is_active()

    assert active(inside)


def test_wrappers_behave_like_functions() -> None:
    class Model:
        def __init__(self):
            self.scale = 3

        @native.Compiled
        def run(self, x, *, y=1):
            """Doc."""
            return self.scale * x + y

    model = Model()
    assert model.run(2) == 7 and model.run(2, y=0) == 6 and Model.run(model, 1) == 4
    bound = model.run
    assert bound(1) == 4
    wrapped = functools.update_wrapper(native.Compiled(Model.run.fn), Model.run.fn)
    assert (wrapped.__name__, wrapped.__doc__, wrapped.__wrapped__) == ("run", "Doc.", Model.run.fn)
    assert weakref.ref(wrapped)() is wrapped
    assert copy.copy(wrapped).fn is wrapped.fn and copy.copy(wrapped).__name__ == "run"
    assert "Compiled(" in repr(wrapped)
    with pytest.raises(TypeError):
        native.Compiled(3)
    with pytest.raises(TypeError):
        native.call(len, (), 3)


def test_wrapper_cycles_are_collected() -> None:
    thing = Thing()
    thing.run = native.Compiled(lambda thing=thing: thing)  # type: ignore[attr-defined]
    dies = weakref.ref(thing)
    del thing
    gc.collect()
    assert dies() is None


# ------------------------------------------------------------------------------------------------- resumption
# A function runs until its n-th call of `pause`, which notes slots and stack and aborts; then it is resumed behind it.


class Abort(BaseException):
    """Ends the first run without letting the function's own handlers see an ordinary exception."""


class Pause:
    """The state of one experiment."""

    def __init__(self) -> None:
        self.at, self.count, self.code = 0, 0, None
        self.aborting = False
        self.found: tuple[list[Any], list[Any], int] | None = None
        self.log: list[Any] = []


PAUSE = Pause()


def pause() -> int:
    PAUSE.count += 1
    frame = sys._getframe(1)
    if PAUSE.at and PAUSE.count == PAUSE.at and frame.f_code is PAUSE.code:
        offset, depth = place_behind(frame.f_code, frame.f_lasti)
        slots, stack = native.snapshot(frame, depth - 1)
        PAUSE.found = slots, stack, offset
        PAUSE.aborting = True
        raise Abort
    return 7


NO_FALL_THROUGH = {
    "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT",
}  # fmt: skip


def place_behind(code: types.CodeType, lasti: int) -> tuple[int, int]:
    """(offset behind the instruction at `lasti`, stack depth there with the call's result)."""
    instructions = list(dis.get_instructions(code))
    following = {a.offset: b.offset for a, b in zip(instructions, instructions[1:])}  # noqa: B905
    by_offset = {i.offset: i for i in instructions}
    jumps = set(opcode.hasjabs + opcode.hasjrel)
    depths: dict[int, int] = {}
    work = [(0, 0)] + [(e.target, e.depth + 1 + e.lasti) for e in dis._parse_exception_table(code)]  # type: ignore[attr-defined]
    while work:
        offset, depth = work.pop()
        if offset in depths:
            continue
        depths[offset] = depth
        i = by_offset[offset]
        arg = i.arg if i.opcode >= opcode.HAVE_ARGUMENT else None
        if i.opcode in jumps:
            work.append((i.argval, depth + dis.stack_effect(i.opcode, arg, jump=True)))
        if i.opname not in NO_FALL_THROUGH and offset in following:
            work.append((following[offset], depth + dis.stack_effect(i.opcode, arg, jump=False)))
    here = max(i.offset for i in instructions if i.offset <= lasti)
    return following[here], depths[following[here]]


class Context:
    def __enter__(self) -> Context:
        PAUSE.log.append("in")
        return self

    def __exit__(self, kind, value, traceback):
        PAUSE.log.append(("out", kind and kind.__name__))
        return kind is KeyError


def case_for(xs, y):
    total = 0
    for x in xs:
        total = total + x + pause()
        total = total * y
    return total


def case_nested_for(xs, y):
    result = []
    for i, x in enumerate(xs):
        for j in range(3):
            result.append((i, j, max(x, j, pause()) + y))
    return result


def case_try(xs, y):
    result = []
    for x in xs:
        try:
            result.append(pause())
            if x == 2:
                raise ValueError(f"v{x}")
            result.append(10 // (x - 3))
        except ZeroDivisionError as error:
            result.append(str(error))
        except ValueError as error:
            result.append(str(error))
            continue
        finally:
            if not PAUSE.aborting:
                result.append("finally")
    return result


def case_with(xs, y):
    result = []
    for x in xs:
        with Context():
            result.append((x, pause()))
            if x == 2:
                raise KeyError(x)
    return result


def case_cells(xs, y):
    total = 0

    def add(v):
        nonlocal total
        total += v
        return total

    for x in xs:
        add(x)
        y = y + pause()
        add(y)
    return total, (lambda: total + y)()


def case_large(xs, y):
    for x in xs:
        y = [y] + [x] * 2 + [pause()]
        if len(y) > 99:
            return [y[0], y[1], y[2], y[3]][0]
    return y


def make_case_free():
    base = 100

    def case_free(xs, y, *a, k=3, **kw):
        return [base + v for v in [x + pause() + k for x in xs]] + [pause() + base + y] + list(a)

    return case_free


CASES = [
    (case_for, (3,)), (case_nested_for, (3,)), (case_try, (3,)), (case_with, (3,)), (case_cells, (3,)),
    (case_large, (3,)), (make_case_free(), (3, 8, 9)),
]  # fmt: skip


def paused(fn: Callable[..., Any], extra: tuple[Any, ...], at: int) -> tuple[list[Any], list[Any], int] | None:
    """Slots, stack (with the result of pause()) and offset at the n-th pause; None when it never comes."""
    PAUSE.__init__()  # type: ignore[misc]
    PAUSE.at, PAUSE.code = at, fn.__code__
    try:
        fn([1, 2, 3, 4], *extra)
    except Abort:
        pass
    PAUSE.at, PAUSE.aborting = 0, False
    if PAUSE.found is None:
        return None
    slots, stack, offset = PAUSE.found
    return slots, [*stack, 7], offset


@pytest.mark.parametrize(("fn", "extra"), CASES, ids=[fn.__name__ for fn, _ in CASES])
@pytest.mark.parametrize("run", [lambda f, *a: f(*a), active], ids=["inactive", "active"])
def test_resume(run: Callable[..., Any], fn: types.FunctionType, extra: tuple[Any, ...]) -> None:
    PAUSE.__init__()  # type: ignore[misc]
    want = fn([1, 2, 3, 4], *extra)
    logged = PAUSE.log
    resumed = 0
    for at in (1, 2, 3, 5):
        state = paused(fn, extra, at)
        if state is None:  # that pause happens in another frame (a comprehension of 3.11) or never
            continue
        slots, stack, offset = state
        if fn is case_with:
            PAUSE.log.pop()  # the abort left the context that execution resumes in: take its exit back
        point = native.ResumePoint(fn.__code__, offset, len(stack))
        assert (point.code, point.offset, point.depth) == (fn.__code__, offset, len(stack))
        assert run(native.resume, point, globals(), fn, [*slots], [*stack]) == want
        assert PAUSE.log == logged
        resumed += 1
    assert resumed


def test_resume_many_times_without_growth() -> None:
    state = paused(case_for, (3,), 2)
    assert state is not None
    slots, stack, offset = state
    point = native.ResumePoint(case_for.__code__, offset, len(stack))
    iterator_at = next(i for i, value in enumerate(stack) if type(value).__name__ == "list_iterator")

    def loop(n):
        for _ in range(n):
            fresh = list(stack)
            fresh[iterator_at] = iter([5, 6])
            native.resume(point, globals(), case_for, [*slots], fresh)

    loop(1000)
    gc.collect()
    before = resident_kilobytes()
    loop(50_000)
    gc.collect()
    assert resident_kilobytes() - before < 400


def test_resume_entries() -> None:
    state = paused(case_for, (3,), 1)
    assert state is not None
    slots, stack, offset = state
    point = native.ResumePoint(case_for.__code__, offset, len(stack))
    names = [f"s{i}" for i in range(len(slots) + len(stack))]
    namespace: dict[str, Any] = {}
    exec(f"def replaced({', '.join(names)}, _c, _f): return ({', '.join(names)},), _c, _f", namespace)
    seen = []

    def compile_point(place, func, values, globals_, builtins):
        assert place is point and func is case_for and globals_ is globals() and not native.is_active()
        seen.append(values)
        guards = native.Guards([(-1, native.LOCAL, 1)], [(0, native.EQ, 3)], [0])
        native.add_entry(point, guards, namespace["replaced"].__code__, "constants")

    native.set_resume_callback(compile_point)
    values = (*slots, *stack)
    assert active(native.resume, point, globals(), case_for, [*slots], [*stack]) == (values, "constants", (3,))
    assert active(native.resume, point, globals(), case_for, [*slots], [*stack]) == (values, "constants", (3,))
    assert seen == [values]
    assert [entry.hits for entry in native.entries(point)] == [2]
    assert native.resume(point, globals(), case_for, [*slots], [*stack]) != (
        values,
        "constants",
        (3,),
    )  # inactive: injected


def test_resume_callback_exception() -> None:
    state = paused(case_for, (3,), 1)
    assert state is not None
    slots, stack, offset = state
    point = native.ResumePoint(case_for.__code__, offset, len(stack))

    def refuse(*args):
        raise LookupError("refused")

    native.set_resume_callback(refuse)
    with pytest.raises(LookupError, match="refused"):
        active(native.resume, point, globals(), case_for, [*slots], [*stack])
    native.skip(point)
    PAUSE.__init__()  # type: ignore[misc]
    assert isinstance(active(native.resume, point, globals(), case_for, [*slots], [*stack]), int)


def test_resume_keeps_the_hook_active_for_callees() -> None:
    def callee():
        return 1

    def replaced(_c, _f):
        return 1000

    def fn(xs, y):
        pause()
        return callee()

    swap(callee, replaced)
    state = paused(fn, (0,), 1)
    assert state is not None
    slots, stack, offset = state
    point = native.ResumePoint(fn.__code__, offset, len(stack))
    assert native.resume(point, globals(), fn, [*slots], [*stack]) == 1
    assert active(native.resume, point, globals(), fn, [*slots], [*stack]) == 1000


def test_resume_refuses_what_does_not_fit() -> None:
    state = paused(case_cells, (3,), 1)
    assert state is not None
    slots, stack, offset = state
    point = native.ResumePoint(case_cells.__code__, offset, len(stack))
    with pytest.raises(ValueError, match="slots"):
        native.resume(point, globals(), case_cells, slots[:-1], stack)
    with pytest.raises(ValueError, match="stack"):
        native.resume(point, globals(), case_cells, slots, [*stack, 1])
    not_cells = [value.cell_contents if isinstance(value, types.CellType) else value for value in slots]
    with pytest.raises(ValueError, match="cell"):
        native.resume(point, globals(), case_cells, not_cells, stack)
    with pytest.raises(TypeError):
        native.resume(point, globals(), 3, slots, stack)

    def generator():
        yield 1

    for wrong in (
        (generator.__code__, 0, 0),
        (case_for.__code__, -2, 0),
        (case_for.__code__, 1, 0),
        (case_for.__code__, 0, 99),
    ):
        with pytest.raises(ValueError):
            native.ResumePoint(*wrong)


def test_resume_points_are_collected() -> None:
    point = native.ResumePoint(case_for.__code__, 0, 0)
    names = ", ".join(f"s{i}" for i in range(len(case_for.__code__.co_varnames)))
    namespace: dict[str, Any] = {}
    exec(f"def replaced({names}, _c, _f): return _c", namespace)
    thing = Thing()
    thing.point = point  # type: ignore[attr-defined]
    native.add_entry(point, ALWAYS, namespace["replaced"].__code__, thing)
    dies = weakref.ref(thing)
    del point, thing
    gc.collect()
    assert dies() is None


def test_null_sentinel() -> None:
    assert not native.NULL
    assert repr(native.NULL) == "<NULL>"
    assert copy.deepcopy(native.NULL) is native.NULL


# ----------------------------------------------------------------------------------------- what is being handled


def test_a_call_as_in_an_except_clause():
    error = ValueError("handled")
    assert native.call_handling(error, sys.exception) is error
    assert native.call_handling(error, dict, a=1) == {"a": 1}

    def fails() -> None:
        raise KeyError("new")

    with pytest.raises(KeyError) as raised:
        native.call_handling(error, fails)
    assert raised.value.__context__ is error
    assert sys.exception() is None


def test_a_call_as_outside_of_an_except_clause():
    try:
        raise ValueError("around")
    except ValueError as error:
        assert native.call_handling(None, sys.exception) is None
        assert sys.exception() is error


@pytest.mark.parametrize("wrong", [(), (None,), (1, len, "x")])
def test_call_handling_refuses_arguments_that_are_no_exception(wrong):
    with pytest.raises(TypeError, match="call_handling"):
        native.call_handling(*wrong)
    assert sys.exception() is None


def test_a_replacement_that_raises_leaves_what_is_handled():
    def f(a):
        return a

    def g(a, _c, _f):
        from smelt.capture import _native

        _native.handle(a)
        raise KeyError

    swap(f, g)
    with pytest.raises(KeyError):
        active(f, ValueError("left"))
    assert sys.exception() is None
    try:
        raise TypeError("around")
    except TypeError as around:
        with pytest.raises(KeyError):
            active(f, ValueError("left"))
        assert sys.exception() is around
