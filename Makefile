# From a fresh clone to a run, or to tests. Every finished step leaves a stamp in .venv, so that a second call does only what changed.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.PHONY: help venv demo test check bench clean

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST_ARGS ?=

help:
	@echo "make demo   set up .venv and train the embedded example: no Slurm, no GPU"
	@echo "make test   set up .venv and Slurm's Debian packages, run the checks and all tests"
	@echo "make check  style, types and layers alone"
	@echo "make bench  install the peers and time the command line and a training step beside them"
	@echo "make venv   set up .venv alone"
	@echo "make clean  remove .venv and caches; run folders stay"

venv: .venv/installed

demo: .venv/installed
	$(BIN)/slime-hpc demo

test: check
	tests/slurm/cluster.sh install
	$(BIN)/python -m pytest -q --durations=25 $(PYTEST_ARGS)

check: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/installed-bench
	$(BIN)/python tools/bench/help.py
	$(BIN)/python tools/bench/step.py

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find slime_hpc tests tools -name __pycache__ -prune -exec rm -rf {} +

.venv/made:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	  echo "The versions in containers/cpu.txt are for Python 3.11, and $(PYTHON) is another: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make a virtual environment. On Debian, as root: apt-get install python3-venv" >&2; exit 1; }
	"$(PYTHON)" -m venv .venv
	@touch $@

# torch and numpy with what they require; all the rest is listed in full, and pip must not add sglang's CUDA packages to it.
.venv/installed: .venv/made containers/cpu.txt pyproject.toml
	@echo "Installing torch, megatron-core, sglang and what they need into .venv: about 2 GB"
	$(INSTALL) $$(grep -E '^(torch|numpy)==' containers/cpu.txt)
	$(INSTALL) --no-deps -r containers/cpu.txt
	$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

.venv/installed-test: .venv/installed containers/test.txt
	$(INSTALL) --no-deps -r containers/test.txt
	@touch $@

.venv/installed-bench: .venv/installed-test containers/bench.txt
	$(INSTALL) --no-deps -r containers/bench.txt
	@touch $@
