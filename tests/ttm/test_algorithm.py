"""TTM against a naive restatement of Algorithm 1 that shares no code with it, and what it must never do."""

from __future__ import annotations

import math
import pickle
import re
from contextlib import nullcontext
from dataclasses import replace
from itertools import permutations, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.adapter_inputs import double_masks
from support.rounding import Noise
from support.small_models import USUAL, adapt, stage_of, task_of
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

import ttmbench
from ttmbench import schedules
from ttmbench.cli import main
from ttmbench.config import TTMConfig
from ttmbench.data.loader import load_task_data
from ttmbench.data.task_file import find_task
from ttmbench.errors import DivergedError, UsageError
from ttmbench.methods.model_task import ModelTask, Selection
from ttmbench.methods.training import Iteration, snapshot
from ttmbench.methods.ttm import matching, select
from ttmbench.model_adapters import hf
from ttmbench.plugins.registry import build_registry
from ttmbench.scoring.dual_encoder import PreparedTask
from ttmbench.scoring.inputs import Inputs, prepare
from ttmbench.types import ScheduleSpec, Scores

LINEAR = ScheduleSpec("linear", schedules.linear)


def load(name: str, n: int) -> list:
    registry = build_registry()
    return load_task_data(registry, find_task(registry, name), limit=n).groups


def naive_ttm(folder, loss_kind, groups, given, taus_of, epochs, batch, lr, seed, dtype=torch.float32):
    """Algorithm 1 with loops, plain transformers and plain torch. Batches follow the same random streams.

    Pseudo-labels are those of ``given``, the scores [groups, images, captions] before each iteration, so that rounding
    decides none. Returns threshold, selected groups, their matchings, losses and own scores of each iteration.
    """
    model = AutoModel.from_pretrained(folder).to(dtype)
    tokenizer, processor = AutoTokenizer.from_pretrained(folder), AutoImageProcessor.from_pretrained(folder)
    pixels = [[processor(images=[i.open()], return_tensors="pt")["pixel_values"] for i in g.images] for g in groups]
    captions = [caption for group in groups for caption in group.captions]
    padding = "max_length" if loss_kind == "sigmoid" else True
    tokens = tokenizer(captions, padding=padding, return_tensors="pt", return_token_type_ids=False)
    m, k = len(groups[0].images), len(groups[0].captions)

    def forward(image_list, caption_rows, **options):
        rows = {name: t[caption_rows] for name, t in tokens.items()}
        with double_masks() if dtype == torch.float64 else nullcontext():
            return model(pixel_values=torch.cat(image_list).to(dtype), **rows, **options)

    def all_scores():
        model.eval()
        with torch.no_grad():
            return np.stack(
                [forward(pixels[g], list(range(g * k, g * k + k))).logits_per_image.numpy() for g in range(len(groups))]
            )

    history, taus = [], None
    for t, before in enumerate(given, 1):
        labels, margins = [], []
        for s in before.astype(np.float64):
            ranked = sorted(
                ((sum(s[i, c] for i, c in enumerate(p)), p) for p in permutations(range(k), m)), reverse=True
            )
            labels.append(ranked[0][1])
            margins.append(ranked[0][0] - ranked[1][0])
        taus = taus or taus_of(margins)
        chosen = [g for g in range(len(groups)) if margins[g] >= taus[t - 1]]
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.999), weight_decay=0.05)
        rng = np.random.default_rng([seed, t])
        per_epoch = math.ceil(len(chosen) / batch)
        losses = []
        model.train()
        for epoch in range(epochs if chosen else 0):
            order, total = rng.permutation(len(chosen)), 0.0
            for b in range(per_epoch):
                part = [chosen[i] for i in order[b * batch : (b + 1) * batch]]
                done = (epoch * per_epoch + b) / (per_epoch * epochs)
                optimizer.param_groups[0]["lr"] = lr * 0.95 ** (t - 1) * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))
                output = forward(
                    [pixels[g][i] for g in part for i in range(m)],
                    [g * k + labels[g][i] for g in part for i in range(m)],
                    return_loss=True,
                )
                optimizer.zero_grad()
                output.loss.backward()
                optimizer.step()
                total += float(output.loss.detach()) * len(part)
            losses.append(total / len(chosen))
        history.append((taus[t - 1], chosen, [labels[g] for g in chosen], losses, all_scores()))
    return history


