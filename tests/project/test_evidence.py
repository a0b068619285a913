"""The page of evidence: every check has a command that exists, and its figures are where it says."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
import yaml
from support.checkout import ROOT, load_script
from support.command_words import problem

import ttmbench

TEXT = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
EVIDENCE = load_script("docs/evidence")
CHECKS = [check for entries in EVIDENCE.checks().values() for check in entries]
PARITY = yaml.safe_load((ROOT / "tests" / "evidence" / "parity.yaml").read_text(encoding="utf-8"))


def test_the_page_shows_the_checks():
    assert len(CHECKS) > 30 and {check.needs for check in CHECKS} == {"", "minutes", "files", "root"}
    assert EVIDENCE.tables() in TEXT, "python scripts/docs/evidence.py write"


@pytest.mark.parametrize("check", CHECKS, ids=[check.claim[:50] for check in CHECKS])
def test_a_check_has_a_command_that_exists_and_its_figures_are_where_it_says(check):
    assert check.claim and check.found and problem(shlex.split(check.command), "evidence.md") is None
    if not check.stated:
        return
    there = (ROOT / check.stated).read_text(encoding="utf-8").replace(",", "")
    for figure in re.findall(r"(?<![\w.])\d[\d.]*(?:e-?\d+)?", check.found):
        assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d])", there), (check.claim, figure, check.stated)


def test_the_counts_of_the_shipped_table_are_what_the_command_prints(capsys):
    from ttmbench.cli import main

    check = next(check for check in CHECKS if check.command.startswith("ttmbench reproduce"))
    words = [str(ROOT / word) if word.startswith("results/") else word for word in shlex.split(check.command)[1:]]
    assert main(words) == 0
    counted = re.search(r"(\d+) numbers: agrees (\d+)", capsys.readouterr().out)
    assert check.found == f"{counted[2]} of {counted[1]} agree"


def test_the_last_run_was_of_this_version_and_of_every_quick_command():
    stated = TEXT[TEXT.index("<!-- evidence -->") :]
    assert f"ttmbench {ttmbench.__version__}," in stated
    assert f"{sum(not check.needs for check in CHECKS)} commands succeeded" in stated, "evidence.py run"


def test_every_test_that_parity_names_exists():
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for row in (row for rows in PARITY.values() for row in rows):
        assert row["what"] and row["reference"] and row["difference"], row
        named = re.findall(r"\b(test_\w+)(?!\.py|\w)", row["test"])
        assert named, row
        for name in named:
            assert f"def {name}(" in tests or list((ROOT / "tests").rglob(f"{name}.py")), name


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
