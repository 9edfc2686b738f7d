# Two commands set everything up: `make train` (the main job) and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready
TRAIN = $(VENV)/.train
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable
JOBS ?= 2

.PHONY: help train test test-fast test-faults test-base js check docs format bench clean

help:
	@echo "make train   create $(VENV), install what training needs, train LeNet-5 on real digits"
	@echo "make test    create $(VENV), install everything, run all tests"
	@echo "make test-fast  run only the quick tests"
	@echo "make test-faults  crashes in a real federation; takes some minutes"
	@echo "make test-base  the library alone, without torch or Flower; for another Python: PYTHON=python3.13 VENV=build/venv-3.13"
	@echo "make js      build and test the JavaScript client; needs Node 20 or later and npm"
	@echo "make check   ruff (lint and format) and a strict type check of src"
	@echo "make docs    build the site into build/site; fails if anything public is undocumented"
	@echo "make format  let ruff fix and reformat the sources"
	@echo "make bench   measure the speed targets, as ratios within one run"
	@echo "make clean   remove $(VENV), build output and caches"

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "sqsgd needs Python 3.11 or later; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(TRAIN): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[train,report]'
	touch $(TRAIN)

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[train,report,flower,nvflare,collect,docs,dev]'
	touch $(READY) $(TRAIN)

train: $(TRAIN)
	$(BIN)/sqsgd train

test: $(READY)
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder  # tests of a file share fixtures, the longest begin

test-faults: $(READY)
	$(BIN)/python -m pytest -m faults tests/faults tests/deploy

test-base: | $(BIN)/python
	$(INSTALL) . hypothesis mpmath pytest pytest-xdist scipy
	$(BIN)/python -m pytest --numprocesses $(JOBS) -m "not slow and not faults" tests/core tests/mechanisms tests/privacy

js:
	@command -v npm >/dev/null || { echo "make js needs Node 20 or later and npm: apt-get install nodejs npm"; exit 1; }
	cd clients/js && npm ci --no-audit --no-fund && npm run build && npm test

test-fast: $(READY)
	$(BIN)/python -m pytest --numprocesses $(JOBS) -m "not slow and not faults"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python benchmarks/speed.py

clean:
	rm -rf $(VENV) build dist clients/js/dist clients/js/node_modules .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
