"""Makes random programs: functions of random statements, what they need, and the arguments of several calls."""

from __future__ import annotations

import random

from .definitions import HEADER, needed
from .statements import Statements
from .templates import LEAVES


class Grammar(Statements):
    """One random program; the same seed gives the same text."""

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
        "V",
        "V",
        "G",
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
