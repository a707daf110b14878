#!/usr/bin/env bash
# Builds the generator, trains and writes the model folder; measures all but dendrite-tools. On one H200 about eleven minutes
# for dendrite-24 and about two for dendrite-tools; dendrite-compose and dendrite-compose-blocks take about eight minutes
# each on an H100.
# models/dendrite-tools takes two trainings: dendrite-tools knows single requests, and dendrite-tools-chats, three minutes on
# an H100, goes on from what that left in /tmp/dendrite-tools/dendrite-tools, or from another folder, START_FROM. The engine
# measures either: dendrite-bench tool-calls --model FOLDER.
# MODEL-dflash is the block drafter of the MODEL that lies in models/.
#
#   tools/train/run.sh [MODEL] [OUT] [FOLDER]
#
# MODEL: dendrite-24 (default), dendrite-tools, dendrite-tools-chats, dendrite-compose, dendrite-compose-blocks,
# dendrite-24-dflash, dendrite-tools-dflash, dendrite-echo, dendrite-ledger or one of it with -attention or -recurrent, which have layers
# of one kind; OUT: work files, default /tmp/MODEL; FOLDER: default OUT/MODEL.
# May be set: SECONDS_TO_TRAIN, SEED (the job's own, jobs.py), PYTHON (python3), and TRAIN_FLAGS and EVALUATE_FLAGS, more
# flags for the two programs. Needs g++ and a Python with torch and safetensors. A trial of the script on a CPU:
#   TRAIN_FLAGS="--steps 2 --batch-rows 8" EVALUATE_FLAGS="--only judge --tasks countdown3" tools/train/run.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
model=${1:-dendrite-24}
out=${2:-/tmp/$model}
folder=${3:-$out/$model}
shipped=$here/../../models/$model
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1
case $model in
  dendrite-24 | dendrite-24-dflash) generator=generate ;;
  dendrite-tools | dendrite-tools-chats | dendrite-tools-dflash) generator=generate_calls ;;
  dendrite-compose | dendrite-compose-blocks) generator=generate_context ;;
  dendrite-echo) generator=generate_echo ;;
  dendrite-ledger | dendrite-ledger-attention | dendrite-ledger-recurrent) generator=generate_ledger ;;
  *) echo "run.sh: got '$model', expected dendrite-24, dendrite-tools, one of them with -dflash, dendrite-tools-chats," \
    "dendrite-compose, dendrite-compose-blocks, dendrite-echo, dendrite-ledger or one of it with -attention or -recurrent" >&2; exit 2 ;;
esac
if [ "$model" = dendrite-tools-chats ]; then
  start_from=${START_FROM:-/tmp/dendrite-tools/dendrite-tools}
  if [ ! -f "$start_from/config.json" ]; then
    echo "run.sh: START_FROM: got '$start_from', expected the folder of a model that run.sh dendrite-tools wrote" >&2; exit 2
  fi
fi
mkdir -p "$out" "$folder"

echo "== build ($(date +%T))"
g++ -O3 -std=c++20 -pthread "$here/$generator.cpp" -o "$out/$generator"

if [[ $model == *-dflash ]]; then
  echo "== train ($(date +%T))"
  "$python" "$here/train_drafter.py" "$model" --generator "$out/$generator" --out "$folder" \
    ${SECONDS_TO_TRAIN:+--seconds "$SECONDS_TO_TRAIN"} ${SEED:+--seed "$SEED"} ${TRAIN_FLAGS:-} |
    tee "$out/train.log"
  echo "== evaluate ($(date +%T))"
  "$python" "$here/evaluate_drafter.py" "$folder" --target "${shipped%-dflash}" \
    --json "$folder/evaluation.json" ${EVALUATE_FLAGS:-} | tee "$out/evaluate.log"
  echo "== done ($(date +%T)): $folder"
  exit
fi

if [ "$model" = dendrite-24 ]; then
  "$out/generate" game24-heldout | diff - <(grep -v '^#' "$shipped/game24_heldout.txt")
elif [ "$generator" = generate_context ]; then
  "$out/generate_context" questions --count 500 > "$out/questions.jsonl"
  "$out/generate_context" questions --count 12 --most 6 > "$folder/heldout.jsonl"
elif [ "$generator" = generate_echo ]; then
  "$out/generate_echo" heldout > "$out/heldout.jsonl"
  "$out/generate_echo" heldout --count 2 --system 400 --seed 2 > "$folder/heldout.jsonl"
elif [ "$generator" = generate_ledger ]; then
  for size in 500 2000; do "$out/generate_ledger" heldout --count 5 --bytes $size --seed 2; done > "$folder/heldout.jsonl"
else
  "$out/generate_calls" tools > "$folder/tools.json"
  "$out/generate_calls" heldout > "$folder/heldout.jsonl"
  if [ "$model" = dendrite-tools-chats ]; then "$out/generate_calls" chats > "$folder/heldout_chats.jsonl"; fi
fi

echo "== train ($(date +%T))"
"$python" "$here/train.py" "$model" --generator "$out/$generator" --out "$out" \
  ${start_from:+--start-from "$start_from"} \
  ${SECONDS_TO_TRAIN:+--seconds "$SECONDS_TO_TRAIN"} ${SEED:+--seed "$SEED"} ${TRAIN_FLAGS:-} |
  tee "$out/train.log"

echo "== export ($(date +%T))"
"$python" "$here/export.py" "$model" "$out/model.pt" "$folder"

if [ "$model" = dendrite-24 ]; then
  echo "== evaluate ($(date +%T))"
  "$python" "$here/evaluate.py" "$folder" --generator "$out/generate" \
    --json "$out/evaluation.json" ${EVALUATE_FLAGS:-} | tee "$out/evaluate.log"
elif [ "$model" = dendrite-tools-chats ]; then
  echo "== evaluate ($(date +%T))"
  "$python" "$here/evaluate_calls.py" "$folder" --json "$folder/evaluation.json" ${EVALUATE_FLAGS:-} |
    tee "$out/evaluate.log"
elif [ "$generator" = generate_echo ]; then
  echo "== evaluate ($(date +%T))"
  "$python" "$here/evaluate_echo.py" "$folder" --requests "$out/heldout.jsonl" --json "$folder/evaluation.json" \
    ${EVALUATE_FLAGS:-} | tee "$out/evaluate.log"
elif [ "$generator" = generate_ledger ]; then
  echo "== evaluate ($(date +%T))"
  "$python" "$here/evaluate_ledger.py" "$folder" --generator "$out/generate_ledger" --json "$folder/evaluation.json" \
    ${EVALUATE_FLAGS:-} | tee "$out/evaluate.log"
elif [ "$generator" = generate_context ]; then
  echo "== evaluate ($(date +%T))"
  "$python" "$here/evaluate_context.py" "$folder" --questions "$out/questions.jsonl" \
    --json "$folder/evaluation.json" --golden "$folder/compose_golden.json" ${EVALUATE_FLAGS:-} |
    tee "$out/evaluate.log"
fi
echo "== done ($(date +%T)): $folder"
