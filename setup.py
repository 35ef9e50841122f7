"""Builds smelt's C extensions; everything else stands in pyproject.toml.

Neither torch nor the machine's own instruction set is needed: the extensions find torch's layout at import, and kernels
are compiled later, where they run.
"""

from __future__ import annotations

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


setup(
    ext_modules=[
        *extension("smelt.base._native", "smelt/base/native", "*.c", "*.h", libraries=("dl",)),
        *extension("smelt.autograd._native", "smelt/autograd/native", "*.c", "*.h", libraries=("dl",)),
        *extension("smelt.capture._native", "smelt/capture/native", "**/*.c", "**/*.h", libraries=("dl", "pthread")),
        *extension(
            "smelt.runtime._native", "smelt/runtime", "_native*.c", "native/**/*.c", "native/**/*.h", libraries=("dl",)
        ),
    ],
)
