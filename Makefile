# make demo: set up and run the main job on this machine.   make test: set up and run the tests.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
HARDWARE ?= auto
RESULTS ?= results
PYTEST_FLAGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-all lint bench bench-engine bench-inputs clean

help: ## this list
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 24

setup: $(STAMP) ## virtual environment with SGLang and everything else (about 5 minutes, 11 GB)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 14) else f"Python 3.11 to 3.13 is needed, this is {v.major}.{v.minor}: set PYTHON=")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install --quiet --editable '.[sglang,dev]'
	@touch $@

demo: $(STAMP) ## the main job on the tiny model, no GPU needed: four arms, table 2, figures
	$(PY) -m harness.demo

test: $(STAMP) ## all tests that take less than 15 minutes together, real servers included
	$(PY) -m pytest $(PYTEST_FLAGS)

test-slow: $(STAMP) ## the tests that `make test` leaves out
	$(PY) -m pytest -m slow $(PYTEST_FLAGS)

test-all: $(STAMP) ## every test
	$(PY) -m pytest -m '' $(PYTEST_FLAGS)

lint: $(STAMP) ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: bench-inputs bench-engine ## all benchmarks, as ratios in one run

bench-inputs: $(STAMP) ## building exact-length inputs against tokenising them
	$(PY) -m benchmarks.inputs

bench-engine: $(STAMP) ## step time native / windowed / ring, prefill with and without pruning
	$(PY) -m benchmarks.engine

clean: ## remove caches and the virtual environment, keep results
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
