"""What ``ttmbench show METHOD`` prints: a test-time method, what it uses, and its arguments."""

from __future__ import annotations

import inspect

from ttmbench._util.console import echo
from ttmbench.cli.pages import print_facts, print_short, print_wrapped
from ttmbench.methods.settings import arguments
from ttmbench.plugins.registry import load_target
from ttmbench.results.labels import COLUMNS
from ttmbench.types import MethodSpec, Record

_NEEDS = {
    "scores": "the model's scores",
    "features": "features of a dual encoder",
    "references": "features of other images and captions of the task",
    "views": "views of each image",
    "gradients": "gradients: it trains",
    "caption_texts": "the texts of captions, to be encoded in other words",
    "caption_embeddings": "gradients of a caption's token embeddings",
    "reward_model": "a second model",
    "labels": "labels",
    "random_labels": "random labels",
}
_SCOPES = {
    "row": "one image's answer depends on its own scores alone",
    "group": "one image's answer depends on its group alone",
    "batch": "one image's answer depends on the groups of its batch",
    "stream": "one image's answer depends on all groups that were met before",
    "task": "one image's answer depends on the whole task (transductive)",
}
_TRACKS = {
    "oracle": "oracle: an upper bound, not a result",
    "supervised": "supervised: numbers of its weights rank apart, whatever follows",
    None: "none: a control, which ranks nowhere",
}
_RESETS = {
    "group": "restored before each group (episodic)",
    "batch": "restored before each batch",
    "never": "never restored inside a run",
    None: "not trained",
}


_MORE = "--long: defaults of settings; --published: numbers"


def as_json(spec: MethodSpec, plugin: str) -> Record:
    """A method with its arguments, for programs."""
    rows = [
        {
            "name": arg.name,
            "allowed": arg.allowed,
            "default": arg.default,
            "required": arg.is_required,
            "source": arg.source,
        }
        for arg in arguments(spec)
    ]
    return {**vars(spec), "track": spec.track, "trains": spec.trains, "plugin": plugin, "arguments": rows}


def print_short_page(spec: MethodSpec, plugin: str) -> None:
    """A method with the names of its settings, for people."""
    facts = _facts(spec, plugin)
    order = ("order",) if spec.order_dependent else ()
    shown = ("paper", "track", "uses", "scope", "model", *order, "matching", "baseline")
    names = ", ".join(f"{arg.name} (required)" if arg.is_required else arg.name for arg in arguments(spec))
    settings = f"{_option(spec)}: {names}" if names else "none"
    print_short(_title(spec), {**{name: facts[name] for name in shown}, "settings": settings}, {}, _MORE)


def _title(spec: MethodSpec) -> str:
    return f"{spec.name}: {spec.summary}" if spec.summary else spec.name


def _option(spec: MethodSpec) -> str:
    if spec.is_finetuning:
        return "ttmbench finetune --finetune_args NAME=VALUE"
    has_column = any(column.filter == spec.name for column in COLUMNS)  # TTM itself, its bound and its controls
    return "--ttm_args NAME=VALUE" if has_column else f"--method_args {spec.name}.NAME=VALUE"


def print_page(spec: MethodSpec, plugin: str) -> None:
    """A method with a table of its arguments, for people."""
    settings = arguments(spec)
    print_wrapped(_title(spec))
    for text in () if spec.is_ttm or spec.is_finetuning else _paragraphs(spec):
        echo()
        print_wrapped(text)
    echo()
    print_facts(_facts(spec, plugin) | ({} if settings else {"arguments": "none"}))
    if settings:
        from ttmbench.report.table import TableColumn, print_table

        echo()
        columns = [TableColumn("argument", "key"), *map(TableColumn, ("default", "allowed", "source of the default"))]
        rows = [[arg.name, _default(arg.default, arg.is_required), arg.allowed, arg.source or "-"] for arg in settings]
        print_table(columns, rows, title=_option(spec))


def _facts(spec: MethodSpec, plugin: str) -> dict[str, str | None]:
    return {
        "paper": spec.reference or "none stated",
        "code": f"{spec.target} (plugin {plugin})",
        "uses": "; ".join(_NEEDS[need] for need in spec.needs),
        "scope": _SCOPES[spec.scope],
        "model": _RESETS[spec.reset],
        "order": "the order of the groups changes its scores" if spec.order_dependent else "of the groups: no effect",
        "matching": "assumes that each caption belongs to one image" if spec.assumes_matching else "not assumed",
        "scores": _scores(spec),
        "track": _TRACKS.get(spec.track, spec.track),
        "baseline": _baseline(spec),
    }


def _paragraphs(spec: MethodSpec) -> list[str]:
    """The docstring of a method's function, a text each paragraph, without sections such as ``Args:``."""
    text = inspect.getdoc(load_target(spec.target)) or ""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    ends = [at for at, part in enumerate(paragraphs) if part.startswith(("Args:", "Returns:", "Yields:", "Raises:"))]
    return [part for part in paragraphs[: min(ends, default=len(paragraphs))] if part]


def _scores(spec: MethodSpec) -> str:
    kind = "logits" if spec.gives_logits else "no logits, so that their calibration means nothing"
    if not spec.trains or spec.is_finetuning:
        return kind
    return f"{kind}, {'before' if spec.scores_before_update else 'after'} the update that a group causes"


def _baseline(spec: MethodSpec) -> str:
    """The column of the raw model that a method is fairly compared with."""
    if spec.uses_matching:
        return "SimpleMatch (group_match,none) for every metric: its scores use the matching"
    return "the raw model, same metric (METRIC,none); for group match SimpleMatch"


def _default(value: object, is_required: bool) -> str:
    if is_required:
        return "required"
    if value is None or isinstance(value, bool):
        return "none" if value is None else str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
