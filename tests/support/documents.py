"""Results documents for tests: the least that is whole, and one that has every key there is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

DIGEST = "ab" * 32
PUBLISHED = "source,table,task,model,method,metric,percent,std_percent,track\n"
"""The head of a table of published numbers."""
_TRACKS = {"group_score,none": "zero_shot", "group_match,none": "matching", "group_match,ttm": "test_time"}


def schema(name: str) -> dict:
    """The published JSON Schema of results, task files or leaderboards."""
    return json.loads((files("ttmbench.results.schemas") / f"{name}-1.0.json").read_text(encoding="utf-8"))


TIMES = {"date", "timing", "efficiency", "total_evaluation_time_seconds", "seconds", "hardware", "command", "config"}


def without_times(value):
    """A document, or a part of one, without what differs from run to run."""
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if key not in TIMES}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def whole_document(results: Mapping[str, Mapping[str, float]], **changes: object) -> dict:
    """A document with these results, changed as said."""
    dataset = {"source": {}, "revision": None, "fingerprint": "ab", "n_groups": 2, "shape": [2, 2], "license": "MIT"}
    return {
        "schema_version": "1.0",
        "status": "done",
        "track": "zero_shot",
        **{key: {task: {} for task in results} for key in ("tracks", "ci", "chance", "ties", "configs")},
        "results": dict(results),
        "versions": dict.fromkeys(results, 1),
        "n-samples": {task: {"original": 2, "effective": 2} for task in results},
        "higher_is_better": {task: {} for task in results},
        "task_hashes": dict.fromkeys(results, "ab"),
        "datasets": {task: dict(dataset) for task in results},
        "timing": {},
        "errors": [],
        "config": {},
        "model_name": "clip",
        "model_info": {},
        "date": 1.7e9,
        "git_hash": None,
        "packages": {},
        "hardware": {},
        "total_evaluation_time_seconds": 0.0,
        "command": "",
        "artifacts": {},
        **changes,
    }


def raw_run(model: str, tasks: Mapping[str, tuple], model_args: dict | None = None, ties: int = 0) -> dict:
    """A document of a model: each task has groups, raw numbers and, if given, a mean over values of its tags."""
    results = {
        task: {f"{name},none": value for name, value in numbers.items()} for task, (_, numbers, *_) in tasks.items()
    }
    document = whole_document(results, model_name="made up", tag_means={})
    document["config"] = {"model": model, "model_args": model_args or {}}
    for task, (groups, numbers, *mean) in tasks.items():
        document["n-samples"][task] = {"original": groups, "effective": groups}
        document["ties"][task] = {f"{name},none": ties for name in numbers}
        for name, values in mean:
            by = {"by": ["source"], "numbers": values, "groups": groups, "cells": 3}
            document["tag_means"][task] = {name: by}
    return document


def write_run(
    folder: Path,
    name: str,
    numbers: Mapping[str, float],
    task: str = "t",
    groups: tuple[int, int] = (10, 10),
    version: int = 1,
    data: str = "d",
    **changes: object,
) -> Path:
    """Writes a document with numbers of one task, TTM among them, of so many of its groups."""
    document = whole_document(
        {task: numbers},
        **{
            "tracks": {task: {key: _TRACKS.get(key, "oracle") for key in numbers}},
            "versions": {task: version},
            "task_hashes": {task: data},
            "methods": {task: {"ttm": trained()}},
            "n-samples": {task: {"original": groups[1], "effective": groups[0]}},
            **changes,
        },
    )
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def trained(**changes: object) -> dict:
    """A record of TTM without a cost, changed as said."""
    about = {"settings": {"tau_end": 0}, "scope": "task", "order_dependent": False, "scores_before_update": False}
    about |= {"assumes_matching": True, "chance": None, "seeds": [0, 1], "cost": [], "iterations": [], "notes": []}
    return method_record(**{**about, **changes})


def method_record(**changes: object) -> dict:
    """A record of a test-time method that ran with one seed, changed as said."""
    rows = {"image_rows": 4, "caption_rows": 4, "image_rows_backward": 4, "caption_rows_backward": 0}
    cost = {**rows, "optimizer_steps": 1, "views": 0, "reward_rows": 0, "encoder_passes": 4.0}
    cost |= {"view_seconds": 0.0, "seconds": 0.1}
    return {
        **{"settings": {"lr": 1e-3}, "reference": "arXiv:2006.10726", "needs": ["gradients"], "scope": "stream"},
        **{"reset": "never", "order_dependent": True, "assumes_matching": False, "scores_before_update": True},
        **{"seeds": [0], "turns": 1, "updates": 1, "loss": [0.5], "trained": None, "cost": [cost]},
        **{"chance": {"distribution": "standard normal scores", "draws": 2000}, "notes": ["n"]},
        **changes,
    }


def full_document() -> dict:
    """A document that has every key of the schema, each once."""
    iteration = {
        **{"seed": 0, "iteration": 1, "threshold": 0.5, "selected": 1, "candidates": 2, "coverage": 0.5, "tied": 0},
        **{"pseudo_label_accuracy": 1, "loss": [0.1], "learning_rate": 1e-5, "metrics": {"group_match": 0.5}},
        "seconds": 0.1,
    }
    difference = {
        **{"task": "t", "metric": "group_match", "method": "none", "baseline": 0.5, "value": 0.5, "difference": 0},
        **{"paired": True, "ci": [-0.1, 0.1], "p": 1.0, "p_holm": 1.0, "test": "mcnemar", "won": 1, "lost": 1},
        "clusters": 1,
    }
    document = whole_document({"t": {"group_match,none": 0.5, "group_match_stderr,none": None}})
    document["n-samples"]["t"]["clusters"] = 1
    document["datasets"]["t"]["groups_sha256"] = DIGEST
    document["datasets"]["t"]["from_store"] = {
        **{"key": "k", "date": "2026", "blocks": 1},
        "hardware": [{"machine": "x"}],
    }
    return document | {
        "task_status": {"t": "done"},
        "tracks": {"t": {"group_match,none": "matching"}},
        "groups": {"d": {"group_match,none": 0.5}},
        "group_subtasks": {"d": ["t"]},
        "group_notes": {"d": ["n"]},
        "breakdowns": {"t": {"tag": {"value": {"groups": 1, "group_match,none": 0.5}}}},
        "tag_means": {
            "t": {
                "macro": {
                    **{"by": ["tag"], "cells": 1, "groups": 1, "numbers": {"group_match,none": 0.5}},
                    "ci": {"group_match,none": [0.4, 0.6]},
                }
            }
        },
        "ci": {"t": {"group_match,none": [0.4, 0.6]}},
        "chance": {"t": {"group_match": 0.5}},
        "ties": {"t": {"group_match,none": 0}},
        "also": {
            "t": {
                "other": {
                    **{"results": {"group_match,none": 0.5, "group_match,ttm": None}},
                    **{"ci": {"group_match,ttm": [0.4, 0.6]}, "chance": {"group_match": 0.5}},
                    **{"ties": {"group_match,ttm": 0}, "version": 1, "matching": "group", "fingerprint": "ab"},
                    "methods": {
                        "tent": {
                            "seeds": [0],
                            "differences": {"m": {"value": 0.1, "ci": None, "by_seed": [0.1], "seed_ci": None}},
                        }
                    },
                    "n-samples": {"original": 2, "effective": 2, "clusters": 1},
                    **{"shape": [2, 2], "seconds": 0.1},
                }
            }
        },
        "methods": {
            "t": {
                "ttm": trained(
                    trained={"train": "norm", "parameters": 4, "names_sha256": DIGEST},
                    iterations=[iteration],
                    cost=method_record()["cost"],
                    holdout={
                        **{"share": 0.5, "adapted": 1, "scored": 1},
                        "metrics": {"group_match": {"raw": 0.5, "adapted": [0.5]}},
                    },
                    audit_labels={"passed": True, "compared": 2, "of": 2},
                    references={"task": "r", "images": 1, "captions": 1, "data_sha256": DIGEST},
                    reward_model={"model": "m", "fingerprint": {}, "is_student": False},
                    differences={"group_match": {"value": 0.1, "ci": None, "by_seed": [0.1], "seed_ci": [-0.1, 0.3]}},
                ),
                "tent": method_record(),
            }
        },
        "choice": {
            "t": {
                **{"asked": ["text", "image"], "orders": 1, "order": "both", "seed": 0, "side_by_side": False},
                "prompts": {"text": "which?"},
                "unread": [{"group_id": "g", "question": "q", "answer": None}],
            }
        },
        "ranking": {
            "t": {
                **{"kind": "retrieval", "queries": {"i2t": 2}, "candidates": {"i2t": 4}, "resampled": "queries"},
                "rerank": {"model": "m", "k": 2, "fingerprint": {"weights": "w"}},
                "classes": {
                    **{"names": "open_clip:NAMES", "templates": "the task file", "n_classes": 3, "n_templates": 1},
                    **{"sha256": DIGEST, "doubled": {"crane": [0, 2]}},
                },
            }
        },
        "truncated": {"t": {"captions": 1, "of": 2, "groups": 1}},
        "seen_in_training": {"t": ["coco"]},
        "notes": {"t": ["n"]},
        "undecided": {"t": {"pairs": 3, "of": 4}},
        "n-shot": {"t": 0},
        "timing": {"t": {"score": 0.1}},
        "code": {"ttmbench": DIGEST, "mine": None},
        "baseline": {"file": "f", "sha256": DIGEST, "model_name": "m", "rows": [difference], "refused": None},
        "errors": [{"task": "t", "stage": "score", "type": "E", "message": "m"}],
        "run_key": DIGEST,
        "packages": {"numpy": "2"},
        "artifacts": {"s.jsonl": {"kind": "samples", "sha256": DIGEST, "bytes": 1, "task": "t"}},
    }
