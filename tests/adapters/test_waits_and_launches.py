"""What each kind of model asks of a GPU, counted on the stand-in: kernels, bytes that are sent, and waits for it.

Arithmetic in half precision is as torch's autocast for CUDA has it, so a dtype that does not fit fails here too.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch
from support.stand_in_gpu import Gpu, stand_in_gpu

from ttmbench.config import TTMConfig
from ttmbench.data.catalog import find_task
from ttmbench.data.loader import load_task_data
from ttmbench.plugins.registry import build_registry
from ttmbench.scoring.prepare import PreparedTask, prepare
from ttmbench.ttm.finetune import TrainingPairs, finetune, make_optimizer

# Module, small model, its options; launches of a scoring pass and of a training step in fp32, the same in bf16; waits
# in libraries, of both. All a tenth more than was counted with torch 2.15 and transformers 5.23.
CONTRASTIVE = [
    ("hf", "clip", {}, (125, 315), (205, 485)),
    ("hf", "siglip", {}, (130, 330), (225, 535)),
    ("open_clip", "open_clip", {}, (110, 275), (175, 405)),
    ("itc", "blip", {"captioner": False}, (125, 320), (205, 485)),
    ("itc", "blip2", {"captioner": False}, (150, 450), (275, 720)),
    ("itc", "flava", {}, (140, 350), (240, 545)),
]
MATCHING = [
    ("itm", "blip", {"captioner": False}, (135, 360), (235, 570)),
    ("itm", "blip2", {"captioner": False}, (115, 330), (210, 535)),
    ("itm", "flava", {}, (170, 445), (315, 735)),
]
ASKED = [
    ("vqascore", "chat", {"kind": "llava"}, (280, 465), (390, 610), (3, 2)),
    ("vqascore", "chat", {"kind": "qwen2_vl"}, (640, 1135), (765, 1315), (100, 16)),
    ("vqascore", "chat", {"kind": "qwen3_vl"}, (660, 1150), (760, 1300), (105, 26)),
    ("vqascore", "chat", {"kind": "llava_onevision"}, (235, 425), (305, 545), (50, 4)),
    ("vqascore", "chat", {"kind": "internvl"}, (180, 345), (245, 440), (3, 2)),
    ("vqascore", "chat", {"kind": "smolvlm"}, (210, 340), (260, 430), (8, 7)),
    ("vqascore", "chat", {"kind": "paligemma"}, (180, 500), (250, 665), (2, 2)),
    ("vqascore", "instructblip", {"language": "t5"}, (270, 730), (395, 995), (2, 2)),
    ("vqascore", "blip2", {"captioner": True}, (140, 430), (265, 695), (1, 1)),
]


def _case(case: tuple) -> object:
    module, maker, options, *_ = case
    name = " ".join([module, maker, *map(str, options.values())])
    is_quick = module in ("hf", "open_clip") or name in ("itm blip False", "vqascore chat llava")
    return pytest.param(case, id=name, marks=() if is_quick else pytest.mark.slow)


@pytest.fixture(scope="module")
def groups():
    registry = build_registry()
    return load_task_data(registry, find_task(registry, "shapes_color"), limit=4).groups


class Counted:
    """A small model on the stand-in, and what its scoring passes and steps of training ask of it."""

    def __init__(self, gpu: Gpu, case: tuple, folder: str, groups, **settings: object) -> None:
        module, maker, *_ = case
        named = {"model": f"local-dir:{folder}"} if module == "open_clip" else {"pretrained": folder}
        self.gpu, self.adapter = (
            gpu,
            import_module(f"ttmbench.model_adapters.{module}").load(**named, device="cuda", **settings),
        )
        if maker == "siglip":
            self.adapter.tokenizer.model_input_names = ["input_ids"]  # as those of the Hub's repositories have it
        self.towers_of_a_weight = 2 if (module, maker) == ("itc", "blip2") else 1  # its Q-Former reads both
        self.prepared, _ = prepare(self.adapter, groups, 32)
        self.stage = PreparedTask(self.adapter, self.prepared, 64, False, False)

    def scored(self) -> tuple[int, int]:
        """Launches of a scoring pass, and waits inside it that are not ours: ours is one, for the scores."""
        self.gpu.reset()
        scores = self.stage.score().groups
        assert scores.dtype == np.float32 and np.isfinite(scores).all()
        return self.gpu.launches, self._waits(1)

    def trained(self) -> tuple[int, int]:
        """Launches of a training step, and waits in it, none of which is ours."""
        rows = self.prepared.rows
        if hasattr(self.adapter, "matching_loss"):
            pairs = TrainingPairs(rows.images, rows.captions)
        else:
            matched = np.tile([True, False, False, True], (len(rows.images), 1))
            pairs = TrainingPairs(rows.images.repeat(2, axis=1), np.tile(rows.captions, (1, 2)), matched)
        config = TTMConfig(epochs=1)
        optimizer, counts = make_optimizer(self.adapter, config), []
        assert all(value.dtype == torch.float32 for group in optimizer.param_groups for value in group["params"])
        for steps in (1, 1, 2):  # the first makes the optimizer's state
            self.gpu.reset()
            batch, rng = len(rows.images) // steps, np.random.default_rng(0)
            done = finetune(
                self.adapter, self.prepared, pairs, optimizer, config=config, learning_rate=1e-5, batch=batch, rng=rng
            )
            assert np.isfinite(done).all()
            # Ours: for the images, where they are sent, and for the loss of the epoch.
            counts.append((self.gpu.launches, self._waits(2), sum(self.gpu.uploads)))
            assert not self.gpu.unpinned
            assert max(self.gpu.casts.values(), default=1) <= steps * self.towers_of_a_weight, "autocast keeps them"
        assert counts[2][0] > counts[1][0]
        return counts[1][0], counts[2][1] - counts[1][1]

    def _waits(self, ours: int) -> int:
        """Waits in libraries; ours must not be more than that."""
        here = {
            place: count
            for place, count in self.gpu.waited.items()
            if place.startswith("ttmbench.") and not place.endswith(":_backward")  # of what libraries did forward
        }
        assert sum(here.values()) <= ours, here
        return self.gpu.waits - sum(here.values())


def counted(gpu: Gpu, case: tuple, tiny_vlm, groups, **settings: object) -> Counted:
    _, maker, options, *_ = case
    return Counted(gpu, case, str(tiny_vlm(maker, **options)), groups, **settings)


@pytest.mark.parametrize("case", [*map(_case, CONTRASTIVE), *map(_case, MATCHING)])
def test_dual_encoders_and_matching_heads_wait_once_a_pass_and_never_in_a_step(case, tiny_vlm, groups):
    launched = {}
    for dtype in ("fp32", "bf16", "fp16"):
        with stand_in_gpu() as gpu:
            model = counted(gpu, case, tiny_vlm, groups, dtype=dtype)
            launches, waits = model.scored()
            assert waits == 0
            launched[dtype] = [launches]
            if dtype != "fp16":
                launches, waits = model.trained()
                assert waits == 0
                launched[dtype].append(launches)
    of_fp32, of_bf16 = case[3:]
    assert all(np.less_equal(launched["fp32"], of_fp32)), launched
    assert all(np.less_equal(launched["bf16"], of_bf16)), launched
    assert launched["fp16"][0] == launched["bf16"][0] > launched["fp32"][0], "both cast, fp32 does not"


def test_tf32_launches_what_fp32_launches(tiny_vlm, groups):
    found = []
    for dtype in ("fp32", "tf32"):
        with stand_in_gpu() as gpu:
            model = counted(gpu, CONTRASTIVE[1], tiny_vlm, groups, dtype=dtype)
            found.append((model.scored(), model.trained()))
    assert found[0] == found[1]


@pytest.mark.parametrize("case", [*map(_case, ASKED)])
def test_models_that_are_asked_wait_in_libraries_alone(case, tiny_vlm, groups):
    """Whose waits depend on what they look at in an image's size or in a mask: none is ours but that for the scores."""
    is_chat, launched, most = case[1] == "chat", {}, case[5]
    for settings in (
        {"dtype": "fp32"},
        {"dtype": "bf16"},
        *([{"dtype": "bf16", "weights_dtype": "bf16", "lora": 2}, {"dtype": "fp16"}] if is_chat else []),
    ):
        with stand_in_gpu() as gpu:
            model = counted(gpu, case, tiny_vlm, groups, **settings)
            numbers = [model.scored()]
            if settings["dtype"] != "fp16":
                numbers.append(model.trained())
        launched[" ".join(map(str, settings.values()))] = [launches for launches, _ in numbers]
        assert all(np.less_equal([waits for _, waits in numbers], most[: len(numbers)])), numbers
    of_fp32, of_bf16 = case[3:5]
    assert all(np.less_equal(launched["fp32"], of_fp32)), launched
    assert all(np.less_equal(launched["bf16"], of_bf16)), launched
