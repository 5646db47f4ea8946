#!/bin/sh
# Install the packages of an image's target, and the command tabloop, into a virtual environment: install.sh TARGET VENV [PYTHON]
#
# As in a checkout, infra/requirements/install.sh installs them, each by its hash.
set -eu
target=$1 venv=$2 python=${3:-python3}
here=$(cd "$(dirname "$0")" && pwd)
list=$here/../requirements/$target.txt

fail() {
    printf '\nimage %s: %s\n' "$target" "$1" >&2
    exit 1
}

[ -f "$list" ] || fail "no such target; expected app, engine or trainer"
sh "$here/../requirements/install.sh" "$python" "$venv" "$list" pydantic
if [ "$target" = app ] && [ -n "$(find "$venv" -name libtorch_cuda.so)" ]; then
    fail "torch is its CUDA build, of gigabytes; name an index with the CPU build: --build-arg PIP_EXTRA_INDEX_URL=URL"
fi
printf '#!%s\nimport sys\n\nfrom infra.cli import main\n\nsys.exit(main())\n' "$venv/bin/python" >"$venv/bin/tabloop"
chmod 755 "$venv/bin/tabloop"
"$venv/bin/python" -m pip uninstall --quiet --yes uv
"$venv/bin/python" -c 'import torch' || fail "the packages are installed, but torch cannot be imported; see the error above"
chmod -R a+rX "$venv"
