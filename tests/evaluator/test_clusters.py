"""Groups that share images, from the task to what is printed: in results, samples, stored scores and comparisons."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ttmbench
from ttmbench import stats
from ttmbench._util.file_io import file_digest
from ttmbench.cli import main
from ttmbench.errors import UsageError
from ttmbench.report.terminal import print_results
from ttmbench.results.comparison import read_run
from ttmbench.results.summary import held_out

QUICK = {"device": "cpu", "bootstrap_iters": 100, "use_cache": "off"}


class Noise:
    """Scores pairs by what image and caption are, and by nothing that fits."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def fingerprint(self):
        return {"seed": self.seed}

    def score_pairs(self, images, captions):
        keys = [
            (int(np.asarray(image)[0, 0, 0]), len(caption), self.seed)
            for image, caption in zip(images, captions, strict=True)
        ]
        return np.array([np.random.default_rng(key).normal() for key in keys], dtype=np.float32)


def flat(value):
    return np.full((8, 8, 3), value, dtype=np.uint8)


def task(copies, matching="group", count=24):
    """Groups of one image and two captions; each image stands in so many groups, every time as an object of its own."""
    images = [[flat(5 * (group // copies))] for group in range(count)]
    captions = [[f"{'a' * (group + 1)}", f"{'b' * (group + 40)}"] for group in range(count)]
    return ttmbench.Task.from_groups(images, captions, name="shared", matching=matching)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clusters")
    paths = [folder / f"{seed}.json" for seed in (1, 2)]
    settings = {"log_samples": True, "save_scores": True, **QUICK}
    return [
        ttmbench.simple_evaluate(Noise(seed), task(3), output_path=str(path), model_name=f"noise {seed}", **settings)
        for seed, path in zip((1, 2), paths, strict=True)
    ]


def test_intervals_are_of_clusters_and_say_so(runs, capsys):
    run = runs[0]
    assert run["n-samples"]["shared"] == {"original": 24, "effective": 24, "clusters": 8}
    values = np.array(list(run.group_values["shared"]["none"]["group_match"].values()))
    clusters = np.repeat(np.arange(8), 3)
    assert run["ci"]["shared"]["group_match,none"] == list(stats.score_interval(values, clusters=clusters))
    assert run.results["shared"]["group_match_stderr,none"] == stats.standard_error(values, clusters)
    assert run.results["shared"]["group_match_stderr,none"] != stats.standard_error(values)
    (note,) = run["notes"]["shared"]
    assert note.startswith("groups share images: 24 groups in 8 clusters") and "with fewer than 40" in note
    print_results(run.document)
    assert "24 groups in 8 clusters" in " ".join(capsys.readouterr().out.split())
    (saved,) = run.path.parent.glob("1*.safetensors")
    assert run["ci"]["shared"].items() <= ttmbench.score(saved)["ci"]["scores"].items()


def test_where_no_image_is_shared_nothing_changes_and_nothing_is_said():
    run = ttmbench.simple_evaluate(Noise(1), task(1), **QUICK)
    assert run["n-samples"]["shared"]["clusters"] == 24 and "shared" not in run.document.get("notes", {})
    values = np.array(list(run.group_values["shared"]["none"]["group_match"].values()))
    assert run["ci"]["shared"]["group_match,none"] == list(stats.score_interval(values))
    assert run.results["shared"]["group_match_stderr,none"] == stats.standard_error(values)


def test_metrics_over_images_are_clustered_by_the_image():
    run = ttmbench.simple_evaluate(Noise(1), task(3, "global"), **QUICK)
    key = "global_assignment_accuracy,none"
    accuracy = ttmbench.metrics.global_assignment_accuracy
    (scores,) = run.scores["shared"]["none"]
    values = np.asarray(accuracy(scores.all_pairs, scores.truth)).astype(float)
    assert run.results["shared"][key] == values.mean()
    assert run["ci"]["shared"][key] == list(stats.score_interval(values, clusters=np.repeat(np.arange(8), 3)))


def test_clusters_are_held_out_whole_until_their_groups_are_nearest_to_the_share():
    clusters = np.repeat(np.arange(6), [5, 1, 3, 2, 4, 1])
    for seed in range(30):
        held = held_out(clusters, 0.5, seed)
        order = np.random.default_rng([seed, 3]).permutation(6)
        nearest = min(range(1, 6), key=lambda drawn: abs(np.isin(clusters, order[:drawn]).sum() - 8))
        assert np.array_equal(held, np.isin(clusters, order[:nearest]))
    alone = held_out(np.arange(10), 0.3, 4)
    assert np.flatnonzero(alone).tolist() == sorted(np.random.default_rng([4, 3]).permutation(10)[:3].tolist())
    few = held_out(np.array([0, 0, 0, 1]), 0.75, 0)
    assert few.tolist() in ([True, True, True, False], [False, False, False, True])  # both sides keep one cluster
    with pytest.raises(UsageError, match="all 4 groups share images, so none can be held out"):
        held_out(np.zeros(4, dtype=int), 0.5, 0)


def test_held_out_groups_share_no_image_with_the_others():
    ttm = {"iterations": 1, "epochs": 1}
    run = ttmbench.simple_evaluate("tiny-clip", task(3, count=12), ttm=ttm, holdout=0.5, **QUICK)
    record = run["methods"]["shared"]["ttm"]["holdout"]
    assert (record["adapted"], record["scored"]) == (6, 6)


def test_compare_tests_clusters(runs, capsys, tmp_path):
    assert set(read_run(runs[0].path).groups["shared"].clusters.values()) == {str(first) for first in range(0, 24, 3)}
    (row,) = ttmbench.compare(*runs, metrics=["group_match"])
    before, after = (np.array(list(run.group_values["shared"]["none"]["group_match"].values())) == 1 for run in runs)
    clusters = np.repeat(np.arange(8), 3)
    assert (row["groups"], row["clusters"], row["test"]) == (24, 8, "mcnemar")
    assert row["p"] == stats.mcnemar(before, after, clusters) != stats.mcnemar(before, after)
    assert main(["compare", *(str(run.path) for run in runs), "-o", str(tmp_path / "c.md")]) == 0
    assert "shared: groups share images: 24 groups in 8 clusters" in " ".join(capsys.readouterr().out.split())
    assert "24 groups in 8 clusters" in (tmp_path / "c.md").read_text()
    baseline = ttmbench.simple_evaluate(Noise(2), task(3), baseline=str(runs[0].path), **QUICK)
    mine = next(row for row in baseline["baseline"]["rows"] if row["metric"] == "group_match")
    assert mine["p"] == row["p"] and mine["clusters"] == 8


def test_samples_without_clusters_say_so(runs, tmp_path, capsys):
    for path in runs[0].path.parent.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    for path in tmp_path.glob("*samples*.jsonl"):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert all(line.pop("cluster") for line in lines)
        before, document = file_digest(path), path.with_name(f"{path.name[0]}.json")
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        document.write_text(document.read_text(encoding="utf-8").replace(before, file_digest(path)), encoding="utf-8")
    (row,) = ttmbench.compare(tmp_path / "1.json", tmp_path / "2.json", metrics=["group_match"])
    (before, after) = (np.array(list(run.group_values["shared"]["none"]["group_match"].values())) for run in runs)
    assert row["clusters"] is None and row["p"] == stats.mcnemar(before == 1, after == 1)
    assert main(["compare", str(tmp_path / "1.json"), str(tmp_path / "2.json")]) == 0
    assert "do not say which groups share images" in " ".join(capsys.readouterr().out.split())


def test_stored_features_have_no_images_and_compare_says_so(tmp_path, capsys):
    """No image was opened, so none can be shared."""
    for name in ("one", "two"):
        rows = np.random.default_rng(len(name)).normal(size=(2, 12, 8)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", img=rows[0], cap=rows[1])
        words = ["--model", "embeddings", "--model_args", f"path={tmp_path / name}.npz", "--tasks", "shapes_color"]
        assert main([*words, "--limit", "6", "--log_samples", "-o", str(tmp_path / f"{name}.json")]) == 0
    capsys.readouterr()
    runs = [str(tmp_path / "one.json"), str(tmp_path / "two.json")]
    assert main(["compare", *runs, "-o", str(tmp_path / "c.md")]) == 0, "embeddings differ, the groups do not"
    for text in (capsys.readouterr().out, (tmp_path / "c.md").read_text()):
        assert "do not say which groups share images" in " ".join(text.split()).replace("\\_", "_")
    other = [str(tmp_path / "three.json"), "--model_args", f"path={tmp_path / 'one'}.npz", "--limit", "5"]
    assert main([*words[:2], *words[4:], *other[1:], "--log_samples", "-o", other[0]]) == 0
    assert main(["compare", runs[0], other[0]]) == 2
    err = capsys.readouterr().err
    assert "none (precomputed embeddings of 6 of 200 groups)" in err and "of 5 of 200" in err
