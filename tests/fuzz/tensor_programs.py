"""Makes random programs of tensors from the templates of `tensor_grammar`: what runs in eager is kept."""

from __future__ import annotations

import random
import re
import warnings
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .tensor_grammar import (
    BITS,
    DTYPES,
    EXACT_IN,
    FLOATS,
    KINDS,
    LARGEST,
    LAYOUTS,
    NAMES,
    ROUNDS,
    Input,
    Program,
    names,
)

SHAPES: tuple[tuple[str | int, ...], ...] = (
    ("N", "M"), ("N", "M"), ("N", "M"), ("M",), ("N", 1), ("B", "N", "M"), ("M", "M"), ("N",), (1,), (),
)  # fmt: skip
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 33, 64)
LARGE = (130, 257, 1000)
MAX_ELEMENTS = 70000
HUGE = 1 << 24
"""Elements of any tensor inside of a statement beyond which it is not even tried."""
TRIES = 60


def make_program(seed: str) -> Program:
    """The program that follows from a seed; one that eager differentiates if it has leaves."""
    rng = random.Random(seed)
    while True:
        made = _Maker(rng).make()
        if made is not None:
            return made


class _TooLarge(Exception):
    pass


class _Bounded(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if any(isinstance(x, torch.Tensor) and x.numel() > HUGE for x in tree_leaves(made)):
            raise _TooLarge
        return made


def _is_huge(line: str, space: dict[str, Any], values: dict[str, torch.Tensor]) -> bool:
    """Whether a statement computes more elements than memory should be spent on, as far as meta tensors tell."""
    metas = {n: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for n, t in values.items()}
    try:
        with _Bounded(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(line, space | metas)
    except _TooLarge:
        return True
    except Exception:
        return False  # what needs values, or what eager refuses: it runs, and is told then
    return False


class _Maker:
    """One program in the making: its statements, and the values that they have in eager."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.values: dict[str, torch.Tensor] = {}
        self.exact: set[str] = set()
        self.lines: list[tuple[str, str]] = []
        self.inputs: list[Input] = []

    def make(self) -> Program | None:
        rng = self.rng
        sizes = {s: rng.choice(SIZES[2:] if rng.random() < 0.93 else SIZES) for s in "NMB"} | {
            "B": rng.choice((1, 2, 3))
        }
        if rng.random() < 0.15:
            sizes["M"] = rng.choice(LARGE)
        self._make_inputs()
        self.values = {i.name: i.make(sizes, 0) for i in self.inputs}
        self.exact = set(self.values)
        wanted = rng.choice((2, 3, 4, 5, 6, 8))
        for _ in range(TRIES):
            self._try_statement()
            if len(self.lines) >= wanted:
                break
        made = [name for name in self.values if name.startswith("v")]
        if not made:
            return None
        results = list(dict.fromkeys([made[-1], *rng.sample(made, min(len(made), rng.choice((0, 1, 1, 2))))]))
        dynamic = rng.random() < 0.2
        others = {s: rng.choice(SIZES[3:]) if s != "B" else 2 for s in "NMB"} if rng.random() < 0.3 else {}
        return Program(
            tuple(self.inputs), sizes, tuple(self.lines), tuple(results), frozenset(self.exact), dynamic, others
        )

    def _make_inputs(self) -> None:
        rng = self.rng
        dtype = rng.choice(("F32", "F32", "BF16", "F16", "F32"))
        special, leaves = rng.random() < 0.08, rng.random() < 0.4
        for number in range(rng.choice((1, 2, 2, 3))):
            leaf = leaves and rng.random() < 0.7
            own = dtype if rng.random() < 0.85 else rng.choice(list(FLOATS))
            self.inputs.append(Input(f"x{number}", own, rng.choice(SHAPES), rng.choice(LAYOUTS), leaf, special))
        if rng.random() < 0.5:
            self.inputs.append(Input("k0", "I64", rng.choice((("N",), ("N", 1), ("N", "M"), ("M",), (1,)))))
        for number in range(1, rng.choice((1, 1, 2, 3))):
            self.inputs.append(Input(f"k{number}", rng.choice(("I64", "I32", "U8", "BOOL")), rng.choice(SHAPES)))

    def _pick(self, kind: str) -> str | None:
        wanted = {
            "float": lambda t: t.is_floating_point(),
            "whole": lambda t: not t.is_floating_point() and t.dtype is not torch.bool,
            "flag": lambda t: t.dtype is torch.bool,
            "index": lambda t: t.dtype is torch.int64,
            "any": lambda t: True,
        }[kind]
        fitting = [name for name, value in self.values.items() if wanted(value)]
        if not fitting:
            return None
        return self.rng.choice(fitting[-3:] if self.rng.random() < 0.6 else fitting)  # late values more often

    def _try_statement(self) -> None:
        rng = self.rng
        if rng.random() < 0.04:
            return self._try_bits()
        templates, kind, effect, _ = rng.choices(KINDS, [k[3] for k in KINDS])[0]
        template = rng.choice(templates)
        named = {"x": self._pick(kind), "y": self._pick(kind)}
        named |= {"m": self._pick("flag"), "i": self._pick("index")}
        used = {letter for letter in named if re.search(rf"(?<![\w.]){letter}\b", template)}
        if any(named[letter] is None for letter in used):
            return
        operands = {str(named[letter]) for letter in used}
        if effect == EXACT_IN and not operands <= self.exact:
            return
        x = self.values[str(named["x"] or named["m"])]
        dim = rng.randrange(-1, max(x.dim(), 1)) if x.dim() < 3 else rng.choice((-1, 0, 1))
        text = re.sub(
            r"(?<![\w.'])([xymid])\b(?![\w'(=])", lambda m: str(dim if m[1] == "d" else named[m[1]]), template
        )
        rounds = (
            effect == ROUNDS and kind == "float" and not re.search(r"masked_fill|index_select|fill_|zero_", template)
        )
        self._keep(text, text, operands, operands <= self.exact and not rounds)

    def _try_bits(self) -> None:
        source, to = self.rng.choice(BITS)
        fitting = [
            n for n, t in self.values.items() if t.dtype is DTYPES[source] and n in self.exact and not t.requires_grad
        ]
        if fitting:
            name = self.rng.choice(fitting)
            self._keep(f"{name}.view({to})", f"{name}.to(AS_{source}).view(AS_{to}).to({to})", {name}, True)

    def _keep(self, text: str, reference: str, operands: set[str], exact: bool) -> None:
        """Append a statement if it runs and its values stay in bounds."""
        writes = re.match(r"\w+(\[.*\]| \+)? ?\+?= ", text) or re.search(r"\b\w+_\([^()]*(\(.*\))?[^()]*\)$", text)
        writes = writes and not text.startswith("torch.")
        name = f"v{len(self.lines)}"
        line = text if writes else f"{name} = {text}"
        before = {n: t.detach().clone() for n, t in self.values.items()} if writes else {}
        space = names() | self.values
        if writes and _undefined(line, space) or _is_huge(line, names(), self.values):
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(line, space)
            made = space.get(name)
            if not writes:
                if not isinstance(made, torch.Tensor) or not self._in_bounds(made):
                    return
                self.values[name] = made
                if exact or not made.is_floating_point() and operands <= self.exact:
                    self.exact.add(name)
            else:
                self._written(line, operands, exact, before)
        except Exception:
            if before:
                self._restore(before)
            return
        self.lines.append((line, line if writes or reference == text else f"{name} = {reference}"))

    def _written(self, line: str, operands: set[str], exact: bool, before: dict[str, torch.Tensor]) -> None:
        target = line[: re.match(r"\w+", line).end()]  # type: ignore[union-attr]
        if not self._in_bounds(self.values[target]):
            raise ValueError("out of bounds")
        memory = self.values[target].untyped_storage().data_ptr()
        if not exact:
            self.exact -= {n for n, t in self.values.items() if t.untyped_storage().data_ptr() == memory}

    def _restore(self, before: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, value in self.values.items():
                if value.shape == before[name].shape and not torch.equal(value, before[name]):
                    try:
                        value.data.copy_(before[name])
                    except RuntimeError:  # elements that overlap: nothing wrote to them
                        pass

    def _in_bounds(self, made: torch.Tensor) -> bool:
        if made.numel() > MAX_ELEMENTS or made.dim() > 4:
            return False
        if any(i.special for i in self.inputs) or not made.is_floating_point() or not made.numel():
            return True
        largest = made.detach().abs().max()
        return bool(largest.isfinite() and largest < LARGEST)


def _undefined(line: str, space: dict[str, Any]) -> bool:
    """Whether an assignment reads elements that it writes in another place, which a GPU does in any order."""
    sides = line.split(" = ")
    if len(sides) != 2:
        return False
    try:
        to, source = eval(sides[0], space), eval(sides[1], space)
    except Exception:
        return False
    if not isinstance(source, torch.Tensor) or not isinstance(to, torch.Tensor):
        return False
    same_memory = to.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
    return same_memory and bool(_elements(to) & _elements(source))


def _elements(x: torch.Tensor) -> set[int]:
    """Where in its storage the elements are."""
    places = torch.arange(len(x.untyped_storage()) // x.itemsize)
    return set(places.as_strided(x.shape, x.stride(), x.storage_offset()).flatten().tolist())


def has_bits(program: Program) -> bool:
    """Whether it looks at the bits of floating values."""
    return any(line != reference for line, reference in program.lines)


def dtype_name(dtype: torch.dtype) -> str:
    """As programs name it."""
    return NAMES[dtype]
