from __future__ import annotations

from pathlib import Path

import pytest
from support.plans import SMALL, TTM, cells_of

from ttmbench._util.file_io import read_yaml
from ttmbench.config import make_run_config
from ttmbench.errors import UsageError
from ttmbench.sweep.execute import write_run
from ttmbench.sweep.plan import read_plan

PLAN = {
    "models": ["tiny-clip", {"model": "tiny-clip-seed1", "name": "other", "batch_size": 8}],
    "tasks": ["shapes_color", "shapes_place"],
    "settings": [{"name": "raw"}, {"name": "ttm", **TTM}],
    "options": SMALL,
}


def test_cells_are_numbered_model_by_model_task_by_task_setting_by_setting(tmp_path):
    cells = cells_of(tmp_path, **PLAN)
    assert [(one.number, one.folder) for one in cells] == [
        (1, "raw/tiny-clip/shapes_color"),
        (2, "ttm/tiny-clip/shapes_color"),
        (3, "raw/tiny-clip/shapes_place"),
        (4, "ttm/tiny-clip/shapes_place"),
        (5, "raw/other/shapes_color"),
        (6, "ttm/other/shapes_color"),
        (7, "raw/other/shapes_place"),
        (8, "ttm/other/shapes_place"),
    ]
    assert [one.config.batch_size for one in cells] == [64] * 4 + [8] * 4
    assert (cells[4].config.model, cells[4].config.model_name) == ("tiny-clip-seed1", "other")
    assert [one.config.methods for one in cells] == [[], ["ttm"]] * 4 and {one.config.limit for one in cells} == {12}


def test_without_settings_a_cell_lies_below_its_model(tmp_path):
    (one,) = cells_of(tmp_path, models=["tiny-clip"], tasks="shapes_color")
    assert one.folder == "tiny-clip/shapes_color" and one.setting == ""
    assert one.document == tmp_path / "board/tiny-clip/shapes_color/results.json"


@pytest.mark.parametrize(
    ("more", "left"),
    [
        ({"exclude": [{"model": "tiny-clip*"}]}, []),
        ({"exclude": [{"model": "tiny-clip", "setting": "ttm"}, {"task": "shapes_place"}]}, [1, 5, 6]),
        ({"exclude": [{"task": "builtin"}]}, []),
        ({"exclude": [{"task": "group_2x2", "model": "tiny-clip-seed1", "setting": "t*"}]}, [1, 2, 3, 4, 5, 7]),
    ],
)
def test_exclude_goes_by_globs_of_names_and_by_tags(tmp_path, more, left):
    every = {one.folder: one.number for one in cells_of(tmp_path, **PLAN)}
    if not left:
        with pytest.raises(UsageError, match=r"plan.yaml: exclude leaves no cell"):
            cells_of(tmp_path, **PLAN, **more)
        return
    assert [every[one.folder] for one in cells_of(tmp_path, **PLAN, **more)] == left


def test_the_command_line_wins_and_pairs_are_merged(tmp_path):
    models = ["tiny-clip", {"model": "tiny-clip-seed1", "name": "other", "ttm_args": "lr=0.5", "batch_size": 3}]
    cells = cells_of(tmp_path, {"batch_size": 2}, **PLAN | {"models": models, "settings": [{"name": "ttm", **TTM}]})
    assert cells[2].config.ttm_args == {"iterations": 2, "epochs": 1, "lr": 0.5}
    assert cells[1].config.ttm_args == {"iterations": 2, "epochs": 1}
    assert {one.config.batch_size for one in cells} == {2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"oracle": True}}, "options: 'oracle' is now written: methods oracle"),
        ({"options": {"methods": 3}}, "options: 'methods' must be a list of names, got 3"),
        ({"models": []}, "'models': list should have at least 1 item"),
        ({"models": [{"name": "x"}]}, "plan.yaml: key 'models.0.model' is missing"),
        ({"models": ["tiny-clip", "tiny-clip"]}, "cells 1 and 5 would both write to raw/tiny-clip/shapes_color"),
        ({"tasks": ["shapes_colour"]}, "tasks: unknown task 'shapes_colour'; did you mean"),
        ({"settings": [{"name": "../x"}]}, "'settings.0.name': must be a name that a folder can have, got '../x'"),
        ({"settings": [{"name": "x", "seeds": [1]}]}, "cell x/tiny-clip/shapes_color: seeds is for test-time methods"),
        ({"tasks": ["shapes_naming"]}, "(`exclude` in the plan leaves cells out)"),
        ({"options": {"output_path": "x"}}, "options: unknown key 'output_path' in a sweep: -o says where"),
    ],
)
def test_what_is_wrong_with_a_plan_is_told_by_file_and_key(tmp_path, changes, message):
    with pytest.raises(UsageError) as error:
        cells_of(tmp_path, **(PLAN | changes))
    assert str(error.value).removeprefix(f"{tmp_path}/").startswith("plan.yaml: ")
    assert message in str(error.value)


def test_what_is_no_plan_at_all(tmp_path):
    path = tmp_path / "plan.yaml"
    for content, message in (("- a", "a mapping"), ("a: [", "is not valid YAML"), ("a: !!python/name:os.x", "YAML")):
        path.write_text(content)
        with pytest.raises(UsageError, match=message):
            read_plan(path)


def test_a_task_file_of_ones_own_keeps_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = Path(__file__).resolve().parents[2] / "tasks" / "shapes_color.yaml"
    (tmp_path / "mine.yaml").write_text(shipped.read_text().replace("task: shapes_color", "task: mine"))
    (one,) = cells_of(tmp_path, models=["tiny-clip"], tasks=["mine.yaml"])
    assert one.config.tasks == ["mine.yaml"] and one.folder == "tiny-clip/mine"


def test_a_written_cell_reads_as_the_same_run(tmp_path):
    args = {"ttm_args": {"lr": "1e-2", "betas": [0.9, 0.99], "epochs": 2}}
    settings = {"settings": [{"name": "ttm", **TTM, **args}], "grid": {"weight_decay": [1e-5]}}
    for cell in cells_of(tmp_path, **(PLAN | settings)):
        assert make_run_config(read_yaml(write_run(cell))) == cell.config


def test_adapted_models_of_different_cells_go_to_different_folders(tmp_path):
    planned = cells_of(tmp_path, **(PLAN | {"settings": [{"name": "ttm", **TTM, "save_adapted": "kept"}]}))
    assert len({one.config.save_adapted for one in planned}) == len(planned)
