"""Runs on a stand-in for a GPU: tensors meet where they should, and nobody waits for the device without need.

What is compared with the processor is compared on a real one by ``pytest -m gpu``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from support.stand_in_gpu import GPU, stand_in_gpu

import ttmbench
from ttmbench.config import TTMConfig
from ttmbench.data.catalog import find_task
from ttmbench.data.loader import load_task_data
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.model_adapters import hf
from ttmbench.plugins.registry import build_registry
from ttmbench.scoring.prepare import prepare
from ttmbench.ttm.finetune import TrainingPairs, _step, finetune, make_optimizer, restore, snapshot

TTM = {"ttm": {"iterations": 1, "epochs": 2, "batch_groups": 2, "lr": 1e-7}, "seeds": [0]}
QUICK = {"limit": 3, "bootstrap_iters": 0, "use_cache": "off", "log_samples": True}


def test_the_stand_in_refuses_what_a_gpu_refuses():
    with stand_in_gpu() as gpu:
        there = torch.arange(3.0).to("cuda", non_blocking=True)
        assert there.device == GPU and there.is_cuda and torch.zeros(2, device="cuda").device == GPU
        with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu"):
            there + torch.ones(3)
        for as_numpy in (np.asarray, torch.Tensor.numpy):
            with pytest.raises(TypeError, match=r"Tensor\.cpu\(\)"):
                as_numpy(there)
        assert gpu.waits == 0 and gpu.uploads == [12]
        assert there.sum().item() == 3 and (2 * there).cpu().tolist() == [0, 2, 4] and gpu.waits == 2
        assert there[torch.tensor([2])].cpu().tolist() == [2] and gpu.waits == 4, "an index is sent, and waited for"
        assert torch.tensor([1.0, 2.0], device="cuda").device == GPU and gpu.waits == 5
        weight = torch.nn.Parameter(there)
        (weight * torch.tensor(2.0)).sum().backward()
        assert weight.grad.device == GPU and weight.grad.tolist() == [2, 2, 2]
    assert not torch.cuda.is_available()


@contextmanager
def real_gpu() -> Iterator[None]:
    """This machine's own, without TF32, which torch takes for convolutions; memory there must have been used."""
    torch.cuda.reset_peak_memory_stats()
    before, tf32 = torch.cuda.max_memory_allocated(), torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = tf32
    assert torch.cuda.max_memory_allocated() > before


@contextmanager
def busy_stand_in() -> Iterator[None]:
    """The stand-in, which must have computed something."""
    with stand_in_gpu() as gpu:
        yield
    assert gpu.operations > 50


Device = Callable[[], AbstractContextManager[None]]


@pytest.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.gpu)])
def gpu(request) -> Device:
    """What makes device ``cuda`` be there."""
    if request.param == "real" and not torch.cuda.is_available():
        pytest.skip("this machine has no GPU that torch can use")
    return real_gpu if request.param == "real" else busy_stand_in


def run(folder: Path, device: str, model: str, task: str, **settings) -> tuple[dict, list[dict]]:
    """A document's numbers, and the lines of its samples."""
    done = ttmbench.simple_evaluate(model, task, output_path=str(folder / device), device=device, **settings)
    (samples,) = (name for name, about in done.document["artifacts"].items() if about["kind"] == "samples")
    text = (done.path.parent / samples).read_text(encoding="utf-8")
    return done.document["results"], [json.loads(line) for line in text.splitlines()]


def same(gpu: Device, folder: Path, model: str, task: str = "shapes_color", **settings) -> None:
    """Checks that a run on a GPU gives what the same run on the processor gives."""
    settings = {**QUICK, **settings}
    results, lines = run(folder, "cpu", model, task, **settings)
    with gpu():
        there, lines_there = run(folder, "cuda", model, task, **settings)
    assert there == results and len(lines) == len(lines_there) > 0
    for one, other in zip(lines, lines_there, strict=True):
        assert np.allclose(one.get("scores", 0), other.get("scores", 0), rtol=1e-4, atol=1e-5), one["group_id"]


