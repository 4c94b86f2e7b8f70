# make demo, make test, make check; needs Python 3.11 or later and a package index, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
DEMO_HOME := $(CURDIR)/.ragpg
RAGPG := RAGPG_HOME=$(DEMO_HOME) $(BIN)/ragpg

.PHONY: demo test check clean

$(VENV)/installed: pyproject.toml constraints.txt
	@echo "installing ragpg into $(VENV) (a minute or two the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo "installing what tests and checks need"
	@$(INSTALL) --editable '.[dev]'
	@touch $@

demo: $(VENV)/installed  ## Ingest examples/ and ask three questions, offline.
	@RAGPG_HOME=$(DEMO_HOME) $(BIN)/python demo/run.py

test: $(VENV)/installed-dev  ## The whole suite, against a real Postgres.
	@$(BIN)/python -m pytest --numprocesses 2

check: $(VENV)/installed-dev  ## Format, lint, types, import arrows.
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

clean:
	rm -rf $(VENV) .ragpg .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist build
