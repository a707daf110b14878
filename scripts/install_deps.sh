#!/bin/sh
# Installs what building and testing need, on Debian 12 or Ubuntu 24.04 (or newer): system packages
# through apt-get, and a Rust toolchain where there is none that is new enough; with the argument
# `cuda` also a CUDA compiler, where there is none. Quick when all is there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

packages="g++ cmake ninja-build git python3 libtbb-dev nlohmann-json3-dev libcli11-dev libxxhash-dev libgtest-dev ca-certificates curl"
cuda=""
if [ "${1:-}" = cuda ] && ! command -v nvcc >/dev/null 2>&1 && [ ! -x /usr/local/cuda/bin/nvcc ]; then
  cuda=missing
  packages="$packages python3-pip"
fi

missing=""
for package in $packages; do
  if ! dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed'; then
    missing="$missing $package"
  fi
done
if [ -n "$missing" ]; then
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "install_deps: this is no Debian or Ubuntu; please install:$missing" >&2
    exit 1
  fi
  as_root=""
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
      echo "install_deps: not root and no sudo; please install:$missing" >&2
      exit 1
    fi
    as_root=sudo
  fi
  echo "== installing packages (about a minute):$missing"
  log=$(mktemp)
  if ! { $as_root apt-get update && DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    echo "install_deps: apt-get could not install:$missing" >&2
    rm -f "$log"
    exit 1
  fi
  rm -f "$log"
fi

"$here/install_rust.sh"
[ -z "$cuda" ] || "$here/install_cuda.sh"
