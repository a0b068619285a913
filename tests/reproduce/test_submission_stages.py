"""A submission with every stage beside TTM: SimpleMatch, controls, held-out groups, and other tasks."""

from __future__ import annotations

import pytest
from support.submissions import make_submission, put, stated

from ttmbench.cli.validate import read_command
from ttmbench.reproduce.submission.check import check_submission

T, ALSO = "shapes_color", "shapes_spatial"
COMMAND = (
    f"--model tiny-clip --tasks {T} --limit 8 --ttm --ttm_args iterations=1,epochs=1 --seeds 0 --simple_match --oracle "
    f"--ttm_controls placebo --ttm_holdout 0.5 --ttm_also {ALSO},shapes_retrieval --audit_labels --save_scores "
    "--output_path {}"
)
OPEN = f"ttm_also.{T}.shapes_retrieval: cannot be checked: there is no file of its scores (--save_scores)"


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return make_submission(tmp_path_factory.mktemp("submission") / "honest", COMMAND)


def said(forged, registry) -> list[str]:
    return [one.line for one in check_submission(forged.save(), registry, read_command, with_data=False).found]


def test_an_honest_run_of_every_stage_is_sound(forged, registry):
    breakdowns, retrieval = said(forged, registry)
    assert retrieval == OPEN and breakdowns.startswith(f"breakdowns.{T}: cannot be checked: tags are in the samples")


def also(forged, task=ALSO):
    return forged.document["ttm_also"][T][task]


def ttm(forged):
    return forged.document["ttm"][T]


def a_task_that_nobody_has(forged):
    forged.document["ttm_also"][T]["mine"] = forged.document["ttm_also"][T].pop(ALSO)


def scores_elsewhere(edit):
    def forge(forged):
        forged.edit_scores(edit, kind="also_scores")

    forge.__name__ = edit.__name__
    return forge


def no_adapted_scores_elsewhere(arrays):
    for name in [name for name in arrays if ".ttm." in name]:
        arrays.pop(name)


def scores_of_another_shape_elsewhere(arrays):
    for name in [name for name in arrays if name.startswith("scores.")]:
        arrays[name] = arrays[name][:, :, :1].copy()


def simple_match_without_its_numbers(forged):
    for key in ("results", "ci", "ties", "tracks"):
        own = forged.document[key][T]
        forged.document[key][T] = {name: one for name, one in own.items() if not name.endswith(",simple_match")}


def a_control_that_was_not_asked_for(forged):
    ttm(forged)["controls"]["shuffle"] = ttm(forged)["controls"]["placebo"]


def a_better_control(forged):
    for line in ttm(forged)["controls"]["placebo"]["iterations"]:
        line["metrics"]["group_match"] = 0.9


def groups_on_both_sides(forged):
    holdout = ttm(forged)["holdout"]
    holdout["scored_groups"][0] = holdout["adapted_groups"][0]


def groups_that_were_chosen(forged):
    holdout = ttm(forged)["holdout"]
    held, used = holdout["scored_groups"], holdout["adapted_groups"]
    held[0], used[0] = used[0], held[0]


def more_selected_than_there_are(forged):
    for line in ttm(forged)["holdout"]["iterations"]:
        line |= {"selected": 5, "coverage": 1.0}


def right_pseudo_labels_of_nothing(forged):
    for line in forged.document["oracle"][T]["iterations"]:
        line |= {"selected": 0, "coverage": 0.0, "pseudo_label_accuracy": 1.0}


def a_file_of_iterations_that_is_none(forged):
    path = forged.file("ttm")
    path.write_text("[1\n", encoding="utf-8")
    forged.sign(path)


FORGERIES = [
    stated("ttm_also/shapes_color/shapes_spatial/results/group_match,ttm", 1.0, "its scores give 0."),
    stated("ttm_also/shapes_color/shapes_spatial/ci/group_match,ttm", [0.99, 1.0], "its scores give"),
    stated("ttm_also/shapes_color/shapes_spatial/chance/group_match", 0.01, "its scores give 0.25"),
    stated("ttm_also/shapes_color/shapes_spatial/version", 0, "this package has 1"),
    stated("ttm_also/shapes_color/shapes_retrieval/seeds", [1], "config.seeds says [0]"),
    (a_task_that_nobody_has, f"ttm_also.{T}.mine: is a task that this package does not have"),
    (scores_elsewhere(no_adapted_scores_elsewhere), "its file of scores lacks filter none or ttm"),
    (scores_elsewhere(scores_of_another_shape_elsewhere), f"ttm_also.{T}.{ALSO}: "),
    (lambda forged: forged.document["simple_match"].pop(T), f"simple_match.{T}: is missing, its numbers are there"),
    (simple_match_without_its_numbers, f"simple_match.{T}: is there, its numbers are not"),
    stated("simple_match/shapes_color/seeds", [7], "config.seeds says [0]"),
    (put("simple_match", T, "restarts", to=[1, 1]), f"simple_match.{T}.restarts: is 2, seeds are 1"),
    (put("ttm", T, "hyperparameters", "coverage", to=7), f"ttm.{T}.hyperparameters: are no settings of TTM: "),
    stated("ttm/shapes_color/hyperparameters/iterations", 10**9, "at most 10000 are taken"),
    (put("ttm", T, "hyperparameters", "schedule", to="mine"), "threshold: follows no schedule that this package has"),
    stated("ttm/shapes_color/preset", "paper", "config.ttm_preset says auto"),
    stated("ttm/shapes_color/variant", "global", "the task says group"),
    (a_control_that_was_not_asked_for, f"ttm.{T}.controls: is ['placebo', 'shuffle'], config.ttm_controls says"),
    (a_better_control, "metrics.group_match: is 0.9, which 8 groups cannot give"),
    (put("ttm", T, "holdout", "share", to=0.25), f"ttm.{T}.holdout: is 0.25, config.ttm_holdout says 0.5"),
    (groups_on_both_sides, f"ttm.{T}.holdout: its two parts are not the 8 groups, each once"),
    (groups_that_were_chosen, f"ttm.{T}.holdout.scored_groups: is ["),
    (more_selected_than_there_are, "selected: is 5 with "),
    (right_pseudo_labels_of_nothing, "pseudo_label_accuracy: is 1.0, and 0 were selected"),
    (
        lambda forged: forged.document["artifacts"].pop(forged.file("ttm").name),
        f"ttm.{T}.iterations: cannot be checked: there is no file of TTM's iterations",
    ),
    (a_file_of_iterations_that_is_none, "x_ttm_shapes_color.jsonl: "),
    (
        lambda forged: forged.edit_lines("ttm", lambda found: found.append(found[0])),
        f"x_ttm_{T}.jsonl: has 2 iterations, the document 1",
    ),
]


@pytest.mark.parametrize(("forge", "expected"), FORGERIES)
def test_a_forged_stage_is_refused_with_its_reason(forged, registry, forge, expected):
    forge(forged)
    found = said(forged, registry)
    assert any(expected in one for one in found if one != OPEN), found
