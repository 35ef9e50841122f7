"""Builds smelt's C extensions and the description that package indexes show; all else stands in pyproject.toml.

Neither torch nor the machine's own instruction set is needed: the extensions find torch's layout at import, and kernels
are compiled later, where they run.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).parent
FLAGS = ["-O2", "-g0", "-std=c11", "-fvisibility=hidden", "-fno-strict-aliasing"]


def extension(name: str, folder: str, *patterns: str, libraries: tuple[str, ...] = ()) -> list[Extension]:
    """The extension `name` from the C files of `folder`; none while it has no source."""
    files = sorted({path for pattern in patterns for path in (ROOT / folder).glob(pattern)})
    sources = [str(path.relative_to(ROOT)) for path in files if path.suffix == ".c"]
    headers = [str(path.relative_to(ROOT)) for path in files if path.suffix == ".h"]
    if not sources:
        return []
    return [Extension(name, sources, depends=headers, extra_compile_args=FLAGS, libraries=list(libraries))]


LINK = re.compile(r"```.*?```|`[^`\n]*`|(?<!!)\[([^\]]+)\]\((?!\w+:|#)([^)\s]+)\)", re.DOTALL)
"""A link of Markdown to a file of the project; or code, where brackets are no links."""


def description() -> str:
    """The README with links that lead somewhere from a package index, which has none of the project's files.

    They lead to the files at `Source` of `[project.urls]`; without one their text stays alone.
    """
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {}).get("Source")

    def shown(found: re.Match[str]) -> str:
        text, file = found.groups()
        if text is None:
            return found[0]
        return f"[{text}]({source.rstrip('/')}/blob/main/{file})" if source else text

    return LINK.sub(shown, (ROOT / "README.md").read_text())


setup(
    long_description=description(),
    long_description_content_type="text/markdown",
    ext_modules=[
        *extension("smelt.base._native", "smelt/base/native", "*.c", "*.h", libraries=("dl",)),
        *extension("smelt.autograd._native", "smelt/autograd/native", "*.c", "*.h", libraries=("dl",)),
        *extension("smelt.capture._native", "smelt/capture/native", "**/*.c", "**/*.h", libraries=("dl", "pthread")),
        *extension(
            "smelt.runtime._native", "smelt/runtime", "_native*.c", "native/**/*.c", "native/**/*.h", libraries=("dl",)
        ),
    ],
)
