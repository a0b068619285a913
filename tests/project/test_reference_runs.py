"""All documents of results/ from one command at one commit: that they agree, and how the command makes them."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from threading import Lock
from types import SimpleNamespace

import pytest
from support import processes
from support.checkout import ROOT, load_script

from ttmbench.results.reader import parse_document

RAW = "ttmbench --model tiny-clip --tasks shapes_color --limit 4 --device cpu --bootstrap_iters 0 --output_path"


@pytest.fixture(scope="module")
def script():
    """With processes that have imported what reads no variable, one at a time."""
    made, one_at_a_time = load_script("reference_runs"), Lock()

    def run(words, **how):
        if words[0] != sys.executable:
            return subprocess.run(words, **how)
        with one_at_a_time:
            return processes.run(words[1:], **how)

    made.subprocess = SimpleNamespace(run=run, STDOUT=subprocess.STDOUT)
    return made


@pytest.fixture
def checkout(tmp_path):
    """A small repository with an old reference document."""
    for folder in ("results/reference", "results/submissions/tiny-clip"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("reference/old.json", "submissions/tiny-clip/results_1.json"):
        (tmp_path / "results" / name).write_text("{}", encoding="utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "old")
    return tmp_path


def git(folder, *words):
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_documents_here_are_of_one_commit_and_one_version_and_state_one_number_for_one_thing(script):
    documents = script.documents_of(ROOT)
    assert len(documents) == len(script.RUNS)
    assert script.contradictions(documents) == []
    assert sorted(one.command for one in documents.values()) == sorted(script.RUNS)


def test_the_page_states_the_runs(script):
    page = (ROOT / "results" / "README.md").read_text(encoding="utf-8").splitlines()
    assert set(script.RUNS) <= set(page) and "make reference" in page


def test_a_second_number_for_one_thing_is_found(script):
    first = json.loads((ROOT / "results" / "reference" / "first.json").read_text(encoding="utf-8"))

    def compared(other):
        return script.contradictions({"a": parse_document(first), "b": parse_document(copy.deepcopy(other))})

    assert compared(first) == []
    other = copy.deepcopy(first)
    other["results"]["shapes_color"]["group_match,ttm"] = 0.5
    (line,) = compared(other)
    value = first["results"]["shapes_color"]["group_match,ttm"]
    assert line.startswith(f"tiny-clip shapes_color group_match,ttm: {value} in a, 0.5 in b")
    other["ttm"]["shapes_color"]["seeds"] = [4, 5, 6, 7]
    assert compared(other) == [], "of other seeds"
    for changed in ({"git_hash": "0" * 40}, {"packages": {**first["packages"], "ttmbench": "9"}}):
        assert len(compared({**first, **changed})) == 2


def test_runs_of_one_command_are_of_the_commit_and_replace_the_old(script, checkout):
    commands = (f"{RAW} results/reference/first.json", f"{RAW} results/submissions")
    assert script.make(checkout, commands, (), checkout / "logs") == []
    documents = script.documents_of(checkout)
    assert {one.git_hash for one in documents.values()} == {git(checkout, "rev-parse", "HEAD")}
    assert {one.command for one in documents.values()} == set(commands)
    names = sorted(path.name for path in (checkout / "results" / "reference").iterdir())
    assert names == ["first.json"]
    assert len(list((checkout / "results" / "submissions" / "tiny-clip").glob("results_*.json"))) == 1


def test_a_run_that_fails_is_named_with_its_log(script, checkout):
    (line,) = script.make(checkout, ["ttmbench --model absent --tasks shapes_color"], (), checkout / "logs")
    assert "0.log: ttmbench --model absent" in line
    assert "absent" in (checkout / "logs" / "0.log").read_text(encoding="utf-8")


def test_a_checkout_with_changes_is_refused_and_keeps_its_documents(script, checkout):
    (checkout / "changed.py").write_text("", encoding="utf-8")
    (line,) = script.make(checkout, [], (), checkout / "logs")
    assert line == "the checkout must be clean, and 1 files are not committed (the first: changed.py)"
    assert (checkout / "results" / "reference" / "old.json").exists()
