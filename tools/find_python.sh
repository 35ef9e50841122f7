#!/bin/sh
# Prints the path of a Python that can build and run smelt (3.11 to 3.13, with venv and the C headers).
#   tools/find_python.sh              the first one found
#   tools/find_python.sh 3.12         that version
#   tools/find_python.sh /opt/py/bin/python   that executable
set -eu
want=${1:-}

suits() { # command [version]
    "$1" - "${2:-}" <<'PY' 2>/dev/null
import ensurepip, os, sys, sysconfig, venv
version = "%d.%d" % sys.version_info[:2]
header = os.path.join(sysconfig.get_path("include"), "Python.h")
if sys.argv[1] not in ("", version) or not (3, 11) <= sys.version_info[:2] <= (3, 13) or not os.path.exists(header):
    sys.exit(1)
print(sys.executable)
PY
}

case $want in
    "") versions="3.11 3.12 3.13" candidates="python3 python3.11 python3.12 python3.13 python" ;;
    3.*) versions=$want candidates="python$want python3 python" ;;
    *) versions="" candidates=$want ;;
esac
for version in $versions; do
    for folder in "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*; do
        [ -x "$folder/bin/python" ] && candidates="$candidates $folder/bin/python"
    done
done
case $want in 3.*) version=$want ;; *) version="" ;; esac
for command in $candidates; do
    if suits "$command" "$version"; then exit 0; fi
done
echo "No Python ${want:-3.11, 3.12 or 3.13} with its venv module and C headers was found." >&2
echo "Debian and Ubuntu: apt-get install python3 python3-venv python3-dev; or name one: make PYTHON=/path/to/python" >&2
exit 1
