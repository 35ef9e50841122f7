"""Holds the import table of docs/architecture.md: who may import whom, and which torch modules nobody may."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "smelt"

STAGES = ("base", "abi", "shapes", "graph", "prims", "autograd", "loops", "schedule", "codegen", "runtime")
USERS = ("integrations", "bench", "demo", "cli", "debug")
"""They use the compiler as anybody does: through `import smelt`."""

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "base": (),
    "abi": ("base",),
    "shapes": ("base",),
    "graph": ("base", "abi", "shapes"),
    "page": ("base", "abi"),
    "capture": ("base", "abi", "shapes", "graph", "page"),  # page: an explanation gives itself as one
    "prims": ("base", "abi", "shapes", "graph"),
    "autograd": ("base", "abi", "shapes", "graph", "prims"),
    "loops": ("base", "shapes", "graph", "prims"),
    "schedule": ("base", "abi", "shapes", "graph", "loops"),  # graph: the strides that outputs must have
    "codegen": ("base", "abi", "shapes", "loops", "schedule"),
    "runtime": ("base", "abi"),
    "roofline": ("base", "abi", "runtime"),
    # loading starts neither capture nor any stage before the programs
    "artefact": ("smelt", "base", "abi", "shapes", "graph", "autograd", "runtime", "capture"),
    "tiny": ("smelt", *STAGES),  # models are captured by the public API, with a backend that takes the graph
    **{user: ("smelt", "base", *USERS) for user in USERS},
    "bench": ("smelt", "base", "abi", "roofline", *USERS),  # shares of the limit
    "debug": ("smelt", "base", "abi", "graph", *USERS),  # it prints and changes captured graphs
    # `smelt ops` prints the tables, `smelt verify` looks inside
    # `smelt explain` watches captures and writes what they were as a page
    # `smelt tiny` exports projects
    "cli": (
        "smelt",
        *(*STAGES[:2], "graph", "capture", "prims", "loops", "runtime", "roofline", "page", "tiny"),
        *USERS,
    ),
}
"""Package -> packages it may import besides itself. Modules directly under smelt/ may import everything."""

FOLDERS: dict[str, dict[str, tuple[str, ...]]] = {
    "graph": {
        "ir": (),
        "meta_rules": ("ir",),
        "trace": ("ir", "meta_rules"),
        "nodes": ("ir", "meta_rules"),
        "": ("ir", "meta_rules", "trace"),
    },
    "capture": {
        "core": (),
        "arrays": ("core",),
        "guards": ("core",),
        "python": ("core", "guards", "arrays"),
        "tensors": ("core", "guards", "arrays", "python"),
        "prologue": ("core", "arrays", "python", "tensors"),
        "subclasses": ("core", "python", "tensors"),
        "calls": ("core", "arrays", "python", "tensors", "prologue"),
        "control_flow": ("core", "arrays", "python", "tensors"),
        "equal_calls": ("core", "tensors"),
        "torch": ("core", "guards", "arrays", "python", "tensors", "prologue", "calls", "control_flow"),
        "opcodes": ("core", "python", "calls", "control_flow"),
        "residual": ("core", "arrays", "python", "tensors", "prologue", "calls", "torch"),
        "": (
            *("core", "guards", "arrays", "python", "tensors", "prologue", "subclasses", "calls", "equal_calls"),
            "torch",
            *("opcodes", "residual"),
        ),
    },
    "prims": {
        "": (),
        "kernels": ("",),
        "rules": ("", "kernels"),
        "rules/layers": ("", "rules"),
        "passes": ("",),
    },
    "autograd": {
        "trace": (),
        "partition": ("trace",),
        "repeated": ("trace",),
        "call": ("trace",),
        "": ("trace", "partition", "call"),
    },
    "codegen": {"": (), "cpp": ("",), "triton": ("",)},
    "runtime": {
        "": (),
        "cuda": ("",),
        "triton": ("", "cuda"),
        "library": ("", "triton"),
    },
    "tiny": {
        "boards": (),
        "captured": (),
        "": ("boards", "captured"),
        "attention": ("", "captured"),
        "joining": ("", "captured", "attention"),
        "project": ("", "boards"),
    },
}
"""Package -> folder of it -> folders of the package that it may import; "" are the modules directly in the package.

