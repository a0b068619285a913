"""Runs on a stand-in for a GPU: tensors meet where they should, and nobody waits for the device without need.

What is compared with the processor is compared on a real one by ``pytest -m gpu``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from support.adapter_inputs import groups_of
from support.rounding import bound
from support.small_models import adapt
from support.stand_in_gpu import stand_in_gpu

import ttmbench
from ttmbench import schedules
from ttmbench.config import TTMConfig
from ttmbench.errors import UsageError
from ttmbench.methods.runner import SeedRun, TaskCheckpoint
from ttmbench.methods.training import Iteration, TrainingPairs
from ttmbench.model_adapters import hf, vqascore
from ttmbench.scoring.dual_encoder import PreparedTask
from ttmbench.scoring.inputs import Inputs, images_on_device, prepare, take
from ttmbench.types import ScheduleSpec

TTM = {"ttm": {"iterations": 1, "epochs": 2, "batch_groups": 2, "lr": 1e-7}, "seeds": [0]}
QUICK = {"limit": 3, "bootstrap_iters": 0, "use_cache": "off", "log_samples": True}


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
REAL = (pytest.mark.gpu, pytest.mark.filterwarnings("default"))  # CUDA's libraries warn once of what they choose


@pytest.fixture(params=["stand-in", pytest.param("real", marks=REAL)])
def gpu(request) -> Device:
    """What makes device ``cuda`` be there."""
    return _real() if request.param == "real" else busy_stand_in


def _real() -> Device:
    """This machine's own, skipped without so many; what cuBLAS reads when it starts is set before."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU that torch can use")
    return real_gpu


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


TRAINED = {  # adapter -> tiny models that TTM trains
    **{"hf": "clip siglip", "vqascore": "llava", "open_clip": "open_clip"},
    **{f"{name}-{kind}": name for name in ("blip", "blip2", "flava") for kind in ("itm", "itc")},
}
SCORED = {"visualgpt": "blip-captioner blip2-opt", "vqascore": "llava qwen2_vl instructblip-t5", "choice": "llava"}
SCORED["blind"] = "gpt2 t5"
ALWAYS = [("hf", "clip", TTM), ("blip-itm", "blip", TTM)]
ALWAYS += [("visualgpt", "blip-captioner", {}), ("vqascore", "llava", {})]
EACH = [(kind, name, TTM) for kind, names in TRAINED.items() for name in names.split()]
EACH += [(kind, name, {}) for kind, names in SCORED.items() for name in names.split()]
MORE = [case for case in EACH if case not in ALWAYS]


@pytest.mark.parametrize(
    ("model", "name", "settings"), [*ALWAYS, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)]
)
def test_a_run_gives_the_numbers_of_the_processor(model, name, settings, gpu, tiny_vlm, tmp_path):
    folder = tiny_vlm(name)
    arguments = {"model": f"local-dir:{folder}"} if model == "open_clip" else {"pretrained": str(folder)}
    same(gpu, tmp_path, model, model_args=arguments, **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"holdout": 0.4, "methods": ["overfit", "oracle", "placebo"], "audit_labels": True},
        {"also": ["shapes_retrieval", "shapes_spatial"]},
        {"deterministic": True},
        {"task": "shapes_color_global"},
        {"task": "shapes_order"},
        {"ttm": {**TTM["ttm"], "augment": True}},
    ],
    ids=lambda settings: ", ".join(settings),
)
def test_every_stage_gives_the_numbers_of_the_processor(settings, gpu, tiny_hf_clip, tmp_path):
    same(gpu, tmp_path, "hf", model_args={"pretrained": str(tiny_hf_clip)}, **{**TTM, "limit": 5, **settings})


def test_too_little_memory_is_said_with_what_would_fit(monkeypatch, tiny_hf_clip):
    """For training, before anything is scored."""
    model = {"model": "hf", "model_args": {"pretrained": str(tiny_hf_clip)}, "device": "cuda", "use_cache": "off"}
    with stand_in_gpu(), monkeypatch.context() as small:
        small.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
        small.setattr("ttmbench.evaluator.score_task.score", lambda *_: pytest.fail("scored before memory was known"))
        with pytest.raises(UsageError, match=r"training needs .* cuda has 0 GB free; .*--ttm_args train=norm"):
            ttmbench.simple_evaluate(**model, tasks=["shapes_color"], **TTM)


def test_tf32_is_switched_for_the_run_and_stated(monkeypatch, tiny_hf_clip):
    """For training as for scores: the gradient is computed where the setting still holds."""
    seen, where = [], torch.backends.cuda.matmul
    name = "fp32_precision" if hasattr(where, "fp32_precision") else "allow_tf32"
    before, step = getattr(where, name), torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *args: [seen.append(getattr(where, name)), step(*args)][1])
    model = {"pretrained": str(tiny_hf_clip)}
    quick = {"model": "hf", "tasks": "shapes_color", "limit": 3, "bootstrap_iters": 0, "use_cache": "off", **TTM}
    with stand_in_gpu():
        for given in ({"dtype": "tf32", "model_args": model}, {"model_args": {**model, "dtype": "tf32"}}):
            done = ttmbench.simple_evaluate(device="cuda", **given, **quick)
            assert set(seen) in ({"tf32"}, {True}) and getattr(where, name) == before
            assert done.document["model_info"]["fingerprint"]["dtype"] == "tf32"
        with pytest.raises(UsageError, match="deterministic needs dtype"):
            ttmbench.simple_evaluate(device="cuda", deterministic=True, **given, **quick)
    with pytest.raises(UsageError, match="--dtype tf32 needs an NVIDIA GPU"):
        ttmbench.simple_evaluate(device="cpu", **given, **quick)


