"""Ties in the global variant: never a pseudo-label by default, and by the rule of the authors' code where asked for."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from support.small_models import USUAL

import ttmbench
from ttmbench.config import TTMConfig, make_run_config
from ttmbench.data.task_file import all_tasks, find_task
from ttmbench.errors import UsageError
from ttmbench.methods.model_task import ModelTask
from ttmbench.methods.settings import task_settings
from ttmbench.methods.ttm import matching
from ttmbench.model_adapters import hf
from ttmbench.plugins.registry import build_registry
from ttmbench.scoring.dual_encoder import PreparedTask
from ttmbench.scoring.inputs import Inputs, prepare
from ttmbench.types import Scores


def repeating_task() -> ttmbench.Task:
    """40 groups of 2x2 to be matched globally: 80 pairs, of whose captions 29 stand twice and 22 once."""
    rng = np.random.default_rng(0)
    colors, shapes = ("red", "green", "blue", "yellow"), ("circle", "square", "triangle", "star")
    texts = [f"a {one} {shape} and a {other} {shape}" for one, other, shape in product(colors, colors, shapes)][:51]
    captions = texts + texts[22:]
    rng.shuffle(captions)
    images = rng.integers(0, 256, (40, 2, 8, 8, 3), dtype=np.uint8)
    pairs = [captions[2 * group : 2 * group + 2] for group in range(40)]
    return ttmbench.Task.from_groups(list(map(list, images)), pairs, name="repeating", matching="global")


@pytest.mark.parametrize(("ties", "selected"), [(None, [22, 22]), ("include", [40, 80])])
def test_repeated_captions_in_a_global_task_by_both_rules_for_ties(ties, selected):
    """By the share rule with tau from 0.5 to 0: the authors' code trains on 40 and then on all 80 pairs.

    The audit passes though equal captions change places.
    """
    settings = {"iterations": 2, "epochs": 1, "lr": 1e-6, "tau_start": 0.5, "tau_end": 0.0}
    settings |= {} if ties is None else {"ties": ties}
    more = {"audit_labels": True, "bootstrap_iters": 0, "device": "cpu"}
    record = ttmbench.simple_evaluate("tiny-clip", repeating_task(), ttm=settings, **more)["methods"]["repeating"][
        "ttm"
    ]
    assert [one["selected"] for one in record["iterations"]] == selected
    assert [one["tied"] for one in record["iterations"]] == [58, 58]
    assert record["settings"]["ties"] == (ties or "exclude") and record["audit_labels"]["passed"]


def test_a_constant_scorer_learns_nothing_of_the_truth_where_ties_are_included():
    """The solver's first choice is among captions that were shuffled by seed."""
    adapter = hf.load(pretrained="tiny_clip", device="cpu")
    stage = PreparedTask(adapter, prepare(adapter, Inputs(repeating_task().groups), 32), 32, True, True)
    right = []
    for seed in range(4):
        blind = ModelTask(stage, Scores(np.zeros((40, 2, 2)), np.zeros((80, 80))), TTMConfig(), seed, *USUAL)
        labels = matching(blind.first)
        assert labels.tie.all()
        right.append(int((blind.unshuffle(labels.captions)[:, 0] == np.arange(80)).sum()))
    assert max(right) <= 8, "a permutation drawn at random has one fixed point on average"


def test_including_ties_is_for_global_tasks_alone():
    with pytest.raises(UsageError, match=r"inside groups, .*; ties=include is for tasks that"):
        ttmbench.simple_evaluate("tiny-clip", "shapes_color", ttm={"ties": "include"}, limit=4, device="cpu")


def test_the_papers_presets_of_global_tasks_include_ties_as_the_authors_do():
    registry = build_registry()
    for name in ("winoground_global", "mmvp_vlm_global", "colorswap_global"):
        spec = find_task(registry, name).spec
        config = make_run_config({"model": "siglip-b16", "tasks": [name], "ttm": True})
        assert task_settings(registry, config, spec).ties == "exclude"
        assert task_settings(registry, config.model_copy(update={"ttm_preset": "paper"}), spec).ties == "include"
    inside = {name: task.spec.ttm for name, task in all_tasks(registry).items() if not task.spec.is_global}
    assert not [name for name, presets in inside.items() if any("ties" in one for one in presets.values())]
