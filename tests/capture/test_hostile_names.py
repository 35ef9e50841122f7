"""Strings of the program are data: a compiled function does with them what eager does, and runs none of them."""

from __future__ import annotations

import builtins
import collections
import enum
import random
import re
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import smelt
from smelt.graph.ir.printer import print_graph
from tests.capture import failing_asserts
from tests.capture.harness import compiled

RUN = "__import__('builtins').ran.append(1)"
HOSTILE = [
    f"a = 0; {RUN}; b", f"a={RUN}, b", f"'+str({RUN})+'", f'"+str({RUN})+"', f"\n{RUN}\n", f"{{{RUN}}}", f"*/ {RUN}",
    "class", "None", "__debug__", "lambda", "a b", "ﬁ", "𝐱", "ª", "²", "", "\n", "\r", "\u2028", "\x00", "\x1b",
    "\ud800", "\\", "'", '"', "'''", '"""', "#", "%s", "{x}", "x" * 10_000, "../../x", "*/", "//", "__x", "_c", "_f",
    "_t0", "_out", "_r", "x", "self", "residual", "graph", "Error", "profiler", "shown", "s0", "v1_a", "sizes",
]  # fmt: skip
NAMES = st.sampled_from(HOSTILE) | st.text(st.characters(), max_size=8)

Made = tuple[Callable[..., Any], tuple[Any, ...]]
PLACES: dict[str, Callable[[str], Made]] = {}
"""What uses the name somewhere: it makes a function and its arguments, anew each time."""


def place(make: Callable[[str], Made]) -> Callable[[str], Made]:
    PLACES[make.__name__] = make
    return make


@smelt.disable
def opaque(*args: Any, **kwargs: Any) -> Any:
    return args, list(kwargs.items())


class Plain:
    pass


