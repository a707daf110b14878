# Two commands: `make demo` and `make test`. Underneath is plain CMake with presets (see README.md).
#   make demo PUZZLE="4 9 10 13"   another puzzle; DEVICE=cpu|cuda
#   make build | test | demo | bench | format | check | clean

BUILD ?= build
JOBS ?= $(shell nproc)
DEVICE ?= cpu
PROGRAM := $(BUILD)/bin/dendrite
# The puzzle that the demo shows: held out from training, and one that greedy decoding gets wrong.
PUZZLE ?= 2 5 8 10

.PHONY: demo test build deps bench format check clean
.DEFAULT_GOAL := help

help:
	@sed -n "1,4p" Makefile | cut -c3-

deps:
	@scripts/install_deps.sh

$(BUILD)/build.ninja: CMakeLists.txt CMakePresets.json | deps
	@echo "== configuring"
	@. scripts/env.sh && cmake --preset cpu -B $(BUILD) $(CMAKE_FLAGS) > $(BUILD).log 2>&1 || \
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
	@. scripts/env.sh && cmake --build $(BUILD) -j $(JOBS) && ctest --test-dir $(BUILD) -j $(JOBS) --output-on-failure

bench: build
	@$(BUILD)/bin/dendrite-bench decode
	@$(BUILD)/bin/dendrite-bench fork-overhead

format:
	@tools/format.sh --fix

check:
	@tools/format.sh && python3 tools/check_layers.py

clean:
	rm -rf $(BUILD) build-asan build-tsan build-cuda
