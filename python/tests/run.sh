#!/usr/bin/env bash
# Tests of the Python package as people install it: the wheel, in environments of its own, with
# nothing of the source tree on the path.
#
#   python/tests/run.sh [style] [core] [path] [types] [grammar] [adapters] [pool] [docs]    (default: all)
#
#   style     ruff and mypy, which need no wheel: what depends on the stub of its module is left to `types`
#   core      all tests that need no other package, on the first Python that is here of 3.11, 3.12, 3.13,
#             and those of handles, callbacks, threads and searches on the others; examples in docstrings
#   path      of these, those of one Python, for a path of instructions that DENDRITE_TEST_KERNELS names
#             (scripts/test_paths.sh); not by default
#   types     mypy --strict, and the stub against the module
#   grammar   what is generated under schemas, and the official tests of JSON Schema, which pip downloads
#   adapters  each with the packages of adapters/NAME.txt, and the pages of docs/cookbook that need
#             them; pip downloads them (a GB)
#   pool      dendrite.ray on a Ray of two processes, and its page
#   docs      builds the site of the documentation into build/docs, and follows its links
#
# WHEEL: the wheel to test. Without: one made of the library in BUILD (default build).
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- style core types grammar adapters pool docs
build=${BUILD:-build}
venvs=$(realpath -m "$build/venv")
export DENDRITE_EXAMPLES_DIR=$(realpath -m "$build/bin")
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_QUIET=1 PYTHONDONTWRITEBYTECODE=1

wheel=${WHEEL:-}
if [ -z "$wheel" ] && [ "$*" != style ]; then
  OUT=$build/wheels scripts/package.sh wheel "-Ccmake.define.DENDRITE_PREBUILT=$build"
  wheel=$(ls "$build"/wheels/dendrite_llm-*.whl)
fi

[ -x "$venvs/uv/bin/uv" ] || {
  "${PYTHON:-python3}" -m venv "$venvs/uv"
  "$venvs/uv/bin/pip" install -r python/tests/uv.txt
}
PATH=$venvs/uv/bin:$PATH
export UV_CACHE_DIR=$venvs/uv/cache UV_PYTHON_DOWNLOADS=never

# Of a version: in PATH (where pyenv's stand-ins may not run), or where pyenv puts them.
python_of() {
  local python
  for python in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    if "$python" -c pass 2> /dev/null; then
      command -v "$python"
      return
    fi
  done
}

# environment NAME PYTHON OPTION...: makes it with what pip's options say, and the wheel. By uv, which
# takes seconds where pip takes minutes.
environment() {
  local name=$1 python=$2
  shift 2
  [ -x "$venvs/$name/bin/python" ] || uv venv --quiet --python "$python" "$venvs/$name"
  uv pip install --quiet --python "$venvs/$name/bin/python" "$@"
  [ -z "$wheel" ] || uv pip install --quiet --python "$venvs/$name/bin/python" --no-deps --reinstall "$wheel"
}

tests() { # NAME OPTION...: pytest in that environment
  local name=$1
  shift
  "$venvs/$name/bin/python" -m pytest -q -p no:cacheprovider "$@"
}

core=(python/tests --ignore=python/tests/{adapters,grammar,pool}) # what needs no other package

say() { printf -- '-- %s (%s)\n' "$*" "$(date +%T)"; }

for part in "$@"; do
  case $part in
    style)
      say "style"
      environment types "${PYTHON:-python3}" -r python/tests/types.txt
      "$venvs/types/bin/ruff" check python packaging bench
      (cd python && "$venvs/types/bin/mypy" --config-file ../pyproject.toml --cache-dir "$venvs/types/cache-style" \
        --disable-error-code import-not-found --disable-error-code attr-defined \
        --disable-error-code overload-cannot-match --allow-subclassing-any --no-warn-return-any \
        --no-warn-unused-ignores -p dendrite)
      ;;
    core)
      found=""
      for version in 3.11 3.12 3.13; do
        python=$(python_of $version)
        [ -n "$python" ] || continue
        found="$found $version"
        say "core, Python $version"
        environment "core-$version" "$python" -r python/tests/core.txt
        if [ "$found" = " $version" ]; then
          tests "core-$version" "${core[@]}"
          tests "core-$version" python/tests/adapters # of its own: one puts others in torch's place
        else # what a version of Python may change
          tests "core-$version" python/tests/test_{aio,callbacks,search,session,threads}.py
        fi
      done
      if [ -z "$found" ]; then
        echo "run: found no Python of 3.11, 3.12, 3.13; expected one (Debian's python3, python3-venv)" >&2
        exit 1
      fi
      say "examples in docstrings"
      tests "core-${found##* }" --doctest-modules --doctest-ignore-import-errors --pyargs dendrite
      ;;
    path)
      say "core's tests${DENDRITE_TEST_KERNELS:+ on $DENDRITE_TEST_KERNELS}"
      environment path "${PYTHON:-python3}" -r python/tests/core.txt
      tests path "${core[@]}"
      ;;
    types)
      say "types"
      environment types "${PYTHON:-python3}" -r python/tests/types.txt
      "$venvs/types/bin/mypy" --cache-dir "$venvs/types/cache" -p dendrite
      "$venvs/types/bin/stubtest" --mypy-config-file pyproject.toml \
        --allowlist python/tests/stubtest.txt dendrite._core
      ;;
    grammar)
      say "grammar"
      environment grammar "${PYTHON:-python3}" --no-deps -r python/tests/grammar/grammar.txt
      tests grammar python/tests/grammar
      ;;
    adapters)
      for pins in python/tests/adapters/*.txt; do
        name=$(basename "$pins" .txt)
        [ "$name" != trl ] || continue # torch: gigabytes
        say "adapter $name"
        environment "$name" "${PYTHON:-python3}" --no-deps -r "$pins"
        tests "$name" "python/tests/adapters/test_$name.py" python/tests/test_cookbook.py -k "$name or ${name/chain/graph}"
      done
      ;;
    pool)
      say "pool"
      environment pool "${PYTHON:-python3}" -r python/tests/core.txt -r python/tests/pool/ray.txt
      tests pool python/tests/pool
      tests pool python/tests/test_cookbook.py -k workers
      ;;
    docs)
      say "docs"
      environment docs "${PYTHON:-python3}" -r python/tests/docs.txt
      "$venvs/docs/bin/python" tools/docs_site.py "$build/docs"
      ;;
    *)
      echo "run: got $part; expected style, core, sampling, types, grammar, adapters, pool or docs" >&2
      exit 2
      ;;
  esac
done
