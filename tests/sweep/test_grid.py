"""Grids of settings: what their keys mean, what combinations are called, and what is refused before anything runs."""

from __future__ import annotations

import pytest
from support.plans import SMALL, cells_of

from ttmbench.cli import main
from ttmbench.errors import UsageError
from ttmbench.types import Record


def settings_of(folder, *settings: Record, **more: object) -> dict[str, object]:
    """Name of each setting -> the configuration of its cell."""
    return {one.setting: one.config for one in cells_of(folder, settings=list(settings), **more)}


def test_a_setting_with_a_grid_is_there_with_every_combination(tmp_path):
    tent = {"name": "tent", "methods": "tent", "grid": {"lr": [1e-3, 1e-4], "train": ["norm", "lora:2"]}}
    found = settings_of(tmp_path, {"name": "raw"}, tent)
    assert list(found) == [
        "raw",
        *(f"tent lr={lr} train={train}" for lr in ("0.001", "0.0001") for train in ("norm", "lora_2")),
    ]
    assert found["raw"].methods == [] and found["tent lr=0.0001 train=lora_2"].methods == ["tent"]
    assert found["tent lr=0.0001 train=lora_2"].method_args == {"tent.lr": 1e-4, "tent.train": "lora:2"}


@pytest.mark.parametrize(
    ("setting", "name", "expected"),
    [
        ({"methods": "dn", "grid": {"strength": [0.1]}}, "strength=0.1", {"method_args": {"dn.strength": 0.1}}),
        ({"grid": {"lr": [0.1]}}, "lr=0.1", {"methods": ["ttm"], "ttm_args": {"lr": 0.1}}),
        (
            {"methods": "ttm,tent", "grid": {"ttm.lr": [0.1], "tent.lr": ["1e-2"]}},
            "tent.lr=1e-2 ttm.lr=0.1",
            {"methods": ["ttm", "tent"], "ttm_args": {"lr": 0.1}, "method_args": {"tent.lr": "1e-2"}},
        ),
        (
            {"ttm": True, "ttm_args": "teacher=ema", "grid": {"teacher.decay": [0.5]}},
            "teacher.decay=0.5",
            {"ttm_args": {"teacher": "ema", "teacher.decay": 0.5}},
        ),
        ({"grid": {"methods": ["dn"], "strength": [0.5]}}, "methods=dn strength=0.5", {"methods": ["dn"]}),
        ({"grid": {"batch-size": [8]}}, "batch-size=8", {"batch_size": 8, "methods": []}),
        ({"ttm": True, "grid": {"betas": [[0.9, 0.99]]}}, "betas=0.9+0.99", {"ttm_args": {"betas": [0.9, 0.99]}}),
        ({"ttm": True, "grid": {"augment": [True]}}, "augment=true", {"ttm_args": {"augment": True}}),
    ],
)
def test_a_key_is_of_the_one_method_of_a_named_method_of_ttm_or_an_option(tmp_path, setting, name, expected):
    ((found, config),) = settings_of(tmp_path, {"name": "x", **setting}).items()
    assert found == f"x {name}" and {key: getattr(config, key) for key in expected} == expected


def test_the_grid_of_the_plan_is_of_every_setting_by_its_own_method(tmp_path):
    settings = {"name": "tent", "methods": "tent", "grid": {"images": [8]}}, {"name": "ttm", "ttm": True}
    found = settings_of(tmp_path, *settings, grid={"lr": [0.1, 0.2]})
    assert list(found) == ["tent images=8 lr=0.1", "tent images=8 lr=0.2", "ttm lr=0.1", "ttm lr=0.2"]
    assert found["tent images=8 lr=0.2"].method_args == {"tent.images": 8, "tent.lr": 0.2}
    assert found["ttm lr=0.2"].ttm_args == {"lr": 0.2}


def test_exclude_goes_by_names_with_and_without_values(tmp_path):
    settings = {"name": "a", "methods": "dn", "grid": {"strength": [0.1, 0.2]}}, {"name": "b"}
    for globs, left in ((["a"], ["b"]), (["*=0.1"], ["a strength=0.2", "b"]), (["a *"], ["b"])):
        assert list(settings_of(tmp_path, *settings, exclude=[{"setting": globs}])) == left


DN = {"name": "x", "methods": ["dn"]}
TWO = {"name": "x", "methods": ["dn", "tent"]}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (DN | {"grid": {"strenght": [1]}}, "dn.strenght"),
        (TWO | {"grid": {"lr": [1]}}, "'dn.lr' or 'tent.lr'"),
        (TWO | {"ttm": True, "grid": {"lr": [1]}}, "'tent.lr' or 'ttm.lr'"),
        (DN | {"grid": {"strength": 0.5}}, "'settings.0.grid.strength'"),
        (DN | {"grid": {"strength": [0.5, "0.5"]}}, "would both write to x strength=0.5"),
        (DN | {"grid": {"strength": [-1]}}, "--method_args dn.strength: must be a number >= 0, got -1"),
        (DN | {"grid": {"batch_size": list(range(1, 1002))}}, "x: grid: 1001 combinations; at most 1000 are allowed"),
        (DN | {"grid": {"output_path": ["x"]}}, "x: grid: unknown key 'output_path' in a sweep: -o says where"),
        ({"name": "x", "methods": "tnet", "grid": {"lr": [1]}}, "unknown method 'tnet'; did you mean"),
    ],
)
def test_what_is_wrong_with_a_grid_is_one_line_before_anything_runs(tmp_path, setting, message):
    with pytest.raises(UsageError) as error:
        settings_of(tmp_path, setting)
    assert str(error.value).removeprefix(f"{tmp_path}/").startswith("plan.yaml: ")
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "more", [{"grid": {"strength": [1]}}, {"models": [{"model": "tiny-clip", "method_args": "dn.strength=1"}]}]
)
def test_values_of_a_settings_grid_win(tmp_path, more):
    found = settings_of(tmp_path, DN | {"grid": {"strength": [0.1, 0.2]}}, **more)
    assert {name: one.method_args["dn.strength"] for name, one in found.items()} == {
        "x strength=0.1": 0.1,
        "x strength=0.2": 0.2,
    }


def test_a_dry_run_lists_the_combinations(tmp_path, capsys):
    cells_of(tmp_path, settings=[DN | {"grid": {"strength": [0.1, 0.25]}}], options=SMALL)
    assert main(["sweep", str(tmp_path / "plan.yaml"), "--dry_run"]) == 0
    said = capsys.readouterr().out
    assert all(f"x strength={value}/tiny-clip/shapes_color" in said for value in (0.1, 0.25))
