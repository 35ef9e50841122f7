"""`make site`: the pages of docs/ as a site. Links that lead nowhere end the build."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import smelt

ROOT = Path(__file__).parents[2]
needs_mkdocs = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings")),
    reason="needs smelt[docs]",
)


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(site)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


@needs_mkdocs
def test_the_site_is_built_and_has_every_page(tmp_path: Path) -> None:
    done = build(ROOT / "mkdocs.yml", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for path in ROOT.glob("docs/**/*.md")}
    pages = {page.replace("README.html", "index.html") for page in pages if not page.endswith(".in.html")}
    assert {page for page in pages if not (tmp_path / page).exists()} == set()
    assert {
        page for page in ("readme.html", "contributing.html", "changelog.html") if not (tmp_path / page).exists()
    } == set()
    api = (tmp_path / "api.html").read_text()
    assert "A model whose repeated blocks are compiled" in api and "compile_regions" in api  # docstrings are in it
    assert 'href="source/smelt/api.py.html"' in (tmp_path / "walk.html").read_text()
    assert not re.findall(r'<(?:script|link)[^>]*(?:src|href)="https?://', api)  # it works without a network


@needs_mkdocs
@pytest.mark.parametrize("link", ["gone.md", "index.md#nowhere", "../smelt/gone.py"])
def test_a_link_that_leads_nowhere_fails(link: str, tmp_path: Path) -> None:
    pages = tmp_path / "docs"
    pages.mkdir()
    config = (ROOT / "mkdocs.yml").read_text().split("\nplugins:")[0]  # without what takes long
    config = re.sub(r"^docs_dir: .*$", f"docs_dir: {pages}", config, flags=re.MULTILINE)
    config = re.sub(r"^hooks: .*$", f"hooks: [{ROOT}/tools/site_pages.py]", config, flags=re.MULTILINE)
    (tmp_path / "mkdocs.yml").write_text(f"{config}\nplugins: []\n")
    for file in ROOT.glob("docs/**/*.md"):
        (pages / file.relative_to(ROOT / "docs")).parent.mkdir(exist_ok=True)
        (pages / file.relative_to(ROOT / "docs")).write_text(f"# {file.stem}\n")
    (pages / "index.md").write_text(f"# A\n\n[there]({link})\n")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0 and link.split("#")[0].split("/")[-1] in done.stdout + done.stderr


def test_the_reference_has_every_public_name() -> None:
    named = {
        line.rsplit(".", 1)[1] for line in (ROOT / "docs/api.md").read_text().splitlines() if line.startswith(":::")
    }
    assert {*smelt.__all__} - {"__version__"} - named == set()
    for line in re.findall(r"^::: (\S+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE):
        module, name = line.rsplit(".", 1)
        assert getattr(importlib.import_module(module), name).__doc__
