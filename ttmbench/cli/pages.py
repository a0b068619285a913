"""What ``ttmbench show`` prints about a task or a model: a page of `LINES` lines, or with ``--long`` every detail."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from ttmbench._util.console import console, echo, printable
from ttmbench.stats import smallest_difference
from ttmbench.types import ModelCard, Record

MORE = "--long: every detail"
LINES = 16  # of a page without --long
SHOWN = 6  # lines of published numbers on the long page of a task, with their head
_SCOPES = {
    "group": "one group; the mean over groups is reported",
    "global": "all images and captions of the task at once",
    "captions": "the captions of one group, without images",
    "i2t": "image-to-text retrieval: one image against all captions",
    "t2i": "text-to-image retrieval: one caption against all images",
    "class": "classification: one image against all classes",
}
_FACTS = {"groups": "number of groups", "pairs": "correct captions", "aggregation": "how numbers are aggregated"}


def print_wrapped(text: str, indent: str = "", most: int | None = None) -> None:
    """Print a text in at most so many lines of the terminal's width, 120 columns at most."""
    for line in _wrapped(text, indent, most):
        echo(line)


def _wrapped(text: str, indent: str, most: int | None = None) -> list[str]:
    """Lines of a text, all but the first with ``indent``."""
    wrapper = textwrap.TextWrapper(_width(), subsequent_indent=indent, break_on_hyphens=False, max_lines=most)
    wrapper.placeholder = " ..."
    return wrapper.wrap(str(printable(text)))


def _cut(line: str) -> str:
    width = _width()
    return line if len(line) <= width else f"{line[: width - 2]}.."


def _width() -> int:
    return min(console(None).width, 120)


def print_facts(facts: Mapping[str, object]) -> None:
    """Name and text of each fact in two columns; facts without a text are skipped."""
    for text, indent in _texts(facts):
        print_wrapped(text, indent)


def _texts(facts: Mapping[str, object], least: str = "") -> list[tuple[str, str]]:
    """Each fact with its name, and the indentation of its further lines."""
    known = {name: text for name, text in facts.items() if text not in (None, "", [], ())}
    width = max(map(len, [least, *known])) + 2
    return [(f"{name:<{width}}{text}", " " * width) for name, text in known.items()]


def print_short(about: str, facts: Mapping[str, object], published: Record, more: str = MORE) -> None:
    """A page of at most `LINES` lines. Each fact has a line, and long ones more of them in turn while there is room."""
    rows = published.get("lines", [])
    texts = [(about, ""), *_texts(facts, "published" if rows else "")]
    needed = [len(_wrapped(*text)) for text in texts]
    given = [1] * len(texts)
    room = LINES - 2 - len(rows) - len(texts)
    while room > 0 and given != needed:
        short = [at for at in range(len(texts)) if given[at] < needed[at]][:room]
        room -= len(short)
        for at in short:
            given[at] += 1
    for at, (text, indent) in enumerate(texts):
        print_wrapped(text, indent, given[at])
        if not at:
            echo()
    for at, row in enumerate(rows):
        echo(_cut(f"{'' if at else 'published':<{len(texts[-1][1])}}{row}"))
    numbers = f"--published: {published['about']}; " if rows else ""
    print_wrapped(f"{more}; {numbers}--json: all fields")


def print_task(task: Record) -> None:
    """A task on a short page; ``task`` is what ``--json`` prints, with fewer published numbers."""
    source = task["source"]
    while "of" in source:
        source = source["of"][0]
    data = [source["kind"], source.get("path") or source.get("file") or _files(source), source.get("split")]
    commit = source.get("revision")
    by_chance: dict[float | None, list[str]] = {}
    for name, row in task["metrics"].items():
        by_chance.setdefault(row["chance"], []).append(name)
    unsure: dict[str, list[str]] = {}
    for fact, certainty in task["evidence"].items():
        if certainty in ("inferred", "unknown"):
            unsure.setdefault(certainty, []).append(_FACTS.get(fact, fact))
    gated = "gated; " if task["gated"] else ""
    facts = {
        "paper": task["reference"],
        "size": _size(task) + _detectable(task["group"]["n_groups"]) * (task["kind"] == "groups"),
        "data": " ".join(map(str, filter(None, data))) + (f", commit {commit[:12]}" if commit else ""),
        "licence": gated + (task["license"] or "not stated"),
        "metrics": "; ".join(_with_chance(", ".join(names), chance) for chance, names in by_chance.items()),
        "uncertain": "; ".join(f"{', '.join(what)}: {certainty}" for certainty, what in unsure.items()),
        "labels": task["label_errors"].replace("`", ""),
        "notes": " ".join(task["notes"]).replace("`", ""),
    }
    print_short(f"{task['task']}: {task['description']}", facts, task["published"])


