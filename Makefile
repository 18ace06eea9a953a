# `make bench` measures, `make count` holds counts of instructions against expected ones, `make test` tests.
# Each builds .venv first when it is missing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUITE := --dtdispatch --pyargs pytest_dtdispatch.suite
EXPECTED := benchmarks/instructions_torch-2.13.0-cpu_python-3.11.csv

.PHONY: bench count test test-unit test-long test-sweep test-torch test-matrix fuzz lint docs release clean

# One thread: what is measured is dispatch, and a local op must not wait for a core that is busy.
bench: export OMP_NUM_THREADS ?= 1
bench: $(VENV)/ready
	$(BIN)/python -m pytest $(SUITE) $(ARGS)

count: $(VENV)/ready
	$(BIN)/python -m pytest $(SUITE) -k dispatch --dtdispatch-metric instructions --dtdispatch-expected $(EXPECTED) $(ARGS)

# Two files at a time, those that take longest first: tests/conftest.py puts them into this order.
test: $(VENV)/ready
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not long and not sweep" $(ARGS)

# What needs no torch, which is not even imported: an answer within seconds while code is written.
test-unit: $(VENV)/ready
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not torch and not long and not sweep" $(ARGS)

# Faults of many ranks, runs under callgrind, whole A/B runs, all of what `test` samples: .ci/run runs them too.
# Two files at a time, as many of them wait for other processes; none judges the times that it reads by the clock.
test-long: $(VENV)/ready
	$(BIN)/python -m pytest -m "long and not sweep" -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# The whole of torch's op database, of the atlas, and of the private names that are used, and what takes minutes each: over half an hour.
# `SWEEP_SHARD=1/2 make test-sweep` takes half of the database.
test-sweep: $(VENV)/ready
	$(BIN)/python -m pytest -m sweep -s $(ARGS)

# The wheel on another torch: `make test-torch V=2.9.1`; on each that is supported, with lowest and newest pytest,
# and beside other plugins, one environment after another: `make test-matrix`, some three hours.
test-torch: $(VENV)/ready
	$(if $(V),,$(error which torch? make test-torch V=2.9.1))$(BIN)/nox -s torch-$(V) $(ARGS)

test-matrix: $(VENV)/ready
	$(BIN)/nox --report .nox/report.json $(ARGS)

# Some 35,000 flags, ini values, markers, files and command lines, of which `test` tries a sample: two minutes.
fuzz: $(VENV)/ready
	$(BIN)/python -m pytest tests/fuzz tests/core/test_parsing.py --hypothesis-profile=fuzz $(ARGS)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python -m sphinx -W -n -b html docs docs/_build/html

# `make release V=1.2.3`: version, date, both packages, each tried in an empty environment; ARGS=--tag commits and tags.
release: $(VENV)/ready
	$(if $(V),,$(error which version? make release V=1.2.3))$(BIN)/python ci/release.py $(V) $(ARGS)

# torch first and alone: its pinned build must be there before anything else asks for any torch.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .benchmarks .hypothesis .mypy_cache .nox .pytest_cache .ruff_cache docs/_build
