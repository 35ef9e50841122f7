"""A hook of mkdocs: pages of the site that lie outside of docs/, and the links to them.

README.md, CONTRIBUTING.md and CHANGELOG.md become pages, and so do the source files and notebooks that pages link to.
What is linked and not there stays as it is written: then the strict build fails.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {name: f"{name.split('.')[0].lower()}.md" for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")}
LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".cpp": "cpp", ".ipynb": "python"}
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")
FENCE = "~" * 8


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    linked: set[str] = set()
    for name, page in PAGES.items():
        text = (ROOT / name).read_text()
        linked |= sources(text, "")
        files.append(File.generated(config, page, content=relinked(text, "", "")))
    for file in files.documentation_pages():
        if file.src_uri not in PAGES.values():  # they have been looked at
            linked |= sources(file.content_string, posixpath.join("docs", posixpath.dirname(file.src_uri)))
    for name in sorted(linked):
        path = ROOT / name
        text = notebook(name) if path.suffix == ".ipynb" else f"# {name}\n\n{fenced(name, path.read_text())}"
        files.append(File.generated(config, page_of(name), content=text))
    return files


def fenced(name: str, text: str) -> str:
    """Source text of a file."""
    return f"{FENCE} {LANGUAGES[Path(name).suffix]}\n{text}\n{FENCE}\n"


def notebook(name: str) -> str:
    """The cells of a notebook as a page."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads((ROOT / name).read_text())["cells"]]
    parts = [fenced(name, text) if kind == "code" else text for kind, text in cells]
    return relinked("\n\n".join(parts), posixpath.dirname(name), posixpath.dirname(page_of(name) or ""))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links out of docs/ lead to the added pages."""
    here = posixpath.dirname(page.file.src_uri)
    if page.file.src_uri in PAGES.values() or here.startswith("source"):
        return markdown
    return relinked(markdown, posixpath.join("docs", here), here)


def sources(text: str, folder: str) -> set[str]:
    """Files outside of docs/ that a text in a folder links to, and that are there."""
    named = {posixpath.normpath(posixpath.join(folder, target)) for target in LINK.findall(text)}
    return {name for name in named if Path(name).suffix in LANGUAGES and (ROOT / name).is_file()}


def page_of(name: str) -> str | None:
    """The page that a file of the repository has in the site, from its root; None: it has none."""
    if name in PAGES:
        return PAGES[name]
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    if Path(name).suffix in LANGUAGES and (ROOT / name).is_file():
        return f"source/{name}.md"
    return None


def relinked(text: str, folder: str, page: str) -> str:
    """The text with its links as they are in the site.

    Args:
        folder: of the repository, in which the text is.
        page: folder of the site, in which its page is.
    """

    def target(match: re.Match[str]) -> str:
        found = page_of(posixpath.normpath(posixpath.join(folder, match[0])))
        return match[0] if found is None else posixpath.relpath(found, page or ".")

    return LINK.sub(target, text)
