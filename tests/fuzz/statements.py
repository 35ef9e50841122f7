"""Random expressions and statements from the templates, with variables that mostly have the type they are used as."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from .compounds import COMPOUNDS, MATCHES
from .templates import CONTEXTS, ERRORS, EXPRESSIONS, GLOBALS, ITERATED, LEAVES, STATEMENTS

_HOLE = re.compile(r"\{\{|\}\}|\{(\w+)(!?)\}")
_MARKER = re.compile(r"^( +|)(BODY|LOOP|INNER)\b")
_TARGETS = re.compile(r"^[\s(){}\w!,*]+$")
_PREFIX = {
    **{"T": "t", "I": "n", "F": "f", "B": "flag", "S": "s", "L": "items", "LT": "ts", "D": "d", "DT": "dt", "X": "xs"},
    **{"P": "pair", "Q": "q", "DD": "dd", "C": "c", "O": "od", "N": "point", "R": "rec", "U": "box", "M": "mod"},
    "FN": "fn",
    "V": "vec",
    "G": "gen",
}

_GROWING = ("{L}", "{L!}", "{G!}", "{LT}", "{D}", "{X}", "{Q}", "{D}.values()", "FUNCS", "BOXES")

Scope = dict[str, list[str]]


class NoVariable(Exception):
    """A template needs a variable of a type that the scope does not have."""


class Statements:
    """Expressions and statements; the same seed gives the same text.

    Attributes:
        scope: the variables that may be used here, by type.
        assigned: the names that the present function assigns.
        functions: those of the program, with the types of their parameters.
    """

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(seed)
        self.scope: Scope = {}
        self.assigned: set[str] = set()
        self.functions: list[tuple[str, list[str]]] = []
        self._count = 0
        self._loops = 0
        self._depth = 0

    # -- expressions ------------------------------------------------------------------------------------------------

    def fresh(self, kind: str) -> str:
        """A new name."""
        self._count += 1
        return f"{_PREFIX.get(kind, kind)}{self._count}"

    def declare(self, kind: str, name: str | None = None) -> str:
        """A new variable in the present scope."""
        name = name or self.fresh(kind)
        self.scope.setdefault(kind, []).append(name)
        return name

    def variable(self, kind: str) -> str:
        """A variable (or global) of a type."""
        names = self.scope.get(kind, [])
        if kind in GLOBALS and (not names or self.random.random() < 0.12):
            return self.random.choice(GLOBALS[kind])
        if not names:
            raise NoVariable(kind)
        return self.random.choice(names)

    def expression(self, kind: str, depth: int) -> str:
        """The text of an expression of a type."""
        roll = self.random.random()
        if roll < (0.45 if depth > 0 else 0.8) and self.scope.get(kind):
            return self.variable(kind)
        if depth <= 0 or roll > 0.9:
            return self.random.choice(LEAVES[kind])
        if kind == "T" and self.functions and self.random.random() < 0.12:
            name, kinds = self.random.choice(self.functions)
            return f"{name}({', '.join(self.expression(k, depth - 1) for k in kinds)})"
        template = self.random.choice(EXPRESSIONS[kind])
        try:
            return self.render(template, depth - 1)
        except NoVariable:
            return self.random.choice(LEAVES[kind])

    def render(self, template: str, depth: int, new: dict[str, str] | None = None) -> str:
        """Fill the holes of a template; `new`: the fresh names that it has so far."""
        fresh = {} if new is None else new

        def fill(hole: re.Match[str]) -> str:
            if hole.group() in ("{{", "}}"):
                return hole.group()[0]
            kind, stored = hole.groups()
            if kind.islower():
                return fresh.setdefault(kind, self.fresh(kind))
            return self.variable(kind) if stored else self.expression(kind, depth)

        return _HOLE.sub(fill, template)

    # -- statements ---------------------------------------------------------------------------------------------------

    def simple(self) -> list[str]:
        """A statement without a body."""
        for _ in range(20):
            template = self.random.choice(STATEMENTS)
            if template.startswith(("raise", "assert", "{T!}.nothing", "_ =")) and self.random.random() < 0.6:
                continue
            try:
                return self.assignment(template)
            except NoVariable:
                continue
        return ["pass"]

    def assignment(self, template: str) -> list[str]:
        """Values first, so that a new variable is not used before it is set."""
        left, equals, right = template.partition(" = ")
        depth = self.random.choice((0, 1, 1, 2, 2, 3))
        if not equals or not _TARGETS.match(left):
            text = self.render(template, depth)
            for name in re.findall(r"\b(G_\w+) [-+|*]?= ", text):
                self.assigned.add(name)
            for name in re.findall(r"^(\w+) [-+|*/]+= ", text):
                self.assigned.add(name)
            for name in re.findall(r"^del (\w+)$", text):
                self.assigned.add(name)
            return [text]
        value = self.render(right, depth)
        declared: list[tuple[str, str]] = []

        def target(hole: re.Match[str]) -> str:
            kind = hole.group(1)
            names = [n for n in self.scope.get(kind, []) if n.isidentifier()]
            if names and self.random.random() < 0.6:
                name = self.random.choice(names)
            else:
                name = self.fresh(kind)
                declared.append((kind, name))
            self.assigned.add(name)
            return name

        text = f"{_HOLE.sub(target, left)} = {value}"
        self.assigned |= set(re.findall(r"\bG_\w+", left))
        for kind, name in declared:
            self.declare(kind, name)
        return [text]

    def block(self, size: int, inside: Callable[[], object] | None = None) -> list[str]:
        """An indented list of statements; its new variables are mostly forgotten after it."""
        before = {kind: list(names) for kind, names in self.scope.items()}
        if inside is not None:
            inside()
        self._depth += 1
        lines: list[str] = []
        for _ in range(max(1, size)):
            lines += self.statement()
        self._depth -= 1
        if self.random.random() < 0.9:
            self.scope = before
        return ["    " + line for line in lines]

    def statement(self) -> list[str]:
        """Any statement."""
        roll, deep = self.random.random(), self._depth > 3
        if deep or roll < 0.62:
            if self._loops and roll < 0.05:
                return [f"if {self.expression('B', 1)}:", f"    {self.random.choice(('break', 'continue'))}"]
            if roll < 0.065:
                return [f"if {self.expression('B', 1)}:", f"    return {self.value()}"]
            return self.simple()
        makers = (self.branch, self.branch, self.loop, self.loop, self.loop, self.attempt, self.attempt, self.context,
                  self.context, self.define, self.match, self.while_loop, self.lambda_, self.compound, self.compound,
                  self.compound)  # fmt: skip
        try:
            return self.random.choice(makers)()
        except NoVariable:
            return self.simple()

    def branch(self) -> list[str]:
        lines = [f"if {self.expression('B', 2)}:", *self.block(self.random.randint(1, 3))]
        if self.random.random() < 0.3:
            lines += [f"elif {self.expression('B', 1)}:", *self.block(1)]
        if self.random.random() < 0.5:
            lines += ["else:", *self.block(self.random.randint(1, 2))]
        return lines

    def loop(self) -> list[str]:
        kind, over = self.random.choice(ITERATED)
        iterable = self.render(over, 1)
        if over in _GROWING and self.random.random() < 0.8:
            iterable = f"list({iterable})"  # else the body may make the loop endless
        name = self.fresh(kind)
        target = f"_, {name}" if iterable.startswith("enumerate(") else name
        self._loops += 1
        body = self.block(self.random.randint(1, 3), lambda: self.declare(kind, name))
        self._loops -= 1
        lines = [f"for {target} in {iterable}:", *body]
        if self.random.random() < 0.2:
            lines += ["else:", *self.block(1)]
        return lines

    def while_loop(self) -> list[str]:
        name, limit = self.fresh("I"), self.random.randint(1, 4)
        more = self.expression("B", 1) if self.random.random() < 0.3 else "True"
        self._loops += 1
        body = self.block(self.random.randint(1, 3))
        self._loops -= 1
        lines = [f"{name} = 0", f"while {name} < {limit} and {more}:", f"    {name} += 1", *body]
        return [*lines, "else:", *self.block(1)] if self.random.random() < 0.2 else lines

    def attempt(self) -> list[str]:
        lines = ["try:", *self.block(self.random.randint(1, 3))]
        if self.random.random() < 0.3:
            lines.append("    " + self.render(self.random.choice(("raise ValueError({S})", "raise Oops({I})")), 1))
        roll = self.random.random()
        if roll < 0.85:
            error = self.random.choice(ERRORS)
            if self.random.random() < 0.5:
                name = self.fresh("e")
                lines += [
                    f"except {error} as {name}:",
                    *self.block(1),
                    f"    print(type({name}).__name__, {name}.args)",
                ]
            else:
                lines += [f"except {error}:", *self.block(1)]
            if self.random.random() < 0.2:
                lines.append(
                    "    " + self.random.choice(("raise", "raise RuntimeError('again')", "raise KeyError from None"))
                )
            if self.random.random() < 0.2:
                lines += ["else:", *self.block(1)]
        if roll > 0.7:
            lines += ["finally:", *self.block(1)]
        return lines

    def context(self) -> list[str]:
        template = self.random.choice(CONTEXTS)
        text = self.render(template, 1) if "} as {" not in template else self._named(template)
        return [f"with {text}:", *self.block(self.random.randint(1, 3))]

    def _named(self, template: str) -> str:
        left, _, right = template.rpartition(" as ")
        kind = right.strip("{}!")
        return f"{self.render(left, 1)} as {self.declare(kind)}"

    def define(self) -> list[str]:
        """A function that closes over variables, and a call of it."""
        name, parameter = self.fresh("inner"), self.fresh("T")
        result: list[str] = []

        def declare() -> None:
            self.declare("T", parameter)

        def end() -> None:
            result.append(self.expression("T", 1) if self.random.random() < 0.7 else parameter)

        body = self.inner(self.random.randint(1, 3), declare, end)
        default = f"={self.random.choice(LEAVES['T'])}" if self.random.random() < 0.2 else ""
        given = self.expression("T", 1)
        out = self.declare("T")
        self.assigned.add(out)
        self.declare("FN", name)
        return [f"def {name}({parameter}{default}):", *body, f"    return {result[0]}", f"{out} = {name}({given})"]

    def inner(self, size: int, declare: Callable[[], object], end: Callable[[], object] = lambda: None) -> list[str]:
        """The body of a function inside of this one, with what it says about the names that it shares.

        Args:
            declare: declares its parameters.
            end: called while its variables can be used.
        """
        outer, loops = self.assigned, self._loops
        self.assigned, self._loops = set(), 0
        visible = {n for names in self.scope.values() for n in names}
        before = {kind: list(names) for kind, names in self.scope.items()}
        own = self.random.random() < 0.1  # its assignments make variables of its own, which may be unbound
        body = self.block(size, declare)
        end()
        self.scope = before
        changed = sorted(n for n in self.assigned if n in visible and n.isidentifier() and not n.startswith("G_"))
        top = sorted(n for n in self.assigned if n.startswith("G_"))
        head = [f"    nonlocal {', '.join(changed)}"] * (bool(changed) and not own)
        head += [f"    global {', '.join(top)}"] * bool(top)
        self.assigned, self._loops = outer, loops
        return [*head, *body]

    def compound(self) -> list[str]:
        """A statement of several lines."""
        template, after = self.random.choice(COMPOUNDS)
        new: dict[str, str] = {}
        lines: list[str] = []
        for line in template.strip("\n").splitlines():
            marker = _MARKER.match(line)
            if marker is None:
                lines.append(self.render(line, 1, new))
                continue
            given = [(kind, new[name]) for kind, name in re.findall(r"(\w+):(\w+)", line) if name in new]
            lines += [marker.group(1)[4:] + part for part in self._filled(marker.group(2), given)]
        for name, kind in after.items():
            self.declare(kind, new[name])
        self.assigned |= set(new.values())
        return lines

    def _filled(self, marker: str, given: list[tuple[str, str]]) -> list[str]:
        """The block in the place of a marker; `given`: types and names of variables in it."""

        def declare() -> None:
            for kind, name in given:
                self.declare(kind, name)

        size = self.random.choice((1, 1, 2))
        if marker == "INNER":
            return self.inner(size, declare)
        self._loops += marker == "LOOP"
        try:
            return self.block(size, declare)
        finally:
            self._loops -= marker == "LOOP"

    def lambda_(self) -> list[str]:
        name, parameter = self.declare("FN"), self.fresh("T")
        self.assigned.add(name)
        before = {kind: list(names) for kind, names in self.scope.items()}
        self.declare("T", parameter)
        body = self.expression("T", 2)
        self.scope = before
        return [f"{name} = lambda {parameter}: {body}"]

    def match(self) -> list[str]:
        kind, patterns = self.random.choice(MATCHES)
        chosen = [p for p in patterns[:-1] if self.random.random() < 0.7]
        lines = [f"match {self.expression(kind, 1)}:"]
        for pattern in [*chosen, patterns[-1]]:
            asked = f" if {self.expression('B', 1)}" if self.random.random() < 0.2 else ""
            lines += [f"    case {pattern}{asked}:"] + ["    " + line for line in self.block(1)]
        return lines

    def value(self) -> str:
        """What a function returns."""
        kinds = [self.random.choice("TTTTIIFSLLTDDTUFNRXPQBCOVVG") for _ in range(self.random.randint(1, 3))]
        parts = [self.expression(k, 1) for k in kinds]
        known = [n for names in self.scope.values() for n in names if n.isidentifier()]
        parts += self.random.sample(known, min(len(known), 3))
        if self.random.random() < 0.15:
            return "{" + ", ".join(f"'{i}': {p}" for i, p in enumerate(parts)) + "}"
        if self.random.random() < 0.1:
            return "[" + ", ".join(parts) + "]"
        return ", ".join(parts) + ("," if len(parts) == 1 else "")
