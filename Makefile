# One place for what continuous integration runs: `make check`.
PYTHON ?= python

.PHONY: check lint types test slow wheel oldest schema format

check: lint types test

lint:
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -c "from importlinter.cli import lint_imports_command as lint; lint()"

types:
	$(PYTHON) -m mypy
	$(PYTHON) -m mypy model_adapters

test:
	$(PYTHON) -m pytest -n auto

slow:
	$(PYTHON) -m pytest -m slow

wheel:
	$(PYTHON) scripts/check_wheel.py

# In an environment of its own with every dependency at its lower bound; minutes, and gigabytes of packages.
oldest:
	$(PYTHON) scripts/oldest.py

# The JSON Schema of results documents, after a change of ttmbench/results/document.py.
schema:
	$(PYTHON) scripts/docs/schema.py

format:
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .
