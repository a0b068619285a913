"""The plan for one hour of a GPU: its steps are commands of this project, and a stopped one goes on."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from ttmbench.cli.parser import build_parser, normalise
from ttmbench.reproduce.rows import select
from ttmbench.reproduce.tables import load_table

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu_hour.sh"


def run(*options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *map(str, options)], capture_output=True, text=True, check=False)


def test_the_plan_fits_into_an_hour_and_its_commands_are_there(tmp_path):
    printed = run("--dry_run", tmp_path / "out")
    assert printed.returncode == 0 and not (tmp_path / "out").exists()
    total = int(printed.stdout.splitlines()[-1].split()[0])
    assert 3000 < total <= 3600
    lines = (SCRIPT.with_suffix(".tsv")).read_text().splitlines()
    steps = [line.split("\t") for line in lines if not line.startswith("#")]
    assert [name for name, _, _ in steps][:2] == ["doctor", "gpu_tests"] and steps[-1][0] == "study"
    for part in (part for _, _, command in steps for part in command.partition("||")[0].split("&&")):
        words = shlex.split(part)
        assert words[0] == "python"
        if words[1:3] == ["-m", "ttmbench"]:
            words = normalise(words[3:])
            options = build_parser(words[0]).parse_args(words)
            assert options.execute
            if words[0] == "reproduce":
                assert select(load_table(options.name), options.models, options.tasks or []).numbers
        else:
            files = [word for word in words if word.endswith(".py")]
            assert files and all((ROOT / file).is_file() for file in files)


def test_finished_steps_are_skipped_and_one_over_its_budget_is_killed_and_begun_again(tmp_path):
    plan = tmp_path / "plan.tsv"
    plan.write_text(
        '# steps\nfirst\t9\techo once >> "$OUT/count"\nslow\t1\ttest -e "$RUNS" || sleep 60\nwrong\t9\tcat; exit 4\n'
    )
    first = run("--steps", plan, tmp_path / "out")
    assert first.returncode == 1
    summary = (tmp_path / "out" / "summary.tsv").read_text()
    states = [line.split("\t")[:2] for line in summary.splitlines()[1:]]
    assert states == [["first", "done"], ["slow", "out of time"], ["wrong", "failed 4"]]
    (tmp_path / "out" / "runs").mkdir()
    second = run("--steps", plan, tmp_path / "out")
    assert "first: done before" in second.stdout and "slow: done after" in second.stdout
    assert (tmp_path / "out" / "first" / "count").read_text() == "once\n"
    assert "wrong: the 0 seconds are over" in run("--steps", plan, "--seconds", "0", tmp_path / "out").stdout


@pytest.mark.parametrize(("options", "message"), [(["--nope"], "unknown option"), (["--steps", "no.tsv"], "no file")])
def test_a_wrong_option_ends_before_anything_is_written(options, message, tmp_path):
    done = run(*options, tmp_path / "out")
    assert done.returncode == 2 and message in done.stderr and not (tmp_path / "out").exists()
