"""What ``ttmbench show`` prints of a task or a model for people: some facts, and what is published about it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from ttmbench._util.console import console, echo, printable
from ttmbench.types import ModelCard, Record

SHOWN = 6  # lines of published numbers on the page of a task, the heads among them


def print_wrapped(text: str, indent: str = "") -> None:
    """A text in lines of the terminal's width, 120 columns at most; all but the first begin with ``indent``."""
    width = min(console(None).width, 120)
    for line in textwrap.wrap(str(printable(text)), width, subsequent_indent=indent, break_on_hyphens=False):
        echo(line)


def print_facts(facts: Mapping[str, object]) -> None:
    """Name and text of each fact in two columns; facts without a text are skipped."""
    told = {name: text for name, text in facts.items() if text not in (None, "", [], ())}
    width = max(map(len, told)) + 2
    for name, text in told.items():
        print_wrapped(f"{name:<{width}}{text}", " " * width)


def print_task(task: Record) -> None:
    """A task; ``task`` is what ``--json`` prints."""
    source, group = task["source"], task["group"]
    place = source if source["kind"] != "first_of" else source["of"][0]
    presets = [model for model in task["ttm"] if model != "defaults"]
    print_wrapped(f"{task['task']}: {task['description']}")
    echo()
    print_facts(
        {
            "paper": task["reference"],
            "size": _size(task),
            "data": " ".join(str(place[key]) for key in ("kind", "path", "split") if place.get(key)),
            "commit": place.get("revision"),
            "licence": f"{task['license'] or 'not stated'}{' (gated)' if task['gated'] else ''}",
            "metrics": ", ".join(_with_chance(name, row["chance"]) for name, row in task["metrics"].items()),
            "images": task["images_needed"],
            "labels": task["label_errors"].replace("`", ""),
            "defects": "; ".join(str(defect) for defect in group.get("known_defects") or []),
            "template": task.get("caption_template"),
            "evidence": ", ".join(f"{what}: {certainty}" for what, certainty in task["evidence"].items()),
            "notes": " ".join(task["notes"]).replace("`", ""),
            "tags": ", ".join(task["tag"]),
            "TTM": f"the paper's settings for {', '.join(presets)} (--ttm_preset paper)" if presets else None,
        }
    )
    _print_published(task["published"], SHOWN)
    echo()
    if task["citation"]:
        print_wrapped(" ".join(str(task["citation"]).split()), "  ")
        echo()
    print_wrapped(f"Every field: ttmbench show {task['task']} --json")


def print_model(model: Record) -> None:
    """A model and its arguments; ``model`` is what ``--json`` prints."""
    card = model["card"] or {}
    trained_on = card.get("trained_on")
    size = ModelCard("", card["bytes"]).size if card.get("bytes") else None
    weights = [card.get("weights"), size, card.get("license")]
    print_wrapped(f"{model['name']}: {model['summary']}")
    echo()
    print_facts(
        {
            "sets": ", ".join(f"{key}={value}" for key, value in model["model_args"].items()),
            "weights": ", ".join(str(fact) for fact in weights if fact),
            "gated": "yes: accept the terms on its page first" if card.get("gated") else None,
            "trained on": trained_on if trained_on is None else ", ".join(trained_on) or "nothing",
            "page": card.get("page"),
            "note": card.get("note"),
            "refused": card.get("refused"),
            "aliases": ", ".join(model["aliases"]),
            "needs": ", ".join(model["needs"]),
            "code": f"{model['target']} (plugin {model['plugin']})",
        }
    )
    if model.get("arguments"):
        from ttmbench.report.table import TableColumn, print_table

        echo()
        columns = [TableColumn("argument", "key"), TableColumn("default"), TableColumn("meaning")]
        rows = [
            [name, _default(about), about["meaning"].replace("``", "")] for name, about in model["arguments"].items()
        ]
        print_table(columns, rows, title="--model_args NAME=VALUE")
    _print_published(model["published"])


def _with_chance(metric: str, chance: float | None) -> str:
    return metric if chance is None else f"{metric} (chance {100 * chance:.2f})"


def _size(task: Record) -> str:
    group = task["group"]
    shape = "x".join(map(str, group["shape"])) if group["shape"] else ""
    kinds = {"groups": "groups of", "retrieval": "images and captions:", "classification": "images, classes:"}
    number = group["n_groups"]
    what = shape or (task["classes"] or {}).get("count") or group.get("n_captions") or ""
    return f"{'unknown number of' if number is None else number} {kinds.get(task['kind'], task['kind'])} {what}".strip()


def _default(about: Record) -> str:
    if "default" not in about:
        return "required"
    value = about["default"]
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _print_published(published: Record, most: int | None = None) -> None:
    if published["numbers"]:
        echo()
        print_wrapped(f"Published: {published['about']} ({published['all']})")
        for line in published["lines"][:most]:
            echo(line)