ALWAYS = [
    ("hf", "clip", {}, TTM),
    ("blip-itm", "blip", {"captioner": False}, TTM),
    ("visualgpt", "blip", {"captioner": True}, {}),
    ("vqascore", "chat", {"kind": "llava"}, {}),
]
MORE = [
    ("hf", "siglip", {}, TTM),
    ("blip-itc", "blip", {"captioner": False}, TTM),
    ("blip2-itm", "blip2", {"captioner": False}, TTM),
    ("blip2-itc", "blip2", {"captioner": False}, TTM),
    ("flava-itm", "flava", {}, TTM),
    ("flava-itc", "flava", {}, TTM),
    ("visualgpt", "blip2", {"captioner": True}, {}),
    ("vqascore", "chat", {"kind": "llava"}, TTM),
    ("vqascore", "chat", {"kind": "qwen2_vl"}, {}),
    ("vqascore", "instructblip", {"language": "t5"}, {}),
    ("choice", "chat", {"kind": "llava"}, {}),
    ("blind", "language_model", {"kind": "gpt2"}, {}),
    ("blind", "language_model", {"kind": "t5"}, {}),
]


def _named(case: tuple) -> str:
    model, _, options, settings = case
    return " ".join([model, case[1], *map(str, options.values()), *(["TTM"] if settings else [])])


@pytest.mark.parametrize(
    "case", [*ALWAYS, *(pytest.param(case, marks=pytest.mark.slow) for case in MORE)], ids=lambda case: _named(case)
)
def test_a_run_gives_the_numbers_of_the_processor(case, gpu, tiny_vlm, tiny_hf_clip, tiny_siglip, tmp_path):
    model, maker, options, settings = case
    at_hand = {"clip": tiny_hf_clip, "siglip": tiny_siglip}
    folder = at_hand.get(maker) or tiny_vlm(maker, **options)
    same(gpu, tmp_path, model, model_args={"pretrained": str(folder)}, **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"ttm_holdout": 0.4, "ttm_controls": ["placebo"], "oracle": True, "simple_match": True, "audit_labels": True},
        {"ttm_also": ["shapes_retrieval", "shapes_spatial"]},
        {"deterministic": True},
        {"task": "shapes_color_global"},
        {"task": "shapes_order"},
        {"ttm": {**TTM["ttm"], "augment": True}},
    ],
    ids=lambda settings: ", ".join(settings),
)
def test_every_stage_gives_the_numbers_of_the_processor(settings, gpu, tiny_hf_clip, tmp_path):
    same(gpu, tmp_path, "hf", model_args={"pretrained": str(tiny_hf_clip)}, **{**TTM, "limit": 5, **settings})


@pytest.mark.slow
def test_open_clip_gives_the_numbers_of_the_processor(gpu, tiny_vlm, tmp_path):
    same(gpu, tmp_path, "open_clip", model_args={"model": f"local-dir:{tiny_vlm('open_clip')}"}, **TTM)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_training_waits_once_an_epoch_and_sends_images_once(kind, dtype, tiny_hf_clip, tiny_siglip):
    registry = build_registry()
    groups = load_task_data(registry, find_task(registry, "shapes_color"), limit=4).groups
    epochs, batch = 2, 2
    with stand_in_gpu() as gpu:
        folder = str(tiny_siglip if kind == "siglip" else tiny_hf_clip)
        adapter = hf.load(pretrained=folder, device="cuda", dtype=dtype)
        if kind == "siglip":
            adapter.tokenizer.model_input_names = ["input_ids"]  # as those of the hub's repositories have it
        prepared, _ = prepare(adapter, groups, 32)
        pairs = TrainingPairs(prepared.rows.images, prepared.rows.captions)
        optimizer, config = make_optimizer(adapter, TTMConfig(epochs=epochs)), TTMConfig(epochs=epochs)
        gpu.waits, gpu.uploads[:] = 0, []
        rng = np.random.default_rng(0)
        losses = finetune(adapter, prepared, pairs, optimizer, config=config, learning_rate=1e-4, batch=batch, rng=rng)
    images = prepared.images["pixel_values"].nbytes
    assert len(losses) == epochs and gpu.waits == epochs + 1, "for the images, and for the loss of each epoch"
    assert sorted(gpu.uploads)[-1] == images and sorted(gpu.uploads)[-2] < images / 20


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_images_cross_once_for_all_passes_and_seeds(kind, tiny_hf_clip, tiny_siglip):
    """Enlarged ones too, which CLIP has in several sizes: crops are cut out on the device."""
    folder, limit = str(tiny_siglip if kind == "siglip" else tiny_hf_clip), 3
    enlarged = int(32 * TTMConfig().augment_scale)
    ttm = {**TTM["ttm"], "iterations": 2, "augment": True}
    with stand_in_gpu() as gpu:
        quick = {**QUICK, "limit": limit, "log_samples": False}
        ttmbench.simple_evaluate(
            "hf", "shapes_color", device="cuda", model_args={"pretrained": folder}, ttm=ttm, seeds=[0, 1], **quick
        )
    images = 2 * limit
    assert gpu.uploaded[torch.uint8] == images * 3 * (32 * 32 + enlarged * enlarged)


