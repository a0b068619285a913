"""Nothing beside the model and the data moves a number: batches, order, threads, company, the cache, a stage before."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from support import same

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
