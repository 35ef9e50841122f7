"""`smelt cache`: shows, clears, exports and imports the cache of built kernels and timings."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from smelt.base.errors import SmeltError
from smelt.base.eviction import files, is_passing
from smelt.base.store import store
from smelt.base.store_archive import load_cache, save_cache

cache = typer.Typer(help="The cache of built kernels and timings: look, clear, take along.", no_args_is_help=True)


@cache.command()
def info() -> None:
    """Print the path of the cache, its size and maximum size, and its entries by kind."""
    disk_cache = store()
    kinds = Counter(path.parent.parent.name for path, _ in files(disk_cache.root) if not is_passing(path))
    print(f"{disk_cache.root}\n{disk_cache.size() / 2**20:.1f} MiB of at most {disk_cache.limit / 2**20:.0f} MiB")
    for kind, count in sorted(kinds.items()):
        print(f"  {count} x {kind}")


@cache.command()
def path() -> None:
    """The folder."""
    print(store().root)


@cache.command()
def clear() -> None:
    """Remove every entry."""
    disk_cache = store()
    size = disk_cache.size()
    disk_cache.clear()
    left = disk_cache.size()
    print(f"{(size - left) / 2**20:.1f} MiB removed")
    if left:
        print(f"{left / 2**20:.1f} MiB stay: {disk_cache.root} cannot be written", file=sys.stderr)
        raise typer.Exit(1)


@cache.command()
def export(file: Annotated[Path, typer.Argument(help="The file to write.")]) -> None:
    """Write all entries into one file."""
    try:
        count = save_cache(file)
    except OSError as error:
        raise typer.BadParameter(f"cannot write {file}: {error.strerror or error}", param_hint="FILE") from error
    print(f"{count} entries written to {file}")


@cache.command("import")
def import_(file: Annotated[Path, typer.Argument(help="What `smelt cache export` has written.")]) -> None:
    """Add the entries of an exported file to the cache. Entries are machine code: import only files that you trust."""
    try:
        count = load_cache(file)
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {error.strerror or error}", param_hint="FILE") from error
    except SmeltError as error:
        raise typer.BadParameter(str(error), param_hint="FILE") from error
    print(f"{count} new entries")
