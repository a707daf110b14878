#!/usr/bin/env bash
# Builds what would be published of the Python package:
#
#   scripts/package.sh wheel [OPTION...]   dendrite-llm, for CPython 3.11 and all later
#   scripts/package.sh cuda [OPTION...]    dendrite-cuda, the library for GPUs (half an hour)
#   scripts/package.sh sdist               the sources, with the crates of bridge/: builds offline
#
# Wheels are for Linux systems with glibc 2.34 or newer (Debian 12, Ubuntu 22.04, RHEL 9), and have in
# them what such a system may lack. OPTION: of `pip wheel`; -Ccmake.define.DENDRITE_PREBUILT=build
# takes the library from a build tree. OUT: a folder (default build/wheels). PYTHON: the Python to use.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-}
[ $# -eq 0 ] || shift
out=$(realpath -m "${OUT:-build/wheels}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch" bridge/vendor.tar.xz' EXIT
# shellcheck source=scripts/env.sh
. scripts/env.sh

tools() { # pinned ones, in an environment of their own
  local venv
  venv=$(realpath -m build/venv/package)
  [ -x "$venv/bin/pip" ] || "${PYTHON:-python3}" -m venv "$venv"
  PATH=$venv/bin:$PATH
  pip install --quiet --disable-pip-version-check -r python/tests/build.txt
  mkdir -p "$out"
}

# wheel PROJECT NAME MOST_BYTES AUDITWHEEL_OPTIONS OPTION...
wheel() {
  local project=$1 name=$2 most=$3 repair=$4 file size
  shift 4
  tools
  pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
    --wheel-dir "$scratch" "$@" "$project"
  rm -f "$out/$name"-*.whl
  # shellcheck disable=SC2086
  auditwheel repair -z 9 --plat "manylinux_2_34_$(uname -m)" $repair --wheel-dir "$out" "$scratch"/*.whl \
    > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
  file=$(ls "$out/$name"-*.whl)
  size=$(stat -c %s "$file")
  echo "$file: $size bytes"
  if [ "$size" -gt "$most" ]; then
    echo "package: $size bytes; expected at most $most" >&2
    exit 1
  fi
}

case $what in
  wheel) wheel . dendrite_llm 6500000 "" "$@" ;;
  cuda) wheel packaging/cuda dendrite_cuda 20000000 "--exclude libcuda.so.* --exclude libcublas*" "$@" ;;
  sdist)
    tools
    cargo vendor --quiet --locked --manifest-path bridge/Cargo.toml "$scratch/vendor" > /dev/null
    tar -C "$scratch" --sort=name --mtime=@0 --owner=0 --group=0 -cJf bridge/vendor.tar.xz vendor
    rm -f "$out"/dendrite_llm-*.tar.gz
    python -c 'import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])' \
      "$out" > /dev/null
    ls -l "$out"/dendrite_llm-*.tar.gz
    ;;
  *)
    echo "package: got '$what'; expected wheel, cuda or sdist" >&2
    exit 2
    ;;
esac
