"""Classes that a compiled function makes at each call: what follows is compiled once, and each call uses its own."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import enum
import functools
import gc
import typing
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.base.options import Options
from smelt.capture.compiled import compile_callable
from smelt.capture.explain import describe
from tests.capture.harness import eager_graph

T = typing.TypeVar("T")
Program = Callable[[Tensor], Any]


def plain(x: Tensor) -> Any:
    class Scale:
        by = 2

        def __init__(self, value: Tensor) -> None:
            self.value = value

        def go(self) -> Tensor:
            return self.value * self.by + 1

    return Scale(x * 3).go()


def data(x: Tensor) -> Any:
    @dataclasses.dataclass
    class Point:
        a: Tensor
        b: int = 2

    p = Point(x + 1)
    return p.a * p.b, [each.name for each in dataclasses.fields(p)]


def frozen_data(x: Tensor) -> Any:
    @dataclasses.dataclass(frozen=True, order=True)
    class Point:
        a: Tensor
        b: int = dataclasses.field(default=2)

    return dataclasses.replace(Point(x + 1), b=3).a * Point(x).b


def enumeration(x: Tensor) -> Any:
    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    return x * Color.RED.value + Color(2).value, Color["RED"].name


def whole_numbers(x: Tensor) -> Any:
    class Size(enum.IntEnum):
        SMALL = 1
        LARGE = 2

    return x * Size.SMALL + Size["LARGE"], Size(2) > Size.SMALL


def module(x: Tensor) -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.full((3,), 2.0))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.w

    return Net()(x)


def named_super(x: Tensor) -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super(Net, self).__init__()  # noqa: UP008
            self.w = nn.Parameter(torch.full((3,), 2.0))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.w

    return Net()(x)


def closure(x: Tensor) -> Any:
    y, n = x * 2, 3

    class Holder:
        def go(self) -> Tensor:
            return y * n

    return Holder().go()


def metaclass(x: Tensor) -> Any:
    class Meta(type):
        def __new__(m, name: str, bases: Any, held: Any) -> Any:  # noqa: N804
            return super().__new__(m, name, bases, dict(held) | {"tag": 5})

    class Tagged(metaclass=Meta):
        tag = 0

    return x * Tagged.tag


class Counting(type):
    def __call__(cls, *args: Any) -> Any:
        return super().__call__(*args, 4)


def metaclass_from_outside(x: Tensor) -> Any:
    class Made(metaclass=Counting):
        def __init__(self, x: Tensor, n: int) -> None:
            self.x = x * n

    return Made(x * 2).x + 1  # type: ignore[call-arg]


def named(x: Tensor) -> Any:
    class Pair(typing.NamedTuple):
        a: Tensor
        b: int = 3

    p = Pair(x)
    return p.a * p.b + p[0]


def slotted(x: Tensor) -> Any:
    class Slotted:
        __slots__ = ("a",)

        def __init__(self, a: Tensor) -> None:
            self.a = a

        @property
        def twice(self) -> Tensor:
            return self.a * 2

    return Slotted(x + 1).twice


def inherited(x: Tensor) -> Any:
    class A:
        def f(self, x: Tensor) -> Tensor:
            return x + 1

    class B(A):
        def f(self, x: Tensor) -> Tensor:
            return super().f(x) * 2

        @staticmethod
        def s(x: Tensor) -> Tensor:
            return x - 1

        @classmethod
        def c(cls, x: Tensor) -> Tensor:
            return cls.s(x)

    return B().f(x) + B.c(x), isinstance(B(), A), issubclass(A, B)


def returned(x: Tensor) -> Any:
    class Made:
        def __init__(self, a: Tensor) -> None:
            self.a = a

    p = Made(x * 2)
    return p.a, type(p) is Made, type(p).__name__, type(p).__qualname__


def raised(x: Tensor) -> Any:
    class Wrong(Exception):
        pass

    try:
        raise Wrong(2)
    except Wrong as error:
        return x * error.args[0]


def abstract(x: Tensor) -> Any:
    class Base(abc.ABC):
        @abc.abstractmethod
        def f(self) -> int: ...

    class Real(Base):
        def f(self) -> int:
            return 2

    return x * Real().f()


def generic(x: Tensor) -> Any:
    class Box(typing.Generic[T]):
        def f(self) -> int:
            return 2

    return x * Box().f()


def made_by_type(x: Tensor) -> Any:
    made: Any = type("Made", (), {"k": 3, "f": lambda self, y: y * self.k})
    return made().f(x)


def of_list(x: Tensor) -> Any:
    class Items(list[Any]):
        def total(self) -> Any:
            return sum(self)

    return Items([x, x * 2]).total()


def registered(x: Tensor) -> Any:
    kinds = []

    class A:
        def __init_subclass__(cls, **options: Any) -> None:
            kinds.append(cls)

    class B(A):
        pass

    return x * len(kinds)


def operators(x: Tensor) -> Any:
    class V:
        def __init__(self, v: Tensor) -> None:
            self.v = v

        def __add__(self, other: Any) -> Any:
            return V(self.v + other.v)

        def __getattr__(self, name: str) -> int:
            return 3

    return (V(x) + V(x * 2)).v * V(x).foo


def manager(x: Tensor) -> Any:
    class Two(contextlib.AbstractContextManager[int]):
        def __enter__(self) -> int:
            return 2

        def __exit__(self, *error: object) -> None: ...

    with Two() as n:
        return x * n


def descriptor(x: Tensor) -> Any:
    class Length:
        def __set_name__(self, owner: Any, name: str) -> None:
            self.name = name

        def __get__(self, obj: Any, owner: Any) -> int:
            return len(self.name)

    class Held:
        abc = Length()

    return x * Held().abc * Held.abc


def cached(x: Tensor) -> Any:
    class Lazy:
        @functools.cached_property
        def twice(self) -> Tensor:
            return x * 2

    lazy = Lazy()
    return lazy.twice + lazy.twice


class Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0]


def autograd_function(x: Tensor) -> Any:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0]

    return Own.apply(x) * 2


def autograd_function_in_parts(x: Tensor) -> Any:
    class Own(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.exp()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
            ctx.save_for_backward(output)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * ctx.saved_tensors[0]

    return Own.apply(x) * 2


def inherited_autograd_function(x: Tensor) -> Any:
    class Own(Shared):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return Shared.backward(ctx, g) * 3

    return Own.apply(x) + Shared.apply(x)


def backward_in_eager(x: Tensor) -> Any:
    held = x.detach() * 2

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * held

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * held + ctx.saved_tensors[0]

    return Own.apply(x)


def alias(x: Tensor) -> Any:
    class Box(typing.Generic[T]):
        def __init__(self, value: Any) -> None:
            self.value = value

        def twice(self) -> Any:
            return self.value * 2

    made = Box[int](x)
    return made.twice() + Box(x).twice(), made.__orig_class__.__args__  # type: ignore[attr-defined]


def base_with_arguments(x: Tensor) -> Any:
    class Box(typing.Generic[T]):
        def __init__(self, value: T) -> None:
            self.value = value

    class Numbers(Box[int]):
        def twice(self) -> Any:
            return self.value * 2

    return Numbers(x).twice()  # type: ignore[arg-type]


def own_type_variable(x: Tensor) -> Any:
    own = typing.TypeVar("own", bound=int)  # type: ignore[misc]

    class Box(typing.Generic[own]):  # type: ignore[valid-type]
        def __init__(self, value: Any) -> None:
            self.value = value

    return Box(x).value * 2


def abstract_generic(x: Tensor) -> Any:
    class Base(abc.ABC, typing.Generic[T]):
        @abc.abstractmethod
        def get(self) -> T: ...

    class Real(Base[int]):
        def get(self) -> Any:
            return x * 2

    return Real().get()


def generic_data(x: Tensor) -> Any:
    @dataclasses.dataclass
    class Point(typing.Generic[T]):
        a: T

    return Point[Tensor](x).a * 2


def typed_dictionary(x: Tensor) -> Any:
    class Named(typing.TypedDict):
        a: int

    made = Named(a=3)
    return x * made["a"], type(made) is dict


def cached_method(x: Tensor) -> Any:
    class Lazy:
        @functools.lru_cache  # noqa: B019
        def many(self) -> int:
            return 3

    return x * Lazy().many()


def aliases_of_builtins(x: Tensor) -> Any:
    kind, other = list[int], int | str
    print(end="")
    torch.compiler.disable(lambda: None)()
    return x * 2, kind, other, list(kind([1, 2]))


ONCE: list[Program] = [
    *(autograd_function, autograd_function_in_parts, inherited_autograd_function, backward_in_eager),
    *(alias, base_with_arguments, own_type_variable, abstract_generic, generic_data, typed_dictionary),
    *(cached_method, aliases_of_builtins),
    *(
        plain,
        data,
        frozen_data,
        enumeration,
        module,
        named_super,
        closure,
        metaclass,
        metaclass_from_outside,
        named,
        slotted,
    ),
    *(inherited, returned, raised, abstract, generic, made_by_type, of_list, registered, operators, manager),
    *(descriptor, cached, whole_numbers),
]


def _same(got: Any, want: Any) -> bool:
    if isinstance(want, Tensor):
        return torch.equal(got, want)
    if want is None:
        return got is None
    if isinstance(want, tuple):
        return len(got) == len(want) and all(map(_same, got, want))
    return bool(got == want)


def _both(run: Program, f: Program, x: Tensor) -> tuple[Any, Any]:
    """Results and gradients, compiled and in eager."""
    found = []
    for each in (run, f):
        leaf = x.clone().requires_grad_("autograd" in f.__name__ or f is backward_in_eager)
        out = each(leaf)
        if leaf.requires_grad:
            out.sum().backward()
        found.append((out, leaf.grad))
    return found[0], found[1]


def _runs(f: Program) -> Any:
    """`f`, whose second compilation of any site is an error."""
    return compile_callable(f, eager_graph, Options(recompile_limit=20))


def _recompiled(run: Any) -> list[str]:
    return [str(each) for site in run._smelt_session.sites.values() for each in site.recompiles]


@pytest.mark.parametrize("f", ONCE, ids=lambda f: f.__name__)
def test_compiled_once(f: Program) -> None:
    run = _runs(f)
    for i in range(2):
        assert _same(*_both(run, f, torch.arange(3.0) + i))
    versions = describe(run._smelt_session).graph_count
    for i in range(2, 6):
        assert _same(*_both(run, f, torch.arange(3.0) + i))
    assert describe(run._smelt_session).graph_count == versions
    late = {made_by_type: 1, backward_in_eager: 2}  # only the second call tells that there is another one
    assert len(_recompiled(run)) == late.get(f, 0)


@pytest.mark.parametrize("f", [plain, module, closure, data], ids=lambda f: f.__name__)
def test_by_the_whole_compiler(f: Program) -> None:
    run = smelt.compile(f)
    for i in range(4):
        x = (torch.arange(3.0) + i).requires_grad_()
        assert _same(run(x), f(x))


def test_each_call_gives_its_own_class() -> None:
    def f(x: Tensor) -> Any:
        class Made:
            def __init__(self, a: Tensor) -> None:
                self.a = a

        return Made, Made(x * 2), lambda y: Made(y)

    run = _runs(f)
    results = [run(torch.ones(3) * i) for i in range(4)]
    assert len({made for made, _, _ in results}) == 4
    for i, (made, obj, make) in enumerate(results):
        assert type(obj) is made and type(make(1)) is made and obj.a.tolist() == [2.0 * i] * 3
    assert not _recompiled(run)


def test_closures_of_a_class_body_hold_values_of_their_call() -> None:
    def f(x: Tensor, n: int, scale: Tensor) -> Any:
        class Made:
            factor = n

            def go(self, more: int = n) -> Tensor:
                return x * n + scale * self.factor + more

            @property
            def shown(self) -> Tensor:
                return scale + n

            @staticmethod
            def other() -> Tensor:
                return scale * 2

        made = Made()
        return made.go() + made.shown + Made.other()

    run = _runs(f)
    for n in (1, 2, 1, 3, 7):
        for scale in (torch.ones(3), torch.full((3,), 5.0)):
            assert torch.equal(run(torch.arange(3.0), n, scale), f(torch.arange(3.0), n, scale)), n


def test_statements_that_differ() -> None:
    """Two statements of one name, a body that runs otherwise, other bases, other values."""

    class Base:
        def go(self, x: Tensor) -> Tensor:
            return x * 100

    def f(x: Tensor, kind: int) -> Any:
        if kind == 0:

            class Made:  # noqa: F811
                def go(self, x: Tensor) -> Tensor:
                    return x + 1
        elif kind == 1:

            class Made:  # type: ignore[no-redef]
                def go(self, x: Tensor) -> Tensor:
                    return x + 2
        elif kind == 2:

            class Made(Base):  # type: ignore[no-redef]
                pass
        else:

            class Made:  # type: ignore[no-redef]
                if kind > 4:

                    def go(self, x: Tensor) -> Tensor:
                        return x + 3
                else:

                    def go(self, x: Tensor) -> Tensor:
                        return x + 4

                value = kind

        return Made().go(x) * getattr(Made, "value", 1)

    run = _runs(f)
    for kind in (0, 1, 2, 3, 5, 0, 2, 1, 5, 3, 4, 6):
        assert torch.equal(run(torch.arange(3.0), kind), f(torch.arange(3.0), kind)), kind


def test_a_base_or_a_global_changes() -> None:
    class Base:
        by = 2

        def go(self, x: Tensor) -> Tensor:
            return x * self.by

    def f(x: Tensor) -> Tensor:
        class Made(Base):
            pass

        return Made().go(x)

    run, x = _runs(f), torch.arange(3.0)
    for change in (lambda: None, lambda: setattr(Base, "by", 5), lambda: setattr(Base, "go", lambda self, x: x - 1)):
        change()
        for _ in range(2):
            assert torch.equal(run(x), f(x))


def test_the_class_is_written_to() -> None:
    def f(x: Tensor, n: int) -> Tensor:
        class Made:
            by = 2

        Made.by = n
        Made.more = lambda self, x: x + n  # type: ignore[attr-defined]
        Made.held = x * n  # type: ignore[attr-defined]
        made: Any = Made()
        y = made.more(x * made.by) + made.held
        torch._dynamo.graph_break() if n < 0 else print(end="")
        del Made.held  # type: ignore[attr-defined]
        return y * made.by * (3 if hasattr(made, "held") else 4)

    run = _runs(f)
    for n in (2, 3, 2, 4, 5):
        assert torch.equal(run(torch.arange(3.0), n), f(torch.arange(3.0), n)), n


def test_two_classes_of_one_statement_are_two() -> None:
    def make(n: int) -> Any:
        class Made:
            by = 2

            def go(self, x: Tensor) -> Tensor:
                return x * n

        return Made

    def f(x: Tensor, a: Any, b: Any, obj: Any) -> Any:
        return a().go(x) + b().go(x), a is b, type(obj) is a, isinstance(obj, b), obj.go(x)

    run, x = _runs(f), torch.arange(3.0)
    for same, other in ((False, False), (True, False), (False, True), (True, True), (False, False)):
        for n in (2, 3):
            a = make(n)
            b = a if same else make(n + 1)
            obj = make(n)() if other else b()
            assert _same(run(x, a, b, obj), f(x, a, b, obj)), (same, other, n)


def test_a_class_that_stays_is_known_by_identity() -> None:
    """A class made once, however local it is, costs no comparison of statements at each call."""

    class Once:
        def __init__(self, w: Tensor) -> None:
            self.w = w

    def f(x: Tensor, once: Any) -> Tensor:
        return x * once.w

    run, once = _runs(f), Once(torch.ones(3))
    for _ in range(3):
        run(torch.ones(3), once)
    (site,) = run._smelt_session.sites.values()
    lines = site.versions[0].guards.lines() if hasattr(site.versions[0].guards, "lines") else []
    assert not any("class " in line.split("#")[0] for line in lines)


def test_references_of_a_class_are_dropped() -> None:
    held: list[Any] = []

    def f(x: Tensor) -> Tensor:
        y = x * 2
        held.append(weakref.ref(y))

        class Made:
            tensor = y

            def go(self) -> Tensor:
                return y + self.tensor

        held.append(weakref.ref(Made))
        return Made().go()

    run = _runs(f)
    for _ in range(3):
        run(torch.ones(3))
    gc.collect()
    assert [each() for each in held] == [None] * len(held)


def test_breaks_after_the_statement_and_in_methods() -> None:
    def f(x: Tensor) -> Any:
        class Made:
            def __init__(self, a: Tensor) -> None:
                self.a = a

            def go(self) -> Tensor:
                y = self.a * 2
                print(end="")
                torch.compiler.disable(lambda: None)()
                return y + self.a

        made = Made(x + 1)
        x = x * 2
        torch.compiler.disable(lambda: None)()
        return made.go() + x, type(made) is Made

    run = _runs(f)
    for i in range(4):
        x = torch.arange(3.0) + i
        assert _same(run(x), f(x))


def test_numbers_and_lists_that_an_autograd_function_reads_are_those_of_the_call() -> None:
    def f(x: Tensor, n: int, held: list[int]) -> Tensor:
        class Own(torch.autograd.Function):
            factor = n

            @staticmethod
            def forward(ctx: Any, x: Tensor, more: int = n) -> Tensor:
                return x * n + len(held) + more

            @staticmethod
            def backward(ctx: Any, g: Tensor) -> Tensor:
                return g * n * Own.factor + len(held)

        return Own.apply(x)

    run = smelt.compile(f, options={"recompile_limit": 30})
    for n in (2, 3, 2, 4, 5):
        for held in ([], [1], [1, 2]):
            x = torch.arange(3.0)
            given = [x.clone().requires_grad_() for _ in range(2)]
            results = [each(leaf, n, held) for each, leaf in zip((run, f), given, strict=True)]
            for each in results:
                each.sum().backward()
            assert torch.equal(*results) and _same(given[0].grad, given[1].grad), (n, held)


def _of_a_variable(x: Tensor, n: int, held: list[int]) -> Any:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * n

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 5

    y = Own.apply(x)
    n += 10
    return y, n


def _of_an_attribute(x: Tensor, n: int, held: list[int]) -> Any:
    class Own(torch.autograd.Function):
        factor = n

        @classmethod
        def forward(cls, ctx: Any, x: Tensor) -> Any:  # type: ignore[override]
            return x * cls.factor

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 5

    y = Own.apply(x)
    Own.factor = 7
    return y, n


def _of_a_list(x: Tensor, n: int, held: list[int]) -> Any:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * len(held)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 5

    y = Own.apply(x)
    held.append(n)
    return y, held


def _of_a_default(x: Tensor, n: int, held: list[int]) -> Any:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, by: int = n) -> Tensor:
            return x * by

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 5

    y = Own.apply(x)
    Own.forward.__defaults__ = (8,)
    return y, n


@pytest.mark.parametrize("backend", ["eager", "smelt"])
@pytest.mark.parametrize("f", [_of_a_variable, _of_an_attribute, _of_a_list, _of_a_default])
def test_state_of_a_local_autograd_function_does_not_leak_into_the_next_call(
    f: Callable[[Tensor, int, list[int]], Any], backend: str
) -> None:
    """A graph holds the class of the call that it was captured in, and may run its Python code at each call."""
    run = smelt.compile(f, backend=backend)
    for n in (2, 2, 2, 3, 2):
        given = [torch.arange(3.0).requires_grad_() for _ in range(2)]
        got, want = run(given[0], n, []), f(given[1], n, [])
        assert torch.equal(got[0], want[0]) and got[1] == want[1]
        got[0].sum().backward()
        assert given[0].grad is not None and given[0].grad.tolist() == [5.0] * 3


def test_backward_class_of_a_local_autograd_function_belongs_to_its_call() -> None:
    def f(x: Tensor) -> Any:
        class Own(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x * 2

            @staticmethod
            def backward(ctx: Any, g: Tensor) -> Tensor:
                return g

        return Own, Own._backward_cls, Own._backward_cls._autograd_function_id, x * 2  # type: ignore[attr-defined]

    run, numbers = _runs(f), set()
    for _ in range(4):
        own, node, number, _ = run(torch.ones(3))
        assert own._backward_cls is node and node._autograd_function_id == number
        numbers.add(number)
    assert len(numbers) == 4


def test_aliases_of_one_two_or_other_slices() -> None:
    def f(x: Tensor, a: Any, b: Any) -> Any:
        return x * 2, a is b, a == b, a, [a, b], getattr(a, "__args__", None)

    run, x = _runs(f), torch.ones(3)

    class Box(typing.Generic[T]):
        pass

    one = list[int]
    same = [(one, one), (list[int], list[int]), (one, one), (list[int], list[str]), (dict[int, str], list[int])]
    same += [(int | str, int | str), (Box[int], Box[int]), (Box[int], Box[str]), (list[Box[int]], list[Box[str]])]
    for a, b in same * 2:
        got, want = run(x, a, b), f(x, a, b)
        assert got[1:] == want[1:] and got[3] is a and got[4][0] is a and got[4][1] is b


def test_a_type_variable_of_each_call() -> None:
    def f(x: Tensor, name: str, bound: Any) -> Any:
        own = typing.TypeVar(name, bound=bound)  # type: ignore[misc]
        print(end="")
        torch.compiler.disable(lambda: None)()
        return x * 2, own, own.__name__, own.__bound__, typing.List[own]  # type: ignore[valid-type]  # noqa: UP006

    run, x = _runs(f), torch.ones(3)
    for name, bound in (("a", int), ("b", int), ("a", str), ("a", int)) * 2:
        _, own, shown, limit, of_it = run(x, name, bound)
        assert (own.__name__, own.__bound__, shown, limit) == (name, bound, name, bound)
        assert of_it.__args__ == (own,)


def _of_a_table(x: Tensor) -> Any:
    class Own(dict):  # type: ignore[type-arg]
        pass

    make = Own.fromkeys
    print(end="")
    breaks()
    made = make(["a", "b"], 3)
    return x * made["a"], type(made) is Own, made


def _of_a_number(x: Tensor) -> Any:
    class Own(int):
        pass

    make = Own.from_bytes
    breaks()
    made = make(b"\x05", "big")
    return x * 2, type(made) is Own, int(made)


def breaks() -> None:
    torch.compiler.disable(lambda: None)()


@pytest.mark.parametrize("f", [_of_a_table, _of_a_number])
def test_a_method_written_in_c_belongs_to_the_class_of_this_call(f: Callable[[Tensor], Any]) -> None:
    run = smelt.compile(f)
    for _ in range(4):
        got = run(torch.arange(3.0))
        assert got[1] and f(torch.arange(3.0))[1]
