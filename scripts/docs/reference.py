"""Everything in README and documentation that comes from the reference runs in results/reference.

    python scripts/docs/reference.py write     # after a reference run was made again
    python scripts/docs/reference.py check     # fails if a page, a table or a figure shows something else

results/README.md says how the runs are made. What is written:

- README.md: the example and the result table; the charts docs/images/reference_*.svg;
- docs/builtin.md: the result table of both models; docs/images/reference_transfer.svg: what adapting to each task does
  to the others;
- docs/methods-compared.md: gains of the test-time methods, with the chart docs/images/reference_methods.svg;
- ttmbench/reproduce/published/builtin.*: the table ``builtin`` of ``ttmbench reproduce``.

Screenshots are made by ``scripts/docs/page_screenshots.py`` and checked here. A figure is checked by the data that it
was drawn from and by its own sha256, both in docs/images/reference.json, so that another version of matplotlib or of a
browser changes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import builtin_study
import builtin_table
import matplotlib as mpl
import methods_study
import reference_figures as figures
from page_parts import between, table

from ttmbench.report import plots
from ttmbench.report.plots import STYLE
from ttmbench.report.terminal import print_results
from ttmbench.results.document import ResultsDocument
from ttmbench.results.numbers import DocumentFile
from ttmbench.results.reader import read_document

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "results" / "reference"
FIRST = FOLDER / "first.json"
MAIN = FOLDER / "builtin.json"
IMAGES = ROOT / "docs" / "images"
RECORD = IMAGES / "reference.json"
HEAD = ("task", "groups", "chance: score, match", *(column.name for column, _ in figures.COLUMNS))


def runs() -> list[DocumentFile]:
    """The reference runs of all built-in tasks, `MAIN` first."""
    return [DocumentFile(path, read_document(path)) for path in sorted(FOLDER.glob("builtin*.json"))]


def example() -> str:
    """What the README's command prints first."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        print_results(read_document(FIRST).to_dict())
    lines = [line.rstrip() for line in shown.getvalue().strip().splitlines()]
    end = next(at for at, line in enumerate(lines) if line.endswith("every metric, percent"))
    return "```text\n" + "\n".join(lines[:end]).strip() + "\n```"


def result_table(several: Sequence[DocumentFile]) -> str:
    """The columns of runs as Markdown, percent; with the model's name if there are several."""
    named = len(several) > 1
    head = [HEAD[0], *(["model"] if named else []), *HEAD[1:]]
    lines = []
    shown = [figures.columns(run.document) for run in several]
    for task in several[0].document.results:
        for run, columns in zip(several, shown, strict=True):
            column = columns[task]
            shape = "x".join(map(str, run.document.datasets[task].shape))
            groups = f"{run.document.n_samples[task].effective}, {shape}"
            chance = ", ".join(_percent(value) for value in column["chance"])
            values = [_percent(value, std) for value, std in zip(column["values"], column["stds"], strict=True)]
            lines.append([task, *([run.model] if named else []), groups, chance, *values])
    return table(head, lines, 5)


def texts() -> dict[Path, str]:
    """Every text file that shows reference results -> what it has to say."""
    several = runs()
    readme, page, methods = ROOT / "README.md", ROOT / "docs" / "builtin.md", ROOT / "docs" / "methods-compared.md"
    spec, numbers = builtin_table.table_of(several)
    main = next(run for run in several if run.path == MAIN)
    text = between(readme.read_text(encoding="utf-8"), "example", example())
    about = between(page.read_text(encoding="utf-8"), "reference", result_table(several))
    compared = methods.read_text(encoding="utf-8")
    for model in methods_study.MODELS:
        compared = between(compared, model, methods_study.table(model))
    published = ROOT / "ttmbench" / "reproduce" / "published"
    return {
        readme: between(text, "results", result_table([main])),
        page: about,
        methods: compared,
        published / "builtin.yaml": spec,
        published / "builtin.csv": numbers,
    }


def charts() -> dict[str, tuple[str, object]]:
    """Name of a chart -> digest of what it shows, and what draws it."""
    document = read_document(MAIN)
    columns, curves, model = figures.columns(document), figures.curves(document), document.model_name
    gains = methods_study.chart_data()
    return {
        "reference_methods.svg": (digest(gains), lambda: methods_study.draw(gains)),
        "reference_columns.svg": (digest(columns), lambda: figures.draw_columns(columns, model)),
        "reference_curves.svg": (digest(curves), lambda: figures.draw_curves(curves, model)),
        "reference_transfer.svg": (
            digest(builtin_study.transfer()["data"]),
            lambda: plots.draw(builtin_study.transfer()),
        ),
    }


def digest(data: object) -> str:
    """Of plain data, independent of the order of keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def shown_numbers(document: ResultsDocument) -> str:
    """Digest of the numbers of a run, the courses of TTM included: what a screenshot of its report shows."""
    curves = figures.curves(document) if document.ttm else {}
    return digest({"model": document.model_name, "results": document.results, "curves": curves})


def shown_in(name: str) -> str:
    """Digest of the numbers that a screenshot has to show: of all runs or of `MAIN`."""
    if name.startswith("leaderboard"):
        return digest([shown_numbers(run.document) for run in runs()])
    return shown_numbers(read_document(MAIN))


def record(name: str, data: str) -> None:
    """Notes what a figure in docs/images was made from."""
    known = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    known[name] = {"data": data, "sha256": hashlib.sha256((IMAGES / name).read_bytes()).hexdigest()}
    RECORD.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def write() -> None:
    """Writes every text and draws every chart."""
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")
    for name, (data, draw) in charts().items():
        with mpl.rc_context(STYLE):
            figures.save(draw(), IMAGES / name)
        record(name, data)


def problems() -> list[str]:
    """What is not as the reference runs have it, a sentence each."""
    errors = [
        f"{path.relative_to(ROOT)} does not show the reference runs; run `python scripts/docs/reference.py write`"
        for path, text in texts().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    expected = {name: data for name, (data, _) in charts().items()}
    known = json.loads(RECORD.read_text(encoding="utf-8"))
    for name in sorted({*expected, *known}):
        again = "reference.py write" if name in expected else "page_screenshots.py"
        about, path = known.get(name), IMAGES / name
        if about is None or about["data"] != (expected[name] if name in expected else shown_in(name)):
            errors.append(f"docs/images/{name} shows other numbers; make it again by scripts/docs/{again}")
        elif not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != about["sha256"]:
            errors.append(f"docs/images/{name} is not the figure that was made; make it again by scripts/docs/{again}")
    return errors


def _percent(value: float, std: float | None = None) -> str:
    return f"{100 * value:.2f}" + ("" if std is None else f" ± {100 * std:.2f}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "check"))
    if parser.parse_args().what == "write":
        write()
    errors = problems()
    if errors:
        sys.exit("\n".join(errors))


if __name__ == "__main__":
    main()
