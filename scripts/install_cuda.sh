#!/bin/sh
# Puts a pinned CUDA 13.0 compiler and cuBLAS into .cuda/ of this folder, from pip wheels: for
# machines without a CUDA toolkit (and for checking that the CUDA code compiles where there is no
# GPU). `cmake --preset cuda` finds it there. About a minute and 1.2 GB; quick when it is there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=$here/../.cuda
wanted=$here/cuda/requirements.txt

if [ -f "$target/installed" ] && cmp -s "$wanted" "$target/installed"; then
  exit 0
fi
if [ "$(uname -m)" != x86_64 ]; then
  echo "install_cuda: the pinned wheels are for x86_64, this is $(uname -m); please install CUDA 13.0" >&2
  exit 1
fi
if ! python3 -m pip --version >/dev/null 2>&1; then
  echo "install_cuda: python3 has no pip; expected Debian's python3-pip (apt-get install python3-pip)" >&2
  exit 1
fi
echo "== installing CUDA 13.0 from pip wheels into .cuda (about a minute, 1.2 GB)"
rm -rf "$target"
mkdir -p "$target"
python3 -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --require-hashes \
  --target "$target" -r "$wanted"

# What a toolkit folder has and the wheels lack: links only.
cd "$target/nvidia/cu13"
[ -e lib64 ] || ln -s lib lib64
cd lib
for library in lib*.so.[0-9]*; do
  link=${library%%.so.*}.so
  [ -e "$link" ] || ln -s "$library" "$link"
done
mkdir -p stubs
cp "$wanted" "$target/installed"