@pytest.mark.parametrize("kind", ["sigmoid", "softmax"])
@pytest.mark.parametrize(("task", "n", "batch"), [("shapes_color", 16, 6), ("shapes_spatial", 20, 8)])
def test_every_iteration_equals_a_naive_algorithm_1(kind, task, n, batch, tiny_siglip, tiny_hf_clip):
    folder = tiny_siglip if kind == "sigmoid" else tiny_hf_clip
    groups = load(task, n)
    adapter = hf.load(pretrained=str(folder), device="cpu")
    stage = PreparedTask(adapter, prepare(adapter, Inputs(groups), 32), 32, False, False)
    raw = stage.score()
    config = TTMConfig(iterations=3, epochs=2, batch_groups=batch)
    steps = list(adapt(stage, raw, config=config, schedule=LINEAR, learning_rate=1e-3, seed=5))

    def taus_of(margins):
        top = sorted(margins, reverse=True)[math.ceil(0.25 * n) - 1]
        return [top, top / 2, 0.0]

    given = [raw.groups, *(step.scores.groups for step in steps[:-1])]
    how = (folder, kind, groups, given, taus_of, 2, batch, 1e-3, 5)
    naive, exact = (naive_ttm(*how, dtype) for dtype in (torch.float32, torch.float64))
    of_scores, of_losses = Noise(), Noise()
    updates = 0  # each adds rounding of its own, so that what two computations may differ by grows with them
    for step, single, (tau, chosen, labels, losses, scores) in zip(steps, naive, exact, strict=True):
        updates += 2 * math.ceil(len(chosen) / batch)
        assert step.threshold == pytest.approx(tau, rel=1e-12)
        assert np.flatnonzero(step.selected).tolist() == chosen
        assert [tuple(row) for row in step.captions[step.selected].tolist()] == labels
        np.testing.assert_allclose(
            step.scores.groups, scores, atol=updates * of_scores.after(single[4], scores), rtol=0
        )
        allowed = updates * of_losses.after(single[3], losses) if chosen else 0
        np.testing.assert_allclose(step.loss, losses, atol=allowed, rtol=0)


def adapted(stage, config, learning_rate=1e-4, seed=0) -> list[Iteration]:
    return list(adapt(stage, stage.score(), config=config, schedule=LINEAR, learning_rate=learning_rate, seed=seed))


@pytest.mark.parametrize("is_global", [False, True])
def test_a_constant_scorer_selects_nothing_and_is_not_trained(is_global):
    stage = stage_of(12, is_global=is_global)
    before = snapshot(stage.adapter)
    flat = Scores(np.ones((12, 2, 2)), np.ones((24, 24)) if is_global else None)
    config = TTMConfig(iterations=1, epochs=1, tau_start=0.0)
    step = next(adapt(stage, flat, config=config, schedule=LINEAR, learning_rate=1e-2, seed=0))
    assert step.tie.all() and not step.selected.any() and step.loss == ()
    assert all(torch.equal(tensor, before[name]) for name, tensor in stage.adapter.state_dict().items())


def test_a_share_above_one_is_refused():
    for name, value in product(("tau_start", "tau_end"), (2, -0.5)):
        with pytest.raises(UsageError, match=rf"{name} must be a fraction between 0 and 1 for threshold=share"):
            TTMConfig().with_changes({"threshold": "share", name: value}, "--ttm_args").by_share(is_global=False)
    assert TTMConfig(threshold="share", tau_start=1, tau_end=0).by_share(is_global=False)
    assert TTMConfig(threshold="absolute", tau_start=2).by_share(is_global=True) is False
    with pytest.raises(UsageError, match=r"tau_start must be .*share \(the default of the global variant\).*got 2"):
        adapted(stage_of(4, is_global=True), TTMConfig(tau_start=2))
    with pytest.raises(UsageError, match=r"tau_start must be a fraction"):  # before the model is loaded
        ttmbench.simple_evaluate("hf", "shapes_color_global", model_args={"pretrained": "x"}, ttm={"tau_start": 2})


