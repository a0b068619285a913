# One place for what continuous integration runs: `make check`.
PYTHON ?= python

.PHONY: check lint types test slow wheel docs reference format

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

# Tests that take minutes.
slow:
	$(PYTHON) -m pytest -m slow

wheel:
	$(PYTHON) scripts/check_wheel.py

# The site in site/, with what the extra `docs` brings: every link and anchor of the pages is checked. The leaderboard of
# results/ is in site/board, and its reference runs are an example of a report.
docs:
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --quiet --strict --site-dir site
	$(PYTHON) -m ttmbench leaderboard results --published all --site site/board --docs ..
	$(PYTHON) -m ttmbench report results/reference --published ttm_table1 --output_path site/report-example.html

# All documents of results/reference and results/submissions at this commit, and the pages that show them; up to an hour.
reference:
	$(PYTHON) scripts/reference.py run

format:
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .
