"""The stream of online methods: groups that share images stay together, and the control that resets every R batches."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from support.norm_towers import NormTowers, batches_of, run_method, vector_task

import ttmbench
from ttmbench.methods import task
from ttmbench.methods.cliptta import cliptta
from ttmbench.methods.tent import tent

SETTINGS = {"images": 6, "lr": 0.05}  # three groups of two images in a batch
SHARED = [0, 1, 2, 0, 3, 2, 0, 1, 4]
METHODS = pytest.mark.parametrize("method", [tent, cliptta])


@pytest.mark.parametrize("seed", range(4))
def test_a_cluster_is_in_one_batch_and_each_group_once(seed):
    clusters = np.random.default_rng(seed).integers(0, 25, 60).tolist()
    found = [batch.tolist() for batch in task.batches_of(60, 6, seed, clusters)]
    assert sorted(group for batch in found for group in batch) == list(range(60)) and len(found) >= 10
    place = {clusters[group]: number for number, batch in enumerate(found) for group in batch}
    assert all(place[clusters[group]] == number for number, batch in enumerate(found) for group in batch)
    largest = max(map(clusters.count, clusters))
    assert all(len(batch) <= max(6, largest) for batch in found)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(seed)).tolist()
    assert list(dict.fromkeys(clusters[group] for group in order)) == list(
        dict.fromkeys(clusters[group] for batch in found for group in batch)
    ), "clusters come in the order of their first groups"


@METHODS
def test_without_shared_images_nothing_changes(method):
    usual, _, _ = run_method(method, NormTowers(), **SETTINGS)
    alone, _, _ = run_method(method, NormTowers(), shared=list(range(9)), **SETTINGS)
    scattered, _, _ = run_method(method, NormTowers(), shared=SHARED, clusters="scattered", **SETTINGS)
    assert torch.equal(usual, alone) and torch.equal(usual, scattered)


def test_no_group_is_scored_by_a_model_that_was_trained_on_its_image():
    scores, steps, _ = run_method(tent, NormTowers(), shared=SHARED, **SETTINGS)
    met = [[SHARED[group] for group in step.groups.tolist()] for step in steps]
    assert len(met) > 1 and not any(set(some) & set(other) for i, some in enumerate(met) for other in met[:i])
    assert not torch.equal(scores, run_method(tent, NormTowers(), **SETTINGS)[0])


def test_a_cluster_larger_than_a_batch_is_one_batch_and_that_is_noted():
    shared = [0, 0, 0, 0, 0, 1, 2, 3, 4]
    _, steps, made = run_method(tent, NormTowers(), shared=shared, **SETTINGS)
    assert sorted(max((step.groups.tolist() for step in steps), key=len)) == [0, 1, 2, 3, 4]
    assert made.notes == ["groups that share images stay in one batch, so one has 5 groups; others at most 3"]
    _, steps, made = run_method(tent, NormTowers(), shared=[0] * 9, **SETTINGS)
    assert len(steps) == 1 and made.notes[0].startswith("all groups are in one batch, which is scored before")


def test_a_method_that_is_reset_meets_groups_as_ever():
    made = vector_task(NormTowers(), shared=SHARED)
    made._resets = True
    assert [batch.tolist() for batch in made.batches(6)] == batches_of(made, 6)


@METHODS
@pytest.mark.parametrize("every", [1, 2])
def test_reset_every_so_many_batches(method, every):
    """Between two resets the model goes through the batches as if no other had come before."""
    model = NormTowers()
    made = vector_task(model)
    turns = [batch.tolist() for batch in made.batches(6)]
    scores = torch.cat([step.scores for step in method(made, reset_every=every, **SETTINGS)])
    fresh = []
    for start in range(0, len(turns), every):
        again = vector_task(NormTowers())
        again.batches = lambda *_, some=turns[start : start + every]: [torch.tensor(batch) for batch in some]
        fresh += [step.scores for step in method(again, **SETTINGS)]
    assert torch.equal(scores, torch.cat(fresh))
    usual = torch.cat([step.scores for step in method(vector_task(NormTowers()), **SETTINGS)])
    assert not torch.equal(scores, usual)
    noted = [note for note in made.notes if note.startswith("reset_every=1")]
    assert bool(noted) == (method is tent and every == 1)


def test_the_run_knows_which_groups_share_images(folder_task):
    folder = folder_task()
    shutil.copy(folder / "images" / "0_0.png", folder / "images" / "3_1.png")
    settings = {"methods": "tent", "method_args": {"tent": {"images": 2}}, "device": "cpu", "bootstrap_iters": 0}
    document = ttmbench.simple_evaluate("tiny-clip", str(folder / "mine.yaml"), **settings).document
    record = document["methods"]["mine"]["tent"]
    assert record["notes"] == ["groups that share images stay in one batch, so one has 2 groups; others at most 1"]
    assert record["settings"]["clusters"] == "together" and record["turns"] == 5
