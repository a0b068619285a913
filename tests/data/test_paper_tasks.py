"""The tasks of the TTM paper as their files state them: names, sizes, metrics and every row of Tables 3 to 5."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ttmbench.cli import main
from ttmbench.config import RunConfig, TTMConfig
from ttmbench.data.task_file import all_tasks, select_tasks
from ttmbench.methods.settings import task_settings
from ttmbench.plugins.registry import build_registry

TASKS = Path(__file__).resolve().parents[2] / "tasks"

SIZES = {  # task -> images, captions, groups
    "winoground": (2, 2, 400),
    "winoground_global": (2, 2, 400),
    "mmvp_vlm": (2, 2, 135),
    "mmvp_vlm_global": (2, 2, 135),
    "colorswap": (2, 2, 300),
    "colorswap_train": (2, 2, 700),
    "colorswap_random": (2, 2, 300),
    "colorswap_global": (2, 2, 300),
    "sugarcrepe_add_att": (1, 2, 692),
    "sugarcrepe_add_obj": (1, 2, 2062),
    "sugarcrepe_replace_att": (1, 2, 788),
    "sugarcrepe_replace_obj": (1, 2, 1652),
    "sugarcrepe_replace_rel": (1, 2, 1406),
    "sugarcrepe_swap_att": (1, 2, 666),
    "sugarcrepe_swap_obj": (1, 2, 245),
    "whatsup_a": (1, 4, 412),
    "whatsup_b": (1, 4, 408),
    "whatsup_a_left_right": (2, 2, 103),
    "whatsup_a_on_under": (2, 2, 103),
    "whatsup_b_left_right": (2, 2, 102),
    "whatsup_b_front_behind": (2, 2, 102),
    "whatsup_coco_one": (1, 2, 2247),
    "whatsup_coco_two": (1, 2, 440),
    "whatsup_vg_one": (1, 2, 1160),
    "whatsup_vg_two": (1, 2, 291),
}

# Tables 3 to 5 of arXiv:2510.07632: task, model, tau_1, tau_T, schedule.
TABLES = [
    ("winoground", "clip-b16", 0.9, 0.0, "linear"),
    ("winoground", "siglip-b16", 2.0, 0.0, "linear"),
    ("winoground", "siglip-l16", 2.0, 0.1, "cosine"),
    ("mmvp_vlm", "clip-b16", 2.0, 0.0, "linear"),
    ("mmvp_vlm", "siglip-b16", 2.0, 0.1, "cosine"),
    ("colorswap", "clip-b16", 2.3, 0.0, "cosine"),
    ("colorswap", "siglip-b16", 1.0, 0.0, "cosine"),
    ("colorswap", "siglip-l16", 2.5, 0.0, "cosine"),
    ("sugarcrepe_replace_rel", "siglip-b16", 2.1, 0.0, "cosine"),
    ("sugarcrepe_swap_att", "siglip-b16", 1.8, 0.0, "cosine"),
    ("sugarcrepe_swap_obj", "siglip-b16", 2.0, 0.0, "cosine"),
    ("sugarcrepe_add_att", "siglip-b16", 2.5, 0.0, "cosine"),
    ("whatsup_a", "clip-b32", 0.55, 0.0, "linear"),
    ("whatsup_b", "clip-b32", 0.80, 0.0, "linear"),
    ("whatsup_a_left_right", "clip-b32", 0.25, 0.0, "linear"),
    ("whatsup_a_on_under", "clip-b32", 0.85, 0.0, "linear"),
    ("whatsup_b_left_right", "clip-b32", 0.50, 0.0, "cosine"),
    ("whatsup_b_front_behind", "clip-b32", 1.30, 0.0, "cosine"),
    ("winoground_global", "siglip-b16", 0.50, 0.0, "linear"),
    ("mmvp_vlm_global", "siglip-b16", 0.55, 0.0, "linear"),
    ("colorswap_global", "siglip-b16", 0.50, 0.0, "linear"),
]
AUGMENTED = {
    ("winoground", "siglip-l16"),
    ("mmvp_vlm", "siglip-b16"),
    ("colorswap", "siglip-b16"),
    ("mmvp_vlm_global", "siglip-b16"),
    ("whatsup_a_left_right", "clip-b32"),
}
RATES = {("winoground", "siglip-b16"): 1e-5, ("colorswap", "siglip-b16"): 4e-5}
OF_THE_PAPER = {task for task, *_ in TABLES}


@pytest.fixture(scope="module")
def specs():
    return {name: file.spec for name, file in all_tasks(build_registry()).items()}


def test_every_row_of_the_tables_is_a_preset_and_nothing_else_is(specs):
    stated = [(task, model, settings) for task, spec in specs.items() for model, settings in spec.ttm.items()]
    presets = {(task, model): settings for task, model, settings in stated if model != "defaults"}
    assert set(presets) == {(task, model) for task, model, *_ in TABLES}
    for task, model, first, last, schedule in TABLES:
        written = {**specs[task].ttm.get("defaults", {}), **presets[task, model]}
        settings = TTMConfig(**written)
        where = (task, model)
        assert (settings.tau_start, settings.tau_end, settings.schedule) == (first, last, schedule), where
        assert "lr" in written, f"{where}: an unknown learning rate is written down as null"
        assert settings.lr == RATES.get(where), where
        assert settings.augment is (where in AUGMENTED), where
        assert settings.threshold == ("share" if task.endswith("_global") else "auto"), where
        assert settings.ties == ("include" if task.endswith("_global") else "exclude"), where
        assert settings.keep_optimizer_state is (where == ("winoground", "siglip-b16")), where
        assert settings.epochs == (30 if task.startswith("winoground") else 20), where
        assert settings.iterations == 10, where
        known = {"tau_start", "tau_end", "schedule", "lr", "lr_note", "augment", "threshold", "ties", "epochs"}
        assert set(written) <= known | {"keep_optimizer_state"}, f"{where}: only what has a source"
    assert "likely, not certain" in presets["colorswap", "siglip-b16"]["lr_note"]
    assert "# not legible" in (TASKS / "mmvp_vlm.yaml").read_text(encoding="utf-8")


def test_an_unknown_learning_rate_says_what_is_used_instead(capsys, specs):
    """In ``show`` and in the settings of a run: two of the 21 presets have a rate that is known."""
    registry = build_registry()
    for task, model, *_ in TABLES:
        config = RunConfig(model=model, tasks=[task], ttm=True, ttm_preset="paper")
        settings = task_settings(registry, config, specs[task])
        assert main(["show", task, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)["ttm"][model]
        assert (shown["lr"], shown.get("lr_note")) == (settings.lr, settings.lr_note)
        if (task, model) not in RATES:
            said = "no available copy of the paper states its value legibly; 1e-05 is this package's default"
            assert shown["lr"] is None and shown["lr_note"].startswith(said), (task, model)
        given = task_settings(registry, config.model_copy(update={"ttm_args": {"lr": 1e-4}}), specs[task])
        assert (given.lr, given.lr_note) == (1e-4, None), "who says a rate knows where it comes from"


def test_sizes_shapes_and_metrics(specs):
    for task, (images, captions, groups) in SIZES.items():
        spec = specs[task]
        assert (spec.shape.images, spec.shape.captions, spec.group.n_groups) == (images, captions, groups), task
        if spec.is_global:
            expected = ["group_score", "group_match", "global_assignment_accuracy"]
        elif images == 1:
            expected = ["text_score", "group_score", "group_match", "individual_match"]
        else:
            expected = ["text_score", "image_score", "group_score", "group_match", "individual_match"]
        assert spec.metrics == expected, task
    assert set(SIZES) <= set(specs)


def test_tags_select_by_shape_and_dataset(specs):
    registry = build_registry()
    assert set(select_tasks(registry, ["paper16"])) == OF_THE_PAPER and len(OF_THE_PAPER) == 16
    sugarcrepe = {name for name in SIZES if name.startswith("sugarcrepe_")}
    assert set(select_tasks(registry, ["sugarcrepe"])) == sugarcrepe and len(sugarcrepe) == 7
    assert set(select_tasks(registry, ["whatsup"])) == {name for name in SIZES if name.startswith("whatsup_")}
    for name, spec in specs.items():
        if spec.kind != "groups":
            assert spec.kind in spec.tag, name
            continue
        assert ("global" in spec.tag) is spec.is_global, name
        assert ("group_2x2" in spec.tag) is (str(spec.shape) == "2x2" and not spec.is_global), name
        assert ("group_1xk" in spec.tag) is (spec.shape.images == 1), name
        assert not set(spec.tag) & set(specs), f"{name}: a tag that is also a task could never be chosen"


def test_hub_sources_are_pinned_or_say_that_they_are_not(specs):
    for name in SIZES:
        source = specs[name].source
        for one in source.get("of", [source]):
            if one["kind"] in ("huggingface", "hub_files"):
                assert one["revision"] is None or len(one["revision"]) == 40, name