A row names only folders of rows above it, so none of them is in a circle. `__init__.py` may import what is in its
folder: there the modules are named that fill a table.
"""

FORBIDDEN = (
    "torch._dynamo",
    "torch._functorch",
    "torch._inductor",
    "torch._refs",
    "torch._prims",
    "torch._decomp",
    "torch._export",
    "torch._subclasses",
    "torch.fx.experimental.proxy_tensor",
    "torch.fx.experimental.symbolic_shapes",
)
"""What this project implements itself."""

PRIVATE_NAMES = PACKAGE / "base" / "torch_c.py"
"""The one file that may name `torch._C`."""


@dataclass(frozen=True)
class Import:
    """One imported module name and where it stands."""

    module: str
    line: int
    in_function: bool


@functools.cache
def imports_of(tree: ast.Module) -> tuple[Import, ...]:
    """Every absolute import under `tree`. `from a import b` yields a and a.b: b may be a module."""
    return tuple(_imports_in(tree, False))


def _imports_in(tree: ast.AST, inside: bool) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import(names=names):
                yield from (Import(name.name, node.lineno, inside) for name in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield Import(module, node.lineno, inside)
                yield from (Import(f"{module}.{name.name}", node.lineno, inside) for name in names)
            case ast.ImportFrom():
                yield Import("(relative)", node.lineno, inside)
            case ast.stmt() | ast.excepthandler() | ast.match_case():  # no expression holds a statement
                function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                yield from _imports_in(node, inside or function)


def smelt_part(module: str) -> str | None:
    """The part of smelt that an imported name belongs to: a package, or "smelt" for the public API."""
    names = module.split(".")
    if names[0] != "smelt":
        return None
    return names[1] if len(names) > 1 and (PACKAGE / names[1]).is_dir() else "smelt"


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def where(path: Path) -> str:
    return path.relative_to(PACKAGE.parent).as_posix()


def package_of(path: Path) -> str | None:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else None


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(), str(path)) for path in sources()}


def test_every_package_has_a_row(trees: dict[Path, ast.Module]) -> None:
    packages = {package_of(path) for path in trees} - {None}
    assert packages <= set(MAY_IMPORT), "add the new package to MAY_IMPORT and to docs/architecture.md"


def test_packages_import_only_what_their_row_lists(trees: dict[Path, ast.Module]) -> None:
    wrong = []
    for path, tree in trees.items():
        package = package_of(path)
        if package is None:
            continue
        allowed = {package, *MAY_IMPORT[package]}
        for item in imports_of(tree):
            part = smelt_part(item.module)
            if part is not None and part not in allowed:
                wrong.append(f"{where(path)}:{item.line}: {package} may not import {item.module}")
    assert not wrong, "\n".join(wrong)


def test_folders_import_only_what_their_row_lists(trees: dict[Path, ast.Module]) -> None:
    wrong = []
    for path, tree in trees.items():
        package = package_of(path)
        rows = FOLDERS.get(package or "")
        if rows is None or path.name == "__init__.py":
            continue
        own = folder_of(path)
        if own not in rows:
            wrong.append(f"{where(path)}: add the new folder to FOLDERS and to docs/architecture.md")
            continue
        for item in imports_of(tree):
            part = imported_folder(item.module, str(package))
            if part is not None and part not in (own, *rows[own]):
                wrong.append(f"{where(path)}:{item.line}: {package}/{own} may not import {item.module}")
    assert not wrong, "\n".join(wrong)


def test_every_package_with_folders_has_rows_without_circles(trees: dict[Path, ast.Module]) -> None:
    nested = {package_of(path) for path in trees if package_of(path) not in (None, *USERS) and folder_of(path)}
    assert nested == set(FOLDERS)
    for rows in FOLDERS.values():
        above: list[str] = []
        for folder, allowed in rows.items():
            assert set(allowed) <= set(above), (folder, allowed)
            above.append(folder)


def test_every_folder_has_a_docstring(trees: dict[Path, ast.Module]) -> None:
    wrong = sorted(
        {where(path.parent) for path in trees if not ast.get_docstring(trees.get(path.parent / "__init__.py", EMPTY))}
    )
    assert not wrong, wrong


EMPTY = ast.Module(body=[], type_ignores=[])


def folder_of(path: Path) -> str:
    """The folder of a module within its package; "" for a module directly in it."""
    return "/".join(path.relative_to(PACKAGE).parts[1:-1])


def imported_folder(module: str, package: str) -> str | None:
    """The folder of `package` that an imported name lies in; None for a name that is no module of the package."""
    names = module.split(".")
    if names[:2] != ["smelt", package]:
        return None
    path = PACKAGE.joinpath(*names[1:]).with_suffix(".py")
    return folder_of(path) if path.is_file() else None


def test_no_relative_imports(trees: dict[Path, ast.Module]) -> None:
    wrong = [f"{where(p)}:{i.line}" for p, tree in trees.items() for i in imports_of(tree) if i.module == "(relative)"]
    assert not wrong, wrong


def test_forbidden_torch_modules(trees: dict[Path, ast.Module]) -> None:
    wrong = []
    for path, tree in trees.items():
        for item in imports_of(tree):
            if any(item.module == name or item.module.startswith(name + ".") for name in FORBIDDEN):
                wrong.append(f"{where(path)}:{item.line}: {item.module}")
        wrong += [f"{where(path)}:{line}: {name}" for name, line in attribute_chains(tree) if name in FORBIDDEN]
    assert not wrong, "\n".join(wrong)


def test_private_torch_names_live_in_one_file(trees: dict[Path, ast.Module]) -> None:
    wrong = []
    for path, tree in trees.items():
        if path == PRIVATE_NAMES:
            continue
        names = [(item.module, item.line) for item in imports_of(tree)] + list(attribute_chains(tree))
        wrong += [f"{where(path)}:{line}: {name}" for name, line in names if name.split(".")[:2] == ["torch", "_C"]]
    assert not wrong, "\n".join(sorted(set(wrong)))


@functools.cache
def attribute_chains(tree: ast.Module) -> tuple[tuple[str, int], ...]:
    """Dotted names that are read, such as `torch._C._foo`, with every prefix."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return tuple((name, node.lineno) for node in nodes if (name := _dotted(node)).startswith("torch."))


