# Everything runs in .venv. On a fresh machine `make demo` and `make test` need Python 3.11 or newer and g++.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH := $(shell grep '^torch==' constraints.txt)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint bench clean

# Load the shipped model, answer a prompt as a stream, and show a table of what happened.
demo: $(STAMP)
	@$(BIN)/milepost generate --chat --stats --temperature 0 --max-tokens 48 \
	  --prompt "The code for amber is 7412. What is the code for amber?"

# Lint, types, import contracts, then the tests; pytest's closing line is the last thing printed.
test: lint
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# All benchmarks on the shipped model and on a random 100M-parameter one; JSON under runs/.
bench: $(STAMP)
	$(BIN)/python -m benchmarks all --json runs/benchmarks.json

# torch comes first and alone: a resolver that is asked for it later may fetch another, much larger build.
$(STAMP): pyproject.toml constraints.txt setup.py $(shell find milepost/kernels/native/src -type f)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Milepost needs Python 3.11 or newer. Name one: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) "$(TORCH)"
	$(PIP) --constraint constraints.txt --editable ".[dev]"
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
