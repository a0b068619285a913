"""A submission with every stage beside TTM: SimpleMatch, controls, held-out groups, and other tasks."""

from __future__ import annotations

import json

import pytest
from support.submissions import make_submission, put

from ttmbench.cli.validate import read_command
from ttmbench.reproduce.submission.check import check_submission

T, ALSO = "shapes_color", "shapes_spatial"
COMMAND = (
    f"--model tiny-clip --tasks {T} --limit 8 --ttm --ttm_args iterations=1,epochs=1 --seeds 0 --simple_match --oracle "
    f"--ttm_controls placebo --ttm_holdout 0.5 --ttm_also {ALSO},shapes_retrieval --audit_labels --save_scores "
    "--output_path {}"
)
OPEN = f"ttm_also.{T}.shapes_retrieval: cannot be checked: no scores are stored of a task that ranks"


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return make_submission(tmp_path_factory.mktemp("submission") / "honest", COMMAND)


def said(forged, registry) -> list[str]:
    return [one.line for one in check_submission(forged.save(), registry, read_command).found]


def test_an_honest_run_of_every_stage_is_sound(forged, registry):
    assert said(forged, registry) == [OPEN]


def also(forged, task=ALSO):
    return forged.document["ttm_also"][T][task]


def ttm(forged):
    return forged.document["ttm"][T]


def a_task_that_nobody_has(forged):
    forged.document["ttm_also"][T]["mine"] = forged.document["ttm_also"][T].pop(ALSO)


def scores_elsewhere(edit):
    return lambda forged: forged.edit_scores(edit, kind="also_scores")


def scores_here(edit):
    return lambda forged: forged.edit_scores(edit)


def no_adapted_scores_elsewhere(arrays):
    for name in [name for name in arrays if ".ttm." in name]:
        arrays.pop(name)


def scores_of_another_shape_elsewhere(arrays):
    for name in [name for name in arrays if name.startswith("scores.")]:
        arrays[name] = arrays[name][:, :, :1].copy()


def a_control_that_was_not_asked_for(forged):
    ttm(forged)["controls"]["shuffle"] = ttm(forged)["controls"]["placebo"]


def a_better_control(forged):
    for line in ttm(forged)["controls"]["placebo"]["iterations"]:
        line["metrics"]["group_match"] = 1.0


def groups_that_were_chosen(forged):
    holdout = ttm(forged)["holdout"]
    held, used = holdout["scored_groups"], holdout["adapted_groups"]
    held[0], used[0] = used[0], held[0]


def other_groups_in_the_file(forged):
    """The split that was chosen, in the document and in the file of scores."""
    groups_that_were_chosen(forged)
    held = sorted(ttm(forged)["holdout"]["scored_groups"])
    forged.edit_scores(lambda arrays: None, {"subsets": json.dumps({"holdout": held, "holdout_raw": held})})


def easier_held_out_groups(arrays):
    arrays["scores.holdout_raw.0"][:] = [[9.0, 0.0], [0.0, 9.0]]


def a_file_of_iterations_that_is_none(forged):
    path = forged.file("ttm")
    path.write_text("[1\n", encoding="utf-8")
    forged.sign(path)


FORGERIES = [
    (a_task_that_nobody_has, f"ttm_also.{T}.mine: is present, "),
    (scores_elsewhere(no_adapted_scores_elsewhere), f"scores of {ALSO} are of 0 seeds, the command has 1"),
    (scores_elsewhere(scores_of_another_shape_elsewhere), f"results.{T}: "),
    (lambda forged: forged.document["simple_match"].pop(T), f"simple_match.{T}: is missing"),
    (put("simple_match", T, "restarts", to=[1, 1]), f"simple_match.{T}.restarts: is [1, 1]"),
    (
        lambda forged: forged.edit_scores(lambda arrays: arrays.pop("scores.simple_match.0")),
        "simple_match, seed 0: its scores",
    ),
    (put("ttm", T, "hyperparameters", "iterations", to=10**9), "hyperparameters.iterations: is 1000000000"),
    (put("ttm", T, "preset", to="paper"), f"ttm.{T}.preset: is paper"),
    (put("ttm", T, "variant", to="global"), f"ttm.{T}.variant: is global"),
    (a_control_that_was_not_asked_for, f"ttm.{T}.controls.shuffle: is present"),
    (a_better_control, "metrics.group_match: is 1.0"),
    (put("ttm", T, "holdout", "share", to=0.25), f"ttm.{T}.holdout.share: is 0.25"),
    (groups_that_were_chosen, f"ttm.{T}.holdout.adapted_groups: is ["),
    (other_groups_in_the_file, f"results.{T}: the "),
    (scores_here(easier_held_out_groups), "before training are not those of the raw model"),
    (
        lambda forged: forged.document["artifacts"].pop(forged.file("ttm").name),
        f"artifacts.x_ttm_{T}.jsonl: is not among the document's artifacts",
    ),
    (a_file_of_iterations_that_is_none, "x_ttm_shapes_color.jsonl: "),
    (
        lambda forged: forged.edit_lines("ttm", lambda found: found.append(found[0])),
        f"x_ttm_{T}.jsonl: has 2 lines, the run writes 1",
    ),
]


@pytest.mark.parametrize(("forge", "expected"), FORGERIES)
def test_a_forged_stage_is_refused_with_its_reason(forged, registry, forge, expected):
    forge(forged)
    found = said(forged, registry)
    assert any(expected in one for one in found if one != OPEN), found
