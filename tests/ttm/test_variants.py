"""Variants of the test-time stage: oracle, controls, held-out groups, the label audit, augmentation."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest
import torch
from PIL import Image
from support.documents import schema
from support.small_models import adapt, stage_of, task_of

import ttmbench
from ttmbench.cli import main
from ttmbench.config import TTMConfig
from ttmbench.errors import AssertionNotMet, UsageError
from ttmbench.methods.controls import random_matchings
from ttmbench.methods.model_task import Selection
from ttmbench.methods.oracle import oracle
from ttmbench.model_adapters import hf

QUICK = {"limit": 12, "device": "cpu", "bootstrap_iters": 20}
SHORT = {"iterations": 2, "epochs": 2}


# --- what is trained on ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_global", [False, True])
def test_the_oracle_keeps_exactly_what_is_right_and_no_tie(is_global):
    stage = stage_of(20, is_global=is_global)
    raw = stage.score()
    if not is_global:
        raw.groups[3] = 1.0
    (step,) = adapt(stage, raw, method=oracle, config=TTMConfig(iterations=1, epochs=1), seed=2, with_labels=True)
    truth = np.arange(40)[:, None] if is_global else np.array([[0, 1]] * 20)
    right = (step.captions == truth).all(axis=1)
    assert step.selected.tolist() == (right & ~step.tie).tolist() and 0 < step.selected.sum() < len(right)
    assert is_global or step.tie[3]


def test_the_placebo_keeps_the_coverage_and_draws_every_matching_equally_often():
    given = Selection(np.zeros((6000, 2), int), np.arange(6000) % 2 == 0)
    chosen = random_matchings(task_of(stage_of(1, captions=3)), given, given.selected)
    assert np.array_equal(chosen.selected, given.selected)
    drawn, counts = np.unique(chosen.captions[chosen.selected], axis=0, return_counts=True)
    assert drawn.tolist() == [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]
    assert counts.min() > 420 and counts.max() < 580  # 500 each, four standard deviations
    assert not chosen.captions[~chosen.selected].any(), "what is not selected stays"


def test_the_placebo_of_the_global_variant_gives_no_caption_twice():
    given = Selection(np.arange(50)[:, None], np.arange(50) % 2 == 0)
    chosen = random_matchings(task_of(stage_of(20, captions=3, is_global=True)), given, given.selected)
    given_out = chosen.captions[chosen.selected].ravel()
    assert len(set(given_out.tolist())) == 25 and given_out.max() > 49


# --- as columns of a run --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return ttmbench.simple_evaluate(
        "tiny-clip",
        "shapes_color,shapes_color_global",
        ttm={**SHORT, "epochs": 1},
        methods=["oracle", "placebo", "shuffle"],
        holdout=0.25,
        audit_labels=True,
        output_path=str(tmp_path_factory.mktemp("variants") / "x.json"),
        **QUICK,
    )


def test_every_variant_is_a_column_of_a_valid_document(full):
    jsonschema.Draft202012Validator(schema("results")).validate(json.loads(full.path.read_text(encoding="utf-8")))
    for task, metric in (("shapes_color", "group_match"), ("shapes_color_global", "global_assignment_accuracy")):
        for name in ("none", "ttm", "placebo", "shuffle", "oracle"):
            assert 0 <= full.results[task][f"{metric},{name}"] <= 1
    tracks = full["tracks"]["shapes_color"]
    assert tracks["group_match,ttm"] == "test_time" and tracks["group_match,oracle"] == "oracle"
    assert not [key for key in tracks if key.split(",")[1] in ("placebo", "shuffle")]
    assert full["track"] == "oracle"


@pytest.mark.parametrize("task", ["shapes_color", "shapes_color_global"])
def test_what_the_variants_were_trained_on(full, task):
    records = full["methods"][task]
    for one in full["methods"][task]["oracle"]["iterations"]:
        assert one["pseudo_label_accuracy"] == 1.0
    for name in ("placebo", "shuffle"):
        first, own = records[name]["iterations"][0], records["ttm"]["iterations"][0]
        assert (first["selected"], first["threshold"]) == (own["selected"], own["threshold"])
        everything = records[name]["iterations"]
        assert np.mean([one["pseudo_label_accuracy"] for one in everything if one["selected"] > 5]) < 0.7


class Peeking(hf.TransformersModel):
    """Scores that depend on a caption's place: caption i of a group gets more with image i, as an index bias would."""

    def logits(self, image_features, caption_features):
        logits = super().logits(image_features, caption_features)
        return logits + 4 * torch.eye(2) if logits.shape == (2, 2) else logits


def test_the_audit_finds_an_adapter_that_reads_positions(tiny_hf_clip):
    biased = hf.load(pretrained=str(tiny_hf_clip), device="cpu")
    biased.__class__ = Peeking
    with pytest.raises(AssertionNotMet, match="captions of every group in another order"):
        ttmbench.simple_evaluate(biased, "shapes_place", ttm=SHORT, audit_labels=True, limit=16, bootstrap_iters=0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--simple_match", "--methods overfit"),
        ("--oracle", "--methods oracle"),
        ("--ttm_controls", "--methods placebo,shuffle"),
        ("--ttm_holdout", "--holdout"),
        ("--ttm_also", "--also"),
    ],
)
def test_an_earlier_spelling_is_told_the_new_one(old, new, tmp_path, capsys):
    words = ["--model", "tiny-clip", "--tasks", "shapes_color"]
    try:
        code = main([*words, old])
    except SystemExit as error:
        code = error.code
    assert code == 2 and new in capsys.readouterr().err
    (tmp_path / "run.yaml").write_text(f"{old[2:]}: true\n")
    assert main([*words, "--config", str(tmp_path / "run.yaml")]) == 2
    assert new[2:] in capsys.readouterr().err


