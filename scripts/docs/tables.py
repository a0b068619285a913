"""Writes the tables of all named models, tasks and methods, and those of published results, into their pages.

The README's table of benchmarks is one of them.

python scripts/docs/tables.py write    # after the catalogue, a task file or a method changed
python scripts/docs/tables.py check    # fails if a table is not what these say
"""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from pathlib import Path

from page_parts import between, table

from ttmbench.data.benchmarks import benchmarks
from ttmbench.data.task_file import select_tasks
from ttmbench.plugins.registry import build_registry
from ttmbench.types import AdapterSpec, ModelCard

DOCS = Path(__file__).resolve().parents[2] / "docs"
MODEL_HEAD = ("name", "repository", "commit", "weights that are read", "size", "licence", "gated", "extra", "remarks")
# Family -> names, with * for any letters.
MODEL_FAMILIES = (
    ("Built-in CLIP", "tiny-clip*"),
    ("CLIP (OpenAI)", "clip-b*"),
    ("CLIP (LAION, DataComp, DFN)", "open_clip-vit-b*", "open_clip-vit-l*", "open_clip-vit-h14-*dfn5b"),
    ("MetaCLIP 2, Jina CLIP v2", "metaclip2-b32", "open_clip-vit-h14-metaclip2", "jina-clip-v2"),
    ("SigLIP, SigLIP 2", "siglip*", "open_clip-siglip*"),
    ("BLIP, BLIP-2, FLAVA", "blip-it*", "blip2-it*", "flava-it*"),
    ("ViLT, BridgeTower", "vilt-*", "bridgetower-*"),
    ("X-CLIP, VideoPrism (videos)", "xclip-*", "videoprism-*"),
    ("Embedding models, rerankers", "qwen3-vl-*", "embeddinggemma-2", "gme-*", "jina-*-v4", "col*"),
    ("VisualGPTScore", "visualgpt-*"),
    ("VQAScore", "vqascore-*"),
    ("NegCLIP, CE-CLIP, DeGLA, READ-CLIP", "negclip", "ce-clip", "degla", "read-clip"),
    ("FSC-CLIP", "fsc-clip-*"),
    ("CLIC", "clic-*"),
    ("DAC, TSVLC, CLoVe", "dac-*", "tsvlc-*", "clove"),
    ("CoN-CLIP, NegFull", "con-clip-*", "negfull-*"),
    ("CS-CLIP, SPEC-CLIP, TripletCLIP", "cs-clip*", "spec-clip", "tripletclip-*"),
)
METHOD_HEAD = ("method", "what it does", "paper")

FAMILY_HEAD = (
    *("benchmark", "`--tasks`", "what it tests", "shape", "groups", "chance: group score", "chance: group match"),
)
# Those of the README, by their names in tasks/_benchmarks.yaml.
FAMILIES = (
    *("winoground", "mmvp_vlm", "colorswap", "sugarcrepe", "sugarcrepe_pp", "whatsup", "aro", "valse", "vl_checklist"),
    *("bivlc", "vismin", "negbench", "spec", "vinoground"),
)


def families() -> str:
    """The README's Markdown table, one line a benchmark."""
    registry = build_registry()
    rows = []
    for one in (one for one in benchmarks() if one.name in FAMILIES):
        specs = [file.spec for file in select_tasks(registry, one.run.split(",")).values()]
        shapes = sorted({(spec.shape.images, spec.shape.captions) for spec in specs})
        chances = []
        for metric in ("group_score", "group_match"):
            chance = registry.metrics[metric].chance
            rates = sorted(100 * chance(*shape) for shape in shapes)
            ends = ("< 0.01" if rate < 0.01 else f"{rate:.2f}" for rate in (rates[0], rates[-1]))
            chances.append(" to ".join(dict.fromkeys(ends)))
        cells = (
            f"[{one.title}]({specs[0].reference})",
            f"`{one.run}`",
            one.tests,
            " to ".join(dict.fromkeys(f"{m}x{k}" for m, k in (shapes[0], shapes[-1]))),
            f"{sum(spec.group.n_groups for spec in specs):,}",
            *chances,
        )
        rows.append(cells)
    return table(FAMILY_HEAD, rows, numbers=3)


