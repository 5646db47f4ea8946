#!/bin/sh
# Check the arguments of an image's build: check.sh BASE VERSION [COMMIT]
#
# pyproject.toml lies beside this file, or in the root above it.
set -eu
base=$1 version=$2
here=$(dirname "$0")

fail() {
    printf '\nimage: %s\n' "$1" >&2
    exit 1
}

project=$here/pyproject.toml
[ -f "$project" ] || project=$here/../../pyproject.toml
expected=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$project")
case $base in
*@sha256:????????????????????????????????????????????????????????????????) ;;
*) fail "BASE=$base: expected an image by its digest, NAME:TAG@sha256:DIGEST, as skopeo inspect docker://NAME:TAG prints it" ;;
esac
[ "$version" = "$expected" ] ||
    fail "VERSION=$version: expected $expected, that of pyproject.toml; set --build-arg VERSION=$expected"
[ $# -lt 3 ] || echo "$3" | grep -Eqx '[0-9a-f]{7,64}' ||
    fail "COMMIT=$3: expected a commit; set --build-arg COMMIT=\"\$(git rev-parse HEAD)\""