def print_long_task(task: Record) -> None:
    """Everything about a task but the options of its source; ``task`` is what ``--json`` prints."""
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
    """A model on a short page; ``model`` is what ``--json`` prints, with fewer published numbers."""
    names = [name if "default" in about else f"{name} (required)" for name, about in model.get("arguments", {}).items()]
    facts = {**_model_facts(model), "arguments": ", ".join(names)}
    print_short(f"{model['name']}: {model['summary']}", facts, model["published"])


def _model_facts(model: Record) -> dict[str, str | None]:
    card = model["card"] or {}
    trained_on = card.get("trained_on")
    size = ModelCard("", card["bytes"]).size if card.get("bytes") else None
    weights = [card.get("weights"), size, card.get("license")]
    return {
        "sets": ", ".join(f"{key}={value}" for key, value in model["model_args"].items()),
        "weights": ", ".join(str(fact) for fact in weights if fact),
        "gated": "yes: accept the terms on its page first" if card.get("gated") else None,
        "captions": _captions(card),
        "trained on": trained_on if trained_on is None else ", ".join(trained_on) or "nothing",
        "page": card.get("page"),
        "note": card.get("note"),
        "refused": card.get("refused"),
        "aliases": ", ".join(model["aliases"]),
        "needs": ", ".join(model["needs"]),
    }


def _captions(card: Mapping[str, object]) -> str | None:
    """What happens to a caption, or where it is reported; None for a model that cannot be loaded."""
    if card.get("refused"):
        return None
    known = card.get("captions")
    if not isinstance(known, Mapping):
        return "how they are read: `captions` of the fingerprint in each result"
    return ", ".join(f"{name} {'none' if value is None else value}" for name, value in known.items())


def print_long_model(model: Record) -> None:
    """A model with a table of its arguments; ``model`` is what ``--json`` prints."""
    print_wrapped(f"{model['name']}: {model['summary']}")
    echo()
    print_facts({**_model_facts(model), "code": f"{model['target']} (plugin {model['plugin']})"})
    if model.get("arguments"):
        from ttmbench.report.table import TableColumn, print_table

        echo()
        columns = [TableColumn("argument", "key"), TableColumn("default"), TableColumn("meaning")]
        rows = [
            [name, _default(about), about["meaning"].replace("``", "")] for name, about in model["arguments"].items()
        ]
        print_table(columns, rows, title="--model_args NAME=VALUE")
    _print_published(model["published"])


def print_dataset(dataset: Record) -> None:
    """The tasks of a benchmark or a tag on a short page; ``dataset`` is what ``--json`` prints."""
    names = [f"{name} ({size['shape']}, {size['groups'] or '?'})" for name, size in dataset["tasks"].items()]
    facts = {
        "run": f"--tasks {dataset['run']}",
        "tasks": f"{len(names)} (shape, size): {', '.join(names)}",
        "notes": " ".join(dataset["notes"]).replace("`", ""),
    }
    title = (
        f"{dataset['benchmark']}: {dataset['about']}" if "benchmark" in dataset else f"{dataset['tag']}: a tag of tasks"
    )
    print_short(title, facts, {}, more="`ttmbench show TASK`: one task")


def print_metric(metric: Record) -> None:
    """A metric on a short page; ``metric`` is what ``--json`` prints."""
    sizes: dict[str, list[str]] = {}
    for extent, value in sorted(metric["chance"].items(), key=lambda one: -(one[1] or 0)):
        sizes.setdefault("unknown" if value is None else f"{100 * value:.2f}", []).append(extent)
    tasks = metric["tasks"]
    facts = {
        "definition": metric["definition"],
        "chance": "; ".join(f"{value} for {', '.join(of)}" for value, of in sizes.items()),
        "scope": _SCOPES.get(metric["scope"], metric["scope"]),
        "better": "higher" if metric["higher_is_better"] else "lower",
        "track": metric["track"],
        "tasks": f"{len(tasks)}{', such as' if len(tasks) > 4 else ':'} {', '.join(tasks[:4])}" if tasks else "none",
    }
    print_short(f"{metric['metric']}: {metric['summary']}", facts, {}, more="`ttmbench ls tasks`: all tasks")


def _detectable(groups: int | None) -> str:
    """The smallest difference between two models that can be significant."""
    if groups is None:
        return ""
    smallest = smallest_difference(groups)
    return f"; smallest significant difference: {'none' if smallest is None else f'{100 * smallest:.2f} points'}"


def _files(source: Record) -> str:
    return f"{len(source['files'])} files" if "files" in source else ""


def _with_chance(metric: str, chance: float | None) -> str:
    return metric if chance is None else f"{metric} (chance {100 * chance:.2f})"


def _size(task: Record) -> str:
    group, classes = task["group"], task["classes"] or {}
    number = "unknown number of" if group["n_groups"] is None else group["n_groups"]
    if task["kind"] == "groups":
        return f"{number} groups of {'x'.join(map(str, group['shape'] or ()))}"
    others = f"{classes.get('count')} classes" if classes else f"{group.get('n_captions')} captions"
    return f"{number} images, {others}"


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
