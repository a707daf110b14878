#!/bin/sh
# Provides the cargo that bridge/ needs. In this order:
#   1. a cargo that is there and new enough;
#   2. rustup, if it is there: the pinned toolchain, for bridge/ alone;
#   3. the distribution's package, if new enough (Debian 12: cargo-web of bookworm-security);
#   4. rustup-init, pinned and checked, into ~/.cargo and ~/.rustup.
# Changes no shell profile and no default toolchain. cmake/Bridge.cmake finds what it leaves.
set -eu

readonly TOOLCHAIN=1.95.0  # what 2 and 4 install; any newer than WANTED will do
readonly RUSTUP_VERSION=1.28.2
readonly RUSTUP_SHA256_X86_64=20a06e644b0d9bd2fbdbfd52d42540bdde820ea7df86e92e533c073da0cdd43c
readonly RUSTUP_SHA256_AARCH64=e3853c5a252fca15252d07cb23a1bdd9377a8c6f3efa01531109281ae47f841c

bridge_dir=$(cd "$(dirname "$0")/../bridge" && pwd)
readonly bridge_dir
WANTED=$(sed -n 's/^rust-version *= *"\([0-9.]*\)".*/\1/p' "$bridge_dir/Cargo.toml")
readonly WANTED

say() { printf 'install_rust: %s\n' "$*" >&2; }

fail() {
  say "$*"
  say "wanted: cargo $WANTED or newer (https://rustup.rs, or your distribution's package);"
  say "then run CMake again, with -DDENDRITE_CARGO=/path/to/cargo if it is not in PATH"
  exit 1
}

# is_enough VERSION: whether it is WANTED or newer ("1.96.0+dfsg1-1" counts as 1.96.0).
is_enough() {
  [ -n "$1" ] && [ "$(printf '%s\n%s\n' "$WANTED" "${1%%[!0-9.]*}" | sort -V | head -n 1)" = "$WANTED" ]
}

# version_of CARGO: as run in bridge/, where rustup may have an override; nothing if it fails.
version_of() { (cd "$bridge_dir" && "$1" --version 2>/dev/null | sed -n 's/^cargo \([0-9.]*\).*/\1/p'); }

# finish_with CARGO: ends the script if that cargo is good enough.
finish_with() {
  command -v "$1" >/dev/null 2>&1 || return 0
  found=$(version_of "$1")
  if is_enough "$found"; then
    say "cargo $found: $(command -v "$1")"
    exit 0
  fi
  say "$(command -v "$1") is ${found:-not working}, too old"
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null 2>&1; then
    sudo "$@"
  else
    return 1
  fi
}

with_rustup() {
  command -v rustup >/dev/null 2>&1 || return 0
  say "installing Rust $TOOLCHAIN with rustup, for $bridge_dir"
  if rustup toolchain install "$TOOLCHAIN" --profile minimal --no-self-update &&
    rustup override set "$TOOLCHAIN" --path "$bridge_dir"; then
    finish_with cargo
  fi
}

with_apt() {
  command -v apt-cache >/dev/null 2>&1 || return 0
  for package in cargo cargo-web; do
    version=$(apt-cache policy "$package" 2>/dev/null | sed -n 's/^ *Candidate: //p')
    # Debian numbered cargo 0.N+1 for Rust 1.N until 2023: those are too old anyway.
    if [ "$version" != "(none)" ] && is_enough "$version"; then
      say "installing the package $package $version"
      if as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package"; then
        finish_with cargo
      else
        say "apt-get could not install $package (not root, or no network?)"
      fi
    fi
  done
}

download() {  # download URL FILE
  if command -v curl >/dev/null 2>&1; then
    curl --proto '=https' --tlsv1.2 -fsSL --retry 3 -o "$2" "$1"
  elif command -v wget >/dev/null 2>&1; then
    wget -q -O "$2" "$1"
  else
    fail "neither curl nor wget is there to download $1"
  fi
}

with_rustup_init() {
  case "$(uname -s)-$(uname -m)" in
    Linux-x86_64) triple=x86_64-unknown-linux-gnu sha256=$RUSTUP_SHA256_X86_64 ;;
    Linux-aarch64) triple=aarch64-unknown-linux-gnu sha256=$RUSTUP_SHA256_AARCH64 ;;
    *) fail "no pinned rustup-init for $(uname -s) on $(uname -m)" ;;
  esac
  url=https://static.rust-lang.org/rustup/archive/$RUSTUP_VERSION/$triple/rustup-init
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  say "downloading $url"
  download "$url" "$folder/rustup-init" || fail "could not download $url"
  echo "$sha256  $folder/rustup-init" | sha256sum -c --quiet - ||
    fail "$url has another SHA-256 than the pinned $sha256"
  chmod +x "$folder/rustup-init"
  # --no-modify-path: CMake looks into ~/.cargo/bin by itself.
  RUSTUP_INIT_SKIP_PATH_CHECK=yes "$folder/rustup-init" -y --no-modify-path --profile minimal \
    --default-toolchain "$TOOLCHAIN" || fail "rustup-init could not install Rust $TOOLCHAIN"
  finish_with "${CARGO_HOME:-$HOME/.cargo}/bin/cargo"
}

finish_with cargo
finish_with "${CARGO_HOME:-$HOME/.cargo}/bin/cargo"
with_rustup
with_apt
with_rustup_init
fail "no way was left to get cargo"
