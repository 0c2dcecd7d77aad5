# Needs Python 3.11 or newer; everything else is installed into .venv. Another interpreter: make test PYTHON=python3.12
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# For pip, and for the environment in which pip builds packages.
export PIP_CONSTRAINT := constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all test-gpu coverage mutants lint types docs screenshots bench bench-gpu clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(INSTALLED)  ## compare seven losses on long-tailed handwritten digits, in about a minute
	$(BIN)/equipoise compare --data digits-lt --model mlp --seeds 5 \
	    --losses 'ce focal flsd-53 cyclical-focal recall class-balanced balanced-softmax'

# A thread for each of the two processes. Their tests are split in the order of the files, so that a fixture is mostly
# made once.
test test-slow coverage: export OMP_NUM_THREADS := 1
PYTEST := -m pytest -n 2 --dist worksteal

test: $(INSTALLED)  ## run the tests and the examples in the docstrings, in about ten minutes
	$(BIN)/python $(PYTEST) -m "not slow"

test-slow: $(INSTALLED)  ## run the tests that are marked slow
	$(BIN)/python $(PYTEST) -m slow

test-all: test test-slow  ## run every test

coverage: $(INSTALLED)  ## run what `make test` runs and report the lines of src that it covers
	$(BIN)/coverage erase
	$(BIN)/coverage run $(PYTEST) -m "not slow"
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --sort=miss --skip-covered

test-gpu: $(INSTALLED)  ## run what needs a CUDA device, and the parity tests of the kernels on it
	$(BIN)/python -m pytest -n 4 -m gpu tests
	$(BIN)/python -m pytest -n 4 tests/parity

mutants: $(INSTALLED)  ## change numeric code at random and count what the tests notice; MUTANTS='--help' for options
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutation $(MUTANTS)

lint: $(INSTALLED)  ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)  ## check the types of src, strictly
	$(BIN)/mypy

docs: $(INSTALLED)  ## build the site into site/; a broken link or an unknown formula is an error
	@# not --quiet, which hides warnings from --strict too
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

screenshots: $(INSTALLED)  ## draw README, documentation and reports with Chromium into screenshots/, light and dark
	$(BIN)/python -m website.screenshots

bench: $(INSTALLED)-bench  ## time the losses against torch and other libraries on the CPU
	$(BIN)/python -m benchmarks losses --device cpu

bench-gpu: RESULTS := benchmarks/results
bench-gpu: $(INSTALLED)-bench  ## time them on a CUDA device, with a training step, and write docs/performance.md
	$(BIN)/python -m benchmarks losses --device cuda --json $(RESULTS)/losses-cuda.json
	$(BIN)/python -m benchmarks training --device cuda --json $(RESULTS)/training-cuda.json
	$(BIN)/python -m benchmarks table $(RESULTS)/losses-cuda.json $(RESULTS)/training-cuda.json \
	    $(RESULTS)/train-cuda.json --out docs/performance.md

clean:  ## remove caches and build outputs; the environment stays
	rm -rf build dist site screenshots .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("equipoise needs Python 3.11 or newer, \
	$(PYTHON) is %d.%d; name another one: make PYTHON=python3.12" % sys.version_info[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	# a peer of the tests; its metrics need none of what it would bring along (pyro, gpytorch, tensorboard)
	$(BIN)/python -m pip install --quiet --no-deps netcal==1.4.0
	@touch $@

$(INSTALLED)-bench: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	@touch $@
