"""TTM by yes and no: against a naive restatement with plain transformers, its variants, and what it must never do."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
import torch
from support.adapter_inputs import groups_of
from support.rounding import Noise
from support.small_models import adapt
from transformers import AutoModelForImageTextToText, AutoProcessor

import ttmbench
from ttmbench import schedules
from ttmbench.cli import main
from ttmbench.config import TTMConfig
from ttmbench.errors import UsageError
from ttmbench.model_adapters import vqascore
from ttmbench.model_adapters._shared.options import LORA_TARGETS
from ttmbench.scoring.dual_encoder import PreparedTask
from ttmbench.scoring.inputs import Inputs, prepare
from ttmbench.types import ScheduleSpec

LINEAR = ScheduleSpec("linear", schedules.linear)
QUICK = {"limit": 6, "bootstrap_iters": 0, "device": "cpu"}
SHORT = {"iterations": 2, "epochs": 2, "lr": 1e-3}


def phase_of(adapter, groups, batch_size=64):
    stage = PreparedTask(adapter, prepare(adapter, Inputs(groups), 8), batch_size, False, False)
    return stage, stage.score()


@pytest.fixture(scope="module")
def llava(tiny_vlm):
    return tiny_vlm("llava", scale=3.0)


def naive(folder, groups, given, epochs, lr, tau, dtype=torch.float32):
    """Algorithm 1 with loops and the language model's own cross-entropy: yes to matched pairs, no to the others.

    Pseudo-labels are those of ``given``, the scores before each iteration, so that rounding decides none.
    """
    model, processor = AutoModelForImageTextToText.from_pretrained(folder), AutoProcessor.from_pretrained(folder)
    model.to(dtype)
    id_of = processor.tokenizer.convert_tokens_to_ids
    ids = {answer: [id_of(answer), id_of(answer.lower())] for answer in ("Yes", "No")}

    def log_answers(image, caption):
        question = f'Does this figure show "{caption}"? Please answer yes or no.'
        content = [{"type": "image", "image": image.open()}, {"type": "text", "text": question}]
        inputs = processor.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        inputs["pixel_values"] = inputs["pixel_values"].to(dtype)
        logs = model(**inputs).logits[0, -1].log_softmax(dim=-1)
        return {answer: logs[tokens].logsumexp(dim=0) for answer, tokens in ids.items()}

    def scores():
        model.eval()
        with torch.no_grad():
            return [
                np.array(
                    [[float(a["Yes"] - a["No"]) for a in (log_answers(i, c) for c in g.captions)] for i in g.images]
                )
                for g in groups
            ]

    history = []
    for t, before in enumerate(given, 1):
        wanted = []
        for s in before.astype(np.float64):
            margin = s[0, 0] + s[1, 1] - s[0, 1] - s[1, 0]
            straight = margin > 0
            wanted.append((abs(margin) >= tau[t - 1], straight))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.05)
        losses = []
        for epoch in range(epochs):
            rate = lr * 0.95 ** (t - 1) * (0.1 + 0.9 * (1 + math.cos(math.pi * epoch / epochs)) / 2)
            optimizer.param_groups[0]["lr"] = rate
            model.train()
            terms = [
                -log_answers(image, caption)["Yes" if (i == j) == straight else "No"]
                for group, (kept, straight) in zip(groups, wanted, strict=True)
                if kept
                for i, image in enumerate(group.images)
                for j, caption in enumerate(group.captions)
            ]
            loss = torch.stack(terms).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        history.append((wanted, losses, scores()))
    return history


def test_it_is_algorithm_1_with_yes_and_no(llava):
    groups = groups_of("shapes_color", 3)
    stage, raw = phase_of(vqascore.load(pretrained=str(llava), device="cpu"), groups, batch_size=7)
    own = raw.groups.astype(np.float64)
    margin = np.sort(np.abs(own[:, 0, 0] + own[:, 1, 1] - own[:, 0, 1] - own[:, 1, 0]))
    first = float(margin[:2].mean())
    config = TTMConfig(iterations=2, epochs=2, tau_start=first)
    steps = list(adapt(stage, raw, config=config, schedule=LINEAR, learning_rate=5e-4, seed=0))
    given = [raw.groups, steps[0].scores.groups]
    single, exact = (
        naive(llava, groups, given, 2, 5e-4, [first, 0.0], dtype) for dtype in (torch.float32, torch.float64)
    )
    assert steps[0].selected.sum() == 2 and steps[1].selected.all()
    of_scores, of_losses = Noise(), Noise()
    for step, near, (wanted, losses, scores) in zip(steps, single, exact, strict=True):
        assert step.selected.tolist() == [kept for kept, _ in wanted]
        assert (step.captions[:, 0] == 0).tolist() == [straight for _, straight in wanted]
        np.testing.assert_allclose(step.scores.groups, scores, atol=of_scores.after(near[2], scores), rtol=0)
        np.testing.assert_allclose(step.loss, losses, atol=of_losses.after(near[1], losses), rtol=0)


# --- as columns of a run ------------------------------------------------------------------------------------------


def test_every_variant_works_by_the_command_line(llava, tmp_path, capsys):
    out, adapted = tmp_path / "x.json", tmp_path / "adapted"
    options = "--methods ttm,overfit,oracle,placebo,shuffle --holdout 0.34 --audit_labels".split()
    words = ["--model", "vqascore", "--model_args", f"pretrained={llava}", "--tasks", "shapes_color", *options]
    words += ["--ttm_args", "iterations=2,epochs=1,lr=1e-3", "--limit", "6", "--device", "cpu"]
    assert main([*words, "--save_adapted", str(adapted), "--output_path", str(out)]) == 0, capsys.readouterr().err
    document = json.loads(out.read_text())
    numbers, record = document["results"]["shapes_color"], document["methods"]["shapes_color"]["ttm"]
    for name in ("none", "overfit", "ttm", "placebo", "shuffle", "oracle"):
        assert 0 <= numbers[f"group_match,{name}"] <= 1
    assert record["audit_labels"]["passed"] and len(record["iterations"]) == 2
    for step in document["methods"]["shapes_color"]["oracle"]["iterations"]:
        assert step["pseudo_label_accuracy"] in (1.0, None)
    saved = {"pretrained": str(adapted / "ttm")}
    again = ttmbench.simple_evaluate("vqascore", "shapes_color", model_args=saved, **QUICK)
    for metric in ("text_score", "group_match"):
        assert again.results["shapes_color"][f"{metric},none"] == numbers[f"{metric},ttm"]


def test_matching_heads_are_adapted_by_their_own_loss(tiny_vlm):
    folder = str(tiny_vlm("blip"))
    settings = {"model_args": {"pretrained": folder}, "ttm": {**SHORT, "epochs": 10, "lr": 3e-4}, **QUICK}
    run = ttmbench.simple_evaluate("blip-itm", "shapes_color", **settings)
    steps = run["methods"]["shapes_color"]["ttm"]["iterations"]
    assert steps[-1]["loss"][-1] < steps[0]["loss"][0]


def test_the_global_variant_is_refused(llava, capsys):
    words = ["--model", "vqascore", "--model_args", f"pretrained={llava}", "--limit", "4", "--device", "cpu"]
    assert main([*words, "--tasks", "shapes_color_global", "--ttm"]) == 2
    assert "the task is matched globally" in capsys.readouterr().err
    assert main([*words, "--tasks", "shapes_color_global"]) == 0, "scoring it is not a problem"


def test_fp16_cannot_train(llava):
    adapter = vqascore.load(pretrained=str(llava), device="cpu", dtype="fp16")
    with pytest.raises(UsageError, match="fp16 cannot train"):
        adapter.pair_loss([], [], np.zeros(0, dtype=bool))


# --- low-rank factors ---------------------------------------------------------------------------------------------


def test_lora_without_peft_says_what_to_install(llava, monkeypatch):
    adapter = vqascore.load(pretrained=str(llava), device="cpu")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UsageError, match=r"pip install 'ttmbench\[lora\]'"):
        vqascore.add_lora(adapter.model, 4, LORA_TARGETS)


def test_lora_trains_its_factors_alone(llava, tmp_path):
    pytest.importorskip("peft")
    plain = vqascore.load(pretrained=str(llava), device="cpu")
    adapter = vqascore.load(pretrained=str(llava), device="cpu", lora=4)
    assert adapter.fingerprint()["lora_rank"] == 4
    assert adapter.fingerprint()["weights_sha256"] == plain.fingerprint()["weights_sha256"]
    trained = {name for name, tensor in adapter.model.named_parameters() if tensor.requires_grad}
    assert trained == set(adapter.state_dict()) and all("lora_" in name for name in trained)
    assert len(trained) == 2 * 4 * 2, "two factors for four projections of two layers"
    rest = {n: t.clone() for n, t in adapter.model.state_dict().items() if n not in trained}
    options = {"limit": 6, "bootstrap_iters": 0}
    ttm = {"ttm": {**SHORT, "lr": 1e-2}, "save_adapted": str(tmp_path / "merged")}
    run = ttmbench.simple_evaluate(adapter, "shapes_color", **ttm, **options)
    raw = ttmbench.simple_evaluate(plain, "shapes_color", **options).scores["shapes_color"]["none"][0].groups
    scores = run.scores["shapes_color"]
    np.testing.assert_allclose(scores["none"][0].groups, raw, atol=1e-5, rtol=0)
    assert not np.allclose(scores["ttm"][0].groups, raw, atol=1e-3)
    for name, tensor in adapter.model.state_dict().items():
        assert name in trained or torch.equal(tensor, rest[name]), name
    merged = vqascore.load(pretrained=str(tmp_path / "merged"), device="cpu")
    found = ttmbench.simple_evaluate(merged, "shapes_color", **options).scores["shapes_color"]["none"][0].groups
    np.testing.assert_allclose(found, scores["ttm"][0].groups, atol=1e-4, rtol=0)


def test_lora_beside_half_precision_weights_is_fp32(llava):
    pytest.importorskip("peft")
    adapter = vqascore.load(pretrained=str(llava), device="cpu", lora=4, weights_dtype="bf16", dtype="bf16")
    assert all(tensor.dtype == torch.float32 for tensor in adapter.parameters())
    run = ttmbench.simple_evaluate(adapter, "shapes_color", ttm=SHORT, limit=6, bootstrap_iters=0)
    assert np.isfinite(run["methods"]["shapes_color"]["ttm"]["iterations"][-1]["loss"]).all()


def test_lora_needs_layers_and_a_rank(llava):
    pytest.importorskip("peft")
    with pytest.raises(UsageError, match="fits no layer"):
        vqascore.load(pretrained=str(llava), device="cpu", lora=4, lora_targets="nothing_is_called_so")
    with pytest.raises(UsageError, match="'lora': must be greater than 0"):
        vqascore.load(pretrained=str(llava), device="cpu", lora=0)


def test_parts_of_ttm_work_for_pairs_but_a_loss_of_dual_encoders(llava):
    settings = {"model_args": {"pretrained": str(llava)}, "limit": 4, "device": "cpu", "bootstrap_iters": 0}
    parts = {"pseudo_labels": "argmax", "selection": "every", "optimizer": "sgd", "teacher": "ema", "train": "norm"}
    ttm = {**SHORT, **parts, "teacher.decay": 0.5, "stopping": "no_change"}
    done = ttmbench.simple_evaluate("vqascore", "shapes_color", ttm=ttm, methods=["selftrain"], **settings)
    assert done["results"]["shapes_color"]["group_match,ttm"] is not None
    cost = done["methods"]["shapes_color"]["selftrain"]["cost"][0]
    assert cost["image_rows"] == cost["caption_rows"] > cost["image_rows_backward"] > 0
    for soft in ({"loss": "cross_entropy"}, {"loss": "cross_entropy", "pseudo_labels": "sinkhorn"}):
        with pytest.raises(UsageError, match="needs features with gradients, which model vqascore does not give"):
            ttmbench.simple_evaluate("vqascore", "shapes_color", ttm=soft, **settings)
