#!/usr/bin/env bash
# The container image of `dendrite serve`: builds it of what is committed, runs it and asks it.
#
#   scripts/container.sh              builds and tests; where no runtime runs, says so and does nothing
#   scripts/container.sh build
#   scripts/container.sh test         of an image that is built
#   scripts/container.sh ask URL KEY  the part of the test that needs no runtime: of a server at URL that wants KEY
#
# RUNTIME: docker or podman, which has to be there then (default: the first that runs). IMAGE: the image's name
# (default dendrite:experimental). MODEL: the folder of the model to test with (default models/dendrite-tools).
set -euo pipefail
cd "$(dirname "$0")/.."
image=${IMAGE:-dendrite:experimental}
model=$(realpath "${MODEL:-models/dendrite-tools}")

runtime() { # its name; empty: none runs
  local name
  for name in ${RUNTIME:-docker podman}; do
    if "$name" info > /dev/null 2>&1; then
      echo "$name"
      return
    fi
  done
}

fail() {
  echo "container: $*" >&2
  exit 1
}

build() {
  local context
  context=$(mktemp -d)
  git archive HEAD | tar -x -C "$context"
  "$1" build -t "$image" -f "$context/packaging/container/Dockerfile" "$context"
  rm -rf "$context"
}

status_of() { # URL [CURL_OPTION...]: of the answer; 000: none came
  local url=$1
  shift
  curl -s -o /dev/null -w '%{http_code}' --max-time 60 "$@" "$url" || true
}

expect() { # WHAT GOT EXPECTED
  [ "$2" = "$3" ] || fail "$1: got $2; expected $3"
}

ask() { # URL KEY
  local answer
  expect "/health, which wants no key" "$(status_of "$1/health")" 200
  expect "/v1/models without a key" "$(status_of "$1/v1/models")" 401
  expect "/v1/models with a wrong key" "$(status_of "$1/v1/models" -H "Authorization: Bearer x$2")" 401
  expect "/v1/models" "$(status_of "$1/v1/models" -H "Authorization: Bearer $2")" 200
  answer=$(curl -s --max-time 60 "$1/v1/responses" -H "Authorization: Bearer $2" -H 'Content-Type: application/json' \
    -d '{"input": "Timer 5 min", "max_output_tokens": 4, "seed": 1}')
  case $answer in
    *'"status":"completed"'* | *'"status":"incomplete"'*) ;;
    *) fail "/v1/responses: got $answer; expected a response" ;;
  esac
}

test_image() {
  local tool=$1 key name address
  key=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
  name=dendrite-test-$$
  if "$tool" run --rm -v "$model:/model:ro" "$image" > /dev/null 2>&1; then
    fail "it starts without a key; expected that it refuses"
  fi
  "$tool" run -d --name "$name" -e "DENDRITE_API_KEY=$key" -v "$model:/model:ro" -p 127.0.0.1::8000 "$image" > /dev/null
  # shellcheck disable=SC2064
  trap "'$tool' rm -f '$name' > /dev/null 2>&1" EXIT
  address=http://$("$tool" port "$name" 8000/tcp | head -n 1)
  for _ in $(seq 120); do
    [ "$(status_of "$address/health")" != 200 ] || break
    sleep 0.5
  done
  ask "$address" "$key"
  expect "its user" "$("$tool" exec "$name" id -u)" 10001
  "$tool" exec "$name" dendrite-health 8000 || fail "its health check says that it is not well"
  "$tool" stop -t 60 "$name" > /dev/null
  expect "its exit status" "$("$tool" inspect -f '{{.State.ExitCode}}' "$name")" 0
  echo "container: $image answers, wants its key, and ends with status 0"
}

what=${1:-all}
case $what in
  ask)
    [ $# -eq 3 ] || fail "got $# arguments; expected ask URL KEY"
    ask "$2" "$3"
    ;;
  all | build | test)
    tool=$(runtime)
    if [ -z "$tool" ]; then
      [ -z "${RUNTIME:-}" ] && [ "$what" = all ] || fail "no container runtime runs; expected ${RUNTIME:-docker or podman}"
      echo "container: neither docker nor podman runs here: the image is not built"
      exit 0
    fi
    [ "$what" = test ] || build "$tool"
    [ "$what" = build ] || test_image "$tool"
    ;;
  *) fail "got $what; expected build, test or ask" ;;
esac
