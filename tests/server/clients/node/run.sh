#!/usr/bin/env bash
# Unmodified clients for Node against `dendrite serve`, in the Node that they need. npm downloads them (some
# 100 MB).
#
#   tests/server/clients/node/run.sh
#
# BUILD: the build folder (default build). DENDRITE_PROGRAM: what is tested (default bin/dendrite of it).
set -euo pipefail
cd "$(dirname "$0")/../../../.."
build=$(realpath -m "${BUILD:-build}")
here=tests/server/clients/node
clients=$build/client-node
if ! cmp -s "$here/package.json" "$clients/package.json"; then
  rm -rf "$clients"
  mkdir -p "$clients"
  cp "$here/package.json" "$clients/package.json"
  npm install --prefix "$clients" --no-audit --no-fund --silent
fi
cp "$here/clients.test.mjs" "$clients"

work=$(mktemp -d)
servers=""
trap 'kill $servers; rm -rf "$work"' EXIT
serve() { # NAME MODEL: its address is then in $work/NAME
  : > "$work/$1.said"
  "${DENDRITE_PROGRAM:-$build/bin/dendrite}" serve --model "$2" --served-model-name m --port 0 >> "$work/$1.said" &
  servers="$servers $!"
  until grep -q listening "$work/$1.said"; do
    kill -0 $!
    sleep 0.1
  done
  sed 's/.* //' "$work/$1.said" > "$work/$1"
}
python3 -B scripts/agents/scripted_model.py "$work/thinks"
serve tools models/dendrite-tools
serve thoughts "$work/thinks"
DENDRITE_URL=$(cat "$work/tools") DENDRITE_THINKS_URL=$(cat "$work/thoughts") \
  "$clients/node_modules/.bin/node" --test "$clients/clients.test.mjs"
