"""What is published: an sdist that holds everything, and a wheel that works in a clean environment.

That environment has the packages that smelt says it needs and what those need, as links, and no other; nothing is
fetched, and installing the wheel finds no compiler.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OF_THE_MACHINE = ("*.so", "__pycache__", "*.egg-info")
PARTS = ("smelt", "docs", "examples", "tests", "tools")
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "Makefile", "CHANGELOG.md", "mkdocs.yml")


def run(*command: str | Path, **env: str) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=300, env={**os.environ, **env}, cwd="/"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of a copy of the tree, as a build front end makes it."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("sdist")
    for part in PARTS:
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns(*OF_THE_MACHINE))
    for name in FILES:
        shutil.copy(ROOT / name, source)
    build = f"import os, setuptools.build_meta as b; os.chdir({str(source)!r}); b.build_sdist({str(out)!r})"
    run(sys.executable, "-c", build)
    (made,) = out.iterdir()
    return made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The files from which the metadata is made."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "smelt" / "base").mkdir(parents=True)
    shutil.copy(ROOT / "smelt/base/version.py", tmp_path / "smelt" / "base")
    return tmp_path


def description_of(source: Path) -> str:
    """The long description that a build of this folder tells a package index."""
    build = (
        f"import os, setuptools.build_meta as b; os.chdir({str(source)!r}); b.prepare_metadata_for_build_wheel('out')"
    )
    (source / "out").mkdir()
    run(sys.executable, "-c", build)
    (told,) = (source / "out").glob("*.dist-info")
    return metadata.PathDistribution(told).metadata.get_payload()  # type: ignore[attr-defined,no-any-return]


RELATIVE = re.compile(r"\]\((?!https?://|#)[^)]*\)")
"""A link that leads nowhere from a package index."""


def test_links_of_the_description_lead_somewhere(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        shown = archive.read(name).decode()
    readme = (ROOT / "README.md").read_text()
    assert RELATIVE.findall(readme) and RELATIVE.findall(shown) == [] and "# smelt" in shown
    assert "[How it works]" not in shown and "How it works follows one function" in " ".join(shown.split())
    assert readme.count("```") == shown.count("```") and len(shown) > 0.9 * len(readme)


def test_links_lead_to_the_source_that_is_declared(source: Path) -> None:
    project = source / "pyproject.toml"
    project.write_text(
        project.read_text().replace(
            "[project.scripts]", '[project.urls]\nSource = "https://x.org/s/"\n\n[project.scripts]'
        )
    )
    (source / "README.md").write_text("a [b c](docs/d.md#e) [f](https://g.h) [i](#j) `x[0](1)` ![k](l.png) [m](n.md)")
    shown = description_of(source)
    assert "a [b c](https://x.org/s/blob/main/docs/d.md#e) [f](https://g.h) [i](#j)" in shown
    assert "`x[0](1)`" in shown and "[m](https://x.org/s/blob/main/n.md)" in shown


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from it, with nothing but a C compiler and setuptools."""
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-index"]
    # this asks whether the package is whole: without optimisation, the extensions beside each other
    compiler, config = out / "cc", out / "setup.cfg"
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    compiler.chmod(0o755)
    config.write_text(f"[build_ext]\nparallel = {min(os.cpu_count() or 1, 4)}\n")
    env = {"CC": str(compiler), "LDSHARED": f"{compiler} -shared", "DIST_EXTRA_CONFIG": str(config)}
    run(*pip, "--no-deps", "--no-build-isolation", "--no-cache-dir", "-w", out, sdist, **env)
    (made,) = out.glob("*.whl")
    return made


def of_the_tree(*parts: str) -> set[str]:
    found = {path for part in parts for path in (ROOT / part).rglob("*") if path.is_file()}
    kept = (path for path in found if not {".so", ".pyc"} & {path.suffix})
    return {path.relative_to(ROOT).as_posix() for path in kept}


