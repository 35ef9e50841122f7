"""Makes random programs from the templates, with variables that mostly have the type they are used as."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from .definitions import HEADER, needed
from .templates import CONTEXTS, ERRORS, EXPRESSIONS, GLOBALS, ITERATED, LEAVES, STATEMENTS

_HOLE = re.compile(r"\{\{|\}\}|\{(\w+)(!?)\}")
_TARGETS = re.compile(r"^[\s(){}\w!,*]+$")
_PREFIX = {
    **{"T": "t", "I": "n", "F": "f", "B": "flag", "S": "s", "L": "items", "LT": "ts", "D": "d", "DT": "dt", "X": "xs"},
    **{"P": "pair", "Q": "q", "DD": "dd", "C": "c", "O": "od", "N": "point", "R": "rec", "U": "box", "M": "mod"},
    "FN": "fn",
}

_GROWING = ("{L}", "{L!}", "{LT}", "{D}", "{X}", "{Q}", "{D}.values()", "FUNCS", "BOXES")

Scope = dict[str, list[str]]


class NoVariable(Exception):
    """A template needs a variable of a type that the scope does not have."""


class Grammar:
    """One random program; the same seed gives the same text."""

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
        return f"{_PREFIX.get(kind, 'v')}{self._count}"

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

    def render(self, template: str, depth: int) -> str:
        """Fill the holes of a template."""
        new: dict[str, str] = {}

        def fill(hole: re.Match[str]) -> str:
            if hole.group() in ("{{", "}}"):
                return hole.group()[0]
            kind, stored = hole.groups()
            if kind == "v":
                return new.setdefault("v", self.fresh("v"))
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
                  self.context, self.define, self.match, self.while_loop, self.lambda_)  # fmt: skip
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
        outer, loops = self.assigned, self._loops
        self.assigned, self._loops = set(), 0
        visible = {n for names in self.scope.values() for n in names}
        before = {kind: list(names) for kind, names in self.scope.items()}
        body = self.block(self.random.randint(1, 3), lambda: self.declare("T", parameter))
        result = self.expression("T", 1) if self.random.random() < 0.7 else parameter
        self.scope = before
        changed = sorted(n for n in self.assigned if n in visible and n.isidentifier() and not n.startswith("G_"))
        top = [n for n in self.assigned if n.startswith("G_")]
        head = [f"    nonlocal {', '.join(changed)}"] * bool(changed) + [f"    global {', '.join(sorted(top))}"] * bool(
            top
        )
        self.assigned, self._loops = outer, loops
        default = f"={self.random.choice(LEAVES['T'])}" if self.random.random() < 0.2 else ""
        out = self.declare("T")
        self.assigned.add(out)
        lines = [f"def {name}({parameter}{default}):", *head, *body, f"    return {result}"]
        self.declare("FN", name)
        return [*lines, f"{out} = {name}({self.expression('T', 1)})"]

    def lambda_(self) -> list[str]:
        name, parameter = self.declare("FN"), self.fresh("T")
        self.assigned.add(name)
        before = {kind: list(names) for kind, names in self.scope.items()}
        self.declare("T", parameter)
        body = self.expression("T", 2)
        self.scope = before
        return [f"{name} = lambda {parameter}: {body}"]

    def match(self) -> list[str]:
        kind, patterns = self.random.choice((
            ("I", ("0 | 1", "int(k) if k > 2", "-1", "k")),
            ("P", ("(0, k)", "(k, 2)", "[k, *_]", "_")),
            ("D", ("{'a': k}", "{'b': k, **rest}", "{}", "_")),
            ("U", ("Child(n=k)", "Box(n=1)", "Box(n=k)", "_")),
            ("N", ("Point(0, k)", "Point(x=k)", "_")),
            ("S", ("'a'", "'b' | 'key'", "str(k)", "_")),
            ("L", ("[]", "[k]", "[k, *rest]", "_")),
            ("R", ("Record(1, k)", "Record(n=k, items=[*_])", "_")),
        ))  # fmt: skip
        chosen = [p for p in patterns[:-1] if self.random.random() < 0.7]
        lines = [f"match {self.expression(kind, 1)}:"]
        for pattern in [*chosen, patterns[-1]]:
            lines += [f"    case {pattern}:"] + ["    " + line for line in self.block(1)]
        return lines

    def value(self) -> str:
        """What a function returns."""
        kinds = [
            self.random.choice("TTTTIIFSLLTDDTUFNRXPQBCO".replace("F", "F")) for _ in range(self.random.randint(1, 3))
        ]
        parts = [self.expression(k, 1) for k in kinds]
        known = [n for names in self.scope.values() for n in names if n.isidentifier()]
        parts += self.random.sample(known, min(len(known), 3))
        if self.random.random() < 0.15:
            return "{" + ", ".join(f"'{i}': {p}" for i, p in enumerate(parts)) + "}"
        if self.random.random() < 0.1:
            return "[" + ", ".join(parts) + "]"
        return ", ".join(parts) + ("," if len(parts) == 1 else "")

    # -- whole programs ---------------------------------------------------------------------------------------------

    def function(self, name: str, kinds: list[str], size: int, method: bool = False) -> list[str]:
        """A function with parameters of these types."""
        self.scope, self.assigned, self._loops, self._depth = {}, set(), 0, 0
        names = [self.declare(kind) for kind in kinds]
        lines: list[str] = []
        for _ in range(size):
            lines += self.statement()
        helper = name.startswith("part")
        lines.append(f"return {self.expression('T', 2) if helper else self.value()}")
        top = sorted(n for n in self.assigned if n.startswith("G_"))
        head = [f"global {', '.join(top)}"] if top else []
        given = ", ".join(["self", *names] if method else names)
        return [f"def {name}({given}):", *("    " + line for line in [*head, *lines])]

    def program(self) -> str:
        """The text of a program."""
        body: list[str] = []
        for number in range(self.random.choice((0, 0, 1, 2))):
            kinds = ["T", *self.random.choices(("T", "I", "L", "D", "F", "U"), k=self.random.randint(0, 2))]
            body += self.function(f"part{number}", kinds, self.random.randint(1, 4))
            self.functions.append((f"part{number}", kinds))
        kinds = ["T", *_kinds(self.random)]
        body += self._entry(kinds)
        body += ["def calls():", *("    " + line for line in self.calls(kinds))]
        text = "\n".join(body)
        return f"{HEADER}{needed(text)}\n{text}\n"

    def _entry(self, kinds: list[str]) -> list[str]:
        size = self.random.randint(2, 8)
        match self.random.randint(0, 9):
            case 0:
                lines = self.function("forward", kinds, size, method=True)
                return ["class Model(Layer):", *("    " + line for line in lines), "entry = Model()", "MODULE = entry"]
            case 1:
                lines = self.function("run", kinds, size, method=True)
                return ["class Runner(Box):", *("    " + line for line in lines), "entry = Runner(1).run"]
            case 2:
                lines = self.function("program", kinds, size)
                return [
                    "def make():",
                    "    held = []",
                    *("    " + line for line in lines),
                    "    return program",
                    "entry = make()",
                ]
            case _:
                return [*self.function("program", kinds, size), "entry = program"]

    def calls(self, kinds: list[str]) -> list[str]:
        """The arguments of each call: like the first ones, some replaced."""
        given = [self.argument(kind) for kind in kinds]
        lines = []
        for number in range(self.random.randint(3, 5)):
            now = list(given)
            if number:
                for index, kind in enumerate(kinds):
                    if self.random.random() < 0.3:
                        now[index] = self.argument(kind)
                if self.random.random() < 0.2:
                    given = now
            tensors = [i for i, kind in enumerate(kinds) if kind == "T"]
            if len(tensors) > 1 and self.random.random() < 0.2:
                first, second = self.random.sample(tensors, 2)
                lines.append(f"shared = {now[first]}")
                now[first], now[second] = (
                    "shared",
                    self.random.choice(("shared", "shared", "shared[:1]", "shared.view_as(shared)")),
                )
            lines.append(f"yield ({', '.join(now)},)")
        return lines

    def argument(self, kind: str) -> str:
        """An argument of a type."""
        if kind != "T":
            return self.random.choice(LEAVES[kind])
        shape = self.random.choice(("2, 3", "2, 3", "2, 3", "3", "1, 3", ""))
        count = {"2, 3": 6, "3": 3, "1, 3": 3, "": 1}[shape]
        start = self.random.choice(("-1.0", "0.5", "2.0"))
        text = f"torch.linspace({start}, 3.0, {count}).reshape({shape or '()'}).clone()"
        roll = self.random.random()
        if roll < 0.15:
            return text + ".requires_grad_()"
        if roll < 0.2:
            return text + ".double()"
        if roll < 0.25:
            return text + ".long()"
        return text if roll < 0.97 else f"nn.Parameter({text})"


def _kinds(rng: random.Random) -> list[str]:
    pool = (
        "T",
        "T",
        "T",
        "I",
        "I",
        "F",
        "B",
        "S",
        "L",
        "LT",
        "D",
        "DT",
        "U",
        "FN",
        "X",
        "P",
        "Q",
        "R",
        "N",
        "DD",
        "C",
        "O",
    )
    return rng.choices(pool, k=rng.randint(1, 4))


def make_program(seed: int | str) -> str:
    """A program that Python accepts."""
    for attempt in range(50):
        text = Grammar(f"{seed}/{attempt}").program()
        try:
            compile(text, "program.py", "exec")
        except SyntaxError:
            continue
        return text
    raise ValueError(f"no program for seed {seed}")
