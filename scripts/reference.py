"""Makes results/reference and results/submissions, and writes the pages that show them.

    python scripts/reference.py run      # all documents at this commit, then the pages; up to an hour on two cores
    python scripts/reference.py write    # the pages alone
    python scripts/reference.py check    # fails if a page shows something else

A run needs a clean checkout, so that the commit that a document states is the code that made it. Each command is a
process with one thread, as many at a time as there are CPUs; what they print goes to build/reference/. Written are the
example and the result table of README.md, the result table of docs/builtin.md, and the table ``builtin`` of
``ttmbench reproduce``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pandas as pd
import yaml

sys.path.append(str(Path(__file__).with_name("docs")))
from page_parts import between, table

from ttmbench.report.terminal import headline, print_results
from ttmbench.reproduce.tables import PUBLISHED
from ttmbench.results.numbers import (
    OVERFIT_COLUMN,
    RAW,
    RAW_COLUMN,
    SIMPLE_MATCH_COLUMN,
    TTM_COLUMN,
    Number,
    newest,
)
from ttmbench.results.reader import ResultsFile, read_document

ROOT = Path(__file__).resolve().parents[1]
MODELS = {"tiny-clip": "builtin.json", "tiny-clip-seed1": "builtin_seed1.json"}
REFERENCE, SUBMISSIONS = "results/reference", "results/submissions"
SUBMITTED = "shapes_color,shapes_place,shapes_replace,shapes_spatial"  # scores of all pairs are too large to be kept
SEEDS = "--ttm --seeds 0,1,2,3"
RUNS = (
    *(
        f"ttmbench --model {model} --tasks builtin --methods overfit {SEEDS} --output_path {REFERENCE}/{name}"
        for model, name in MODELS.items()
    ),
    f"ttmbench --model tiny-clip --tasks shapes_color {SEEDS} --output_path {REFERENCE}/first.json",
    *(
        f"ttmbench --model {model} --tasks {SUBMITTED} {SEEDS} --audit_labels --save_scores --output_path {SUBMISSIONS}"
        for model in MODELS
    ),
)
"""What results/README.md states; the key ``command`` of each document is one of them."""
# With which of the two headline metrics each column of the result table is.
COLUMNS = ((RAW_COLUMN, 0), (SIMPLE_MATCH_COLUMN, 1), (OVERFIT_COLUMN, 0), (TTM_COLUMN, 1))


def run() -> None:
    """Makes every document anew and validates the submissions; SystemExit names what failed."""
    if changed := _git("status", "--porcelain").splitlines():
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        sys.exit(f"the checkout must be clean: commit or remove {changed[0][3:]}{more}")
    shutil.rmtree(ROOT / REFERENCE)
    for model in MODELS:
        shutil.rmtree(ROOT / SUBMISSIONS / model, ignore_errors=True)
    logs = ROOT / "build" / "reference"
    logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(os.cpu_count()) as pool:

        def one(at: int) -> int:
            words = [sys.executable, "-m", *shlex.split(RUNS[at])]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "TTMBENCH_CACHE": f"{cache}/{at}"}
            with (logs / f"{at}.log").open("wb") as log:
                return subprocess.call(words, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)

        codes = list(pool.map(one, range(len(RUNS))))
    if failed := [f"{logs}/{at}.log: {RUNS[at]}" for at, code in enumerate(codes) if code]:
        sys.exit("\n".join(failed))
    subprocess.run([sys.executable, "-m", "ttmbench", "validate", SUBMISSIONS, "--complete"], cwd=ROOT, check=True)


def texts(root: Path) -> dict[Path, str]:
    """Every file of a checkout that shows the reference -> what it has to say."""
    runs = [
        ResultsFile(path, read_document(path), path.name)
        for path in (root / REFERENCE / name for name in MODELS.values())
    ]
    readme, page, published = root / "README.md", root / "docs/builtin.md", root / "ttmbench/reproduce/published"
    spec, numbers = published_table(runs)
    start = between(readme.read_text(encoding="utf-8"), "example", example(root / REFERENCE / "first.json"))
    return {
        readme: between(start, "results", result_table(runs[:1])),
        page: between(page.read_text(encoding="utf-8"), "reference", result_table(runs)),
        published / "builtin.yaml": spec,
        published / "builtin.csv": numbers,
    }


def example(path: Path) -> str:
    """What the README's command prints in a terminal of 80 columns."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), mock.patch.dict(os.environ, COLUMNS="80"):
        print_results(read_document(path).to_dict())
    lines = [line.rstrip() for line in shown.getvalue().strip().splitlines()]
    return "```text\n" + "\n".join(lines) + "\n```"


