# `make bench` measures, `make count` compares instruction counts with expected ones, `make test` tests.
# Each target first creates .venv if it does not exist.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUITE := --dtdispatch --pyargs pytest_dtdispatch.suite
# Tests start many processes: they read the bytecode of the package instead of compiling it each time.
unexport PYTHONDONTWRITEBYTECODE
EXPECTED := benchmarks/instructions_torch-2.13.0-cpu_python-3.11.csv

.PHONY: bench count test test-unit test-long test-sweep test-torch test-matrix fuzz lint docs release clean

# One thread: dispatch is measured, and a local op must not wait for a busy core.
bench: export OMP_NUM_THREADS ?= 1
bench: $(VENV)/ready
	$(BIN)/python -m pytest $(SUITE) $(ARGS)

count: $(VENV)/ready
	$(BIN)/python -m pytest $(SUITE) -k dispatch --dtdispatch-metric instructions --dtdispatch-expected $(EXPECTED) $(ARGS)

# Two files at a time, the slowest first: tests/conftest.py sorts them.
test: $(VENV)/ready
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not long and not sweep" $(ARGS)

# Tests that do not import torch: seconds.
test-unit: $(VENV)/ready
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not torch and not long and not sweep" $(ARGS)

# Faults of many ranks, runs under callgrind, complete A/B runs, and a sample of what `test-sweep` tests in full.
# Two files at a time, since many of them wait for other processes; none depends on real time.
test-long: $(VENV)/ready
	$(BIN)/python -m pytest -m "long and not sweep" -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# All of torch's op database, of the atlas and of the private names in use, all twins and rewordings of advice, and the
# cases, models, layouts and faults of ranks beyond the fixed sample in `test` and `test-long`: over an hour.
# `SWEEP_SHARD=1/2 make test-sweep` takes half of the database.
test-sweep: $(VENV)/ready
	$(BIN)/python -m pytest -m sweep -s $(ARGS)

# The wheel on another torch: `make test-torch V=2.9.1`. `make test-matrix` tests every supported torch, the oldest and
# newest pytest, and other plugins, one environment after another: about three hours.
test-torch: $(VENV)/ready
	$(if $(V),,$(error which torch? make test-torch V=2.9.1))$(BIN)/nox -s torch-$(V) $(ARGS)

test-matrix: $(VENV)/ready
	$(BIN)/nox --report .nox/report.json $(ARGS)

# About 35,000 flags, ini values, markers, files and command lines, of which `test` runs a sample: two minutes.
fuzz: $(VENV)/ready
	$(BIN)/python -m pytest tests/fuzz tests/core/test_parsing.py --hypothesis-profile=fuzz $(ARGS)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/docs-ready
	$(BIN)/python -m sphinx -W -n -b html docs docs/_build/html

# `make release V=1.2.3`: set version and date, build both packages, test each in an empty environment; ARGS=--tag commits and tags.
release: $(VENV)/ready
	$(if $(V),,$(error which version? make release V=1.2.3))$(BIN)/python ci/release.py $(V) $(ARGS)

# torch first and alone: the pinned build must be installed before a package that requires any torch.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VENV)/docs-ready: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) .benchmarks .hypothesis .mypy_cache .nox .pytest_cache .ruff_cache docs/_build