def test_the_loss_of_an_epoch_weighs_batches_by_their_units():
    """7 groups in batches of 5: the mean is over groups, 5/7 and 2/7, not one half each."""
    stage, seen = stage_of(7), []
    plain = stage.adapter.matching_loss

    def watched(images, captions):
        loss = plain(images, captions)
        seen.append((float(loss.detach()), len(images)))
        return loss

    stage.adapter.matching_loss = watched
    (step,) = adapted(stage, TTMConfig(iterations=1, epochs=1, batch_groups=5, tau_start=0.0))
    (loss,) = step.loss
    assert [size for _, size in seen] == [10, 4]
    assert loss == pytest.approx((5 * seen[0][0] + 2 * seen[1][0]) / 7) != pytest.approx((seen[0][0] + seen[1][0]) / 2)


def suggested(words, capsys) -> str:
    assert main([*words, "--tasks", "shapes_color", "--limit", "6", "--device", "cpu"]) == 1
    return re.search(r"a lower learning rate may help \((--\w+ lr=[^)]+)\)", capsys.readouterr().err)[1]


def test_after_a_huge_rate_the_usual_one_of_the_model_is_suggested(capsys, tmp_path):
    model = ["--model", "tiny-clip", "--bootstrap_iters", "0"]
    adapt = [*model, "--ttm", "--seeds", "0"]
    usual = build_registry().adapters["tiny-clip"].ttm_defaults["lr"]
    assert suggested([*adapt, "--ttm_args", "lr=1e30,epochs=3"], capsys) == f"--ttm_args lr={usual:.1e}"
    words = ["finetune", *model[:2], "-o", str(tmp_path / "w"), "--finetune_args", "lr=1e30"]
    assert suggested(words, capsys) == "--finetune_args lr=1.0e-05"


def test_below_the_usual_rate_a_tenth_is_suggested():
    assert str(DivergedError("x", 2e-6)) == "x; a lower learning rate may help (--ttm_args lr=2.0e-07)"
    assert str(DivergedError("x", 1e10)) == "x; a lower learning rate may help (--ttm_args lr=1.0e-05)"
    copied = pickle.loads(pickle.dumps(DivergedError("x", 1e10, "--finetune_args", 3e-4)))
    assert str(copied) == "x; a lower learning rate may help (--finetune_args lr=3.0e-04)"


@pytest.mark.parametrize("seed", [0, 1])
def test_captions_choose_where_there_are_more_images(seed):
    """What TTM trains on is each caption with its better image, whatever the order of images in the group."""
    stage = stage_of(6, 2, 1)
    scores = stage.score()
    rows, better = stage.prepared.rows, scores.groups[:, :, 0].argmax(axis=1)
    blind = task_of(stage, scores, seed=seed)
    labels = matching(blind.first)
    assert np.allclose(labels.confidence, np.abs(scores.groups[:, 0, 0] - scores.groups[:, 1, 0]), atol=1e-6)
    assert blind.unshuffle(labels.captions)[:, 0].tolist() == better.tolist()
    pairs = blind.pairs(Selection(labels.captions, select(labels, 0.0, by_share=False)))
    assert pairs.images[:, 0].tolist() == rows.images[np.arange(6), better].tolist()
    assert pairs.captions[:, 0].tolist() == rows.captions[:, 0].tolist()
    yes_or_no = ModelTask(replace(stage, adapter=SimpleNamespace()), None, TTMConfig(), seed, *USUAL)
    inside = yes_or_no.pairs(Selection(labels.captions, ~labels.tie))
    assert inside.images.shape == inside.captions.shape == inside.matched.shape == (6, 2)
    assert inside.images[inside.matched].tolist() == pairs.images[:, 0].tolist()
    assert inside.captions.tolist() == np.repeat(rows.captions, 2, axis=1).tolist()
