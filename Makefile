# make demo, make test: each does all the set-up it needs. Python 3.11+, pip and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export RAY_USAGE_STATS_ENABLED := 0

.DEFAULT_GOAL := help
.PHONY: help setup web demo serve test test-fast test-long coverage fuzz chaos lint format generate docs bench clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# torch first: its pin keeps pip from taking a build with gigabytes of CUDA
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch hatchling editables
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[dev]'
	touch $@

setup: $(VENV)/.installed web  ## everything: .venv, dependencies, web bundle

web: $(VENV)/.installed  ## the web bundle, rebuilt when its sources changed
	@$(BIN)/python web/build.py

demo: setup  ## tune a small network on handwritten digits, then show it at http://localhost:8000
	$(BIN)/tuner demo --serve

serve: setup  ## the service
	$(BIN)/tuner serve

test: setup  ## lint, types, layers, all tests
	PYTHON=$(BIN)/python ./.ci/test

test-fast: setup  ## the tests that start neither Ray, PostgreSQL nor a browser
	$(BIN)/python -m pytest -q -m "not ray and not postgres and not browser and not slow"

test-long: setup  ## the long forms of tests: several nodes, pages as they stand, more kills, PostgreSQL throughout
	PYTHON=$(BIN)/python ./.ci/test-long

coverage: setup  ## the share of the lines and branches that the tests run
	$(BIN)/python -m pytest -q --cov -n 2 --dist loadfile --no-loadscope-reorder

fuzz: $(VENV)/.installed  ## an hour of searches in a make-believe cluster that does everything wrong (MINUTES=60)
	$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),60)

chaos: $(VENV)/.installed  ## kill drivers and services at every place, and compare with undisturbed runs (MINUTES=30)
	$(BIN)/python -m tests.faults --minutes $(or $(MINUTES),30)

lint: $(VENV)/.installed  ## ruff, mypy, import-linter, ESLint, Prettier
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python web/build.py lint

format: $(VENV)/.installed  ## let ruff, ESLint and Prettier format and fix
	$(BIN)/ruff check --fix -q . || true
	$(BIN)/ruff format .
	$(BIN)/python web/build.py format

generate: setup  ## the files that follow from others: docs/api_reference.md, tuner/client/synchronous.py, web/src/api/schema.ts
	$(BIN)/python -m tuner.client.generate
	$(BIN)/python -m tuner.api.reference
	$(BIN)/python web/build.py types

docs: $(VENV)/.installed  ## the docs as a site with search, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

bench: setup  ## the figures of docs/benchmarks.md
	$(BIN)/python -m benchmarks

clean:  ## remove what was built
	rm -rf $(VENV) web/node_modules tuner/_web site build dist .mypy_cache .ruff_cache .pytest_cache
