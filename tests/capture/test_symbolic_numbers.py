"""A size that changes is to the program the int that it is, whatever Python does with it."""

from __future__ import annotations

import collections
import decimal
import enum
import fractions
import itertools
import math
import operator
import statistics
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import smelt
from tests.capture.harness import compiled

EXPRESSIONS = r"""
hash(s)
hash(n)
hash((n,1))
{1:2}.get(s)
s in {(2,3)}
s in {(2,3):1}
{s}
{s:1}
{n}
{n:1}
{(n,1):2}
len({n:3})
set(s)
set([n])
frozenset(s)
dict.fromkeys(s)
{k:1 for k in s}
bin(n)
hex(n)
oct(n)
chr(n)
bytes(n)
bytearray(n)
math.comb(n,1)
math.factorial(n)
math.gcd(n,4)
math.lcm(n,4)
n.bit_length()
format(n,'x')
'%x' % n
'%d' % n
'%5.2f' % n
[1]*n
range(n)
'a'*n
(1,)*n
list('abcdefg')[n]
math.isqrt(n)
n.to_bytes(2,'big')
n.as_integer_ratio()
divmod(n,2)
round(n,1)
round(n)
complex(n)
complex(n,n)
n.real
n.imag
n.numerator
slice(n).indices(4)
int.__add__(n,3)
b'abcdefg'[n]
memoryview(b'abcdefg')[n]
f'{n:3d}'
'abcdefg'[n]
'{:b}'.format(n)
math.perm(n)
math.prod([n,2])
math.hypot(n,n)
math.dist((n,),(2,))
math.fsum([n,n])
math.ldexp(1.0,n)
pow(n,2,3)
pow(2,n)
n<<2
1<<n
n^1
~n
math.copysign(n,-1)
math.fmod(n,3)
math.frexp(n)
math.nextafter(n,2.0)
math.remainder(n,3)
math.modf(n)
math.isclose(n,2)
math.log(n,2)
math.log2(n)
math.log1p(n)
math.exp(n)
math.gamma(n)
math.floor(n/2)
math.ceil(n/2)
math.trunc(n/2)
sum([n,n])
max(n,2)
sorted([n,1])
next(enumerate([1],n))
abs(n)
isinstance(n,int)
repr(n)
str(n)
ascii(n)
all([n])
any([n])
min((n,1))
tuple(zip(range(n),range(n)))
list(reversed(range(n)))
list(map(str,[n]))
float(n)
bool(n)
int(n)
n.bit_count()
n.conjugate()
n.denominator
n.__hash__()
n.__bool__()
n.__index__()
operator.index(n)
n.__str__()
n.__format__('')
n.__int__()
s.count(3)
s.index(n)
s.numel()
[1,2,3,4,5].pop(n)
[1,2,3,4,5].index(n)
[1,2,3,4,5].count(n)
[1,2,3].insert(n, 4)
'abc'.center(n)
'abc'.ljust(n)
'abc'.zfill(n)
'a,b,c,d,e'.split(',', n)
'abcabc'.find('a', n)
'a'.join(map(str, s))
tuple(s)
list(s)
s + (1,)
s == (2,3)
s == [2,3]
s < (3,3)
max(s)
sorted(s)
s[-1:]
sum(s)
math.prod(s)
isinstance(s, tuple)
type(s)
type(n)
str(s)
repr(s)
f'{s}'
'%s' % (s,)
'{}'.format(s)
torch.Size([n,2])
torch.Size(s)
hash(torch.Size([n,2]))
s is s
bool(s)
len(s)
range(n)[1:]
range(n)[-1]
list(range(n))
len(range(n))
n in range(10)
n in [2,3]
n in (2,3)
n in {2:1}
n in {2}
{2:1,3:4}.get(n)
{2:1,3:4,4:5,5:6}[n]
{2:1}.setdefault(n, 3)
{2:1}.pop(n, 3)
{2:1} | {n:2}
{1} | {n}
{2} == {n}
{2:1} == {n:1}
[2] == [n]
(2,) == (n,)
{n} - {2}
{2}.isdisjoint({n})
{2}.issubset([n])
(n/2).is_integer()
(n/2).hex()
hash(n/2)
{n/2:1}
{n/2}
round(n/3, 2)
int(n/2)
'%.3f' % (n/3)
f'{n/3:.2f}'
str(n/3)
(n/2).as_integer_ratio()
divmod(n/3, 1)
n//2
n%2
n**2
n**0.5
2**n
n**-1
-n
+n
n & 1
n | 1
n >> 1
n and 3
n or 3
not n
n if n > 2 else 3
n == 2
n != 2
hash(n > 2)
{n > 2: 1}
{True: 1, False: 0}[n > 2]
[1,2][n > 2]
(n > 2) + 1
(n > 2) & True
str(n > 2)
int(n > 2)
bin(n > 2)
hash(frozenset([n]))
hash((n, (n, 2)))
hash(n.__class__)
hash(str(n))
getattr(n, 'real')
hasattr(n, 'real')
callable(n)
issubclass(type(n), int)
next(iter([n]))
list(filter(None, [n, 0]))
list(enumerate(s))
dict(zip('ab', s))
dict(a=n)
list(zip(s, s))
"abc"[:n]
"abcdef"[n:]
[1,2,3,4,5,6][:n]
(1,2,3,4,5,6)[n:]
[1,2,3,4,5,6][::n]
bytes([n])
bytes(s)
bytearray(s)
chr(ord('a') + n)
"abc".replace("a", "b", n)
"ab" * n
n * "ab"
n * [1]
n * (1,)
"x".rjust(n)
"x".expandtabs(n)
"1".zfill(n)
int("11", n)
int(str(n))
float(str(n))
n.__add__(1)
n.__eq__(2)
n.__lt__(3)
n.__mul__(3)
n.__rsub__(3)
n.__floordiv__(2)
n.__pow__(2)
n.__float__()
n.__neg__()
n.__round__()
n.__truediv__(2)
n.__divmod__(2)
n.__class__
""".strip().splitlines()
"""`s` is the shape of a tensor, `n` its first size."""

