# One place for what continuous integration runs: `make check`.
PYTHON ?= python

.PHONY: check lint types test warnings cpus slow coverage mutants wheel docs oldest schema leaderboard reference format

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

# The tests with every warning as an error, those of dependencies too.
warnings:
	$(PYTHON) -m pytest -n auto -W error

# The tests as other CPUs compute: fewer instructions, more threads. CPUS="--settings avx2,sse -- tests/ttm" runs a part.
cpus:
	$(PYTHON) scripts/cpus.py $(CPUS)

slow:
	$(PYTHON) -m pytest -m slow

# Which lines of the package the tests run, by file; fails under 95 %. Takes about twice as long as `make test`.
coverage:
	$(PYTHON) -m coverage erase
	$(PYTHON) -m coverage run -m pytest -n auto
	$(PYTHON) -m coverage combine --quiet
	$(PYTHON) -m coverage report --skip-covered

# Whether the tests notice changes of the code that decides numbers: 400 of them, drawn by a seed; half an hour on two
# CPUs. `python scripts/mutants.py --seed 1 --only stats` draws others.
mutants:
	$(PYTHON) scripts/mutants.py

wheel:
	$(PYTHON) scripts/check_wheel.py

# The site in site/, with what the extra `docs` brings: every link and anchor of the pages is checked. The leaderboard of
# results/ is in site/board.
docs:
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --quiet --strict --site-dir site
	$(PYTHON) -m ttmbench leaderboard results --published all --site site/board --docs ..

# In an environment of its own with every dependency at its lower bound; minutes, and gigabytes of packages.
oldest:
	$(PYTHON) scripts/oldest.py

# The JSON Schema of results documents, after a change of ttmbench/results/document.py.
schema:
	$(PYTHON) scripts/docs/schema.py

# The submissions in results/ checked, and the site of everything there: build/leaderboard/index.html.
leaderboard:
	$(PYTHON) -m ttmbench validate results/submissions --complete
	$(PYTHON) -m ttmbench leaderboard results --published all --site build/leaderboard

# All documents of results/reference and results/submissions at this commit, and the pages that show them; up to an hour.
reference:
	$(PYTHON) scripts/reference_runs.py

format:
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .
