# Two commands on a bare machine with Python 3.11 or later: `make run` and `make test`.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# The first Python that is new enough; set PYTHON=/path/to/python to choose another.
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.13 python; do \
	"$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && command -v "$$p" && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
EXPERIMENT ?= gmm_tied_means
# Small matrix products wait for all threads: beside other processes they take a hundred times as long on two.
export OPENBLAS_NUM_THREADS ?= 1
# Images of containers often switch bytecode off: each process of the tests would compile all sources, for seconds.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal
# What a run imports. Bytecode is made of these alone: of all that pip installs it would take as long again.
IMPORTED := h5netcdf, matplotlib.pyplot, mhrun.cli.running, mhrun.report.build, numba, pandas, scipy.stats, sklearn, torch
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

help:  ## Show this
	@awk -F ":.*## " '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "mhrun needs Python 3.11, 3.12 or 3.13; set PYTHON=/path/to/python."; exit 1; }
	@echo "Installing mhrun and its dependencies into $(VENV): a minute, or a few where the network is slow."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)  # another Python over one that is there would break it
	@set -o pipefail; $(BIN)/python -m pip install --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[dev]' \
		| { grep --line-buffered -E '^ *(Downloading|Using cached|Building|Installing|Successfully)' || true; }
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -c 'import $(IMPORTED)'
	@touch $@
	@echo "Installed. mhrun is $(BIN)/mhrun; 'source $(BIN)/activate' puts it on the path."

setup: $(READY)  ## Make the environment in .venv, with pinned versions

run: $(READY)  ## Run the first experiment and print where its report is (EXPERIMENT=name for another)
	$(BIN)/mhrun experiment=$(EXPERIMENT)

test: $(READY)  ## Lint, check types and layers, build the documentation, and run the fast tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory -j2 docs types
	$(PYTEST)

quick: $(READY)  ## Lint, check types and layers, and run the unit and contract tests, for while you work
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --no-print-directory types
	$(PYTEST) -m 'not slow and not long' tests/unit tests/contracts

test-slow: $(READY)  ## Run the tests that take longer
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt 'ray>=2.40'
	$(BIN)/python -m pytest -m slow

types: $(READY)  ## Check types and layers
	$(BIN)/mypy
	$(BIN)/lint-imports

lint: $(READY)  ## Fix what ruff can fix, and print the rest
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)  ## Build the documentation into site/, warnings being errors
	$(MKDOCS) build --strict

docs-serve: $(READY)  ## Show the documentation at http://127.0.0.1:8000 while you write it
	$(MKDOCS) serve

docs-results: $(READY)  ## Collect claims, metrics and figures of the paper-scale runs in outputs/, and refresh the pages
	$(BIN)/python docs/_made/collect.py outputs

docs-refresh: $(READY)  ## Rewrite the numbers and tables that README and pages quote from the repository
	$(BIN)/python docs/_made/refresh.py

hooks: $(READY)  ## Let git check each commit
	$(BIN)/pre-commit install

figures: $(READY)  ## Make the reports of everything that has been run again
	$(BIN)/mhrun report

bench: $(READY)  ## Measure speed against JAX (in a separate environment, .venv-peers)
	$(BIN)/python benchmarks/run.py

gpu-check: $(READY)  ## Check values, launches and throughput on a GPU, in a few minutes
	$(BIN)/python benchmarks/gpu_check.py

clean:  ## Remove the environments; runs stay
	rm -rf $(VENV) .venv-peers site .mypy_cache .ruff_cache .pytest_cache

.PHONY: help setup run quick test test-slow types lint docs docs-serve docs-results docs-refresh hooks figures bench gpu-check clean