def test_the_sdist_holds_everything(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        held = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert (of_the_tree(*PARTS) | {*FILES}) - held == set()
    assert not [name for name in held if name.endswith((".so", ".pyc"))]


def test_the_wheel_holds_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    built = {name for name in held if name.endswith(".so")}
    assert held - built == of_the_tree("smelt")
    assert {name.split(".")[0].replace("/", ".") for name in built} == {
        *("smelt.base._native", "smelt.autograd._native", "smelt.capture._native", "smelt.runtime._native")
    }
    assert re.search(rf"-cp3{sys.version_info[1]}-cp3{sys.version_info[1]}-\w+\.whl$", wheel.name)


def needed(name: str, seen: set[str]) -> Iterator[metadata.Distribution]:
    """The distribution and all that it needs here."""
    from packaging.requirements import Requirement

    asked = Requirement(name)
    key = re.sub(r"[-_.]+", "-", asked.name).lower()
    if key in seen or (asked.marker and not asked.marker.evaluate({"extra": ""})):
        return
    seen.add(key)
    found = metadata.distribution(asked.name)
    yield found
    for each in found.requires or ():
        yield from needed(each, seen)


def link(found: metadata.Distribution, folder: Path) -> None:
    tops = {path.parts[0] for path in found.files or () if path.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        original = Path(str(found.locate_file(top)))
        if original.exists() and not (folder / top).exists():
            (folder / top).symlink_to(original)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment in which torch is installed and smelt is not."""
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    seen: set[str] = set()
    for name in PROJECT["project"]["dependencies"]:
        for found in needed(name, seen):
            link(found, packages)
    return folder / "bin" / "python"


def test_it_installs_without_a_compiler_and_works(wheel: Path, clean: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", clean, "install", "--quiet"]
    # the dependencies are looked at: what is declared is there
    run(*pip, "--no-index", "--no-compile", wheel, PYTHONPATH="", CC="/bin/false", CXX="/bin/false")
    smelt = clean.with_name("smelt")
    out = run(smelt, "verify", PYTHONPATH="", SMELT_CACHE_DIR=str(tmp_path), COLUMNS="200")
    assert "smelt is ready" in out and "4 loaded" in out
    door = "import smelt, torch; print(smelt.__file__, 'smelt' in torch.compiler.list_backends())"
    assert run(clean, "-c", door, PYTHONPATH="").split() == [
        str(next(clean.parents[1].glob("lib/python*/site-packages/smelt/__init__.py"))),
        "True",
    ]


def test_the_metadata_is_what_pypi_expects(wheel: Path, sdist: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        told = metadata.PathDistribution(zipfile.Path(archive, name.removesuffix("METADATA"))).metadata
    assert told["License-Expression"] == "Apache-2.0" and told["Description-Content-Type"] == "text/markdown"
    named = {line.rsplit(" ", 1)[-1] for line in told.get_all("Classifier") if re.search(r":: 3\.\d+$", line)}
    low, high = re.findall(r"3\.(\d+)", PROJECT["project"]["requires-python"])
    assert named == {f"3.{minor}" for minor in range(int(low), int(high))}
    pytest.importorskip("twine")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)


def test_wheels_are_built_for_every_version_on_both_processors() -> None:
    config = PROJECT["tool"]["cibuildwheel"]
    low, high = re.findall(r"3\.(\d+)", PROJECT["project"]["requires-python"])
    assert config["build"].split() == [f"cp3{minor}-manylinux_*" for minor in range(int(low), int(high))]
    assert config["linux"]["archs"] == ["x86_64", "aarch64"]
    assert config["test-command"] == "smelt verify"


OPTIONAL = {
    "accelerate",
    "effdet",
    "lightning",
    "lightning_utilities",
    "sklearn",
    "timm",
    "torchvision",
    "transformers",
    "triton",
}
"""Packages that parts of smelt are for; these parts are not imported without them."""


IMPORT = re.compile(r"^ *(?:from ([a-z_]\w*)[\w.]* import |import ([a-z_]\w*)[\w.]*(?: as \w+)?$)", re.MULTILINE)


def test_imported_packages_are_declared() -> None:
    declared = {re.split(r"[<>=!~ \[;]", line)[0] for line in PROJECT["project"]["dependencies"]}
    found: dict[str, str] = {}
    for path in sorted((ROOT / "smelt").rglob("*.py")):
        found |= {name: str(path) for pair in IMPORT.findall(path.read_text()) for name in pair if name}
    others = {name: at for name, at in found.items() if name not in sys.stdlib_module_names | {"smelt"}}
    assert {name: at for name, at in others.items() if name not in declared | OPTIONAL} == {}
