#!/usr/bin/env bash
# What tests and the demo of `smelt tiny` need on Debian: cross compilers, emulators, the data set. Installs what is missing,
# as root or by a sudo that asks nothing; where neither is there it says so and is no failure: the tests skip with the reason.
set -uo pipefail

missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need gcc gcc
need arm-none-eabi-gcc gcc-arm-none-eabi
need qemu-system-arm qemu-system-arm
need riscv64-unknown-elf-gcc gcc-riscv64-unknown-elf
need qemu-system-riscv32 qemu-system-misc
# gcc alone has no headers of the C library; programs for boards need none.
[ -e /usr/include/stdio.h ] || missing+=(libc6-dev)
[ -e /usr/share/datasets/fashion-mnist ] || missing+=(dataset-fashion-mnist)
[ ${#missing[@]} -eq 0 ] && exit 0

skipped() {
    echo "not installed: ${missing[*]} ($1); tests of emulated boards that need them are skipped" >&2
    exit 0
}
command -v apt-get >/dev/null || skipped "there is no apt-get"
root=()
if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || skipped "neither root nor a sudo without a password"
    root=(sudo -n)
fi
"${root[@]}" apt-get update -qq || skipped "apt-get update failed"
# One by one: a release of Debian or Ubuntu that lacks one of them still gets the others.
failed=()
for package in "${missing[@]}"; do
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null || failed+=("$package")
done
missing=("${failed[@]}")
[ ${#missing[@]} -eq 0 ] || skipped "apt-get install failed"
