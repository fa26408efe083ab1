# Bare `make` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo up test lint format bench clean
help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[aws,gcp,runpod,dev]'
	touch $(STAMP)

setup: $(STAMP)  ## Create the virtual environment with everything in it

demo: $(STAMP)  ## Start the embedded stack, run a real training job, stream its logs, print its bill
	$(BIN)/headrace demo

up: $(STAMP)  ## Start the embedded stack and leave it running
	$(BIN)/headrace up

test: $(STAMP)  ## Run every test; installs Debian packages that are missing when run as root
	./tests/prepare
	$(BIN)/pytest -n 3 --dist worksteal

lint: $(STAMP)  ## Formatting, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## Format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)  ## Measure; see docs/performance.md
	$(BIN)/python -m bench

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build *.egg-info