def model_families() -> str:
    """The table of docs/models.md, a row for each family of named models."""
    named = {spec.name: spec for spec in build_registry().adapters.values() if spec.card is not None}
    rows = []
    listed: set[str] = set()
    for title, *patterns in MODEL_FAMILIES:
        specs = [spec for name, spec in sorted(named.items()) if any(fnmatchcase(name, one) for one in patterns)]
        listed |= {spec.name for spec in specs}
        sizes = sorted({spec.card.bytes for spec in specs if spec.card.bytes})
        ends = list(dict.fromkeys(ModelCard("", size).size for size in (sizes[:1] + sizes[-1:])))
        is_loaded = not all(spec.card.refused for spec in specs)
        cells = (
            title,
            ", ".join(f"`{one}`" for one in patterns),
            "; ".join(sorted({spec.card.license or "none declared" for spec in specs})),
            " to ".join(ends) or "unknown",
            " or ".join(dict.fromkeys(_fetched(spec) for spec in specs)),
            "yes" if is_loaded else "-",  # every kind with weights of its own is trained
        )
        rows.append(cells)
    if missing := sorted(set(named) - listed):
        sys.exit(f"MODEL_FAMILIES has no family of {', '.join(missing)}")
    return table(("family", "`--model`", "licence", "size", "weights", "TTM"), rows)


def _fetched(spec: AdapterSpec) -> str:
    if spec.name.startswith("tiny-clip"):
        return "built in"
    return "not loaded" if spec.card.refused else "manual" if spec.card.page else "Hub"


def page() -> str:
    """The site's page of all named models."""
    return f"""# Named models

This page lists every model that `--model` accepts by name, with repository, commit, file and licence.
[Models](models.md) explains how they are loaded. The tests run each of them on a small copy of the repository with
random weights: raw scores, one iteration of TTM if the model can be trained, and both offline. `newest` means that no
commit is known; results record the commit that was read.

{models()}
"""


def models() -> str:
    """The Markdown table, one line a name that has weights."""
    rows = []
    specs = {spec.name: spec for spec in build_registry().adapters.values() if spec.card is not None}
    for name, spec in sorted(specs.items()):
        card, arguments = spec.card, spec.model_args
        kind = spec.target.partition(":")[0].rpartition(".")[2]
        commit = arguments.get("revision")
        extras = [need for need in spec.needs if need.startswith("ttmbench[")]
        remarks = [f"cannot be loaded: {card.refused}" if card.refused else card.note]
        remarks += [{True: "QuickGELU", False: "GELU", None: ""}[card.quick_gelu]]
        cells = (
            f"`{name}`",
            f"[download]({card.page})" if card.page else _repository(kind, arguments),
            f"`{commit}`" if commit else "-" if name.startswith("tiny-clip") or card.page else "newest",
            card.weights,
            card.size,
            card.license or "none declared",
            "yes" if card.gated else "no",
            ", ".join(f"`pip install '{extra}'`" for extra in extras) or "-",
            "; ".join(filter(None, remarks)) or "-",
        )
        rows.append(cells)
    return table(MODEL_HEAD, rows)


def _repository(kind: str, arguments: dict[str, str]) -> str:
    if str(arguments.get("pretrained")).startswith("tiny_clip"):
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


def methods() -> str:
    """The Markdown table, one line a test-time method."""
    rows = []
    for name, spec in build_registry().methods.items():
        cells = (
            f"`{name}`",
            spec.summary.replace("'", "`") if "ttmbench" in spec.summary else spec.summary,
            _paper(spec.reference),
        )
        rows.append(cells)
    return table(METHOD_HEAD, rows)


def _paper(reference: str) -> str:
    number = reference.removeprefix("arXiv:")
    return f"[{number}](https://arxiv.org/abs/{number})" if number != reference else reference or "-"


def main() -> None:
    """Puts each table between ``<!-- name -->`` and ``<!-- /name -->`` of its page, or checks that it is there."""
    import benchmark_pages  # which lies beside this file

    if sys.argv[1:] not in (["write"], ["check"]):
        sys.exit(__doc__)
    named = (
        ("families", "../README.md", families),
        ("models", "models.md", model_families),
        ("tasks", "tasks.md", benchmark_pages.overview),
        ("methods", "methods.md", methods),
    )
    for name, file, make in named:
        page = DOCS / file
        text = page.read_text(encoding="utf-8")
        new = between(text, name, make())
        if sys.argv[1] == "write":
            page.write_text(new, encoding="utf-8")
        elif new != text:
            sys.exit(f"{page.name}: its table is stale; run `python scripts/docs/tables.py write`")


if __name__ == "__main__":
    main()
