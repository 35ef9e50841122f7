"""Programs under limits of memory, files, disks and folders: `python -m tests.limits`.

Each runs in a process of its own: eager first, then compiled, three times. It has to live, and to give eager's results
or the error that eager gives; what smelt could not do is a warning that says why. Where no file system may be mounted,
those limits that need one are left out, and the run says so.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class Limit:
    """What a process has to live with.

    Attributes:
        memory: bytes of address space, from the beginning.
        more: bytes of address space beside those that are there when torch has been imported.
        files: bytes of one file, as a full disk refuses them.
        handles: open files.
        cache, temporary: how the file systems of these folders are mounted; "": as all others.
        filled: the cache holds what is built, from a run without the limit.
    """

    memory: int = 0
    more: int = 0
    files: int = -1
    handles: int = 0
    cache: str = ""
    temporary: str = ""
    filled: bool = False


SMALL = "size=256k"
LIMITS = {
    **{f"{size} GiB of address space": Limit(memory=size * GIB) for size in (1, 2, 4, 8)},
    **{f"{size} MiB more than after import": Limit(more=size * MIB) for size in (8, 32, 64, 128, 256, 512)},
    **{f"files of at most {size} bytes": Limit(files=size) for size in (0, 100, 4096, 40_000)},
    **{f"{count} open files": Limit(handles=count) for count in (8, 16, 32)},
    "a full disk for the cache": Limit(cache=SMALL),
    "a full disk for temporary files": Limit(temporary=SMALL),
    "full disks": Limit(cache=SMALL, temporary=SMALL),
    "no file more in the cache": Limit(cache="nr_inodes=12"),
    "no temporary file more": Limit(temporary="nr_inodes=6"),
    "a cache that is read-only": Limit(cache="ro"),
    "a filled cache that is read-only": Limit(cache="ro", filled=True),
    "a cache that is noexec": Limit(cache="noexec"),
    "temporary files that are noexec": Limit(temporary="noexec"),
    "all noexec": Limit(cache="noexec", temporary="noexec"),
    "temporary files that are read-only": Limit(temporary="ro"),
    "all read-only": Limit(cache="ro", temporary="ro"),
    "a filled cache, nothing can be built": Limit(filled=True, temporary="ro"),
}


# -- in the process ----------------------------------------------------------------------------------------------


def confine(limit: Limit) -> None:
    """Before anything is imported."""
    if limit.memory:
        resource.setrlimit(resource.RLIMIT_AS, (limit.memory, limit.memory))


def confine_more(limit: Limit) -> None:
    """Behind the imports."""
    if limit.more:
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + limit.more, resource.RLIM_INFINITY))
    if limit.files >= 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit.files, resource.RLIM_INFINITY))
    if limit.handles:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit.handles, limit.handles))


def run(limit: Limit) -> str:
    """In the process: what came of it, in a line."""
    confine(limit)
    try:
        import torch
    except (ImportError, MemoryError, OSError) as error:
        return f"torch cannot be imported: {type(error).__name__}"

    import smelt

    torch.manual_seed(0)
    torch.set_num_threads(2)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
    x = torch.randn(5, 8)

    def step(model: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        net.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]

    want = step(net)
    compiled = smelt.compile(net)
    confine_more(limit)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = [step(compiled) for _ in range(3)]
    for each in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
        resource.setrlimit(each, (resource.getrlimit(each)[1],) * 2)
    for results in found:
        for got, expected in zip(results, want, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    said = {" ".join(str(each.message).split())[:150] for each in told}
    stats = smelt.stats()
    return " | ".join([f"same, {stats['graphs']} graphs, {stats['fallbacks']} fallbacks", *sorted(said)])


# -- around it ---------------------------------------------------------------------------------------------------


def can_mount() -> bool:
    """Whether file systems may be mounted, for one process and its children alone."""
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True)
    return done.returncode == 0


def command(name: str, limit: Limit, home: Path) -> list[str]:
    """Mounts in a name space of the process's own, then the process."""
    inside = [sys.executable, "-m", "tests.limits", "--inside", name]
    mounts = []
    for options, folder in ((limit.cache, home / "cache"), (limit.temporary, home / "tmp")):
        if options == "ro" and folder.name == "cache" and limit.filled:
            mounts.append(f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}")
        elif options:
            mounts.append(f"mount -t tmpfs -o {options},mode=0700 tmpfs {folder}")
    if not mounts:
        return inside
    return ["unshare", "-m", "sh", "-c", " && ".join([*mounts, 'exec "$0" "$@"']), *inside]


@contextlib.contextmanager
def folders(limit: Limit) -> Iterator[tuple[Path, dict[str, str]]]:
    """The folders of a process, and its environment."""
    home = Path(tempfile.mkdtemp(prefix="smelt-limits-"))
    for name in ("cache", "tmp"):
        (home / name).mkdir(mode=0o700)
    given = {**os.environ, "SMELT_CACHE_DIR": str(home / "cache"), "TMPDIR": str(home / "tmp"), "SMELT_STRICT": "0"}
    try:
        if limit.filled:
            subprocess.run([sys.executable, "-m", "tests.limits", "--inside", ""], env=given, check=True, timeout=600)
        yield home, given
    finally:
        shutil.rmtree(home, ignore_errors=True)


def attempt(name: str, limit: Limit) -> tuple[bool, str]:
    """Whether it went as it has to, and what it said."""
    with folders(limit) as (home, given):
        try:
            done = subprocess.run(command(name, limit, home), env=given, capture_output=True, text=True, timeout=600)
        except subprocess.TimeoutExpired:
            return False, "no end after 600 seconds"
    if done.returncode == 0 and done.stdout:
        return True, done.stdout.strip().splitlines()[-1]
    return False, f"exit status {done.returncode}: {(done.stderr or done.stdout)[-1500:]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run each; 1 where one went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.limits", description=__doc__)
    parser.add_argument("--only", default="", help="limits with this in their names")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.inside is not None:
        print(run(LIMITS.get(given.inside, Limit())), flush=True)
        return 0
    mounts, wrong, ran = can_mount(), 0, 0
    for name, limit in LIMITS.items():
        if given.only not in name:
            continue
        if (limit.cache or limit.temporary) and not mounts:
            print(f"left out, nothing can be mounted here: {name}", flush=True)
            continue
        fine, said = attempt(name, limit)
        ran, wrong = ran + 1, wrong + (not fine)
        print(f"{'ok' if fine else 'WRONG'}: {name}: {said}", flush=True)
    print(f"{ran} limits: {wrong} went wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
