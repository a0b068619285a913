# One place for what continuous integration runs: `make check`.
PYTHON ?= python

.PHONY: check lint types test slow wheel format

check: lint types test

lint:
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .

types:
	$(PYTHON) -m mypy
	$(PYTHON) -m mypy model_adapters

test:
	$(PYTHON) -m pytest

slow:
	$(PYTHON) -m pytest -m slow

wheel:
	$(PYTHON) scripts/check_wheel.py

format:
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .
