# make demo: set up and run the main job on this machine.   make test: set up and run the tests.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
HARDWARE ?= auto
RESULTS ?= results
PYTEST_FLAGS ?=
# Recipes read these from the environment: a folder may have spaces, quotes or dollar signs in its name.
export RESULTS HARDWARE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-all lint tables figures report plan reproduce-all chaos bench bench-engine bench-inputs bench-logs bench-marks clean

help: ## this list
	@grep -hE '^[a-z% -]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 24

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

# The default set is results/, or the committed reference set where nothing was measured yet.
ifneq ($(RESULTS),results)
SET = --results "$$RESULTS"
endif

table-%: $(STAMP) ## one table beside the paper's values: table-2, table-memory, table-lossless ...
	@$(PY) -m analysis table $* $(SET)

figure-%: $(STAMP) ## one figure as PNG, SVG and PDF: figure-3, figure-fit ...
	@$(PY) -m analysis figure $* $(SET)

tables figures report: $(STAMP) ## every table, every figure, or the HTML report
	@$(PY) -m analysis $@ $(SET)

bench: bench-inputs bench-logs bench-engine bench-marks ## all benchmarks, as ratios in one run

bench-inputs: $(STAMP) ## building exact-length inputs against tokenising them
	$(PY) -m benchmarks.inputs

bench-logs: $(STAMP) ## lines a second of the scheduler-log parser
	$(PY) -m benchmarks.logs

bench-marks: $(STAMP) ## what the marks of a phase trace cost a decode step, off against on
	$(PY) -m benchmarks.marks

bench-engine: $(STAMP) ## step time native / windowed / ring, prefill with and without pruning
	$(PY) -m benchmarks.engine

plan: $(STAMP) ## what every table and figure needs here, and what it costs; nothing starts
	$(PY) -m harness.plan experiment=all "hardware=$$HARDWARE" "results=$$RESULTS" --brief

# Which experiment measures what a table or figure without a number reads; the others have one of their own name.
FROM_table_memory = memory
FROM_table_batches = memory
FROM_table_kv_dtype = kv_dtype
FROM_table_lossless = lossless
FROM_table_lossless_inputs = lossless
FROM_table_divergence = lossless
FROM_table_sampling = lossless
FROM_table_penalty = lossless
FROM_table_spread = table_13
FROM_table_bandwidth = table_7
FROM_table_pareto = figure_4
FROM_figure_fit = table_6
FROM_figure_dose = table_10
FROM_figure_decomposition = table_7
FROM_figure_batches = memory
FROM_figure_memory = memory
FROM_figure_step = figure_3
FROM_figure_context = figure_3
FROM_figure_distance = table_12
FROM_figure_decision = table_11

reproduce-table-%: $(STAMP) ## measure what is missing of a table here, then print it: reproduce-table-6, -memory ...
	$(PY) -m harness experiment=$(or $(FROM_table_$*),table_$*) "hardware=$$HARDWARE" "results=$$RESULTS"
	$(PY) -m analysis table $* --results "$$RESULTS"

reproduce-figure-%: $(STAMP) ## measure what is missing of a figure here, then draw it: reproduce-figure-3, -fit ...
	$(PY) -m harness experiment=$(or $(FROM_figure_$*),figure_$*) "hardware=$$HARDWARE" "results=$$RESULTS"
	$(PY) -m analysis figure $* --results "$$RESULTS"

reproduce-all: $(STAMP) ## every table and figure, each point measured once, then the report
	$(PY) -m harness experiment=all "hardware=$$HARDWARE" "results=$$RESULTS" || echo "some points have no result: the report says which"
	$(PY) -m analysis report --results "$$RESULTS"

chaos: $(STAMP) ## kill the harness at 20 random moments and go on: nothing lost, nothing twice
	$(PY) -m harness.sweep.chaos --kills 20 --results "$$RESULTS/chaos"

clean: ## remove caches and the virtual environment, keep results
	rm -rf "$(VENV)" .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
