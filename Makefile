# Three commands: `make demo`, `make test` and `make serve`. Underneath is plain CMake with presets (see README.md).
#   make demo PUZZLE="4 9 10 13"   another puzzle; DEVICE=cpu|cuda (default: cuda if there is a GPU)
#   make serve MODEL=DIR PORT=8000 serves another model
#   make build | test | demo | serve | bench | bench-report | format | check | clean

DEVICE ?= $(shell nvidia-smi -L 2> /dev/null | grep -q "^GPU" && echo cuda || echo cpu)
PRESET := $(if $(filter cuda,$(DEVICE)),cuda,cpu)
BUILD ?= $(if $(filter cuda,$(DEVICE)),build-cuda,build)
JOBS ?= $(shell nproc)
PROGRAM := $(BUILD)/bin/dendrite
# The puzzle that the demo shows: held out from training, and one that greedy decoding gets wrong.
PUZZLE ?= 2 5 8 10

MODEL ?= models/dendrite-tools
PORT ?= 8000

.PHONY: demo test serve build deps bench bench-report format check clean
.DEFAULT_GOAL := help

help:
	@sed -n "1,5p" Makefile | cut -c3-

DEPS = $(DEVICE)
test: DEPS = $(DEVICE) tests
deps:
	@scripts/install_deps.sh $(DEPS)

$(BUILD)/build.ninja: CMakeLists.txt CMakePresets.json | deps
	@echo "== configuring"
	@. scripts/env.sh && cmake --preset $(PRESET) -B $(BUILD) $(CMAKE_FLAGS) > $(BUILD).log 2>&1 || \
	  { cat $(BUILD).log; rm -f $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log

build: deps $(BUILD)/build.ninja
	@echo "== building (the first time takes 5 to 10 minutes on 2 cores; later only what changed)"
	@. scripts/env.sh && cmake --build $(BUILD) -j $(JOBS) --target dendrite-cli dendrite-bench dendrite-fuzz

demo: build
	@echo "== solving a Game-of-24 puzzle that the model was not trained on (seconds)"
	@$(PROGRAM) solve --device $(DEVICE) $(PUZZLE)

test: build
	@echo "== building the tests (about 5 minutes the first time on 2 cores), then running them (about 5)"
	@. scripts/env.sh && cmake --build $(BUILD) -j $(JOBS) && ctest --test-dir $(BUILD) -j $(JOBS) --output-on-failure --no-tests=error
	@if [ $(DEVICE) = cuda ]; then echo "== the same on the GPU"; scripts/gpu_check.sh $(BUILD) tests; fi

serve: build
	@$(PROGRAM) serve --model $(MODEL) --device $(DEVICE) --port $(PORT)

bench: build
	@$(BUILD)/bin/dendrite-bench decode --device $(DEVICE)
	@$(BUILD)/bin/dendrite-bench fork-overhead --device $(DEVICE)

# README.md's and bench/RESULTS.md's tables and charts, from the samples in bench/results/.
bench-report:
	@python3 tools/bench_report.py

format:
	@tools/format.sh --fix

check:
	@tools/format.sh && python3 tools/check_layers.py && tools/check_locks.sh

clean:
	rm -rf $(BUILD) build-asan build-tsan build-cuda
