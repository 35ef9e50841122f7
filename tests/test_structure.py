"""Sizes of folders, how many decisions a function takes, private names of torch, and the page that names every file."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "smelt"
BASELINE = Path(__file__).with_suffix(".json")
"""Modules of MIRRORED that have no test file of their name; the list may only shrink.

`python -m tests.test_structure` writes what there is now, which never adds an entry.
"""

MAX_FILES = 25
"""Modules of a folder."""

MAX_DECISIONS = 15
"""Cyclomatic complexity of a function: branches, loops, handlers, cases, comprehensions and operands of and, or."""

MIRRORED = ("schedule", "codegen", "prims", "loops")
"""Packages each of whose modules has a test file of its name in a folder of its name: `test_fuse.py` for `fuse.py`."""

PRIVATE = ("_schema", "_version", "_cdata", "_base", "_backward_hooks", "_opname", "_is_view", "_ops")
"""Attributes of torch's objects that only torch_c and torch_private, in base, may read."""

PRIVATE_OF_FX = (
    *("_graph_namespace", "_find_nodes_lookup_table", "_obj_to_name", "_used_names", "_base_count"),
    *("_erased", "_insert", "_len"),
)
"""Attributes of fx graphs and nodes that only the module of smelt's subclass of `fx.Graph` may use."""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def where(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def decisions(function: ast.AST) -> int:
    """The cyclomatic complexity of a function without the functions inside of it."""
    return 1 + sum(map(_decisions, ast.iter_child_nodes(function)))


def _decisions(node: ast.AST) -> int:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return 0
    own = 0
    match node:
        case ast.BoolOp(values=values):
            own = len(values) - 1
        case ast.comprehension(ifs=conditions):
            own = 1 + len(conditions)
        case ast.If() | ast.IfExp() | ast.For() | ast.While() | ast.ExceptHandler() | ast.match_case() | ast.Assert():
            own = 1
    return own + sum(map(_decisions, ast.iter_child_nodes(node)))


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):  # holds no statement
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name, node
        inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        yield from functions(node, f"{prefix}{node.name}." if inside else prefix)  # type: ignore[attr-defined]


def complex_functions() -> dict[str, int]:
    found: dict[str, int] = {}
    for path in modules():
        for name, node in functions(tree_of(path)):
            if (count := decisions(node)) > MAX_DECISIONS:
                key = f"{where(path)}:{name}"
                found[key] = max(count, found.get(key, 0))
    return found


def private_names(tree: ast.AST) -> list[str]:
    """The private names of torch's objects that a module reads, with their lines."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE:
            found.append(f"{node.lineno}: {node.attr}")
        if isinstance(node, ast.ImportFrom) and node.module == "torch._ops":
            found.append(f"{node.lineno}: {node.module}")
    return found


def without_tests() -> list[str]:
    """The modules of MIRRORED for which there is no such file."""
    mirrored = (path for folder in MIRRORED for path in sorted((PACKAGE / folder).rglob("*.py")))
    names = [where(path) for path in mirrored if path.name != "__init__.py"]
    return [name for name in names if not (ROOT / "tests" / name).with_name(f"test_{Path(name).name}").exists()]


def test_new_modules_have_a_test_file_of_their_name() -> None:
    assert set(without_tests()) <= set(json.loads(BASELINE.read_text())["without tests"])


def test_the_list_of_modules_without_one_shrinks() -> None:
    gone = set(json.loads(BASELINE.read_text())["without tests"]) - set(without_tests())
    assert not gone, f"take these out of {BASELINE.name}: {sorted(gone)}"


def test_no_folder_is_large() -> None:
    sizes = Counter(where(path.parent) for path in modules() if path.name != "__init__.py")
    sizes.update(where(path.parent) for kind in ("*.c", "*.h") for path in PACKAGE.rglob(kind))
    large = {folder: n for folder, n in sizes.items() if n > MAX_FILES}
    assert not large


MAX_LINES = 60


def test_no_function_is_long() -> None:
    """But for commands, whose parameters are the options that they take."""
    found = {
        f"{where(path)}:{name}": node.end_lineno - node.lineno + 1  # type: ignore[attr-defined]
        for path in modules()
        if not where(path).startswith(("bench", "demo", "cli"))
        for name, node in functions(tree_of(path))
    }
    assert not {name: n for name, n in found.items() if n > MAX_LINES}


def test_the_pipeline_is_a_page() -> None:
    assert len((PACKAGE / "pipeline.py").read_text().splitlines()) < 100


def test_no_function_takes_many_decisions() -> None:
    found = complex_functions()
    assert not found, f"split these functions (limit {MAX_DECISIONS}): {found}"


def test_private_names_of_torch_are_read_in_one_module() -> None:
    found = {
        where(path): names
        for path in modules()
        if where(path) not in ("base/torch_c.py", "base/torch_private.py")
        and not where(path).startswith(("bench", "demo"))
        and (names := private_names(tree_of(path)))
    }
    assert not found, "smelt/base/torch_private.py has names for them"


def test_private_names_of_fx_are_used_in_one_module() -> None:
    found = {
        where(path)
        for path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE_OF_FX
    }
    assert found == {"graph/ir/module.py"}


def test_private_names_are_found() -> None:
    assert private_names(ast.parse("from torch._ops import OpOverload\nx = op._schema.name\n")) == [
        "1: torch._ops",
        "2: _schema",
    ]


def test_handlers_of_capture_are_given_a_typed_interpreter() -> None:
    found = [
        f"{where(path)}:{number}"
        for path in sorted((PACKAGE / "capture").rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\b(vm|interpreter): Any\b", line)
    ]
    assert not found, "the type is Interpreter, or what is needed of it: smelt/capture/core/interface.py"


MAX_ANY = 550
"""How often modules of capture say `Any`: of values of the program nothing else is known. It only shrinks."""


def test_capture_uses_any_at_most_so_often() -> None:
    found = sum(len(re.findall(r"\bAny\b", path.read_text())) for path in (PACKAGE / "capture").rglob("*.py"))
    assert found <= MAX_ANY


def test_a_decision_is_counted_once() -> None:
    text = "def f(x):\n if x and x > 1:\n  return [y for y in x if y]\n def g():\n  if x: pass\n return 1 if x else 2\n"
    found = {name: decisions(node) for name, node in functions(ast.parse(text))}
    assert found == {"f": 6, "f.g": 2}


def test_the_pages_name_every_folder_and_file() -> None:
    spec = importlib.util.spec_from_file_location("make_files", ROOT / "docs" / "make_files.py")
    assert spec is not None and spec.loader is not None
    make_files = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_files)
    folders = {where(path.parent).removeprefix(".") for path in modules()}
    assert {f for f in folders if not f.startswith(make_files.LEFT_OUT)} == set(make_files.FOLDERS)
    assert make_files.PAGE.read_text() == make_files.page(), "python docs/make_files.py"
    architecture = make_files.ARCHITECTURE.read_text()
    assert architecture == make_files.with_folders(architecture), "python docs/make_files.py"


def main() -> int:
    recorded = json.loads(BASELINE.read_text())["without tests"]
    left = [name for name in without_tests() if name in recorded]
    BASELINE.write_text(json.dumps({"without tests": left}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