def test_too_little_memory_is_said_with_what_would_fit(monkeypatch, tiny_hf_clip):
    """For the weights when they are loaded, for training before anything is scored, and for the optimizer's state."""
    model = {"model": "hf", "model_args": {"pretrained": str(tiny_hf_clip)}, "device": "cuda", "use_cache": "off"}
    with stand_in_gpu(), monkeypatch.context() as small:
        small.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
        small.setattr("ttmbench.evaluator.run.score_task", lambda *_: pytest.fail("scored before memory was computed"))
        with pytest.raises(UsageError, match=r"training needs .* cuda has 0 GB free; .*--ttm_args train=norm"):
            ttmbench.simple_evaluate(**model, tasks=["shapes_color"], **TTM)
        small.setattr(torch.nn.Module, "to", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError()))
        with pytest.raises(UsageError, match=r"cuda has too little free memory for the model's weights \(\d+\.\d MB\)"):
            hf.load(pretrained=str(tiny_hf_clip), device="cuda")
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(7))])
    monkeypatch.setattr(optimizer, "step", lambda: (_ for _ in ()).throw(torch.OutOfMemoryError()))
    with pytest.raises(TtmbenchError, match="step of the optimizer, which keeps two numbers for each of 7 trained"):
        _step(optimizer)


def test_a_copy_of_the_weights_takes_no_memory_of_the_device(tiny_hf_clip):
    with stand_in_gpu() as gpu:
        adapter = hf.load(pretrained=str(tiny_hf_clip), device="cuda")
        gpu.reset()
        copied = snapshot(adapter)
        assert gpu.waits == 1 and all(map(gpu.is_pinned, copied.values()))
        assert {tensor.device.type for tensor in copied.values()} == {"cpu"}
        before = {name: tensor.cpu() for name, tensor in adapter.state_dict().items()}
        with torch.no_grad():
            for parameter in adapter.parameters():
                parameter.zero_()
        restore(adapter, copied)
        after = adapter.state_dict()
        assert all(after[name].device == GPU and torch.equal(after[name].cpu(), before[name]) for name in before)


@pytest.mark.parametrize("given", [{"dtype": "tf32"}, {"model_args": {"dtype": "tf32"}}])
def test_tf32_is_switched_for_the_run_and_stated(given, monkeypatch, tiny_hf_clip):
    """For training as for scores: the gradient is computed where the setting still holds."""
    seen, where = [], torch.backends.cuda.matmul
    before, step = where.fp32_precision, torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *args: [seen.append(where.fp32_precision), step(*args)][1])
    given = {**given, "model_args": {"pretrained": str(tiny_hf_clip), **given.get("model_args", {})}}
    quick = {"limit": 3, "bootstrap_iters": 0, "use_cache": "off", **TTM}
    with stand_in_gpu():
        done = ttmbench.simple_evaluate("hf", "shapes_color", device="cuda", **given, **quick)
        assert seen and set(seen) == {"tf32"} and where.fp32_precision == before
        assert done.document["model_info"]["fingerprint"]["dtype"] == "tf32"
        with pytest.raises(UsageError, match="deterministic needs dtype fp32, bf16 or fp16, got tf32"):
            ttmbench.simple_evaluate("hf", "shapes_color", device="cuda", deterministic=True, **given, **quick)
    with pytest.raises(UsageError, match="--dtype tf32 needs an NVIDIA GPU, and it runs on the CPU; use --dtype fp32"):
        ttmbench.simple_evaluate("hf", "shapes_color", device="cpu", **given, **quick)
