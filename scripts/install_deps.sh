#!/bin/sh
# Installs what building needs, on Debian 12 or Ubuntu 24.04 (or newer): system packages through
# apt-get, and a Rust toolchain where there is none that is new enough. With the argument `cuda` also
# a CUDA compiler, where there is none; with `python` headers of Python and virtual environments, for
# `pip install .`; with `tests` a browser for the test of trace pages, where the system has a package
# of one (Debian). Quick when all is there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

packages="g++ cmake ninja-build git python3 libtbb-dev nlohmann-json3-dev libcli11-dev libxxhash-dev libgtest-dev ca-certificates curl"
# Boost for the server: Debian 12's own default is too old, and has a newer one beside it.
if grep -q '^VERSION_ID="12"' /etc/os-release 2>/dev/null; then
  packages="$packages libboost1.81-dev"
else
  packages="$packages libboost-dev"
fi
cuda=""
for argument in "$@"; do
  case "$argument" in
    cuda)
      if ! command -v nvcc >/dev/null 2>&1 && [ ! -x /usr/local/cuda/bin/nvcc ]; then
        cuda=missing
        packages="$packages python3-pip"
      fi
      ;;
    python) packages="$packages python3-dev python3-venv" ;;
    tests)
      if ! command -v chromium >/dev/null 2>&1 && ! command -v google-chrome >/dev/null 2>&1; then
        if grep -q '^ID=debian' /etc/os-release; then
          packages="$packages chromium"
        else
          echo "install_deps: no package of chromium here: the tests of pages in a browser will be skipped"
        fi
      fi
      ;;
  esac
done

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
