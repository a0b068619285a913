"""The page of evidence: every line has a command that exists, and its figures stand where it says."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
from support.checkout import ROOT, load_script
from support.command_words import problem

import ttmbench

PAGE = ROOT / "docs" / "why-believe-it.md"
TEXT = PAGE.read_text(encoding="utf-8")


EVIDENCE = load_script("docs/evidence")
ROWS = EVIDENCE.rows(TEXT)


def test_the_page_has_its_rows():
    assert len(ROWS) > 30
    assert len(ROWS) == sum(line.startswith("| ") and "`" in line for line in TEXT.splitlines())
    assert {row.needs for row in ROWS} == {"", "minutes", "files", "root"}


@pytest.mark.parametrize("row", ROWS, ids=[row.claim[:50] for row in ROWS])
def test_a_line_has_a_command_that_exists(row):
    assert row.claim and row.found and problem(shlex.split(row.command), "why-believe-it.md") is None


@pytest.mark.parametrize("row", ROWS, ids=[row.claim[:50] for row in ROWS])
def test_the_figures_of_a_line_stand_where_it_says(row):
    if row.stands_in == "here":
        return
    (target,) = re.findall(r"^\[[^\]]+\]\(([^)#]+)[^)]*\)$", row.stands_in)
    there = (PAGE.parent / target).read_text(encoding="utf-8").replace(",", "")
    for figure in re.findall(r"(?<![\w.])\d[\d.]*(?:e-?\d+)?", row.found):
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d])", there), (row.claim, figure, target)


def test_what_stands_on_the_page_itself_is_what_its_command_prints(capsys):
    from ttmbench.cli import main

    row = next(row for row in ROWS if row.command.startswith("ttmbench reproduce"))
    words = [str(ROOT / word) if word.startswith("results/") else word for word in shlex.split(row.command)[1:]]
    assert main(words) == 0
    counted = re.search(r"(\d+) numbers: agrees (\d+)", capsys.readouterr().out)
    assert row.found == f"{counted[2]} of {counted[1]} agree"


def test_the_last_run_was_of_this_version_and_of_every_quick_line():
    said = TEXT[TEXT.index("<!-- evidence -->") :]
    assert f"ttmbench {ttmbench.__version__}," in said
    assert f"{sum(not row.needs for row in ROWS)} commands succeeded" in said, "python scripts/docs/evidence.py run"


@pytest.mark.parametrize(
    ("code", "printed", "is_evidence"),
    [(0, "== 2 passed, 1 skipped in 3.1s ==", True), (0, "1 skipped in 0.1s", False), (1, "1 failed, 2 passed", False)],
)
def test_a_command_that_fails_or_runs_no_test_is_no_evidence(monkeypatch, code, printed, is_evidence):
    done = subprocess.CompletedProcess([], code, printed, "")
    monkeypatch.setattr(EVIDENCE.subprocess, "run", lambda *_, **__: done)
    if is_evidence:
        assert EVIDENCE.run("python -m pytest tests/x.py") == "2 passed, 1 skipped"
    else:
        with pytest.raises(SystemExit, match=printed):
            EVIDENCE.run("python -m pytest tests/x.py")