def ready(adapter, limit: int = 4) -> tuple[PreparedTask, TrainingPairs]:
    """A small task for an adapter, and its true pairs; of a model that scores pairs, all pairs of each group."""
    prepared = prepare(adapter, Inputs(groups_of("shapes_color", limit)), 32)
    rows = prepared.rows
    pairs = TrainingPairs(rows.images, rows.captions)
    if not hasattr(adapter, "matching_loss"):
        matched = np.tile([True, False, False, True], (limit, 1))
        pairs = TrainingPairs(rows.images.repeat(2, axis=1), np.tile(rows.captions, (1, 2)), matched)
    return PreparedTask(adapter, images_on_device(adapter, prepared), 64, False, False), pairs


def gradient(adapter) -> torch.Tensor:
    """Of the loss on all pairs, by every trained parameter in turn, on the processor; float64 [numbers]."""
    stage, pairs = ready(adapter)
    images = take(stage.prepared.images, pairs.images.ravel())
    captions = take(stage.prepared.captions, pairs.captions.ravel())
    if pairs.matched is None:
        adapter.matching_loss(images, captions).backward()
    else:
        adapter.pair_loss(images, captions, pairs.matched.ravel()).backward()
    return torch.cat([one.grad.cpu().double().flatten() for one in adapter.parameters() if one.grad is not None])


def points_alike(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two gradients point the same way: rounding to bf16 turns one by less than a hundredth."""
    return found.shape == expected.shape and float(torch.cosine_similarity(found, expected, dim=0)) > 0.9


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_gradient_is_that_of_the_processor(kind, gpu, tiny_hf_clip, tiny_siglip):
    folder = str(tiny_siglip if kind == "siglip" else tiny_hf_clip)
    reference = hf.load(pretrained=folder, device="cpu")
    expected = gradient(reference)
    with gpu():
        found, half = (gradient(hf.load(pretrained=folder, device="cuda", dtype=dtype)) for dtype in ("fp32", "bf16"))
    largest = expected.abs().max()
    allowed = bound(reference.model, largest, passes=2)
    assert largest > 100 * allowed
    assert torch.allclose(found, expected, atol=allowed, rtol=0) and points_alike(half, expected)


def test_the_gradient_of_lora_on_weights_in_half_precision(gpu, tiny_vlm):
    pytest.importorskip("peft")
    folder, half = str(tiny_vlm("llava")), {"dtype": "bf16", "weights_dtype": "bf16"}
    expected = gradient(vqascore.load(pretrained=folder, device="cpu", lora=4))
    with gpu():
        found = gradient(vqascore.load(pretrained=folder, device="cuda", lora=4, **half))
    assert points_alike(found, expected)


@pytest.mark.slow
def test_a_stopped_run_ends_as_a_quiet_one(gpu, tiny_hf_clip, tmp_path):
    config, linear = TTMConfig(iterations=3, epochs=2, keep_optimizer_state=True), schedules.linear
    settings = {"config": config, "schedule": ScheduleSpec("linear", linear), "learning_rate": 1e-4, "seed": 0}
    folder = TaskCheckpoint(tmp_path, "data", "run")

    def steps(count: int, resumed: bool = False) -> list[Iteration]:
        stage, _ = ready(hf.load(pretrained=str(tiny_hf_clip), device="cuda"))
        raw = stage.score()
        kept = folder.seed("ttm", 0, raw)
        state = kept.read()[1] if resumed else None

        def keep(state):
            kept.keep(SeedRun(steps=[*state.steps], turns=state.turns), state)

        done = list(islice(adapt(stage, raw, **settings, resume=state, keep=keep), count))
        kept.finish_writing()
        return done

    with gpu():
        steps(1)
        again, quiet = steps(2, resumed=True), steps(3)
    assert [step.iteration for step in again] == [2, 3]
    for one, other in zip(again, quiet[1:], strict=True):
        assert np.array_equal(one.selected, other.selected) and np.array_equal(one.captions, other.captions)
        assert np.allclose(one.scores.groups, other.scores.groups, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_compiled_towers_score_and_learn_as_others(kind, tiny_hf_clip, tiny_siglip):
    folder = str(tiny_siglip if kind == "siglip" else tiny_hf_clip)
    with _real()():
        plain, fast = (hf.load(pretrained=folder, device="cuda", compile=compiled) for compiled in (False, True))
        expected, found = (ready(adapter)[0].score().groups for adapter in (plain, fast))
        assert np.allclose(found, expected, atol=bound(plain.model, expected), rtol=0)
        assert points_alike(gradient(fast), gradient(plain))
