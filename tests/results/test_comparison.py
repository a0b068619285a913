"""Runs compared group by group: by hand on small samples, on real runs, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest
from support.documents import whole_document

import ttmbench
from ttmbench._util.file_io import file_digest
from ttmbench.cli import main
from ttmbench.errors import DataError, UsageError
from ttmbench.results.comparison import adjust_for_several, compare_runs, read_run
from ttmbench.results.reader import TaskGroups


def write_run(folder, name, values, *, version=1, digest="d", seeds=1, model="m"):
    """A results document with samples: values are task -> method -> metric -> list over groups."""
    artifacts = {}
    for task, methods in values.items():
        lines = []
        for label, metrics in methods.items():
            count = len(next(iter(metrics.values())))
            for seed in range(seeds):
                for group in range(count):
                    found = {metric: row[group] for metric, row in metrics.items()}
                    lines.append({"group_id": f"g{group}", "method": label, "seed_index": seed, "metrics": found})
        file = folder / f"{name}_samples_{task}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        artifacts[file.name] = {"kind": "samples", "task": task, "sha256": file_digest(file), "bytes": 1}
    document = whole_document(
        {task: {} for task in values},
        model_name=model,
        versions=dict.fromkeys(values, version),
        task_hashes=dict.fromkeys(values, digest),
        artifacts=artifacts,
    )
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document))
    return path


def adjusted(*runs, **settings):
    return adjust_for_several(compare_runs(*runs, **settings))


def one(values, task="t", label="none", metric="group_match"):
    return {task: {label: {metric: values}}}


def test_differences_flips_and_p_by_hand(tmp_path):
    before, after = [0.0] * 8 + [1.0] * 2, [1.0] * 7 + [0.0, 0.0, 1.0]
    a, b = (read_run(write_run(tmp_path, name, one(v))) for name, v in (("a", before), ("b", after)))
    (row,) = adjusted(a, b)
    assert (row["baseline"], row["other"], row["groups"], row["test"]) == (0.2, 0.8, 10, "mcnemar")
    assert row["difference"] == pytest.approx(0.6)
    assert row["won"] == [f"g{i}" for i in range(7)] and row["lost"] == ["g8"]
    assert row["p"] == pytest.approx(2 * (1 + 8) / 2**8) and row["p_holm"] == row["p"]
    assert row["smallest_difference"] == 0.6
    exact = binomtest(7, 8).proportion_ci(0.95, "exact")
    assert row["ci"] == pytest.approx([(2 * end - 1) * 0.8 for end in (exact.low, exact.high)])


def test_holm_is_over_the_tasks_of_one_metric(tmp_path):
    values = {**one([0.0] * 10, "t"), **one([0.0] * 10, "u")}
    better = {**one([1.0] * 10, "t"), **one([1.0] * 6 + [0.0] * 4, "u")}
    rows = adjusted(read_run(write_run(tmp_path, "a", values)), read_run(write_run(tmp_path, "b", better)))
    assert [row["p_holm"] for row in rows] == pytest.approx([2 * rows[0]["p"], rows[1]["p"]])


def compared(folder, metrics, **right):
    """Runs with so many right groups of 12, and the rows of their comparison."""
    values = {name: [1.0] * ones + [0.0] * (12 - ones) for name, ones in right.items()}
    of = {name: {"t": {"none": dict.fromkeys(metrics, row)}} for name, row in values.items()}
    paths = [str(write_run(folder, name, of[name], model=name)) for name in right]
    assert main(["compare", *paths, "-o", str(folder / "x.json"), "--bootstrap_iters", "20"]) == 0
    found = json.loads((folder / "x.json").read_text())["comparisons"]
    return paths, [row for one in found for row in one["rows"]]


def test_holm_is_over_all_models_of_what_is_shown(tmp_path, capsys):
    paths, rows = compared(tmp_path, ["group_match"], a=0, b=12, c=8, d=6)
    assert [row["p_holm"] for row in rows] == pytest.approx([3 * rows[0]["p"], 2 * rows[1]["p"], rows[2]["p"]])
    assert [row["holm_tests"] for row in rows] == [3, 3, 3]
    says = "p (Holm) is adjusted over all 3 tables: every model, setting, task, metric and method: at most 3 tests"
    assert says in capsys.readouterr().out
    assert main(["compare", *paths, "-o", str(tmp_path / "x.md"), "--bootstrap_iters", "20"]) == 0
    assert says in (tmp_path / "x.md").read_text()


def test_holm_is_over_all_metrics_of_several_models(tmp_path, capsys):
    paths, rows = compared(tmp_path, ["group_match", "group_score"], a=0, b=12, c=8)
    assert "at most 4 tests" in capsys.readouterr().out
    assert [row["holm_tests"] for row in rows] == [4] * 4
    assert [row["p_holm"] for row in rows] == pytest.approx([4 * rows[0]["p"]] * 2 + [2 * rows[2]["p"]] * 2)
    assert main(["compare", *paths[:2], "--bootstrap_iters", "20"]) == 0
    assert "all tasks of this table, separately for each metric and method: at most 1 test" in capsys.readouterr().out


def test_a_folder_is_compared_with_its_first_run(tmp_path, capsys):
    runs = tmp_path / "runs"
    for model in ("a", "b", "c"):
        (runs / model).mkdir(parents=True)
    write_run(runs / "a", "t", one([0.0] * 10), model="a")
    write_run(runs / "a", "u", one([0.0] * 10, "u"), model="a")
    write_run(runs / "b", "t", one([1.0] * 10), model="b")
    write_run(runs / "b", "u", one([1.0] * 10, "u"), model="b")
    write_run(runs / "c", "t", one([1.0] * 9, "t"), model="c", digest="e")
    write_run(runs / "c", "bare", {}, model="c")
    (runs / "c" / "torn.json").write_text("{")
    (runs / "c" / "config.json").write_text("{}")
    assert main(["compare", str(runs), "-o", str(tmp_path / "x.json")]) == 0
    printed = capsys.readouterr()
    found = json.loads((tmp_path / "x.json").read_text())["comparisons"]
    assert [(one["names"], one["rows"][0]["task"]) for one in found] == [(["a", "b"], "t"), (["a", "b"], "u")]
    assert "bare.json: it has no per-group results" in printed.err and "torn.json" in printed.err
    assert "config.json" not in printed.err
    assert "c/t.json: no other run has one of its tasks with the same version and data" in printed.err
    assert main(["compare", str(runs), "--allow_different", "-o", str(tmp_path / "x.json")]) == 0
    assert len(json.loads((tmp_path / "x.json").read_text())["comparisons"]) == 3
    assert main(["compare", str(runs / "c")]) == 2, "one run with raw numbers alone"
    assert "holds raw numbers only" in capsys.readouterr().err
    (runs / "empty").mkdir()
    assert main(["compare", str(runs / "a" / "t.json"), str(runs / "empty")]) == 4, "no comparison of one run's methods"
    write_run(runs / "c", "v", one([1.0] * 9, "v"), model="c")
    assert main(["compare", str(runs / "c")]) == 4
    assert "2 runs with samples, and no two of them have a task" in capsys.readouterr().err


def test_raw_numbers_of_several_settings_count_once(tmp_path, capsys):
    for at, (model, right) in enumerate([("a", 0), ("b", 12), ("b", 12), ("b", 12), ("c", 12), ("a", 0)]):
        raw = {"group_match": [1.0] * right + [0.0] * (12 - right)}
        adapted = {} if at == 3 else {"ttm": {"group_match": [float(at > 1)] * 12}}
        write_run(tmp_path, str(at), {"t": {"none": raw, **adapted}}, model=model)
    assert main(["compare", str(tmp_path), "-o", str(tmp_path / "x.json"), "--bootstrap_iters", "20"]) == 0
    found = json.loads((tmp_path / "x.json").read_text())["comparisons"]
    assert [[row["method"] for row in one["rows"]] for one in found] == [["none", "ttm"], ["ttm"]] * 2
    assert {row["holm_tests"] for one in found for row in one["rows"]} == {6}
    assert "3.json: its numbers are those of a comparison above" in capsys.readouterr().err


def test_means_over_seeds_take_the_permutation_test(tmp_path):
    a = read_run(write_run(tmp_path, "a", one([0.5] * 12)))
    (row,) = adjusted(a, read_run(write_run(tmp_path, "b", one([0.75] * 12), seeds=3)))
    assert row["test"] == "sign_flip" and row["p"] < 0.01


@pytest.mark.parametrize("kind", ["mcnemar", "clustered", "fractions", "clustered fractions"])
def test_an_interval_excludes_zero_exactly_where_p_says_so(tmp_path, kind):
    """Random tables of few and many groups, with ties, unequal clusters and few resamples."""
    rng, significant = np.random.default_rng(0), 0
    a, b = (read_run(write_run(tmp_path, name, one([0.0]))) for name in "ab")
    for _ in range(400):
        n, iterations = int(rng.integers(1, 120)), int(rng.choice([10, 99, 600]))
        rows = (rng.random((2, n)) < rng.random((2, 1))).astype(float)
        rows[1] = np.where(rng.random(n) < rng.random(), rows[0], rows[1])
        rows = (rows + rng.integers(0, 4, (2, n)) / 3) / 2 if "fractions" in kind else rows
        names = rng.integers(0, max(1, n // int(rng.integers(1, 5))), n)
        clusters = {f"g{at}": str(name) for at, name in enumerate(names)} if "clustered" in kind else None
        values = [{"none": {"m": {f"g{at}": float(value) for at, value in enumerate(row)}}} for row in rows]
        runs = [
            replace(run, known_groups={"t": TaskGroups(of, clusters)}) for run, of in zip((a, b), values, strict=True)
        ]
        (row,) = compare_runs(*runs, iterations=iterations, seed=int(rng.integers(9)))
        low, high = row["ci"]
        assert (low > 0 or high < 0) == (row["p"] <= 0.05), row
        assert low - 1e-12 <= row["difference"] <= high + 1e-12 and -1 <= low <= high <= 1, row
        significant += row["p"] <= 0.05
    assert 40 < significant < 360


@pytest.mark.parametrize(("change", "message"), [({"version": 2}, "version 1"), ({"digest": "e"}, "fingerprint d")])
def test_other_data_are_refused_unless_told(tmp_path, change, message):
    a = read_run(write_run(tmp_path, "a", one([0.0, 1.0])))
    b = read_run(write_run(tmp_path, "b", one([1.0, 1.0, 0.0]), **change))
    with pytest.raises(UsageError, match=message):
        adjusted(a, b)
    (row,) = adjusted(a, b, allow_different=True)
    assert row["groups"] == 2 and row["won"] == ["g0"]


def test_runs_that_share_nothing(tmp_path):
    a = read_run(write_run(tmp_path, "a", one([0.0, 1.0], "t")))
    with pytest.raises(UsageError, match="share no task"):
        adjusted(a, read_run(write_run(tmp_path, "b", one([0.0, 1.0], "u"))))
    with pytest.raises(UsageError, match="share no method"):
        adjusted(a, read_run(write_run(tmp_path, "c", one([0.0, 1.0], "t", "ttm"))))


def test_a_run_without_its_samples_cannot_be_compared(tmp_path):
    with pytest.raises(DataError, match="no per-group results"):
        read_run(write_run(tmp_path, "bare", {}))
    path, samples = write_run(tmp_path, "edited", one([0.0, 1.0])), tmp_path / "edited_samples_t.jsonl"
    samples.write_text(samples.read_text().replace("0.0", "1.0"))
    with pytest.raises(DataError, match="was changed"):
        read_run(path)


def test_the_command_on_real_runs(tmp_path, capsys):
    settings = {"limit": 12, "device": "cpu", "bootstrap_iters": 20}
    paths = []
    for name in ("tiny-clip", "tiny-clip-seed1"):
        path = tmp_path / f"{name}.json"
        ttmbench.simple_evaluate(
            name, "shapes_color", ttm={"iterations": 1, "epochs": 1}, holdout=0.5, output_path=str(path), **settings
        )
        paths.append(str(path))
    assert main(["compare", *paths, "-o", str(tmp_path / "c.json")]) == 0
    printed = capsys.readouterr().out
    assert "tiny-clip -> tiny-clip-seed1: percent" in printed and "smallest difference" in printed
    (comparison,) = json.loads((tmp_path / "c.json").read_text())["comparisons"]
    documents = [json.loads(Path(path).read_text()) for path in paths]
    for row in comparison["rows"]:
        key = f"{row['metric']},{row['method']}"
        means = [document["results"]["shapes_color"][key] for document in documents]
        assert [row["baseline"], row["other"]] == pytest.approx(means)
    assert main(["compare", paths[0], "-o", str(tmp_path / "c.md"), "--metrics", "group_match"]) == 0
    printed = capsys.readouterr().out
    assert "SimpleMatch>TTM" in printed and "12 of 200" in printed and "not a result for the task" in printed
    rows = [line.count("|") for line in (tmp_path / "c.md").read_text().splitlines() if line.startswith("|")]
    assert rows == [13] * 3, "head, rule, SimpleMatch>TTM"
    assert main(["compare", *paths, "--methods", "none,ttm", "--metrics", "nothing"]) == 2
    assert main(["compare", *paths, "-o", str(tmp_path / "c.txt")]) == 2


def test_a_part_of_a_task_is_said_and_never_passes_for_the_whole(tmp_path):
    paths = [write_run(tmp_path, name, one(v), digest=name) for name, v in (("a", [0.0] * 3), ("b", [1.0] * 9))]
    for path, scored in zip(paths, (3, 9), strict=True):
        document = json.loads(path.read_text())
        document["n-samples"] = {"t": {"original": 9, "effective": scored}}
        path.write_text(json.dumps(document))
    part, whole = map(read_run, paths)
    with pytest.raises(UsageError, match=r"3 of 9 and 9 groups"):
        adjusted(part, whole)
    (row,) = adjusted(part, whole, allow_different=True)
    assert (row["groups"], row["groups_of_task"], row["limited"]) == (3, 9, True)
    (row,) = adjusted(whole, whole, methods=("none", "none"))
    assert (row["groups"], row["groups_of_task"], row["limited"]) == (9, 9, False)


def test_within_a_run_raw_is_the_baseline(tmp_path):
    values = {"t": {name: {"group_match": [0.0, 1.0]} for name in ("none", "ttm", "oracle")}}
    run = read_run(write_run(tmp_path, "a", values))
    rows = compare_runs(run, run)
    assert [row["method"] for row in rows] == ["none>ttm", "none>oracle"]
    assert np.isfinite([row["p"] for row in rows]).all()
