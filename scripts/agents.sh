#!/usr/bin/env bash
# Codex, Claude Code and OpenCode against `dendrite serve`: the programs themselves, as npm has them,
# without a network, each with a tool loop of two calls. npm downloads some 1 GB the first time.
#
#   scripts/agents.sh [codex] [claude] [opencode]      (default: all)
#
# BUILD: the build folder with bin/dendrite (default build). It needs root, npm and Node.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath -m "${BUILD:-build}")
programs=$build/agents
if ! cmp -s scripts/agents/package.json "$programs/package.json"; then
  mkdir -p "$programs"
  npm install --prefix "$programs" --no-audit --no-fund \
    $(sed -nE 's/^ +"([@a-z/-]+)": "([0-9.]+)",?$/\1@\2/p' scripts/agents/package.json)
  cp scripts/agents/package.json "$programs/package.json"
fi
exec python3 -B scripts/agents/run.py "$programs/node_modules/.bin" "$build/bin/dendrite" "$@"
