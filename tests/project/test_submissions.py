"""What lies in results/: submissions are sound, and reference runs lack what they did not keep, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from ttmbench.cli import main
from ttmbench.cli.validate import read_command
from ttmbench.plugins.registry import build_registry
from ttmbench.reproduce.submission.check import check_submission

RESULTS = Path(__file__).resolve().parents[2] / "results"
SUBMISSIONS = sorted((RESULTS / "submissions").rglob("results_*.json"))
REFERENCE = sorted(path for path in (RESULTS / "reference").glob("*.json") if not path.name.startswith("study_"))


@pytest.fixture(scope="module")
def registry():
    return build_registry()


@pytest.mark.parametrize("path", SUBMISSIONS, ids=lambda path: path.parent.name)
def test_a_submission_that_lies_here_is_sound(path, registry):
    findings = check_submission(path, registry, read_command)
    assert not findings.found and findings.compared > 1000, [one.line for one in findings.found]


def test_there_are_submissions():
    assert SUBMISSIONS and REFERENCE


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.name)
def test_reference_runs_lack_scores_and_agree_with_all_that_is_there(path, registry):
    findings = check_submission(path, registry, read_command, with_data=False)
    assert not findings.wrong, [one.line for one in findings.wrong]
    assert findings.unchecked and all("there is no file" in one.line for one in findings.unchecked)


def test_the_site_is_made_of_them(tmp_path, capsys):
    assert main(["leaderboard", str(RESULTS), "--published", "all", "--site", str(tmp_path / "site")]) == 0
    page = (tmp_path / "site" / "tasks" / "shapes_color.html").read_text(encoding="utf-8")
    assert "tiny-clip-seed1" in page and (tmp_path / "site" / "models" / "tiny-clip.html").is_file()
