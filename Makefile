# Bare `make` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo up test lint format bench clean
help:  ## List the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | sort | while IFS="$$(printf '\t')" read -r name what; do \
	  printf '  make %-8s %s\n' "$$name" "$$what"; done

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "this Python lacks venv: on Debian, apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[aws,gcp,runpod,ssh,dev]'
	touch $(STAMP)

setup: $(STAMP)  ## Create the virtual environment with everything in it

# ARGS goes to the command: make up ARGS='--data-dir /srv/headrace --port 9000'
demo: $(STAMP)  ## Start the embedded stack, run a real training job, stream its logs, print its bill
	$(BIN)/headrace demo $(ARGS)

up: $(STAMP)  ## Start the embedded stack and leave it running until Ctrl-C
	$(BIN)/headrace up $(ARGS)

test: $(STAMP)  ## Run every test; installs Debian packages that are missing when run as root
	./tests/prepare
	# What fails beside others runs once more alone: a busy machine is no defect, and what fails twice is one.
	$(BIN)/pytest -n 5 --dist worksteal || $(BIN)/pytest -n 0 --last-failed --last-failed-no-failures none

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
