"""Writes the table of all named models into docs/models.md, from the catalogue.

python scripts/docs/model_table.py write    # after the catalogue changed
python scripts/docs/model_table.py check    # fails if the page's table is not what the catalogue says
"""

from __future__ import annotations

from pathlib import Path

from page_table import write_or_check

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "models.md"
HEAD = ("name", "repository", "commit", "weights that are read", "size", "licence", "gated", "extra", "tried")
# Kinds of models that the test-time stage can train.
TRAINED = ("hf", "open_clip", "itc", "itm", "vqascore", "tiny_clip")


def table() -> str:
    """The Markdown table, one line a name that has weights."""
    from ttmbench.plugins.registry import build_registry

    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    specs = {spec.name: spec for spec, _ in build_registry().adapters.values() if spec.card is not None}
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


def _repository(kind: str, arguments: dict[str, str]) -> str:
    if kind == "tiny_clip":
        return "[part of ttmbench](builtin.md)"
    if kind != "open_clip":
        return f"[{arguments['pretrained']}](https://huggingface.co/{arguments['pretrained']})"
    import open_clip

    tag = open_clip.get_pretrained_cfg(arguments["model"], arguments["pretrained"])
    repository = tag["hf_hub"].rpartition("/")[0]
    return f"[{repository}](https://huggingface.co/{repository}), `{arguments['model']}` `{arguments['pretrained']}`"


if __name__ == "__main__":
    write_or_check(PAGE, "models", table, __doc__ or "")
