"""``ttmbench show``: a page for every registered name."""

from __future__ import annotations

import json

import pytest

from ttmbench.cli import main
from ttmbench.data.benchmarks import benchmarks
from ttmbench.data.task_file import all_tasks
from ttmbench.plugins.registry import build_registry
from ttmbench.types import MethodSpec


@pytest.fixture(scope="module")
def registry():
    return build_registry()


@pytest.fixture(scope="module")
def tasks(registry):
    return all_tasks(registry)


@pytest.fixture(autouse=True)
def _read_once(registry, tasks, monkeypatch):
    monkeypatch.setattr("ttmbench.cli.show.build_registry", lambda *_: registry)
    monkeypatch.setattr("ttmbench.cli.show.all_tasks", lambda _: tasks)
    monkeypatch.setenv("COLUMNS", "80")


def printed(capsys, *words: str) -> str:
    assert main(["show", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize("kind", ["task_files", "adapters", "methods", "metrics"])
def test_every_name_has_a_page(kind, registry, tasks, capsys):
    names = getattr(registry, kind)
    assert len(names) > 20
    for name in names:
        page = printed(capsys, name)
        shown = json.loads(printed(capsys, name, "--json"))
        assert page.startswith(f"{name if kind != 'adapters' else registry.adapters[name].name}: ")
        assert all(f"\n{row['name']} " in page for row in shown.get("arguments", ())), page
        if kind == "task_files":
            spec = tasks[name].spec
            assert ("gated; " in page) == spec.gated, name
        if kind == "methods":
            assert (shown["name"], shown["track"]) == (name, registry.methods[name].track)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "winoground",
            [
                *("400 groups of 2x2", "b400e173549071916ad1b3d449293bc8d8b4b763", "@inproceedings{thrush"),
                *("text_score, image_score (chance 25.00); group_score (chance 16.67);", "1.50 points"),
            ],
        ),
        ("imagenet", ["50000 images, 1000 classes", "accuracy_top1, accuracy_top1_as_topk (chance 0.10)"]),
        ("siglip-b16", ["trained on webli", "required  Hub ID"]),
        ("visualgpt-blip", ["alpha", "log P(t)"]),
        ("tent", ["arXiv:2006.10726", "depend on the groups so far", "--method_args tent.NAME=VALUE"]),
        ("group_match", ["The sum of s[i,i]", "50.00 for 1x2, 2x2", "track      matching"]),
        ("shapes_color", ["first group a blue triangle and a green moon |"]),
        ("ttm", ["--ttm_args NAME=VALUE", "lr_restart            0.95"]),
        ("global_assignment_accuracy", ["0.12 for 400 groups of 2x2", "TTM, Eq. 2"]),
        ("i2t_recall_at_5", ["0.10 for 5000x25010", "coco_retrieval"]),
    ],
)
def test_the_page_says_what_people_ask_first(name, parts, capsys):
    page = printed(capsys, name)
    for part in parts:
        assert part in page, page


def test_benchmarks_and_tags_have_a_page(tasks, capsys):
    tags = {tag for file in tasks.values() for tag in file.spec.tag}
    for name in {*tags, *(benchmark.title for benchmark in benchmarks())} - set(tasks):
        assert max(map(len, printed(capsys, name).splitlines())) <= 80
    assert "--tasks sugarcrepe" in printed(capsys, "sugarcrepe") and "add_att (1x2, 692)" in printed(
        capsys, "SugarCrepe"
    )
    assert json.loads(printed(capsys, "paper16", "--json"))["tasks"]["winoground"] == {"shape": "2x2", "groups": 400}


def test_a_method_whose_function_is_missing_is_a_usage_error(registry, monkeypatch, capsys):
    monkeypatch.setitem(registry.methods, "made", MethodSpec("made", "ttmbench.methods.task:gone"))
    monkeypatch.setitem(registry.methods.plugins, "made", "mine")
    assert main(["show", "made"]) == 2 and "ttmbench.methods.task:gone" in capsys.readouterr().err


def test_a_metric_as_json(capsys):
    shown = json.loads(printed(capsys, "individual_match", "--json"))
    assert shown["chance"]["2x2"] == 0.5 and shown["chance"]["1x4"] == 0.25 and "winoground" in shown["tasks"]
    assert shown["definition"].startswith("Fraction of a group's images") and shown["track"] == "zero_shot"
