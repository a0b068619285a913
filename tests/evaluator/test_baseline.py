"""``--baseline``: differences to another run, paired where both have values, and what is refused."""

from __future__ import annotations

import json

import jsonschema
import pytest
from support.documents import schema

import ttmbench
from ttmbench._util.file_io import file_digest
from ttmbench.cli import main
from ttmbench.errors import DataError, UsageError
from ttmbench.results.comparison import adjust_for_several, compare_runs, read_run

QUICK = {"limit": 12, "device": "cpu", "bootstrap_iters": 50}
SHORT = {"iterations": 2, "epochs": 1}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """A run, and its document without the samples beside it."""
    folder = tmp_path_factory.mktemp("earlier")
    path = str(folder / "samples.json")
    ttmbench.simple_evaluate("tiny-clip", "shapes_color", ttm=SHORT, seeds=[0, 1], output_path=path, **QUICK)
    copy = json.loads((folder / "samples.json").read_text())
    copy["artifacts"] = {f"gone_{name}": about for name, about in copy["artifacts"].items()}
    (folder / "plain.json").write_text(json.dumps(copy))
    return folder


def test_groups_are_paired_from_memory_as_compare_pairs_them_from_files(earlier, tmp_path):
    path = tmp_path / "x.json"
    settings = {"ttm": SHORT, "seeds": [0, 1], "output_path": str(path), **QUICK}
    run = ttmbench.simple_evaluate(
        "tiny-clip-seed1", "shapes_color", baseline=str(earlier / "samples.json"), **settings
    )
    jsonschema.Draft202012Validator(schema("results")).validate(run.document)
    entry = run["baseline"]
    assert entry["model_name"] == "tiny-clip" and entry["refused"] is None
    assert entry["sha256"] == file_digest(earlier / "samples.json")
    runs = read_run(earlier / "samples.json"), read_run(path)
    expected = adjust_for_several(compare_runs(*runs, iterations=50))
    assert len(entry["rows"]) == len(expected) == 10
    by_key = {(row["metric"], row["method"]): row for row in entry["rows"]}
    for row in expected:
        found = by_key[row["metric"], row["method"]]
        assert found["paired"] and found["difference"] == pytest.approx(row["difference"])
        assert {key: found[key] for key in ("ci", "p", "p_holm", "test")} == {
            key: row[key] for key in ("ci", "p", "p_holm", "test")
        }
        assert (found["won"], found["lost"]) == (len(row["won"]), len(row["lost"]))
    assert any(row["won"] or row["lost"] for row in expected), "the two models must differ for this to say something"


def test_without_samples_of_the_baseline_the_difference_is_unpaired(earlier, capsys):
    words = ["--model", "tiny-clip-seed1", "--tasks", "shapes_color,shapes_place", "--limit", "12", "--device", "cpu"]
    assert main([*words, "--baseline", str(earlier / "plain.json")]) == 0
    out = capsys.readouterr().out
    before = json.loads((earlier / "plain.json").read_text())["results"]["shapes_color"]["text_score,none"]
    run = ttmbench.simple_evaluate("tiny-clip-seed1", "shapes_color", baseline=str(earlier / "plain.json"), **QUICK)
    (row,) = (row for row in run["baseline"]["rows"] if row["metric"] == "text_score")
    difference = run.results["shapes_color"]["text_score,none"] - before
    assert row["difference"] == pytest.approx(difference) and not row["paired"] and row["ci"] is row["p"] is None
    line = next(line for line in out.splitlines() if "text_score" in line)
    assert f"{100 * difference:+.2f}" in line and "unpaired" in line
    assert "Difference to tiny-clip in" in out


def test_other_data_are_refused_when_the_run_is_done_and_its_numbers_are_kept(earlier, tmp_path, capsys):
    path = tmp_path / "x.json"
    words = ["--model", "tiny-clip", "--tasks", "shapes_color", "--limit", "6", "--device", "cpu", "-o", str(path)]
    assert main([*words, "--baseline", str(earlier / "samples.json")]) == 2
    said = capsys.readouterr()
    assert "text_score" in said.out and len(said.err.splitlines()) == 1
    assert "has data fingerprint" in said.err and "not the same groups" in said.err
    document = json.loads(path.read_text())
    assert document["status"] == "done" and document["baseline"]["rows"] == []
    assert document["baseline"]["refused"] in said.err


def no_model(*_):
    raise AssertionError("a model was loaded")


def test_a_wrong_baseline_is_found_before_the_model_is_loaded(earlier, tmp_path, monkeypatch):
    monkeypatch.setattr("ttmbench.evaluator.evaluate.make_adapter", no_model)
    with pytest.raises(DataError, match="cannot be read"):
        ttmbench.simple_evaluate("tiny-clip", "shapes_color", baseline=str(tmp_path / "no.json"), **QUICK)
    with pytest.raises(UsageError, match="none of this run's tasks"):
        ttmbench.simple_evaluate("tiny-clip", "shapes_place", baseline=str(earlier / "plain.json"), **QUICK)
    document = json.loads((earlier / "plain.json").read_text())
    document["versions"]["shapes_color"] = 99
    (tmp_path / "other.json").write_text(json.dumps(document))
    with pytest.raises(UsageError, match=r"version 99 in .*other\.json"):
        ttmbench.simple_evaluate("tiny-clip", "shapes_color", baseline=str(tmp_path / "other.json"), **QUICK)
    assert main(["--model", "tiny-clip", "--tasks", "shapes_color", "--dry_run", "--baseline", "no.json"]) == 4


def test_a_finished_run_is_compared_without_running_anything(earlier, tmp_path, monkeypatch):
    settings = {"output_path": str(tmp_path / "x.json"), **QUICK}
    first = ttmbench.simple_evaluate("tiny-clip-seed1", "shapes_color", **settings)
    assert "baseline" not in first.document
    monkeypatch.setattr("ttmbench.evaluator.evaluate.run_task", no_model)
    again = ttmbench.simple_evaluate(
        "tiny-clip-seed1", "shapes_color", baseline=str(earlier / "samples.json"), **settings
    )
    assert again.results == first.results and all(row["paired"] for row in again["baseline"]["rows"])
