#!/usr/bin/env bash
# Unmodified clients for Node against `dendrite serve`. npm downloads them (some 40 MB).
#
#   tests/server/clients/node/run.sh
#
# BUILD: the build folder with bin/dendrite (default build).
set -euo pipefail
cd "$(dirname "$0")/../../../.."
build=$(realpath -m "${BUILD:-build}")
here=tests/server/clients/node
clients=$build/client-node
if ! cmp -s "$here/package.json" "$clients/package.json"; then
  mkdir -p "$clients"
  cp "$here/package.json" "$clients/package.json"
  npm install --prefix "$clients" --no-audit --no-fund --silent
fi
cp "$here/clients.test.mjs" "$clients"

said=$(mktemp)
"$build/bin/dendrite" serve --model models/dendrite-tools --served-model-name m --port 0 > "$said" &
server=$!
trap 'kill $server; rm -f "$said"' EXIT
until grep -q listening "$said"; do
  kill -0 $server
  sleep 0.1
done
DENDRITE_URL=$(sed 's/.* //' "$said") node --test "$clients/clients.test.mjs"
