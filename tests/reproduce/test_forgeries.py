"""Every field of the schema says how it is checked, and a forgery of any field of a sound submission is refused."""

from __future__ import annotations

import json

import pytest
from support.checkout import load_script
from support.submissions import make_submission

from ttmbench.cli.validate import read_command
from ttmbench.plugins.registry import build_registry
from ttmbench.reproduce.submission.check import check_submission
from ttmbench.results.document import ResultsDocument
from ttmbench.results.records import RECOMPUTED, Check, Part

COMMANDS = {
    "stages": "--model tiny-clip --tasks shapes_color --limit 6 --ttm --ttm_args iterations=1,epochs=1 --seeds 0,1 "
    "--simple_match --oracle --ttm_controls placebo --ttm_holdout 0.5 --ttm_also shapes_spatial --audit_labels "
    "--bootstrap_iters 20 --save_scores --output_path {}",
    "methods": "--model tiny-clip --tasks shapes_color --limit 6 --methods dual_softmax,tent,dn --seeds 0,1 "
    "--ttm --ttm_args iterations=1,epochs=1 --ttm_holdout 0.5 --ttm_also shapes_place --audit_labels "
    "--bootstrap_iters 20 --save_scores --output_path {}",
    "datasets": "--model tiny-clip --tasks shapes_replace,shapes_naming --limit 6 --bootstrap_iters 20 --save_scores "
    "--output_path {}",
}
NOT_HERE = {
    "TrainingRecord",  # what several others begin with
    *("TaskError", "BaselineRecord", "Difference", "ChoiceRecord", "UnreadAnswer", "StoreEntry", "Coverage"),
    *(
        "RerankRecord",
        "TagMeanRecord",
        "Undecided",
        "Dataset.coverage",
        "Dataset.true_captions",
        "RankingRecord.rerank",
    ),
    *(f"ResultsDocument.{name}" for name in ("baseline", "choice", "group_notes", "seen_in_training", "tag_means")),
}
"""Fields that these runs do not have, by part or name."""


@pytest.fixture(scope="module")
def forgeries():
    return load_script("forgeries")


@pytest.fixture(scope="module")
def submissions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forged")
    return [make_submission(folder / name, command) / "x.json" for name, command in COMMANDS.items()]


def parts(part: type[Part] = Part) -> list[type[Part]]:
    return [
        one for kind in part.__subclasses__() for one in (kind, *parts(kind)) if one.__module__.startswith("ttmbench")
    ]


def test_every_field_has_exactly_one_class():
    fields = [(kind, name, about) for kind in parts() for name, about in kind.model_fields.items()]
    assert len(fields) > 150
    for kind, name, about in fields:
        assert sum(isinstance(one, Check) for one in about.metadata) == 1, f"{kind.__name__}.{name}"


def test_another_value_of_any_field_is_refused(forgeries, submissions, monkeypatch):
    """One place and one other value of every field; the script itself forges each in every way."""
    registry, refused = build_registry(), set()
    stated = check_submission(submissions[0], registry, read_command)
    assert not stated.found, [one.line for one in stated.found]
    monkeypatch.setattr("ttmbench.reproduce.submission.settings._check_shipped", lambda *_: None)  # loads the model
    for path in reversed(submissions):  # the smallest first
        text = path.read_text(encoding="utf-8")
        document = json.loads(text)
        for field in forgeries.fields_of(ResultsDocument.of(document)):
            if field.name in refused or field.check != RECOMPUTED:
                continue
            refused.add(field.name)
            *_, (_, made, _) = (one for one in forgeries.forgeries(document, field) if one[0] != "gone")
            path.write_text(json.dumps(made), encoding="utf-8")
            assert forgeries.is_refused(path, registry), field
        path.write_text(text, encoding="utf-8")
    fields = {(kind.__name__, name): about.metadata for kind in parts() for name, about in kind.model_fields.items()}
    missing = {
        f"{kind}.{name}" for (kind, name), checks in fields.items() if RECOMPUTED in checks and kind not in NOT_HERE
    }
    assert missing - refused == {one for one in NOT_HERE if "." in one}, "name those that no run here has"


def test_what_is_impossible_is_refused_in_every_class(forgeries, submissions):
    """The recorded and free fields of a document, each in every way that no field takes."""
    registry, path = build_registry(), submissions[2]
    text = path.read_text(encoding="utf-8")
    document = json.loads(text)
    for field in forgeries.fields_of(ResultsDocument.of(document)):
        if field.check == RECOMPUTED or len(field.place) > 1:
            continue
        for words, made, has_to_be in forgeries.forgeries(document, field):
            path.write_text(json.dumps(made), encoding="utf-8")
            assert not has_to_be or forgeries.is_refused(path, registry), (field, words)
    path.write_text(text, encoding="utf-8")
