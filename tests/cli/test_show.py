"""``ttmbench show``: a page that fits a terminal for every registered name, and every detail with ``--long``."""

from __future__ import annotations

import json

import pytest

from ttmbench.cli import main
from ttmbench.data.benchmarks import benchmarks
from ttmbench.data.catalog import all_tasks
from ttmbench.plugins.registry import build_registry
from ttmbench.reproduce.lookup import published_rows


@pytest.fixture(scope="module")
def registry():
    return build_registry()


@pytest.fixture(scope="module")
def tasks(registry):
    return all_tasks(registry)


@pytest.fixture(scope="module")
def every(registry):
    return published_rows(registry)


@pytest.fixture(autouse=True)
def _read_once(every, registry, tasks, monkeypatch):
    monkeypatch.setattr("ttmbench.reproduce.lookup.published_rows", lambda *_: every)
    monkeypatch.setattr("ttmbench.cli.show.build_registry", lambda *_: registry)
    monkeypatch.setattr("ttmbench.cli.show.all_tasks", lambda _: tasks)
    monkeypatch.setenv("COLUMNS", "80")


def printed(capsys, *words: str) -> str:
    assert main(["show", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize("kind", ["task_files", "adapters", "methods", "metrics"])
def test_every_page_fits_a_terminal(kind, registry, tasks, capsys):
    names = getattr(registry, kind)
    assert len(names) > 20
    for name in names:
        lines = (page := printed(capsys, name)).splitlines()
        assert len(lines) <= 16 and max(map(len, lines)) <= 80, "\n".join(lines)
        assert lines[0].startswith(f"{name if kind != 'adapters' else registry.adapters[name][0].name}: ")
        assert lines[-1].endswith("--json: all fields")
        if kind == "task_files":  # neither is hidden by what is longer
            spec = tasks[name].spec
            uncertain = {how for how in spec.evidence.values() if how in ("inferred", "unknown")}
            assert all(f": {how}" in page for how in uncertain) and ("uncertain " in page) == bool(uncertain), name
            assert ("gated; " in page) == spec.gated, name


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "winoground",
            [
                "size       400 groups of 2x2",
                "commit b400e1735490",
                "text_score, image_score (chance 25.00); group_score (chance 16.67);",
                "published  8.00-9.00  chance 16.67  group_score  clip-b32",
                "287 numbers of 9 sources",
            ],
        ),
        ("imagenet", ["size       50000 images, 1000 classes", "accuracy_top1, accuracy_top1_as_topk (chance 0.10)"]),
        ("coco_retrieval", ["size       5000 images, 25010 captions"]),
        ("tiny-clip", ["weights     model.safetensors, 0.98 MB, Apache-2.0", "arguments   training_seed"]),
        ("siglip-b16", ["trained on  webli", "pretrained (required)", "chance 16.67  group_score"]),
        (
            "tent",
            ["paper     arXiv:2006.10726", "the order of the groups changes", "--method_args tent.NAME=VALUE: filter"],
        ),
        ("group_match", ["The sum of s[i,i]", "50.00 for 1x2, 2x2", "track       matching"]),
        ("global_assignment_accuracy", ["0.12 for 400 groups of 2x2", "TTM, Eq. 2"]),
        ("i2t_recall_at_5", ["0.10 for 5000x25010", "coco_retrieval"]),
    ],
)
def test_the_page_says_what_people_ask_first(name, parts, capsys):
    page = printed(capsys, name)
    for part in parts:
        assert part in page, page


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("winoground", ["b400e173549071916ad1b3d449293bc8d8b4b763", "tags ", "@inproceedings{thrush", "images "]),
        ("tiny-clip", ["training_seed        0  ", "code "]),
        ("siglip-b16", ["pretrained           required  Hub ID", "65.72    0.02  i2t_recall_at_1"]),
        ("ttm", ["--ttm_args NAME=VALUE", "lr_restart            0.95", "scores    logits"]),
    ],
)
def test_long_has_every_detail(name, parts, capsys):
    page = printed(capsys, name, "--long")
    assert max(map(len, page.splitlines())) <= 80
    for part in parts:
        assert part in page, page


def test_benchmarks_and_tags_have_a_page(tasks, capsys):
    tags = {tag for file in tasks.values() for tag in file.spec.tag}
    for name in {*tags, *(benchmark.title for benchmark in benchmarks())} - set(tasks):
        lines = printed(capsys, name).splitlines()
        assert len(lines) <= 16 and max(map(len, lines)) <= 80, "\n".join(lines)
    assert "--tasks sugarcrepe" in printed(capsys, "sugarcrepe") and "add_att (1x2, 692)" in printed(
        capsys, "SugarCrepe"
    )
    assert json.loads(printed(capsys, "paper16", "--json"))["tasks"]["winoground"] == {"shape": "2x2", "groups": 400}


def test_a_metric_as_json(capsys):
    shown = json.loads(printed(capsys, "individual_match", "--json"))
    assert shown["chance"]["2x2"] == 0.5 and shown["chance"]["1x4"] == 0.25 and "winoground" in shown["tasks"]
    assert shown["definition"].startswith("Fraction of a group's images") and shown["track"] == "zero_shot"