class Asking:
    """Its attributes end a graph."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return opaque(2.0)[0][0]

    def __setattr__(self, name: str, value: Any) -> None:
        opaque()
        self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        opaque()
        self.__dict__.pop(name, None)


def renamed(fn: Any, **names: str) -> Any:
    """The function with other names in its code: variables (by position in `co_varnames`) or globals and attributes."""
    code = fn.__code__
    variables = tuple(names.get(name, name) for name in code.co_varnames)
    others = tuple(names.get(name, name) for name in code.co_names)
    out = types.FunctionType(code.replace(co_varnames=variables, co_names=others), fn.__globals__)
    out.__kwdefaults__ = {names.get(key, key): value for key, value in (fn.__kwdefaults__ or {}).items()} or None
    return out


@place
def attributes(name: str) -> Made:
    def fn(x: Tensor, p: Any) -> Any:
        setattr(p, name, x * 2)
        read = getattr(p, name), hasattr(p, name)
        setattr(p, name + "_", x)
        delattr(p, name + "_")
        return read, hasattr(p, name + "_")

    return fn, (torch.ones(2), Plain())


@place
def attributes_of_a_tensor(name: str) -> Made:
    def fn(x: Tensor) -> Any:
        y = x + 1
        opaque()
        setattr(y, "_" + name, 3)
        return y, getattr(y, "_" + name)

    return fn, (torch.ones(2),)


@place
def attributes_that_end_graphs(name: str) -> Made:
    def fn(x: Tensor, p: Any) -> Any:
        y = x * p.k
        p.k = y
        z = p.k
        del p.k
        return y, z

    return renamed(fn, k=name), (torch.ones(2), Asking())


@place
def calls_of_attributes_that_end_graphs(name: str) -> Made:
    def fn(x: Tensor, p: Any) -> Any:
        y = getattr(p, name) * x
        setattr(p, name, y)
        delattr(p, name)
        return y

    return fn, (torch.ones(2), Asking())


@place
def globals_of_a_function(name: str) -> Made:
    def fn(x: Tensor) -> Any:
        global k
        k = x * 2  # type: ignore[name-defined]
        opaque()
        y = k + 1  # type: ignore[name-defined]
        del k  # type: ignore[name-defined]
        return y

    out = renamed(fn, k=name)
    return types.FunctionType(out.__code__, {"opaque": opaque, "__builtins__": builtins}), (torch.ones(2),)


@place
def globals_that_are_missing(name: str) -> Made:
    def fn(x: Tensor) -> Any:
        y = x * 2
        return y + k  # type: ignore[name-defined] # noqa: F821

    return types.FunctionType(renamed(fn, k=name).__code__, {"__builtins__": builtins}), (torch.ones(2),)


@place
def globals_that_are_deleted(name: str) -> Made:
    def fn(x: Tensor) -> Any:
        global k
        y = x * 2
        del k
        return y

    return types.FunctionType(renamed(fn, k=name).__code__, {"__builtins__": builtins}), (torch.ones(2),)


@place
def variables(name: str) -> Made:
    def fn(x: Tensor, a: Any) -> Any:
        y = x * a
        opaque(y)
        z = y + a
        return z

    return renamed(fn, a=name, y="v1_a", z="_a"), (torch.ones(2), 3)


@place
def parameters(name: str) -> Made:
    return renamed(failing_asserts.below_zero, a="x_" if name == "x" else name), (torch.ones(2),)


@place
def names_of_a_function(name: str) -> Made:
    def fn(x: Tensor) -> Any:
        y = torch.softmax(x * 2, 0)
        opaque(y)
        return y + 1

    code = fn.__code__.replace(co_name=name, co_qualname=name, co_filename=name)
    return types.FunctionType(code, {**globals(), "__name__": name}, name), (torch.ones(2),)


@place
def names_of_a_function_that_is_made(name: str) -> Made:
    def fn(x: Tensor) -> Any:
        def made(a: Any) -> Any:
            return a

        made.__name__ = made.__qualname__ = made.__module__ = made.__doc__ = name
        made.__dict__[name] = x * 2
        return [made.__name__, made.__qualname__, made.__module__, made.__doc__, made.__dict__, opaque(made)[0][0](x)]

    return fn, (torch.ones(2),)


@place
def names_of_a_class(name: str) -> Made:
    kind: Any = type("Kind", (), {})
    error: Any = type("Failed", (Exception,), {})
    for each in (kind, error):
        each.__qualname__ = each.__module__ = name
        if "\0" not in name and name.isprintable():
            each.__name__ = name

    def fn(x: Tensor) -> Any:
        made = kind()
        made.held = x * 2
        return [made, error(name), {kind: error}], x + 1

    return fn, (torch.ones(2),)


@place
def names_of_slots(name: str) -> Made:
    kind: Any = type("Kind", (), {"__slots__": (name,) if name.isidentifier() else ("held",)})
    (held,) = kind.__slots__

    def fn(x: Tensor) -> Any:
        made = kind()
        setattr(made, held, x * 2)
        return x + 1, opaque(made) and getattr(made, held)

    return fn, (torch.ones(2),)


@place
def names_of_what_fx_writes(name: str) -> Made:
    def inner(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x * 2 + len(str(args) + str(list(kwargs.items())))

    inner.__name__ = inner.__qualname__ = inner.__module__ = name
    allowed: Any = torch.compiler.allow_in_graph(inner)
    return lambda x: allowed(x, name, (name,), **{name: 1}) + 1, (torch.ones(2),)


@place
def keywords(name: str) -> Made:
    def inner(*args: Any, **kwargs: Any) -> Any:
        return list(kwargs.items())

    def fn(x: Tensor) -> Any:
        y = x * 2
        return inner(**{name: y}), opaque(**{name: y}), dict(**{name: x}), inner(**{name: opaque})[0][0]

    return fn, (torch.ones(2),)


@place
def keywords_of_what_is_put_off(name: str) -> Made:
    def fn(x: Tensor) -> Any:
        y = x * 2
        print(end="", **{name: ""})  # type: ignore[call-overload]
        return y

    return fn, (torch.ones(2),)


@place
def keywords_of_numpy(name: str) -> Made:
    def fn(x: Tensor) -> Any:
        drawn = numpy.random.rand(2)
        try:
            numpy.sum(drawn, **{name: 1})
        except TypeError:
            return x * 2
        return x

    return fn, (torch.ones(2),)


@place
def keys(name: str) -> Made:
    def fn(x: Tensor, d: dict[Any, Any]) -> Any:
        d[name] = x * 2
        d["see _f[0] " + name] = {name: {name}, (name, 1): [name]}
        return d, {name: x}, collections.OrderedDict({name: x}), collections.Counter([name])

    return fn, (torch.ones(2), {})


@place
def texts(name: str) -> Made:
    def fn(x: Tensor, given: str) -> Any:
        y = x * len(given)
        opaque(given)
        return y, given + name, name in given, random.choice([name, name]), f"{given!r}"

    return fn, (torch.ones(2), name)


@place
def formats(name: str) -> Made:
    def fn(x: Tensor) -> Any:
        y = x * 2
        return y, f"{3:{name}}", f"{y.sum():{name}}"

    return fn, (torch.ones(2),)


@place
def einsum(name: str) -> Made:
    def fn(x: Tensor) -> Any:
        try:
            return torch.einsum(name, x, x)
        except Exception as error:
            return x + 1, type(error).__name__

    return fn, (torch.ones(2),)


@place
def devices_and_types(name: str) -> Made:
    def fn(x: Tensor) -> Any:
        out = []
        for act in (x.to, x.type, torch.device):
            try:
                out.append(act(name))
            except Exception as error:
                out.append(type(error).__name__)
        return x + 1, out

    return fn, (torch.ones(2),)


@place
def messages(name: str) -> Made:
    return failing_asserts.above_five(name), (torch.ones(2),)


@place
def regions_of_the_profiler(name: str) -> Made:
    def fn(x: Tensor) -> Any:
        with torch.profiler.record_function(name):
            y = x * 2
        with torch.profiler.record_function("x", name):
            return y + 1

    return fn, (torch.ones(2),)


@place
def imports(name: str) -> Made:
    def fn(x: Tensor) -> Any:
        y = x * 2
        import k  # type: ignore[import-not-found] # noqa: F401

        return y

    return renamed(fn, k="no_" + name), (torch.ones(2),)


def plain(value: Any) -> Any:
    """What can be seen of a result."""
    if isinstance(value, Tensor):
        return value.dtype, value.tolist()
    if isinstance(value, BaseException):
        return type(value).__name__, plain(value.args)
    if isinstance(value, (list, tuple, set)):
        return [type(value).__name__, *map(plain, value)]
    if isinstance(value, dict):
        return type(value).__name__, [(plain(key), plain(item)) for key, item in value.items()]
    if isinstance(value, type):
        return value.__name__, value.__qualname__, value.__module__
    return plain(vars(value)) if type(value).__module__ != "builtins" and hasattr(value, "__dict__") else value


def outcome(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return plain(fn(*args)), plain(args)
        except Exception as error:
            assert type(error).__name__ != "CompileError"
            return type(error).__name__, re.sub("0x[0-9a-f]+", "0x", str(error)), plain(args)


@pytest.fixture(autouse=True)
def nothing_ran() -> Any:
    builtins.ran = []  # type: ignore[attr-defined]
    yield
    assert builtins.ran == []  # type: ignore[attr-defined]
    del builtins.ran  # type: ignore[attr-defined]


def agrees(make: Callable[[str], Made], name: str) -> None:
    fn, args = make(name)
    again, given_again = make(name)
    run = compiled(again)
    for _ in range(2):
        assert outcome(fn, args) == outcome(run, given_again)
    assert builtins.ran == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("where", PLACES)
def test_hostile_names(where: str) -> None:
    for name in HOSTILE:
        agrees(PLACES[where], name)


@settings(max_examples=60, deadline=None)
@given(where=st.sampled_from(sorted(PLACES)), name=NAMES)
def test_any_name(where: str, name: str) -> None:
    agrees(PLACES[where], name)


class Text(str):
    def __repr__(self) -> str:
        return RUN

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return RUN


class Whole(int):
    def __repr__(self) -> str:
        return RUN

    __str__ = __repr__


class Real(float):
    def __repr__(self) -> str:
        return RUN


Kind = enum.IntEnum("Kind", {"A": 2, f"b; {RUN}": 3})


@torch.library.custom_op("smelt_hostile::op", mutates_args=())
def operator(x: Tensor, text: str, whole: int, real: float, many: list[int]) -> Tensor:
    return x * len(text) * whole * real + sum(many)


@operator.register_fake
def _(x: Tensor, text: str, whole: int, real: float, many: list[int]) -> Tensor:
    return torch.empty_like(x)


SUBCLASSES: list[Callable[[Any, Any], Any]] = [
    lambda x, p: (setattr(p, Text("k"), x * 2), p.k)[1],
    lambda x, p: (setattr(p, Text("a b"), x * 2), getattr(p, Text("a b")), delattr(p, Text("a b")), vars(p), x + 1),
    lambda x, p: (object.__setattr__(p, Text("q"), x), object.__getattribute__(p, Text("q")), hasattr(p, Text("q"))),
    lambda x, p: (x + 1, print(**{Text("end"): ""})),
    lambda x, p: (x + 1, opaque(**{Text("end"): x})[0]),
    lambda x, p: torch.einsum(Text("i,i->i"), x, x),
    lambda x, p: torch.searchsorted(x, x, side=Text("left")),
    lambda x, p: (x.repeat(Kind.A), x.roll(Kind(3)), x.sum(Whole(0)), x * Real(3), x[Whole(1) :]),
    lambda x, p: operator(x, Text("abc"), Whole(3), Real(2), [Whole(4), Kind.A]) + 1,
    lambda x, p: operator(x, "abc", True, 2, [10**15]) + operator(x, "", -5, float("inf"), []),
]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "smelt"])
@pytest.mark.parametrize("number", range(len(SUBCLASSES)))
def test_values_of_subclasses_are_not_written_as_they_show_themselves(number: int, backend: str) -> None:
    fn = SUBCLASSES[number]
    run = smelt.compile(fn, backend=backend)
    for _ in range(2):
        want, got = plain(fn(torch.ones(2), Plain())), plain(run(torch.ones(2), Plain()))
        assert want == got or "nan" in repr(want)


LIBRARY = torch.library.Library("smelt_hostile", "FRAGMENT")
for _name in ("lambda", "from", "op", "c", "t", "self"):
    LIBRARY.define(f"k_{_name}(Tensor x, *, float {_name}) -> Tensor")
    LIBRARY.impl(f"k_{_name}", lambda x, **kwargs: x * sum(kwargs.values()), "CPU")
    torch.library.register_fake(f"smelt_hostile::k_{_name}", lambda x, **kwargs: torch.empty_like(x), lib=LIBRARY)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "smelt"])
@pytest.mark.parametrize("name", ["lambda", "from", "op", "c", "t", "self"])
def test_keywords_of_operators(name: str, backend: str) -> None:
    op = getattr(torch.ops.smelt_hostile, f"k_{name}")

    def fn(x: Tensor) -> Tensor:
        return op(x + 1, **{name: 3.0}) + 1  # type: ignore[no-any-return]

    assert smelt.compile(fn, backend=backend)(torch.ones(2)).tolist() == [7, 7]


def test_classes_called_as_what_residual_code_uses() -> None:
    kinds = [type(name, (), {}) for name in ("graph", "Error", "profiler", "shown", "explain_error", "expect_failure")]

    def fn(x: Tensor) -> Any:
        made = [kind() for kind in kinds]
        return x + 1, made, kinds[1]

    made = compiled(fn)(torch.ones(1))
    assert [type(each) for each in made[1]] == kinds and made[2] is kinds[1]


def test_long_numbers() -> None:
    def fn(x: Tensor) -> Any:
        return x + 1, 10**6000, {-(10**5000): x}

    got = compiled(fn)(torch.ones(1))
    assert got[1] == 10**6000 and list(got[2]) == [-(10**5000)]


def test_classes_made_inside_keep_no_tensors_of_the_capture() -> None:
    def by_type(x: Tensor) -> Any:
        kind: Any = type("Kind", (Plain,), {"held": x * 2})
        return kind, kind.held + 1

    def by_namedtuple(x: Tensor) -> Any:
        kind: Any = collections.namedtuple("kind", "a b", defaults=[x * 2])
        return kind, kind(x).b + 1

    for fn in (by_type, by_namedtuple):
        run = compiled(fn)
        for _ in range(2):
            kind, value = run(torch.ones(2))
            assert kind.__module__ == __name__ and value.tolist() == [3, 3] and type(value) is Tensor
        assert run(torch.ones(2))[0] is not run(torch.ones(2))[0]


def test_a_text_that_is_called_as_a_variable_does_not_keep_its_object() -> None:
    ends: list[Any] = []

    class Ending:
        def __del__(self) -> None:
            ends.append("end")

    def fn(x: Tensor, held: list[Any]) -> Any:
        y = x * 2
        kept = held.pop()
        del held
        kept = None  # noqa: F841
        opaque("kept", "held")
        return y, list(ends)

    assert compiled(fn)(torch.ones(1), [Ending()])[1] == ["end"]


def test_a_printed_graph_holds_names_of_functions_as_data() -> None:
    def inner(x: Tensor, **kwargs: Any) -> Tensor:
        return x * 2

    inner.__qualname__, inner.__module__ = f"a\n{RUN}", f"os\n{RUN}"
    allowed: Any = torch.compiler.allow_in_graph(inner)
    run = compiled(lambda x: allowed(x, **{f"a={RUN}, b": 1, "c": Text("d")}) + 1)
    run(torch.ones(2))
    (version,) = (v for site in run._smelt_session.sites.values() for v in site.versions)
    text = print_graph(version.residual.gm)
    scope: dict[str, Any] = {"functions": collections.defaultdict(lambda: inner)}
    exec(text, scope)
    assert scope["forward"](torch.ones(2))[0].tolist() == [3, 3]


class Odd(str):
    """A name that raises whatever is asked."""

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    __hash__ = split = startswith = __eq__  # type: ignore[assignment]


MODULES: list[Callable[[], Any]] = [
    lambda: 5, lambda: None, list, lambda: torch.ones(2), lambda: Odd("torch"), lambda: b"torch", lambda: torch,
    lambda: "torch", lambda: "torch.nn.functional", lambda: "torch._C._linalg",
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MODULES)))
def test_names_of_modules_may_be_anything(number: int) -> None:
    called = MODULES[number]()
    scope: dict[str, Any] = {"__name__": called, "__builtins__": builtins, "opaque": opaque}
    exec("def helper(x): return x * 2\ndef fn(x):\n    y = helper(x)\n    opaque()\n    return y + 1", scope)

    class Made:
        def __init__(self, x: Tensor) -> None:
            self.x = x

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

    def inner(x: Tensor) -> Tensor:
        return x * 2

    Made.__module__ = Twice.__module__ = inner.__module__ = called

    def fn(x: Tensor) -> Any:
        made = Made(inner(x))
        opaque(made)
        return made.x, Twice.apply(x) + 1

    for _ in range(2):
        assert compiled(scope["fn"])(torch.ones(2)).tolist() == [3, 3]
        first, second = compiled(fn)(torch.ones(2))
        assert first.tolist() == [2, 2] and second.tolist() == [3, 3]


@pytest.mark.parametrize("module", ["torch", "torch.nn.functional", "torch._C"])
@pytest.mark.parametrize("name", ["torch", "relu", "nn", f"relu(x); {RUN} #"])
def test_functions_whose_module_is_torch(module: str, name: str) -> None:
    def inner(x: Tensor) -> Tensor:
        return x * 2

    inner.__name__ = inner.__qualname__ = name
    inner.__module__ = module
    allowed: Any = torch.compiler.allow_in_graph(inner)
    assert compiled(lambda x: allowed(x) + 1)(torch.ones(2)).tolist() == [3, 3]
