"""Grids of settings: what their keys mean, what combinations are called, and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sweeps import SMALL, cells_of

from ttmbench.cli import main
from ttmbench.errors import UsageError
from ttmbench.evaluator.unit import UNIT, Unit, units_of
from ttmbench.sweep import grid
from ttmbench.sweep.plan import expand, read_plan
from ttmbench.types import Record


def settings_of(folder, *settings: Record, **more: object) -> dict[str, object]:
    """Name of each setting -> the configuration of its cell."""
    return {one.cell.setting: one.cell.config for one in cells_of(folder, settings=list(settings), **more)}


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
        ({"methods": ["dn"], "grid": {"dn.strength": [0.1]}}, "dn.strength=0.1", {"method_args": {"dn.strength": 0.1}}),
        (
            {"methods": ["dn", "nnn"], "method_args": "nnn.references=task", "grid": {"dn.strength": [0.1]}},
            "dn.strength=0.1",
            {"method_args": {"nnn.references": "task", "dn.strength": 0.1}},
        ),
        ({"grid": {"lr": [0.1]}}, "lr=0.1", {"ttm": True, "ttm_args": {"lr": 0.1}}),
        ({"grid": {"ttm.lr": [0.1]}}, "ttm.lr=0.1", {"ttm": True, "ttm_args": {"lr": 0.1}}),
        ({"simple_match": True, "grid": {"lr": [0.1]}}, "lr=0.1", {"ttm": False, "ttm_args": {"lr": 0.1}}),
        ({"methods": "ttm", "grid": {"lr": [0.1]}}, "lr=0.1", {"ttm": True, "methods": [], "ttm_args": {"lr": 0.1}}),
        (
            {"methods": "ttm,tent", "grid": {"ttm.lr": [0.1], "tent.lr": ["1e-2"]}},
            "tent.lr=1e-2 ttm.lr=0.1",
            {"ttm": True, "methods": ["tent"], "ttm_args": {"lr": 0.1}, "method_args": {"tent.lr": "1e-2"}},
        ),
        (
            {"ttm": True, "ttm_args": "teacher=ema", "grid": {"teacher.decay": [0.5]}},
            "teacher.decay=0.5",
            {"ttm_args": {"teacher": "ema", "teacher.decay": 0.5}},
        ),
        ({"grid": {"methods": ["dn"], "strength": [0.5]}}, "methods=dn strength=0.5", {"methods": ["dn"]}),
        ({"grid": {"batch-size": [8]}}, "batch-size=8", {"batch_size": 8, "ttm": False}),
        ({"methods": "selftrain", "grid": {"iterations": [2]}}, "iterations=2", {"methods": ["selftrain"]}),
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


def test_include_exclude_and_overrides_go_by_the_name_with_and_without_values(tmp_path):
    settings = {"name": "a", "methods": "dn", "grid": {"strength": [0.1, 0.2]}}, {"name": "b"}
    for globs, left in ((["a"], ["b"]), (["*=0.1"], ["a strength=0.2", "b"]), (["a *"], ["b"])):
        found = settings_of(tmp_path, *settings, exclude=[{"setting": globs}])
        assert list(found) == left
    found = settings_of(tmp_path, *settings, overrides=[{"setting": "a", "options": {"limit": 3}}])
    assert [config.limit for config in found.values()] == [3, 3, None]


DN = {"name": "x", "methods": ["dn"]}
TWO = {"name": "x", "methods": ["dn", "tent"]}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (DN | {"grid": {"strenght": [1]}}, "x: grid: unknown key 'strenght'; did you mean 'strength'?"),
        (DN | {"grid": {"dn.strenght": [1]}}, "grid: 'dn.strenght': unknown setting of dn; did you mean strength?"),
        (DN | {"grid": {"tent.lr": [1]}}, "grid: 'tent.lr': 'tent' is not a method of the setting (dn)"),
        (DN | {"grid": {"ttm.lr": [1]}}, "grid: 'ttm.lr': 'ttm' is not a method of the setting (dn)"),
        (DN | {"grid": {"lr": [1]}}, "x: grid: unknown key 'lr'"),
        (TWO | {"grid": {"lr": [1]}}, "'lr' is ambiguous, as the setting has several methods; write 'tent.lr'"),
        (TWO | {"ttm": True, "grid": {"lr": [1]}}, "write 'tent.lr' or 'ttm.lr'"),
        (DN | {"grid": {"strength": []}}, "'settings.0.grid.strength': list should have at least 1 item"),
        (DN | {"grid": {"strength": 0.5}}, "'settings.0.grid.strength'"),
        (DN | {"grid": {"strength": [0.5, "0.5"]}}, "x: grid: 'strength' has the value 0.5 twice"),
        (DN | {"grid": {"strength": [0.5], "dn.strength": [0.1]}}, "are the same; give one of them"),
        (DN | {"grid": {"strength": [-1]}}, "--method_args dn.strength: must be a number >= 0, got -1"),
        (
            DN | {"method_args": {"dn": {"strength": 1}}, "grid": {"strength": [0.1]}},
            "x: grid: 'strength' is also fixed in the setting (method_args dn.strength)",
        ),
        (DN | {"limit": 5, "grid": {"limit": [4]}}, "x: grid: 'limit' is also fixed in the setting (limit)"),
        (
            {"name": "x", "methods": "ttm", "method_args": "ttm.lr=1", "grid": {"lr": [0.1]}},
            "'lr' is also fixed in the setting (ttm_args lr)",
        ),
        (DN | {"grid": {"batch_size": list(range(1, 1002))}}, "x: grid: 1001 combinations; at most 1000 are allowed"),
        (DN | {"grid": {"output_path": ["x"]}}, "x: grid: unknown key 'output_path' in a sweep: -o says where"),
        ({"name": "x", "methods": "tnet", "grid": {"lr": [1]}}, "grid: unknown method 'tnet'; did you mean"),
        ({"name": "x", "methods": 3}, "settings: x: 'methods' must be a list of names, got 3"),
        ({"name": "x", "methods": "dn", "method_args": "dn.strenght=1"}, "--method_args dn.strenght: unknown argument"),
        ({"name": "x", "method_args": "dn.strength=1"}, "method_args is for methods, so it needs methods"),
    ],
)
def test_what_is_wrong_with_a_grid_is_one_line_before_anything_runs(tmp_path, setting, message):
    with pytest.raises(UsageError) as error:
        settings_of(tmp_path, setting)
    assert str(error.value).removeprefix(f"{tmp_path}/").startswith("plan.yaml: ")
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"grid": {"strength": [1]}}, "grid: 'strength' is in the grid of the setting too; give it once"),
        ({"models": [{"model": "tiny-clip", "method_args": "dn.strength=1"}]}, "method_args dn.strength is in a grid"),
        ({"overrides": [{"options": {"method_args": "dn.strength=1"}}]}, "method_args dn.strength is in a grid"),
    ],
)
def test_nothing_else_of_a_plan_sets_what_a_grid_sets(tmp_path, more, message):
    with pytest.raises(UsageError, match=message):
        settings_of(tmp_path, DN | {"grid": {"strength": [0.1, 0.2]}}, **more)


def test_nor_does_the_command_line(tmp_path):
    settings_of(tmp_path, DN | {"grid": {"limit": [4, 8]}})
    with pytest.raises(UsageError, match=r"cell x limit=4/tiny-clip/shapes_color: limit is in a grid"):
        expand(read_plan(tmp_path / "plan.yaml"), "plan.yaml", {"limit": 2})


def test_a_key_that_is_an_option_too_needs_the_methods_name(tmp_path, monkeypatch):
    monkeypatch.setattr(grid._Methods, "_settings", lambda self, name, where: ["seed"])
    with pytest.raises(UsageError, match=r"'seed' is an option of the run and a setting of a method; write dn\.seed"):
        settings_of(tmp_path, DN | {"grid": {"seed": [0, 1]}})


def test_settings_of_one_name_are_refused(tmp_path):
    with pytest.raises(UsageError, match="two settings are called x; give each its own name"):
        settings_of(tmp_path, {"name": "x"}, {"name": "x", "ttm": True})


def test_a_long_name_is_cut_and_stays_distinct(tmp_path):
    values = [f"norm_{'x' * 200}{end}" for end in "ab"]
    names = [grid._name("tent", {"train": value}) for value in values]
    assert len({*names}) == 2 and {len(name) for name in names} == {120}


def test_a_dry_run_lists_the_combinations(tmp_path, capsys):
    cells_of(tmp_path, settings=[DN | {"grid": {"strength": [0.1, 0.25]}}], options=SMALL)
    assert main(["sweep", str(tmp_path / "plan.yaml"), "--dry_run"]) == 0
    said = capsys.readouterr().out
    first = next(line for line in said.splitlines() if "x strength=0.1/tiny-clip/shapes_color" in line)
    assert first.split()[-4:] == ["-", "dn", "1", "-"] and "x strength=0.25/tiny-clip/shapes_color" in said


def test_the_plan_of_the_docs_has_the_settings_that_they_name(tmp_path):
    page = (Path(__file__).resolve().parents[2] / "docs" / "sweep.md").read_text(encoding="utf-8")
    text = page.partition("### Grids")[2].partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "plan.yaml").write_text(text)
    names = [one.cell.setting for one in expand(read_plan(tmp_path / "plan.yaml"), "plan.yaml", {})]
    assert (len(names), names[0], names[-1]) == (9, "raw", "both dn.strength=0.25 ttm.lr=0.0001")
    assert names[1] == "tent lr=0.001 train=norm" and all(f"`{name}`" in page for name in (*names[:2], names[-1]))


def test_seeds_are_units_where_a_method_is_trained(tmp_path):
    def cut(methods, **options):
        (one,) = cells_of(tmp_path, options={"methods": methods, "seeds": [0, 1], **options})
        stages = units_of(one.cell)
        for unit in (unit for stage in stages for unit in stage):
            assert isinstance(unit, Unit) and UNIT.validate_json(UNIT.dump_json(unit)) == unit
        return [[(unit.kind, unit.part) for unit in stage] for stage in stages]

    assert cut("dn,zero") == [[("run", 0)]]
    seeds = [("seed", 0), ("seed", 1)]
    assert cut("dn,tent", use_cache=str(tmp_path)) == [[("groups", 0)], seeds, [("run", 0)]]
    assert cut("tent", use_cache="off") == [seeds, [("run", 0)]]
    assert cut("tent", track="tensorboard") == [[("run", 0)]]