def test_a_holdout_that_leaves_nothing_is_refused():
    with pytest.raises(UsageError, match="leaves 0 to score"):
        ttmbench.simple_evaluate("tiny-clip", "shapes_color", ttm=SHORT, holdout=0.01, limit=8)


# --- augmentation ---------------------------------------------------------------------------------------------


SIZES = [(90, 90), (120, 60), (50, 150)]  # width, height


def noise(size: tuple[int, int]):
    return Image.fromarray(np.random.RandomState(0).randint(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def near(one: torch.Tensor, other: np.ndarray) -> bool:
    """Pillow and torchvision round each pass of a resize in another way; a window one pixel off differs by 60."""
    return bool(np.abs(one.numpy().astype(int) - other.transpose(2, 0, 1).astype(int)).mean() < 1)


def test_siglip_crops_are_windows_of_the_squashed_image(tiny_siglip):
    adapter = hf.load(pretrained=str(tiny_siglip), device="cpu")
    enlarged = adapter.prepare_enlarged([noise(size) for size in SIZES], 1.25)["pixel_values"]
    assert enlarged.dtype == torch.uint8 and enlarged.shape == (3, 3, 40, 40)
    corners = np.array([[0.0, 0.0], [0.9999, 0.9999], [0.5, 0.0]])
    crops = adapter.crop({"pixel_values": enlarged}, corners)["pixel_values"]
    assert torch.equal(crops[0], enlarged[0, :, :32, :32])
    assert torch.equal(crops[1], enlarged[1, :, 8:, 8:])
    assert torch.equal(crops[2], enlarged[2, :, 4:36, :32])
    assert near(enlarged[1], np.asarray(noise(SIZES[1]).resize((40, 40), Image.Resampling.BICUBIC)))


def test_clip_crops_are_cut_anywhere_in_the_resized_image(tiny_hf_clip):
    """As torchvision's Resize(40) and RandomCrop(32) do it: the long side stays, so its ends can be cut out too."""
    adapter = hf.load(pretrained=str(tiny_hf_clip), device="cpu")
    enlarged = adapter.prepare_enlarged([noise(size) for size in SIZES], 1.25)
    assert [tuple(one.shape) for one in enlarged] == [(3, 40, 40), (3, 40, 80), (3, 120, 40)]
    assert {one.dtype for one in enlarged} == {torch.uint8}
    crops = adapter.crop(enlarged, np.array([[0.0, 0.0], [0.0, 0.9999], [0.9999, 0.5]]))["pixel_values"]
    assert crops.shape == (3, 3, 32, 32) and crops.dtype == torch.uint8
    for place, (width, height), corner in ((1, (80, 40), (48, 0)), (2, (40, 120), (4, 88))):
        resized = noise(SIZES[place]).resize((width, height), Image.Resampling.BICUBIC)
        assert near(crops[place], np.asarray(resized.crop((*corner, corner[0] + 32, corner[1] + 32)))), place


def test_images_of_different_sizes_go_through_training(tiny_hf_clip, folder_task):
    folder = folder_task()
    for index, file in enumerate(sorted((folder / "images").glob("*.png"))):
        Image.open(file).resize((30 + 20 * (index % 3), 40 - 5 * (index % 2))).save(file)
    settings = {"model_args": {"pretrained": str(tiny_hf_clip)}, "device": "cpu", "bootstrap_iters": 0, "holdout": 0.5}
    ttm = {**SHORT, "augment": True, "tau_start": 0.0}
    run = ttmbench.simple_evaluate("hf", str(folder / "mine.yaml"), ttm=ttm, **settings)
    assert run["methods"]["mine"]["ttm"]["iterations"][-1]["selected"] > 0


def test_augmentation_changes_training_and_is_drawn_by_seed():
    losses = []
    for augment in (False, True, True):
        run = ttmbench.simple_evaluate("tiny-clip", "shapes_color", ttm={**SHORT, "augment": augment}, **QUICK)
        losses.append([one["loss"] for one in run["methods"]["shapes_color"]["ttm"]["iterations"]])
        raw = run.results["shapes_color"]["group_match,none"]
    assert losses[0] != losses[1] and losses[1] == losses[2]
    assert run["methods"]["shapes_color"]["ttm"]["settings"]["augment_scale"] == 1.1
    plain = ttmbench.simple_evaluate("tiny-clip", "shapes_color", **QUICK)
    assert plain.results["shapes_color"]["group_match,none"] == raw, "scoring never sees a crop"


def test_an_adapter_without_crops_says_so():
    model = hf.load(pretrained="tiny_clip", device="cpu")
    model.__class__ = type("Plain", (hf.TransformersModel,), {"augments": False})
    with pytest.raises(UsageError, match="cannot augment"):
        ttmbench.simple_evaluate(model, "shapes_color", ttm={**SHORT, "augment": True}, **QUICK)
