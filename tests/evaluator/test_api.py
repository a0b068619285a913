"""The API of programs: settings by keyword, names of adapters, results read back, compared and as tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ttmbench
from ttmbench import DataError, UsageError, errors
from ttmbench.cli import main

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "results" / "reference"


class Bias:
    """Prefers long captions by as much as its weight says."""

    def __init__(self, weight):
        self.weight = weight

    def fingerprint(self):
        return {"kind": "bias", "weight": self.weight}

    def score_pairs(self, images, captions):
        noise = [np.asarray(image, dtype=np.float32).mean() for image in images]
        return np.array([self.weight * len(text) + one for text, one in zip(captions, noise, strict=True)], np.float32)


def run(adapter, tasks="shapes_place", **settings):
    return ttmbench.simple_evaluate(adapter, tasks, limit=6, bootstrap_iters=0, **settings)


def test_settings_reach_the_run():
    result = run(
        Bias(1), task_args={"seed": 3}, methods=["sinkhorn"], seeds=(4, 5), device="cpu", interval="bca", seed=2
    )
    config = result["config"]
    assert (config["task_args"], config["seeds"], config["interval"], config["seed"]) == ({"seed": 3}, [4, 5], "bca", 2)
    with pytest.raises(UsageError, match="limit"):
        ttmbench.simple_evaluate(Bias(1), "shapes_place", limit=0)
    with pytest.raises(UsageError, match="did you mean 'limit'"):
        ttmbench.simple_evaluate(Bias(1), "shapes_place", limits=3)


def leaderboard_models(folder, capsys):
    assert main(["leaderboard", str(folder), "--output_path", str(folder / "board")]) == 0
    capsys.readouterr()
    return {row["model"] for row in json.loads((folder / "board" / "leaderboard.json").read_text())["rows"]}


def test_two_checkpoints_of_one_class_are_two_models(tmp_path, capsys):
    one, two = (run(Bias(weight), output_path=str(tmp_path)) for weight in (1.0, -1.0))
    again = run(Bias(1.0), output_path=str(tmp_path))
    assert one.model_name.startswith("Bias-") and len(one.model_name) == 13
    assert one.model_name != two.model_name and again.path == one.path
    assert one.path.parent != two.path.parent
    assert leaderboard_models(tmp_path, capsys) == {one.model_name, two.model_name}


def test_an_adapter_may_say_what_it_is_called_and_the_caller_has_the_last_word(tmp_path, capsys):
    named = Bias(1.0)
    named.model_name = "bias/long"
    own = run(named, output_path=str(tmp_path))
    given = run(named, output_path=str(tmp_path), model_name="mine")
    assert (own.model_name, given.model_name) == ("bias/long", "mine")
    assert (own.path.parent.name, given.path.parent.name) == ("bias__long", "mine")
    assert own["config"]["model"] == given["config"]["model"] == "Bias"
    assert leaderboard_models(tmp_path, capsys) == {"bias/long", "mine"}
    assert run("tiny-clip", model_name="other").model_name == "other"
    assert run("tiny-clip").model_name == "tiny-clip"


def test_without_a_fingerprint_a_name_is_needed_where_results_are_written(tmp_path):
    class Silent:
        def score_pairs(self, images, captions):
            return np.arange(len(captions), dtype=np.float32)

    assert run(Silent()).model_name == "Silent"
    with pytest.raises(UsageError, match=r"Silent states no fingerprint, .* give simple_evaluate a model_name"):
        run(Silent(), output_path=str(tmp_path))
    assert not list(tmp_path.iterdir())
    assert run(Silent(), output_path=str(tmp_path), model_name="quiet").path.parent.name == "quiet"


def test_what_is_no_adapter_is_told_at_once():
    with pytest.raises(UsageError, match=r"Bias is a class; give an object of it: Bias\(\.\.\.\)"):
        run(Bias)
    with pytest.raises(UsageError, match="model dict: dict can neither score pairs"):
        run({})


def test_results_are_shown_in_a_few_lines():
    result = run("tiny-clip", "shapes_place,shapes_color")
    lines = repr(result).splitlines()
    percent = 100 * result.results["shapes_color"]["group_match,none"]
    assert lines[0] == "EvalResults: tiny-clip, done, 2 tasks"
    assert lines[2].startswith("  shapes_color: 6 groups, percent: ")
    assert f"group_match,none {percent:.2f}" in lines[2] and len(lines) == 3
    (reference,) = ttmbench.read_results(REFERENCE / "builtin.json")
    assert len(repr(reference).splitlines()) <= 10


def test_a_failed_task_is_shown():
    class Broken(Bias):
        def score_pairs(self, images, captions):
            raise RuntimeError("no power")

    result = run(Broken(1), on_error="continue")
    assert "failed: shapes_place: " in repr(result) and "no power" in repr(result)
    assert result.to_frame().empty


def test_results_are_read_from_a_file_and_from_a_folder(tmp_path, capsys):
    first = run(Bias(1.0), output_path=str(tmp_path / "runs"), log_samples=True)
    run(Bias(2.0), output_path=str(tmp_path / "runs"))
    (tmp_path / "runs" / "notes.json").write_text('{"a": 1}')
    (tmp_path / "runs" / "old.json").write_text('{"schema_version": "7.0", "results": {}}')
    (alone,) = ttmbench.read_results(first.path)
    assert dict(alone) == json.loads(first.path.read_text()) and alone.path == first.path
    assert list(alone.values()) == list(dict(alone).values())  # a mapping in every way
    assert alone.group_values == first.group_values and alone.to_frame().equals(first.to_frame())
    found = ttmbench.read_results(str(tmp_path / "runs"))
    assert len(found) == 2 and {one.model_name for one in found} >= {first.model_name}
    told = capsys.readouterr().err
    assert "old.json is skipped: it has schema 7.0" in told and "notes.json" not in told
    with pytest.raises(DataError, match=r"notes\.json: is not a results document"):
        ttmbench.read_results(tmp_path / "runs" / "notes.json")
    with pytest.raises(UsageError, match="does not exist"):
        ttmbench.read_results(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no results document"):
        ttmbench.read_results(tmp_path / "empty")


def test_compare_takes_results_and_paths(tmp_path):
    settings = {"log_samples": True, "output_path": str(tmp_path)}
    one, two = run(Bias(1.0)), run("tiny-clip", **settings)
    rows = ttmbench.compare(one, two)
    assert rows == ttmbench.compare(one, two.path) == ttmbench.compare(one, str(two.path))
    for row in rows:
        numbers = [result.results[row["task"]][f"{row['metric']},none"] for result in (one, two)]
        assert [row["baseline"], row["other"]] == numbers and row["groups"] == 6
        assert row["difference"] == pytest.approx(numbers[1] - numbers[0])
    chosen = ttmbench.compare(one, two, metrics=["group_match"])
    assert [row["metric"] for row in chosen] == ["group_match"]
    with pytest.raises(UsageError, match=r"--metrics recall: .*group_match"):
        ttmbench.compare(one, two, metrics=["recall"])
    with pytest.raises(UsageError, match="holds raw numbers only"):
        ttmbench.compare(one)
    with pytest.raises(DataError, match="no values of groups to compare"):
        ttmbench.compare(one, REFERENCE / "first.json")


TWO = [[[2.0, 1.0], [0.0, 3.0]], [[1.0, 2.0], [0.0, 0.5]]]  # the first group is right in every way


def test_an_array_of_scores_has_every_metric():
    result = ttmbench.score(TWO)
    expected = {"text_score": 0.5, "image_score": 0.5, "group_score": 0.5, "group_match": 0.5, "individual_match": 0.75}
    assert {name: result.results["scores"][f"{name},none"] for name in expected} == expected
    assert result.results["scores"]["global_assignment_accuracy,none"] is None
    assert result["datasets"]["scores"]["shape"] == [2, 2] and result["n-samples"]["scores"]["effective"] == 2
    assert result.scores["scores"]["none"][0].groups.tolist() == TWO
    assert ttmbench.score(TWO, all_pairs=np.eye(4)).results["scores"]["global_assignment_accuracy,none"] == 1.0


def test_scores_of_a_task_have_its_shape_and_size(tmp_path):
    draws = np.random.default_rng(0).normal(size=(400, 2, 2)).astype(np.float32)
    result = ttmbench.score(draws, "winoground", model_name="noise")
    assert result.model_name == "noise" and list(result.results) == ["winoground"]
    file = tmp_path / "noise.npz"
    np.savez(file, scores=draws)
    from_file = ttmbench.score(file, "winoground")
    assert from_file.results == result.results and from_file.model_name == "noise"
    assert ttmbench.score(draws[:7], "winoground", limit=7)["n-samples"]["winoground"]["effective"] == 7
    image = np.zeros((8, 8, 3), np.uint8)
    task = ttmbench.Task.from_groups([[image, image]] * 2, [["a", "b"]] * 2, name="mine", metrics=["group_match"])
    np.savez(tmp_path / "two.npz", scores=np.array(TWO))
    own = ttmbench.score(TWO, task)
    assert own.results == ttmbench.score(tmp_path / "two.npz", task).results
    assert next(iter(own["ci"]["mine"])) == "group_match,none"


def test_files_of_scores_need_no_task_and_give_their_arrays(tmp_path, capsys):
    draws = np.random.default_rng(1).normal(size=(37, 2, 3)).astype(np.float32)
    np.save(tmp_path / "a.npy", draws)
    np.savez(tmp_path / "b.npz", anything=draws)
    lines = [{"label": f"{g}_c{c}_i{i}", "score": float(draws[g, i, c])} for g, i, c in np.ndindex(draws.shape)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    samples = [{"group_id": str(g), "scores": block.tolist()} for g, block in enumerate(draws)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(line) + "\n" for line in samples))
    expected = ttmbench.score(draws)
    for name in ("a.npy", "b.npz", "c.jsonl", "d.jsonl"):
        result = ttmbench.score(tmp_path / name)
        assert result.results == expected.results and result["ci"] == expected["ci"], name
        assert result.scores["scores"]["none"][0].groups.tolist() == draws.tolist(), name
        assert main(["score", str(tmp_path / name)]) == 0
        assert "37 groups of 2 x 3 (images x captions)" in capsys.readouterr().out.replace("\n", " ")
    saved = run("tiny-clip", output_path=str(tmp_path / "run.json"), save_scores=True)
    again = ttmbench.score(next(tmp_path.glob("run_scores_*")))
    shown = {key: value for key, value in saved.results["shapes_place"].items() if key in again.results["scores"]}
    assert shown.keys() == saved.results["shapes_place"].keys()
    assert all(again.results["scores"][key] == value for key, value in shown.items())


def test_what_a_file_without_a_task_does_not_say(tmp_path, capsys):
    np.savez(tmp_path / "e.npz", img=np.eye(4), cap=np.eye(4))
    np.save(tmp_path / "small.npy", np.zeros((3, 1, 1)))
    np.save(tmp_path / "two.npy", np.array(TWO))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "two.npy").read_bytes()[:-8])
    for name, words in (
        ("e.npz", "embeddings do not say how many images and captions a group has; name the task"),
        ("small.npy", "has scores of 1 images and 1 captions: a group needs"),
        ("cut.npy", "a header promises 8 numbers"),
    ):
        with pytest.raises(DataError, match=words):
            ttmbench.score(tmp_path / name)
        assert main(["score", str(tmp_path / name)]) == 4 and capsys.readouterr().err.count("\n") == 1
    assert main(["score", str(tmp_path / "two.npy"), "--limit", "2"]) == 2
    assert "--limit says that scores are of a task's first groups" in capsys.readouterr().err
    with pytest.raises(UsageError, match="limit says"):
        ttmbench.score(TWO, limit=2)


@pytest.mark.parametrize(
    ("scores", "settings", "error", "words"),
    [
        (np.zeros((3, 2)), {}, DataError, r"float64 \[3, 2\]; expected numbers \[groups, images, captions\]"),
        (np.zeros((2, 1, 1)), {}, DataError, "at least 2 images or 2 captions"),
        (np.zeros((2, 2, 2)), {"task": "winoground"}, DataError, "has 2 groups, but task 'winoground' .* has 400"),
        (np.zeros((2, 2, 3)), {"task": "winoground"}, DataError, r"needs \[groups, 2 images, 2 captions\]"),
        (np.zeros((2, 2, 2)), {"task": "winogroud"}, UsageError, "did you mean 'winoground'"),
        ([[[1, 2], [3, 4]], [[1, 2], [np.nan, 4]]], {}, DataError, "group 1 has a score that is nan"),
        ([[[2**53 + 1, 2**53], [0, 1]]], {}, DataError, r"integers beyond 2\^53"),
        (np.zeros((1, 2, 2)), {"all_pairs": np.zeros((2, 3))}, DataError, r"finite logits \[2, 2\], got \[2, 3\]"),
        ("scores.npz", {}, DataError, "scores.npz: cannot be read"),
        ("absent.npz", {"task": "winoground"}, DataError, "absent.npz: cannot be read"),
    ],
)
def test_scores_that_are_none_are_told(scores, settings, error, words):
    with pytest.raises(error, match=words):
        ttmbench.score(scores, **settings)


def test_tasks_and_models_are_listed_by_name_tag_and_glob(tmp_path, folder_task):
    everything = ttmbench.list_tasks()
    assert "shapes_color" in everything and everything == sorted(everything)
    assert {"shapes_color", "shapes_place"} <= set(ttmbench.list_tasks("shapes_*")) < set(everything)
    assert "winoground" in ttmbench.list_tasks("compositional", "shapes_color") and ttmbench.list_tasks("nothing") == []
    assert "mine" in ttmbench.list_tasks(include_path=[str(folder_task())])
    models = ttmbench.list_models()
    assert "tiny-clip" in models and models == sorted(models)
    assert ttmbench.list_models("siglip*") == [name for name in models if name.startswith("siglip")] != []


def test_every_name_that_is_exported_is_there_and_typed():
    for name in ttmbench.__all__:
        assert getattr(ttmbench, name) is not None, name
    assert set(ttmbench._MODULE_OF) | set(ttmbench._MODULES) | {"__version__"} == set(ttmbench.__all__)
    kinds = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, Exception)}
    assert kinds <= set(ttmbench.__all__)
