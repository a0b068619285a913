"""Tables of the command line in terminals of several widths, in files, and where a character is missing."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import processes

from ttmbench._util.console import SPELT
from ttmbench.cli import main
from ttmbench.data.benchmarks import benchmarks
from ttmbench.data.task_file import all_tasks
from ttmbench.plugins.registry import build_registry
from ttmbench.report.terminal import TableColumn, interval_text, number_text, print_results, print_table
from ttmbench.results.numbers import Number
from ttmbench.results.reader import read_document

WIDTHS = (60, 80, 120, 200)
COLUMNS = [
    TableColumn("metric", "key"),
    TableColumn("value", "number", 3),
    TableColumn("95% interval", "number", 1),
    *(TableColumn(name, "number", 2) for name in ("chance", "p (Holm)")),
    TableColumn("note"),
]
NUMBERS = ["32.50 ± 1.20", "-12.3 .. +37.5", "2.50", "<0.001"]
ROWS = [
    ["shapes_color_global"],
    ["global_assignment_accuracy", *NUMBERS, "one two"],
    ["group_match", "65.00", "43.3 .. 81.9", "50.00", "1.000", "captions " * 12],
]


class Terminal(io.StringIO):
    """Stdout that is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def printed(monkeypatch, columns: int, what, stream: io.StringIO | None = None) -> str:
    """What a terminal of so many columns shows, without its codes for bold."""
    stream = stream or Terminal()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", stream)
    what()
    monkeypatch.undo()
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())


def dropped(text: str) -> list[str]:
    """The columns that a table says it has no room for."""
    found = re.search(r"Columns that do not fit in \d+ characters: (.*)", " ".join(text.split()))
    return found[1].split(", ") if found else []


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_fits_and_breaks_no_number(monkeypatch, width, stream):
    caption = "caption " * 30
    text = printed(monkeypatch, width, lambda: print_table(COLUMNS, ROWS, title="title", caption=caption), stream())
    assert max(map(len, text.splitlines())) <= width
    for row in ROWS[1:]:
        for column, cell in zip(COLUMNS[1:5], row[1:5], strict=True):
            is_whole = re.search(rf"(?<!\S){re.escape(cell)}(?!\S)", text)
            assert bool(is_whole) != (column.name in dropped(text)), (width, cell)
    assert "shapes_color_global" in text and text.count("group_match") == 1
    assert "".join(text.split()).count("caption" * 3) >= 1


def test_a_table_may_be_empty(capsys):
    print_table([TableColumn("", "key"), TableColumn("value", "number")], [])
    assert capsys.readouterr().out.startswith("   value\n")


def test_the_least_important_columns_are_dropped_first(monkeypatch):
    names = {at: dropped(printed(monkeypatch, at, lambda: print_table(COLUMNS, ROWS))) for at in (*WIDTHS, 48, 22)}
    assert names[200] == names[120] == [] and names[80] == names[60] == ["note"]
    assert names[48] == ["95% interval", "note"] and names[22] == ["95% interval", "chance", "p (Holm)", "note"]


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
@pytest.mark.parametrize("width", WIDTHS)
def test_results_fit(monkeypatch, width, stream, reference_document):
    text = printed(monkeypatch, width, lambda: print_results(reference_document), stream())
    assert max(map(len, text.splitlines())) <= width
    for task, numbers in reference_document["results"].items():
        metric = "global_assignment_accuracy" if task.endswith("_global") else "group_match"
        value = f"{100 * numbers[f'{metric},ttm']:.2f}"
        spread = f"{100 * numbers[f'{metric}_seed_std,ttm']:.2f}"
        assert f"{value} ± {spread}" in text, task


@pytest.fixture
def reference_document(pytestconfig):
    return read_document(pytestconfig.rootpath / "results" / "reference" / "builtin.json").to_dict()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "words",
    [["ls", "tasks"], ["ls", "models"], ["ls", "tags"],
     ["ls", "metrics"], ["doctor", "--tasks", "winoground,shapes_place"], ["reproduce", "ttm_table1"], ["reproduce"]],
    ids=" ".join,
)  # fmt: skip
def test_commands_fit(monkeypatch, width, words):
    lines = printed(monkeypatch, width, lambda: main(words)).splitlines()
    body = lines if words[0] != "reproduce" else [line for line in lines if not line.endswith((".", "percent"))]
    assert body and max(map(len, body)) <= width


