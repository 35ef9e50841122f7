"""A command group with a default command: `smelt bench bert` means `smelt bench run bert`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class DefaultGroup(TyperGroup):
    """Runs the command named `run` when the first argument names no other command."""

    default = "run"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [self.default, *args]
        return super().parse_args(ctx, args)
