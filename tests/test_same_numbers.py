"""Nothing beside the model and the data moves a number: batches, order, threads, company, the store, a stage before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import same

from ttmbench.types import Scores

MODELS = [
    *("CLIP", "CLIP, width 256", "SigLIP", "open_clip", "BLIP ITM", "VQAScore of LLaVA", "VisualGPTScore"),
    *("pair scorer", "stored features"),
]

EXACT = {
    *("other tasks before it", "test-time stages before it", "saved and read back"),
    *("TTM: other tasks before it", "TTM: a seed alone, or in another order"),
}


@pytest.fixture(scope="module")
def benches(tmp_path_factory):
    return same.make_benches(tmp_path_factory.mktemp("same"), 6)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("change", [*same.CHANGES, *same.TTM_CHANGES])
@pytest.mark.parametrize("model", MODELS)
def test_no_number_moves(model, change, benches):
    bench = benches[model]
    row = same.measure(model, bench, change)
    if row.moved is None:
        assert not any(bench.adapts(layout) for layout in same.LAYOUTS), "nothing was measured"
    assert not row.fault, row
    if change in EXACT:
        assert row.moved in (None, 0.0), "not by a bit"


def test_every_way_of_scoring_is_measured_on_scores_that_differ(benches):
    assert set(benches) == set(MODELS)
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
    wrong = same.measure("wrong", same.Bench(same.same_model(Wrong(by)), tasks), change)
    assert wrong.fault and wrong.moved > same.LARGEST


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