@pytest.mark.parametrize("columns", [None, "", "0", "wide", "-3"])
def test_a_pipe_has_no_width(monkeypatch, capsys, columns):
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    print_table(COLUMNS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and "captions " * 11 + "captions" in lines[4], "nothing wrapped or dropped"
    assert all(line == line.rstrip() for line in lines)


class Windows(io.TextIOWrapper):
    """Stdout as a Windows program has it that is piped, or whose console is old."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="cp1252", errors=SPELT, newline="\n")

    def isatty(self) -> bool:
        return True

    def getvalue(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode("cp1252")


def test_a_console_without_lines_gets_dashes(monkeypatch):
    rows = [["猫", "1.00 ± 0.20"]]
    text = printed(monkeypatch, 80, lambda: print_table(COLUMNS[:2], rows), Windows())
    assert "-----" in text and "1.00 ± 0.20" in text and "\\u732b" in text


def test_a_reader_that_has_enough_ends_in_silence():
    """As `ttmbench ls tasks | head -1` closes its end."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = processes.start(["-m", "ttmbench", "ls", "tasks"], cold=True, **pipes)  # how Python itself ends counts
    assert command.stdout is not None and command.stderr is not None
    command.stdout.close()
    assert command.stderr.read() == "" and command.wait(timeout=600) == 0
    command.stderr.close()


def test_a_listing_has_one_line_a_task_below_its_benchmark(monkeypatch):
    rows = printed(monkeypatch, 80, lambda: main(["ls", "tasks"])).splitlines()[2:]
    state = "present|missing|gated|unknown"
    task = rf"([\w-]+) +(\d+x(\d+|\?)( \(\d true\))?|global) +(\d+|-) +({state})$"
    names = [row.split()[0] for row in rows if re.match(task, row)]
    assert sorted(names) == sorted(all_tasks(build_registry()))
    assert rows[0].startswith("Winoground: ") and names[:2] == ["winoground", "winoground_global"]
    assert all(any(row.startswith(f"{one.title}: ") for row in rows) for one in benchmarks())


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(["key", "number", "text"]), min_size=1, max_size=5).filter(lambda kinds: "key" in kinds),
    st.lists(st.integers(1, 40), min_size=5, max_size=5),
    st.integers(20, 60),
)
def test_every_column_is_shown_whole_or_dropped(monkeypatch, kinds, lengths, width):
    kinds = [kind if kinds[:place].count("key") < 2 else "number" for place, kind in enumerate(kinds)]
    columns = [TableColumn(f"{place}:", kind) for place, kind in enumerate(kinds)]
    cells = [str(place) * length for place, length in enumerate(lengths[: len(kinds)])]
    text = printed(monkeypatch, width, lambda: print_table(columns, [cells]))
    assert max(map(len, text.splitlines())) <= width
    names = [column.name for column in columns if column.kind != "key"]
    left_out = dropped(text)
    assert left_out == names[len(names) - len(left_out) :], "of equal importance the last columns are dropped"
    shown = [(column, cell) for column, cell in zip(columns, cells, strict=True) if column.name not in left_out]
    table = text.partition("Columns that")[0].splitlines()[2:]
    for column, cell in shown:
        assert "".join(table).count(cell[0]) == len(cell) and (column.kind != "number" or cell in table[0]), text


def test_gains_of_nothing_have_no_sign():
    number = Number("t", "m", "ttm", 0.625, seeds=(0, 1, 2), seed_std=0.0)
    assert number_text(number) == "62.50 (3 seeds, identical)" and number_text(None) == "-"
    assert number_text(replace(number, seed_std=0.01)) == "62.50 ± 1.00"
    assert interval_text((-0.0001, 0.025), signed=True) == "0.0 .. +2.5" and interval_text((None, None)) == "-"
