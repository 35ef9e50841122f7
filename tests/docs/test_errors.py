"""docs/errors/: each class of error has a page that its text names, and the examples there fail as the pages say."""

from __future__ import annotations

import importlib
import pkgutil
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

import smelt
from smelt.artefact.container import ArtefactError
from smelt.base import errors
from smelt.base.errors import DOCS, SmeltError, SmeltWarning
from smelt.runtime.build import find_compiler

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "errors"
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def classes(base: type) -> Iterator[type]:
    yield base
    for each in base.__subclasses__():
        yield from classes(each)


def page_of(kind: type) -> Path:
    return ROOT / DOCS / kind.page  # type: ignore[attr-defined]


def name_on_page(kind: type) -> str:
    """The small networks have a row for all of theirs."""
    return "smelt.tiny" if kind.__module__.startswith("smelt.tiny.") else kind.__name__


def test_every_class_is_on_the_page_that_it_names() -> None:
    for module in pkgutil.walk_packages(smelt.__path__, "smelt."):
        source = Path(module.module_finder.path) / f"{module.name.rsplit('.', 1)[1]}.py"  # type: ignore[union-attr]
        if source.exists() and re.search(r"^class \w+\(.*(Error|Unsupported)\)", source.read_text(), re.MULTILINE):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:  # of a package that is not installed
                assert not str(error.name).startswith("smelt")
    ours = [kind for kind in (*classes(SmeltError), *classes(SmeltWarning)) if kind.__module__.startswith("smelt.")]
    assert len(ours) > 20
    assert {kind for kind in ours if name_on_page(kind) not in page_of(kind).read_text()} == set()


def test_public_errors_have_a_page_of_their_own() -> None:
    public = [each for each in vars(errors).values() if isinstance(each, type) and each.__module__ == errors.__name__]
    for kind in (*public, ArtefactError):
        text = page_of(kind).read_text()
        assert text.startswith(f"# {kind.__name__}\n") and kind.page in (DOCS + kind.page)
    assert (
        len({page_of(kind) for kind in (*public, ArtefactError)}) == len(public) + 1 == len([*PAGES.glob("*.md")]) - 1
    )
    index = (PAGES / "index.md").read_text()
    assert all(f"({path.name})" in index for path in PAGES.glob("*.md") if path.name != "index.md")


def told(source: str) -> str:
    """The last lines of the traceback of a program."""
    try:
        exec(compile(source, "program.py", "exec"), {"__name__": "__main__"})
    except SmeltError as error:
        return "".join(traceback.format_exception_only(error)).replace(f"{type(error).__module__}.", "")
    return "no error"


@pytest.mark.parametrize("page", sorted(path.name for path in PAGES.glob("*.md") if "```python" in path.read_text()))
def test_the_example_fails_as_documented(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CXX", "c++")  # to be put back: an example sets it
    find_compiler.cache_clear()
    text = (PAGES / page).read_text()
    ((source, expected),) = EXAMPLE.findall(text)
    try:
        assert told(source) == expected
    finally:
        find_compiler.cache_clear()
    assert expected.startswith(text.split("\n", 1)[0].removeprefix("# ") + ": ")
    assert expected.endswith(f"\nsee docs/errors/{page}\n")


def test_the_text_itself_stays_what_went_wrong() -> None:
    error = smelt.OptionError("no", hint="yes")
    assert str(error) == "no\n  try: yes" and error.__notes__ == ["see docs/errors/option-error.md"]
