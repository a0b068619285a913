"""What a task can show: against simulation, against Connor's formula, and the command on real runs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import norm

import ttmbench
from ttmbench import stats
from ttmbench.cli import main
from ttmbench.results.power import (
    approximate_power,
    detectable_difference,
    exact_power,
    groups_needed,
    power_of,
    seeds_needed,
)


def pair(rng, groups, discordance, difference):
    """Two models that disagree so often, of which the second wins so much more."""
    draws = rng.random(groups)
    won = (discordance + difference) / 2
    after = draws < won
    return (draws >= won) & (draws < discordance), after


@pytest.mark.parametrize(("groups", "discordance", "difference"), [(60, 0.4, 0.2), (200, 0.1, 0.05), (400, 0.2, 0.06)])
def test_the_exact_power_is_that_of_the_test_that_compare_makes(groups, discordance, difference):
    rng, runs = np.random.default_rng(5), 2000
    drawn = [pair(rng, groups, discordance, difference) for _ in range(runs)]
    flips = [(int((~before & after).sum()), int((before & ~after).sum())) for before, after in drawn]
    counts = {key: stats.mcnemar(*both) <= 0.05 for key, both in dict(zip(flips, drawn, strict=True)).items()}
    found = sum(counts[key] for key in flips) / runs
    expected = exact_power(groups, discordance, difference)
    assert found == pytest.approx(expected, abs=3 * math.sqrt(expected * (1 - expected) / runs))
    assert expected <= approximate_power(groups, discordance, difference) <= expected + 0.08, "the exact one is careful"


def test_without_a_difference_the_power_is_at_most_the_level():
    for groups in (5, 20, 400, 5000):
        assert 0 <= exact_power(groups, 0.3, 0.0) <= 0.05
    assert exact_power(5, 0.9, 0.9) == 0, "five coin tosses are never significant"


def test_connors_formula():
    """n = (z_a sqrt(d) + z_b sqrt(d - x^2))^2 / x^2, in Biometrics 1987."""
    for discordance, difference in ((0.2, 0.05), (0.1, 0.02)):
        ends = norm.ppf(0.975) * math.sqrt(discordance) + norm.ppf(0.8) * math.sqrt(discordance - difference**2)
        groups = (ends / difference) ** 2
        assert approximate_power(groups, discordance, difference) == pytest.approx(0.8)
        assert groups_needed(difference, discordance) == pytest.approx(groups, rel=0.06), "the exact test needs more"


def test_what_is_needed_is_enough_and_less_is_not():
    assert power_of(groups_needed(0.05, 0.2), 0.2, 0.05) >= 0.8 > power_of(600, 0.2, 0.05)
    smallest = detectable_difference(400, 0.2)
    assert power_of(400, 0.2, smallest) >= 0.8 > power_of(400, 0.2, smallest - 0.003)
    assert detectable_difference(10, 0.1) is None and detectable_difference(0.5, 0.5) is None
    assert groups_needed(0.2, 0.1) is None, "models cannot differ more often than they disagree"
    assert groups_needed(0.01, 0.2, seed_variance=0.01**2) is None, "no number of groups makes seeds agree"


def test_seeds_against_simulation():
    """Two methods, each trained again with every seed; the seed moves all groups together."""
    groups, discordance, difference, spread = 400, 0.2, 0.08, 0.05
    assert seeds_needed(groups, 0.01, discordance, spread) is None, "too few groups, whatever the seeds"
    seeds = seeds_needed(groups, difference, discordance, spread)
    assert seeds > 1
    rng, runs = np.random.default_rng(6), 4000
    found = {}
    for count in (1, seeds):
        error = math.sqrt(discordance / groups + spread**2 / count)
        over_groups = rng.normal(0, math.sqrt((discordance - difference**2) / groups), runs)
        over_seeds = rng.normal(0, spread, (runs, count)).mean(axis=1)
        found[count] = float((difference + over_groups + over_seeds >= norm.ppf(0.975) * error).mean())
        expected = approximate_power(groups, discordance, difference, seed_variance=spread**2 / count)
        assert found[count] == pytest.approx(expected, abs=0.025)
    assert found[seeds] > 0.78 and found[1] < 0.6


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("power")
    settings = {"device": "cpu", "log_samples": True, "bootstrap_iters": 0, "limit": 60, "use_cache": "off"}
    adapted = {"ttm": {"iterations": 1, "epochs": 1, "lr": 1e-3}, "seeds": [0, 1]}
    return [
        ttmbench.simple_evaluate(
            model, "shapes_color", output_path=str(folder / f"{model}.json"), **settings, **(adapted if first else {})
        )
        for model, first in (("tiny-clip", True), ("tiny-clip-seed1", False))
    ]


def test_the_command_measures_two_runs(runs, tmp_path, capsys):
    paths = ["--model_a", str(runs[0].path), "--model_b", str(runs[1].path)]
    target = tmp_path / "p.json"
    assert main(["power", "shapes_color", *paths, "--difference", "0.05", "-o", str(target)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "shapes_color: 60 groups" in printed and "models: measured" in printed and "Exact McNemar test" in printed
    found = json.loads(target.read_text())
    (row,) = ttmbench.compare(*runs, metrics=["group_match"])
    assert found["observed"] == pytest.approx(row["difference"]) and found["metric"] == "group_match"
    (one,) = found["rows"]
    assert one["discordance"] == pytest.approx((len(row["won"]) + len(row["lost"])) / 60)
    assert one["smallest_difference"] == detectable_difference(60, one["discordance"])
    assert one["differences"][0]["groups"] == groups_needed(0.05, one["discordance"])
    within = ["--model_a", str(runs[0].path), "--model_b", str(runs[0].path), "--filters", "none,ttm"]
    assert main(["power", "shapes_color", *within, "-o", str(target)]) == 0
    assert "2 seeds) is included" in " ".join(capsys.readouterr().out.split())
    spread = runs[0].results["shapes_color"]["group_match_seed_std,ttm"]
    assert json.loads(target.read_text())["seed_std"] == pytest.approx(spread)


def test_groups_that_share_images_are_worth_fewer(tmp_path, capsys):
    from support.documents import DIGEST, whole_document

    rng = np.random.default_rng(3)
    paths = []
    for name in ("a", "b"):
        values = np.repeat(rng.random(50) < 0.6, 4).astype(float)  # four groups of an image are right together
        lines = [
            {"group_id": str(g), "cluster": str(4 * (g // 4)), "filter": "none", "metrics": {"group_match": value}}
            for g, value in enumerate(values.tolist())
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        about = {f"{name}.jsonl": {"kind": "samples", "task": "t", "sha256": DIGEST, "bytes": 1}}
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(whole_document({"t": {}}, artifacts=about)))
    target = tmp_path / "p.json"
    words = ["power", "t", "--model_a", str(paths[0]), "--model_b", str(paths[1]), "-o", str(target)]
    assert main(words) == 0
    assert "t: 200 groups, equivalent to 49 independent ones" in " ".join(capsys.readouterr().out.split())
    found = json.loads(target.read_text())
    assert found["worth"] == pytest.approx(50, rel=0.03)
    asked = found["rows"][0]["differences"][-1]
    assert asked["groups"] == pytest.approx(4 * groups_needed(0.1, found["rows"][0]["discordance"]), rel=0.03)


def test_the_command_on_what_is_expected(capsys):
    assert main(["power", "winoground"]) == 0
    printed = capsys.readouterr().out
    assert "winoground: 400 groups" in printed and "models: examples" in printed and printed.count("39,2") == 1
    assert main(["power", "winoground", "--rate", "0.9", "--difference", "0.05"]) == 0
    assert " 18.0 " in capsys.readouterr().out
    assert main(["power", "winoground", "--discordance", "0.2", "--groups", "1000", "--seed_std", "0.01"]) == 0
    assert "seeds needed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["winogruond"], "did you mean 'winoground'"),
        (["winoground", "--discordance", "0"], "--discordance must be a fraction above 0"),
        (["winoground", "--difference", "2"], "--difference must be a fraction"),
        (["winoground", "--alpha", "5"], "must be a fraction between 0 and 1"),
        (["winoground", "--seeds", "4"], "--seeds needs --seed_std"),
        (["winoground", "--metric", "group_match"], "need two runs, --model_a and --model_b"),
        (["winoground", "--model_a", "a.json"], "both --model_a and --model_b are needed"),
        (["winoground", "--model_a", "a", "--model_b", "b", "--rate", "0.5"], "--rate is measured"),
        (["winoground", "-o", "p.txt"], "must end with .json"),
    ],
)
def test_wrong_words_are_one_line(words, says, capsys):
    assert main(["power", *words]) == 2
    captured = capsys.readouterr()
    assert says in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_runs_that_cannot_be_measured(runs, capsys):
    same = ["--model_a", str(runs[0].path), "--model_b", str(runs[0].path)]
    assert main(["power", "shapes_color", *same]) == 4 and "agree on every group" in capsys.readouterr().err
    assert (
        main(["power", "shapes_place", *same]) == 2 and "no samples of task 'shapes_place'" in capsys.readouterr().err
    )
    assert main(["power", "shapes_color", *same, "--filters", "none,oracle"]) == 2
    assert "with filter 'oracle'" in capsys.readouterr().err
    assert main(["power", "shapes_color", *same, "--filters", "none,ttm", "--metric", "x"]) == 2
    assert "share no metric x" in capsys.readouterr().err
