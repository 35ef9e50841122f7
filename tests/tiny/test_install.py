"""The script that installs what tests of boards need: without apt-get or root it says what is missing, and goes on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "tools" / "install_tiny.sh"


def test_without_apt_missing_packages_are_listed(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    ran = subprocess.run([bash, SCRIPT], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert ran.returncode == 0
    assert "gcc-arm-none-eabi qemu-system-arm gcc-riscv64-unknown-elf qemu-system-misc" in ran.stderr
    assert "there is no apt-get" in ran.stderr


def test_with_apt_it_asks_for_one_package_after_another(tmp_path: Path) -> None:
    """`apt-get` and the rest are replaced; the second package cannot be had."""
    for name, text in {
        "apt-get": 'echo "$@" >> "$LOG"; case "$*" in *qemu-system-arm*) exit 1;; esac',
        "id": "echo 0",
        "env": 'shift; exec "$@"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    log, bash = tmp_path / "log", shutil.which("bash")
    assert bash is not None
    environment = {"PATH": str(tmp_path), "LOG": str(log)}
    ran = subprocess.run([bash, SCRIPT], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0
    asked = [line.split()[-1] for line in log.read_text().splitlines()]
    assert asked[:5] == ["-qq", "gcc", "gcc-arm-none-eabi", "qemu-system-arm", "gcc-riscv64-unknown-elf"]
    assert "not installed: qemu-system-arm (apt-get install failed)" in ran.stderr
