#!/bin/sh
# Resolve pyproject.toml into the pinned lists: compile.sh PYTHON
# Lists hold neither addresses nor local versions: the index given at set-up decides between CPU and CUDA builds.
set -eu
python=$1
here=infra/requirements
"$python" -m uv --version >/dev/null 2>&1 || "$python" -m pip install --quiet uv
links=${PIP_FIND_LINKS:-$("$python" -m pip config get global.find-links 2>/dev/null || true)}
for kind in cpu gpu; do
    overrides=
    [ "$kind" = cpu ] && overrides="--override $here/overrides.txt"
    "$python" -m uv pip compile pyproject.toml --extra "$kind" --extra dev --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
        --no-annotate --no-header --no-emit-index-url --no-emit-find-links --index-strategy unsafe-best-match \
        ${links:+--find-links "$links"} $overrides --quiet --output-file - >"$here/$kind.partial"
    sed -E 's/^([^ ;]+==[^ ;+]+)\+[^ ;]+/\1/' "$here/$kind.partial" >"$here/$kind.txt"
    rm "$here/$kind.partial"
done
