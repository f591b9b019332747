# The everyday commands; each does the set-up that it needs. `make help` lists them.
PRESET    ?= cpu
CONFIG    ?= configs/gpt_tiny.yaml
JOBS      ?= $(shell nproc)
override TORCH_DIR := $(if $(TORCH_DIR),$(abspath $(TORCH_DIR)))
export TORCH_DIR

BUILD   := build/$(PRESET)
SOURCES  = $(shell find adapters cmake examples plugin tests -name '*.h' -o -name '*.cc')

.DEFAULT_GOAL := help
.PHONY: help train ab test package bench stress fuzz tsan demo setup configure build asan format tidy clean

help:  ## This list
	@grep -E '^[a-z]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 18
	@echo
	@echo '  PRESET=cpu|asan|cuda|pure   which build (default cpu); programs are in build/<preset>/bin'
	@echo '  TORCH_DIR=<dir>             a LibTorch 2.11 or newer that is already there, instead of the wheel'
	@echo '  CMAKE_ARGS=-D<name>=<value> more for the configure step'

train: configure  ## Train a small GPT in 4 processes [CONFIG=configs/gpt_tiny.yaml] [ARGS='--set lr=1e-3']
	@cmake --build $(BUILD) -j $(JOBS) --target pretrain_gpt
	@BUILD_DIR=$(BUILD) examples/pretrain_gpt/train.sh $(CONFIG) $(ARGS)

ab: CONFIG = configs/gpt_moe_tiny.yaml
ab: configure  ## Compare schedules on a tiny MoE model: table and output/ab/report.html [ARGS='--rounds 5']
	@cmake --build $(BUILD) -j $(JOBS) --target pretrain_gpt dualpipe
	@BUILD_DIR=$(BUILD) examples/pretrain_gpt/prepare_data.sh
	@$(BUILD)/bin/dualpipe ab --config $(CONFIG) --iterations 12 --rounds 3 -o output/ab --force $(ARGS)

test: build  ## Build everything and run all tests
	@$(if $(filter pure tsan,$(PRESET)),:,setup/setup.sh browser)
	@test ! -e $(BUILD)/python || $(MAKE) --no-print-directory package PRESET=$(PRESET)
	@ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

package: build  ## Install the Python package into .venv, from what is built
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input --no-deps --no-build-isolation \
	  . -C cmake.define.dualpipe_ROOT=$(abspath $(BUILD))

bench: configure  ## All benchmarks that have bounds, one table; 1 where one is missed [REFERENCE=<checkout of DualPipe>]
	@cmake --build $(BUILD) -j $(JOBS) --target bench_peers bench_executor bench_overlap bench_predict \
	  bench_auto bench_split bench_binding
	@.venv/bin/python tests/bench/run_all.py $(BUILD) $(if $(REFERENCE),--reference $(REFERENCE))

stress: configure  ## Deadlocks, faults, damaged files, long runs: one table; 1 where a row is missed (over an hour)
	@cmake --build $(BUILD) -j $(JOBS)
	@nice .venv/bin/python tests/stress/run_all.py $(BUILD)

fuzz:  ## libFuzzer over everything that is read from outside, with clang [SECONDS=60 per target]
	@setup/setup.sh dev
	@cmake --preset fuzz --log-level=WARNING >/dev/null
	@cmake --build build/fuzz -j $(JOBS)
	@tests/fuzz/run.sh build/fuzz $(or $(SECONDS),60)

tsan:  ## The tests of the rooms without LibTorch under the thread sanitizer
	@$(MAKE) test PRESET=tsan

demo:  ## Both schedules in colour, bubbles and memory; needs no LibTorch
	@setup/setup.sh demo
	@cmake --preset pure --log-level=WARNING -DDUALPIPE_BUILD_TESTS=OFF >/dev/null
	@cmake --build build/pure -j $(JOBS) --target dualpipe
	@build/pure/bin/dualpipe demo

setup:  ## System packages and the Python environment alone
	@setup/setup.sh $(if $(filter pure tsan,$(PRESET)),pure)

configure: setup
	@cmake --preset $(PRESET) --log-level=WARNING "-DTORCH_DIR=$(TORCH_DIR)" $(CMAKE_ARGS) >/dev/null

build: configure  ## Build everything
	@cmake --build $(BUILD) -j $(JOBS)

asan:  ## The tests under the address and undefined-behaviour sanitizers
	@$(MAKE) test PRESET=asan

format:  ## Format the C++ sources
	@setup/setup.sh dev
	@clang-format -i $(SOURCES)

tidy: setup  ## Check the C++ sources with clang-tidy
	@setup/setup.sh dev
	@cmake --preset tidy --log-level=WARNING "-DTORCH_DIR=$(TORCH_DIR)" >/dev/null
	@run-clang-tidy -quiet -p build/tidy -j $(JOBS) $(abspath $(filter %.cc,$(SOURCES)))

clean:  ## Remove the build folders
	@rm -rf build
