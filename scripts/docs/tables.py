"""Writes the tables of all named models, tasks and methods, and those of published results, into their pages.

The README's table of benchmarks is one of them.

python scripts/docs/tables.py write    # after the catalogue, a task file or a method changed
python scripts/docs/tables.py check    # fails if a table is not what these say
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ttmbench.data.catalog import all_tasks, select_tasks
from ttmbench.data.task_file import TaskSpec
from ttmbench.model_adapters import catalog
from ttmbench.plugins.registry import build_registry

DOCS = Path(__file__).resolve().parents[2] / "docs"
MODEL_HEAD = ("name", "repository", "commit", "weights that are read", "size", "licence", "gated", "extra", "tried")
FINETUNED_HEAD = ("name", "from", "commit", "file", "size", "licence", "activation", "what is uncertain or unusual")
# Kinds of models that the test-time stage can train.
TRAINED = ("hf", "open_clip", "itc", "itm", "vqascore", "tiny_clip")
TASK_HEAD = [
    *("task", "groups", "shape", "chance: group score", "chance: group match", "images needed", "source", "licence"),
    *("gated", "known how", "fetched by", "in the data folder", "known label errors"),
]
METHOD_HEAD = [
    *(
        "method",
        "paper",
        "uses",
        "one answer depends on",
        "restored",
        "order of groups",
        "scored",
        "fair baseline of group score",
    ),
]

FAMILY_HEAD = (
    "benchmark",
    "`--tasks`",
    "what it tests",
    "shape",
    "groups",
    "chance: group score",
    "chance: group match",
)
# Benchmark, what selects its tasks, what it tests; the rest of a row is what the tasks say.
FAMILIES = (
    ("Winoground", "winoground", "the same words in another order"),
    ("MMVP-VLM", "mmvp_vlm", "visual patterns that CLIP misses"),
    ("ColorSwap", "colorswap", "which object has which colour"),
    ("SugarCrepe", "sugarcrepe", "one word or phrase replaced, swapped or added"),
    ("SugarCrepe++", "sugarcrepe_pp", "two correct wordings, one incorrect"),
    ("What'sUp", "whatsup_a,whatsup_b", "spatial prepositions"),
    ("ARO", "aro", "relations, attributes, word order"),
    ("VALSE", "valse", "linguistic phenomena: counting, coreference, actions"),
    ("VL-CheckList", "vl_checklist", "objects, attributes, relations"),
    ("BiVLC", "bivlc", "SugarCrepe with generated hard negative images"),
    ("VisMin", "vismin", "minimal changes: object, attribute, counting, relation"),
    ("NegBench", "negbench_mcq", "negation"),
    ("SPEC", "spec", "size, position, existence, count"),
    ("Vinoground", "vinoground", "temporal order in videos"),
)


def families() -> str:
    """The README's Markdown table, one line a benchmark."""
    registry = build_registry()
    lines = ["| " + " | ".join(FAMILY_HEAD) + " |", "|---|---|---|---|" + "---:|" * 3]
    for name, selector, tested in FAMILIES:
        specs = [file.spec for file in select_tasks(registry, selector.split(",")).values()]
        shapes = sorted({(spec.shape.images, spec.shape.captions) for spec in specs})
        chances = []
        for metric in ("group_score", "group_match"):
            chance = registry.metric(metric).chance
            rates = sorted(100 * chance(*shape) for shape in shapes)
            ends = ("< 0.01" if rate < 0.01 else f"{rate:.2f}" for rate in (rates[0], rates[-1]))
            chances.append(" to ".join(dict.fromkeys(ends)))
        cells = (
            f"[{name}]({specs[0].reference})",
            f"`{selector}`",
            tested,
            " to ".join(dict.fromkeys(f"{m}x{k}" for m, k in (shapes[0], shapes[-1]))),
            f"{sum(spec.group.n_groups for spec in specs):,}",
            *chances,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def models() -> str:
    """The Markdown table, one line a name that has weights."""
    lines = ["| " + " | ".join(MODEL_HEAD) + " |", "|" + "---|" * len(MODEL_HEAD)]
    listed = {spec.name for spec in catalog.listed()}  # are in a table of their own
    specs = {spec.name: spec for spec, _ in build_registry().adapters.values() if spec.card is not None}
    specs = {name: spec for name, spec in specs.items() if name not in listed}
    for name, spec in sorted(specs.items()):
        card, arguments = spec.card, spec.model_args
        kind = spec.target.partition(":")[0].rpartition(".")[2]
        commit = arguments.get("revision")
        extras = [need for need in spec.needs if need.startswith("ttmbench[")]
        cells = (
            f"`{name}`",
            _repository(kind, arguments),
            f"`{commit}`" if commit else "-" if kind == "tiny_clip" else "newest",
            card.weights,
            card.size,
            card.license or "none declared",
            "yes" if card.gated else "no",
            ", ".join(f"`pip install '{extra}'`" for extra in extras) or "-",
            ("itself: " if kind == "tiny_clip" else "copy: ")
            + ("raw, TTM" if kind in TRAINED else "raw")
            + ", offline",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def finetuned() -> str:
    """The Markdown table, one line a name of ``named_models.json``."""
    lines = ["| " + " | ".join(FINETUNED_HEAD) + " |", "|" + "---|" * len(FINETUNED_HEAD)]
    for spec in sorted(catalog.listed(), key=lambda spec: spec.name):
        card, arguments = spec.card, spec.model_args
        kind, commit = spec.target.partition(":")[0].rpartition(".")[2], str(arguments.get("revision", ""))
        cells = (
            f"`{spec.name}`",
            f"[download]({card.page})" if card.page else _repository(kind, arguments),
            f"`{commit[:7]}`" if commit else "-" if card.page else "newest",
            card.weights,
            card.size,
            card.license or "none declared",
            {True: "QuickGELU", False: "GELU", None: "-"}[card.quick_gelu],
            ("cannot be loaded: " if card.refused else "") + (card.refused or card.note or "-"),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _repository(kind: str, arguments: dict[str, str]) -> str:
    if kind == "tiny_clip":
        return "[part of ttmbench](builtin.md)"
    if kind != "open_clip":
        return f"[{arguments['pretrained']}](https://huggingface.co/{arguments['pretrained']})"
    import open_clip

    place = arguments.get("pretrained", arguments["model"])
    if place.startswith("hf-hub:"):
        repository = "/".join(place.removeprefix("hf-hub:").split("/")[:2])
        return f"[{repository}](https://huggingface.co/{repository})"
    tag = open_clip.get_pretrained_cfg(arguments["model"], arguments["pretrained"])
    repository = tag["hf_hub"].rpartition("/")[0]
    return f"[{repository}](https://huggingface.co/{repository}), `{arguments['model']}` `{arguments['pretrained']}`"


def tasks() -> str:
    """The Markdown table, one line a task."""
    registry = build_registry()
    lines = ["| " + " | ".join(TASK_HEAD) + " |", "|" + "---|" * len(TASK_HEAD)]
    for name, file in all_tasks(registry).items():
        spec = file.spec
        chances = []
        for metric in ("group_score", "group_match"):
            chance = registry.metric(metric).chance if spec.kind == "groups" else None
            value = chance(spec.shape.images, spec.shape.captions) if chance else None
            chances.append("-" if value is None else f"{100 * value:.2f}")
        cells = [
            f"`{name}`",
            "-" if spec.group.n_groups is None else str(spec.group.n_groups),
            f"{spec.shape}, global" if spec.is_global else _shape(spec),
            *chances,
            spec.images_needed or "-",
            ", else ".join(_places(spec.source)),
            spec.license,
            "yes" if spec.gated else "no",
            ", ".join(f"{fact}: {how}" for fact, how in spec.evidence.items()) or "-",
            "-" if spec.source["kind"] == "rendered" else f"`ttmbench download {name}`",
            ", ".join(f"`{path}`" for path in _files(spec.source, spec.group.tag_files)) or "-",
            spec.label_errors or "-",
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _shape(spec: TaskSpec) -> str:
    return spec.extent if spec.kind == "groups" else f"{spec.extent}, {spec.kind}"


def _places(source: Mapping) -> Iterator[str]:
    """Where the data come from, in the order in which the places are tried."""
    if "of" in source:
        for part in source["of"]:
            yield from _places(part)
    elif source["kind"] in ("huggingface", "hub_files", "webdataset"):
        path, revision = source["path"], source.get("revision")
        pinned = f"at `{revision[:7]}`" if revision else "not pinned"
        kind = "" if source.get("repo_type") == "model" else "datasets/"
        yield f"[{path}](https://huggingface.co/{kind}{path}) ({pinned})"
    elif source["kind"] == "rendered":
        yield "[rendered](builtin.md)"
    else:
        yield "the data folder"


def _files(source: Mapping, tag_files: Mapping) -> list[str]:
    """What a user may put into the data folder."""
    files: list[str] = []
    for part in source.get("of", [source]):
        if part["kind"] == "class_folders":
            files.append(part["path"])
        if part["kind"] == "annotations":
            files += part["get"] if "get" in part else [part["file"], part["images"]]
    return files + [tags.file for tags in tag_files.values()]


def methods() -> str:
    """The Markdown table, one line a test-time method."""
    lines = ["| " + " | ".join(METHOD_HEAD) + " |", "|" + "---|" * len(METHOD_HEAD)]
    for name, (spec, _) in build_registry().methods.items():
        cells = (
            f"`{name}`",
            _paper(spec.reference),
            ", ".join(need.replace("_", " ") for need in spec.needs),
            spec.scope,
            {"group": "before each group", "batch": "before each batch", "never": "never", None: "-"}[spec.reset],
            "matters" if spec.order_dependent else "no effect",
            "-" if not spec.trains else "before the update" if spec.scores_before_update else "after the update",
            "SimpleMatch" if spec.uses_matching else "raw",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _paper(reference: str) -> str:
    number = reference.removeprefix("arXiv:")
    return f"[{number}](https://arxiv.org/abs/{number})" if number != reference else reference or "-"


def main() -> None:
    """Puts each table between ``<!-- name -->`` and ``<!-- /name -->`` of its page, or checks that it is there."""
    import published_tables as published  # which lies beside this file

    if sys.argv[1:] not in (["write"], ["check"]):
        sys.exit(__doc__)
    pages = {
        "families": "../README.md",
        "models": "models.md",
        "finetuned": "models.md",
        "tasks": "tasks.md",
        "methods": "methods.md",
    }
    of_published = [(f"published {table.__name__}", table) for table in published.TABLES]
    named = (
        ("families", families),
        ("models", models),
        ("finetuned", finetuned),
        ("tasks", tasks),
        ("methods", methods),
        *of_published,
    )
    for name, table in named:
        page = DOCS / pages.get(name, "published.md")
        text = page.read_text(encoding="utf-8")
        before, start, rest = text.partition(f"<!-- {name} -->\n")
        end = rest[rest.index(f"\n<!-- /{name} -->") :]
        new = f"{before}{start}{table()}{end}"
        if sys.argv[1] == "write":
            page.write_text(new, encoding="utf-8")
        elif new != text:
            sys.exit(f"{page.name}: its table is stale; run `python scripts/docs/tables.py write`")


if __name__ == "__main__":
    main()