def result_table(runs: Sequence[ResultsFile]) -> str:
    """The columns of runs as Markdown, percent; with the model's name if there are several."""
    named = ["model"] if len(runs) > 1 else []
    lines = []
    for task in runs[0].document.results:
        for run in runs:
            found = {(one.metric, one.method): one for one in run.numbers if one.task == task}
            is_global = run.document.configs[task]["matching"] == "global"
            metrics = headline({metric for metric, name in found if name == RAW}, is_global)
            shape = "x".join(map(str, run.document.datasets[task].shape))
            groups = f"{run.document.n_samples[task].effective}, {shape}"
            chance = ", ".join(f"{100 * found[metric, RAW].chance:.2f}" for metric in metrics)
            values = [found[metrics[which], column.method] for column, which in COLUMNS]
            lines.append([task, *([run.model] if named else []), groups, chance, *map(_percent, values)])
    names = [column.name for column, _ in COLUMNS]
    return table(["task", *named, "groups", "chance: score, match", *names], lines, 5)


def _percent(number: Number) -> str:
    spread = "" if number.seed_std is None else f" ± {100 * number.seed_std:.2f}"
    return f"{100 * number.value:.2f}{spread}"


def published_table(runs: Sequence[ResultsFile]) -> tuple[str, str]:
    """YAML and CSV of the table ``builtin`` of ``ttmbench reproduce``."""
    methods = [column.method for column, _ in COLUMNS]
    numbers = newest(one for run in runs for one in run.numbers if one.method in methods and one.value is not None)
    configs = {run.model: run.document.config for run in sorted(runs, key=lambda run: run.model)}
    spec = {
        "paper": "ttmbench's own reference runs",
        "source": REFERENCE,
        "where": ", ".join(run.path.name for run in runs),
        "shows": "the built-in models on rendered tasks, which need no download: raw, SimpleMatch, overfit and TTM",
        "numbers": "builtin.csv",
        "decimals": 2,
        "runs": 4,
        "own": True,
        "tolerance": {"level": 0.99, "groups": 1},
        "settings": {"seeds": [0, 1, 2, 3]},
        "tasks": {
            one.task: {"groups": one.groups, "version": one.origin.version, "data": one.origin.data}
            for one in sorted(numbers, key=lambda one: one.task)
        },
        "models": {
            model: {"track": "zero_shot", "model": config["model"]}
            | ({"model_args": config["model_args"]} if config["model_args"] else {})
            for model, config in configs.items()
        },
    }
    names = {column.name: name for name, column in PUBLISHED.items()}
    rows = [
        {
            **{"source": "ttmbench", "table": one.origin.file, "task": one.task, "model": one.model},
            **{"method": names[one.column], "metric": one.metric, "percent": f"{100 * one.value:.2f}"},
            "std_percent": "" if one.seed_std is None else f"{100 * one.seed_std:.2f}",
        }
        for one in numbers
    ]
    head = "# Made by scripts/reference.py from the reference runs in results/reference; do not edit by hand.\n"
    return head + yaml.safe_dump(spec, sort_keys=False, width=120), pd.DataFrame(rows).to_csv(index=False)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "write", "check"))
    what = parser.parse_args().what
    if what == "run":
        run()
    for path, text in texts(ROOT).items():
        if what != "check":
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.relative_to(ROOT)} does not show the reference; run `python scripts/reference.py write`")


if __name__ == "__main__":
    main()
