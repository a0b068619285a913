"""Nothing beside the model and the data moves a number: batches, order, threads, company, the cache, a stage before."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import same

from ttmbench.types import Scores

MODELS = [
    *("CLIP", "SigLIP", "open_clip", "BLIP ITM", "VQAScore of LLaVA", "VisualGPTScore"),
    *("pair scorer", "stored features"),
]

# Threads share its products, and batches change how: only there it can differ from the narrow CLIP above.
WIDE = ("batch size 1, 3, 7, 1000", "order of groups", "1, 2, 4 threads")
TRAINED = ["CLIP", "BLIP ITM", "VQAScore of LLaVA", "stored features"]  # one of each way to train
EXACT = {
    *("other tasks before it", "test-time stages before it", "saved and read back"),
    *("TTM: other tasks before it", "TTM: a seed alone, or in another order"),
}


@pytest.fixture(scope="module")
def benches(tmp_path_factory):
    return same.make_benches(tmp_path_factory.mktemp("same"), 3)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize(
    ("model", "change"),
    [*product(MODELS, same.CHANGES), *product([same.WIDE], WIDE), *product(TRAINED, same.TTM_CHANGES)],
    ids=lambda value: value,
)
def test_no_number_moves(model, change, benches):
    bench = benches[model]
    row = same.measure(model, bench, change)
    if row.moved is None:
        assert change == "test-time stages before it" and not any(map(bench.adapts, same.LAYOUTS))
    assert not row.fault, row
    if change in EXACT:
        assert row.moved in (None, 0.0), "not by a bit"


def test_every_way_of_scoring_is_measured_on_scores_that_differ(benches):
    assert set(benches) == {*MODELS, same.WIDE}
    for name, bench in benches.items():
        for layout in same.LAYOUTS:
            scores = bench.quiet(layout).scores
            assert np.ptp(scores.groups) > 0.01 and scores.groups.dtype == np.float32, (name, layout)
            assert (scores.all_pairs is None) == (layout != "all"), (name, layout)


# --- the measure itself -----------------------------------------------------------------------------------------


class Wrong(same.Light):
    """A scorer that says something else when it is asked otherwise."""

    def __init__(self, by: str) -> None:
        self.by, self.calls = by, 0

    def score_pairs(self, images, captions):
        self.calls += 1
        found = super().score_pairs(images, captions)
        if self.by == "batch":
            return found + 0.001 * len(captions)
        return found + 0.001 * self.calls


@pytest.mark.parametrize(("by", "change"), [("batch", "batch size 1, 3, 7, 1000"), ("calls", "other tasks before it")])
def test_a_model_that_does_move_is_a_fault(by, change, benches):
    tasks = benches["pair scorer"].tasks
    wrong_model = Wrong(by)
    wrong = same.measure("wrong", same.Bench(lambda *_: wrong_model, tasks), change)
    assert wrong.fault and wrong.moved > same.LARGEST


def test_the_command_prints_a_table_and_ends_with_1_at_a_fault(benches, tmp_path, monkeypatch, capsys):
    tasks = benches["pair scorer"].tasks
    chosen = {name: same.CHANGES[name] for name in ("batch size 1, 3, 7, 1000", "saved and read back")}
    monkeypatch.setattr(same, "CHANGES", chosen)
    monkeypatch.setattr(same, "TTM_CHANGES", {})
    options = argparse.Namespace(groups=4, json=str(tmp_path / "x.json"))
    for scorer, code, cell in ((same.Light(), 0, "| 0 |"), (Wrong("batch"), 1, "| 4e-02 |")):
        made = {"scorer": same.Bench(lambda *_, scorer=scorer: scorer, tasks)}
        monkeypatch.setattr(same, "make_benches", lambda folder, count, made=made: made)
        assert same.main(options) == code
        told = capsys.readouterr()
        assert cell in told.out and ("fault: scorer, batch size" in told.err) == bool(code)
        assert len(json.loads((tmp_path / "x.json").read_text())["rows"]) == 2


def test_scores_in_another_order_are_put_back(benches):
    bench, order = benches["pair scorer"], benches["pair scorer"].tasks.orders
    for what in ("groups", "captions", "images"):
        result = bench.run("pairs", order[what]).scores[bench.tasks.name("pairs", order[what])]["none"][0]
        quiet = bench.quiet("pairs").scores.groups
        assert not np.array_equal(result.groups, quiet), "they do come in another order"
        assert np.array_equal(bench.in_order("pairs", order[what], result).scores.groups, quiet)


def test_another_metric_or_selection_is_a_fault(benches):
    bench = benches["CLIP"]
    seen = bench.quiet("pairs")
    turned = replace(seen, metrics={**seen.metrics, "group_match,none": 0.123})
    assert seen.against(turned)[1] == ["group_match,none"]
    one = bench.quiet_ttm("pairs")[0]
    assert any(record["selected"] for record in one.iterations), "something is selected"
    other = replace(one, iterations=[{**record, "selected": -1} for record in one.iterations])
    assert one.against(other)[1] == ["selected"]
    lost = replace(one, iterations=[{**record, "loss": [x + 1 for x in record["loss"]]} for record in one.iterations])
    assert one.against(lost)[1] == ["loss"]
    assert same.Adapted(one.iterations, Scores(one.scores.groups + 0.5)).against(one)[0] == pytest.approx(0.5, rel=0.01)