def _dotted(node: ast.AST) -> str:
    """The dotted name that is read; "" if it begins with something else than a name."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=of, attr=name):
            before = _dotted(of)
            return before and f"{before}.{name}"
    return ""


FORKS = PACKAGE / "bench" / "processes" / "server.py"
"""Forks processes whose cold start is measured, so that it may not have loaded what they load."""


def may_import_late(path: Path, item: Import) -> bool:
    """A command loads what it runs (smelt/cli/__init__.py says why), measuring and showing load optional packages."""
    package = package_of(path)
    if package == "cli" or path == FORKS:
        return smelt_part(item.module) is not None
    return package in USERS and item.module.split(".")[0] in OPTIONAL


OPTIONAL = ("accelerate", "effdet", "sklearn", "timm", "torchvision", "transformers")


def test_no_imports_inside_functions(trees: dict[Path, ast.Module]) -> None:
    wrong = [
        f"{where(path)}:{item.line}: {item.module}"
        for path, tree in trees.items()
        for item in imports_of(tree)
        if item.in_function and not may_import_late(path, item)
    ]
    assert not wrong, "\n".join(wrong)


def test_torch_compile_is_named_only_by_the_bench(trees: dict[Path, ast.Module]) -> None:
    wrong = [
        f"{where(path)}:{line}"
        for path, tree in trees.items()
        if package_of(path) not in ("bench", "integrations")
        for name, line in attribute_chains(tree)
        if name == "torch.compile"
    ]
    assert not wrong, wrong


def test_every_module_has_a_docstring(trees: dict[Path, ast.Module]) -> None:
    wrong = [where(path) for path, tree in trees.items() if tree.body and not ast.get_docstring(tree)]
    assert not wrong, wrong


def test_nothing_is_left_for_later() -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "XX" + "X")
    wrong = [
        f"{where(path)}:{number}"
        for path in sorted(p for p in PACKAGE.rglob("*") if p.suffix in (".py", ".c", ".h", ".cpp"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if any(mark in line for mark in marks)
    ]
    assert not wrong, wrong