PLAIN = "def program(x):\n    s = x.shape; n = s[0]; y = x * 2\n    r = {}\n    return y, r"
CAUGHT = (
    "def program(x):\n    s = x.shape; n = s[0]; y = x * 2\n"
    "    try:\n        r = {}\n    except Exception as e:\n        r = type(e), str(e)\n    return y, r"
)


def outcome(run: Any, rows: int) -> tuple[str, type]:
    try:
        found = run(torch.ones(rows, 3))[1]
    except Exception as error:
        found = error
    return repr(found), type(found)


@pytest.mark.parametrize("form", [PLAIN, CAUGHT], ids=["plain", "in a try"])
@pytest.mark.parametrize("first", range(0, len(EXPRESSIONS), 25))
def test_python_expressions_of_sizes_match_eager(form: str, first: int) -> None:
    for expression in EXPRESSIONS[first : first + 25]:
        names: dict[str, Any] = {"torch": torch, "math": math, "operator": operator}
        exec(form.format(expression), names)
        run = smelt.compile(names["program"], backend="eager", dynamic=True)
        for rows in (2, 3, 5):
            assert outcome(run, rows) == outcome(names["program"], rows), expression


@pytest.mark.parametrize(
    "compute",
    [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow],
    ids=lambda fn: fn.__name__,
)
def test_floats_beside_symbolic_integers(compute: Callable[..., Any]) -> None:
    """What comes out is a float, with the sign of its zero, in the program and in what the graph makes of it."""
    for f, swapped in itertools.product((0.0, -0.0, 2.0, -2.0, 0.5), (False, True)):

        def fn(x: Any, n: int, f: float = f, swapped: bool = swapped) -> tuple[Any, Any, Any]:
            number = compute(n, f) if swapped else compute(f, n)
            return (x * 0 + 1) * number, x.new_full((2,), number), number

        run = compiled(fn)
        for n in (3, 4, 7) if compute is operator.pow else (3, 4, -3, 7):
            if swapped and not f and compute in (operator.truediv, operator.floordiv, operator.mod):
                continue
            (a, b, number), expected = run(torch.ones(2), n), fn(torch.ones(2), n)
            assert repr((a, b, number)) == repr(expected), (f, swapped, n)


@pytest.mark.parametrize(
    "asked",
    [
        lambda f: round(f * 2, 1),
        lambda f: math.copysign(1, f * 2),
        lambda f: str(f * 2),
        lambda f: repr(f),
        lambda f: divmod(f * 3, 2),
        lambda f: math.atan2(f * 2, -1),
        lambda f: max(0.0, -f),
        lambda f: f * 2 or "nothing",
    ],
)
def test_zeros_of_both_signs(asked: Callable[[float], Any]) -> None:
    def fn(x: Any, f: float) -> tuple[Any, Any]:
        return x + 1, asked(f)

    run = compiled(fn)
    for f in (1.5, 2.5, 0.0, -0.0, 3.5, -0.0, 0.0):
        assert repr(run(torch.ones(2), f)) == repr(fn(torch.ones(2), f))


@pytest.mark.parametrize(
    "asked",
    [
        lambda n: n in (5, 7),
        lambda n: sorted([n, 5])[0],
        lambda n: max(n, 5),
        lambda n: [5, n].index(n),
        lambda n: {5: 1}.get(n, 3),
        lambda n: n in {5, 7},
        lambda n: len({n, *[n, 5]}),
        lambda n: {5: 2}.setdefault((n, 1), n),
        lambda n: {5, n}.pop() and collections.Counter([5])[n] + 1,
        lambda n: {5: 1}.pop((n, n), 2),
    ],
)
def test_a_number_that_c_code_compares_or_hashes(asked: Callable[[int], Any]) -> None:
    """It costs the symbol that it is, if any, and not those of others."""
    held = {"asked": asked}
    run, before = smelt.compile(lambda x, n, scale: x * held["asked"](n) * scale), smelt.stats()["recompiles"]
    for n, scale in ((3, 2), (4, 3), (4, 4), (4, 5)):
        assert torch.equal(run(torch.ones(2), n, scale), torch.ones(2) * asked(n) * scale)
    assert smelt.stats()["recompiles"] - before == 1


class Whole(int):
    """An int of a class of its own."""


class Level(enum.IntEnum):
    LOW, HIGH = 3, 4


def test_a_counter_counts_once() -> None:
    """What C code did before it met a number that has no hash is not done again."""

    def fn(x: Any, n: int, held: collections.Counter[int]) -> Any:
        held.update([5, 5, n])
        held.subtract((5, n))
        return x * collections.Counter([5, n, 5])[5], collections.Counter((5, n)), held

    run = compiled(fn)
    for n in (3, 4, 5, 6):
        assert repr(run(torch.ones(2), n, collections.Counter([5]))) == repr(
            fn(torch.ones(2), n, collections.Counter([5]))
        )


OTHER_NUMBERS = [Whole, Level, numpy.int64, numpy.float64, fractions.Fraction, decimal.Decimal, complex]
BESIDE = """
c == n, n == c, c != n, n in (c, 9), [c, n].index(n), [n, c].count(c)
c + n, n - c, n * c, sum([c, n]), pow(c, n), (c, 1) == (n, 1)
{c: 1}.get(n), {c} == {n}, {1: c} == {1: n}, hash(c) == hash(n)
(3).__add__(n), int.__eq__(3, n), object.__eq__(n, 4), dir(n)[:5]
fractions.Fraction(3) ** n, divmod(fractions.Fraction(7), n), statistics.mean([n, 2])
""".strip().splitlines()


@pytest.mark.parametrize("asked", BESIDE)
@pytest.mark.parametrize("kind", OTHER_NUMBERS)
def test_numbers_of_other_classes_beside_one_that_changes(kind: Any, asked: str) -> None:
    """Symbolic numbers do not know them: none was equal to one that has changed."""
    fn = eval(f"lambda x, n, c: (x + 1, ({asked}))", globals() | {"statistics": statistics})
    run = compiled(fn)

    def told(call: Callable[..., Any], *given: Any) -> str:
        try:
            return repr(call(torch.ones(2), *given))
        except (TypeError, AttributeError) as error:
            return repr(error)

    for n, other in ((3, 3), (4, 4), (4, 3), (3.0, 3), (4.0, 4)):
        assert told(run, n, kind(other)) == told(fn, n, kind(other))


@pytest.mark.parametrize(
    ("call", "numbers"),
    [
        (torch.nn.functional.elu, (1, 2, 3)),
        (lambda x, n: torch.nn.functional.one_hot(x.long(), n), (6, 7, 8.0, 7)),
        (lambda x, n: torch.nn.functional.channel_shuffle(x.view(1, 6, 1), n), (1, 2, 4, 3, 6)),
    ],
)
def test_operators_take_and_refuse_changing_numbers_as_eager(
    call: Callable[..., Any], numbers: tuple[Any, ...]
) -> None:
    run, x = compiled(call), torch.arange(6.0)
    for n in numbers:
        results = []
        for each in (call, run):
            try:
                results.append(each(x, n).tolist())
            except (TypeError, RuntimeError) as error:
                results.append(str(error))
        assert results[0] == results[1]


POWERS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "pow": lambda x, n: x.pow(n),
    "pow_": lambda x, n: (x * 1).pow_(n),
    "exponent": lambda x, n: torch.pow(x, exponent=n),
    "**=": lambda x, n: operator.ipow(x * 1, n),
    "float_power": lambda x, n: x.float_power(n),
    "foreach": lambda x, n: torch._foreach_pow([x, x], n)[0],
    "lp_pool1d": lambda x, n: torch.nn.functional.lp_pool1d(x[None], n, 2),
    "lp_pool2d": lambda x, n: torch.nn.functional.lp_pool2d(x[None, None], norm_type=n, kernel_size=(1, 2)),
    "lerp": lambda x, n: torch.lerp(x, x * x, n),
    "lerp_": lambda x, n: (x * 1).lerp_(x * x, n - 2),
}


@pytest.mark.parametrize("differentiated", [False, True])
@pytest.mark.parametrize("name", POWERS)
def test_exponents_and_weights_that_change(name: str, differentiated: bool) -> None:
    """PyTorch's formulas of derivatives compare an exponent with 0, which it cannot do with a symbol."""
    run = compiled(POWERS[name])
    for n in (2, 3, 5, 2):
        found = []
        for fn in (POWERS[name], run):
            x = torch.linspace(0.5, 2, 6)[None].requires_grad_(differentiated)
            out = fn(x, n)
            found.append((out.detach(), *(torch.autograd.grad(out.sum(), x) if differentiated else ())))
        for want, got in zip(*found, strict=True):
            torch.testing.assert_close(got, want)
