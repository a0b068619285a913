"""The layers: who may import whom, read from the sources."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PURE = {"types", "metrics", "matching", "chance", "schedules", "stats"}
ALLOWED = {
    "types": set(),
    "errors": set(),
    "matching": {"types"},
    "metrics": {"types", "matching"},
    "chance": {"types"},
    "schedules": {"types"},
    "stats": {"types"},
    "drawing": set(),
    "scenes": {"drawing"},
    "ttmconfig": {"errors"},
    "protocols": {"types"},
    "progress": set(),
    "atonce": {"errors", "terminal"},
    "limits": {"errors"},
    "secrets": set(),
    "terminal": {"plaintext", "secrets"},
    "blame": {"errors", "plaintext"},
    "resultcheck": {"summary"},
    "plaintext": {"limits"},
    "textfile": {"limits"},
    "arrays": {"errors", "limits", "textfile"},
    "jsonl": {"errors", "textfile"},
    "pictures": {"errors", "limits"},
    "inblocks": set(),
    "inputs": {"types", "protocols"},
    "fingerprint": {"types", "errors", "inputs", "pictures", "progress"},
    "preparing": {"types", "errors", "fingerprint", "inputs", "protocols", "progress"},
    "plainpairs": {
        *("atonce", "types", "errors", "fingerprint", "inblocks", "inputs", "pictures", "protocols", "progress"),
    },
    "scoring": {"atonce", "types", "errors", "inblocks", "inputs", "protocols", "progress"},
    "choice.choices": {"types"},
    "choice.answers": set(),
    "undefined": {"types", "errors", "protocols"},
    "choice.colorswap": set(),
    "choice.files": {"types", "choice.colorswap", "choice.choices", "errors", "textfile"},
    "choice.summary": {"types", "choice.choices", "stats", "summary"},
    "choice.choosing": {
        "types",
        "atonce",
        "choice.answers",
        "choice.choices",
        "errors",
        "pictures",
        "progress",
        "protocols",
        "fingerprint",
    },
    "finetune": {"atonce", "errors", "inputs", "protocols", "ttmconfig"},
    "pairscoring": {
        *("atonce", "types", "errors", "inblocks", "inputs", "fingerprint", "preparing", "plainpairs"),
        *("protocols", "progress"),
    },
    "debiasing": {"types", "errors", "inputs", "protocols", "pairscoring"},
    "alpha": {"types", "debiasing", "summary"},
    "blindness": {"types", "summary"},
    "stage": {"atonce", "types", "inblocks", "inputs", "protocols", "scoring", "pairscoring"},
    "determinism": {"environment", "errors"},
    "trainer": {"types", "finetune", "stage", "ttmconfig"},
    "ttm": {
        *("types", "errors", "protocols", "progress", "matching", "metrics", "schedules", "ttmconfig"),
        *("finetune", "stage", "trainer"),
    },
    "checkpoint": {"types", "errors", "results", "terminal", "trainer", "ttm"},
    "hookspecs": {"types", "protocols"},
    "data.origins": set(),
    "data.places": set(),
    "taskfile": {"types", "errors", "data.origins", "limits", "matching", "textfile", "ttmconfig"},
    "data.loading": {"types", "errors", "data.places", "ttmconfig"},
    "data.rows": {"types", "errors"},
    "data.rowfiles": {"errors", "jsonl", "textfile", "data.rows"},
    "data.sources": {"types", "errors", "limits", "pictures", "data.loading", "data.rows", "data.rowfiles", "scenes"},
    "data.layouts": {"data.loading"},
    "data.shards": set(),
    "data.files": {
        *("types", "errors", "pictures", "data.layouts", "data.loading", "data.origins", "data.rows", "data.rowfiles"),
    },
    "data.hub_cache": {"errors", "data.loading"},
    "data.hub_tables": {"types", "errors", "data.layouts", "data.loading", "data.hub_cache", "data.shards"},
    "data.hub": {
        *("types", "errors", "pictures", "data.layouts", "data.loading", "data.rows", "data.files", "data.hub_cache"),
        "data.hub_tables",
    },
    "data.first": {"types", "errors", "data.loading", "ttmconfig"},
    "data.whatsup": {"types", "errors", "data.loading", "data.first"},
    "data.tagfiles": {"types", "errors", "data.loading", "data.origins", "data.rowfiles", "data.files"},
    "download.unpack": {"errors", "limits", "plaintext", "progress"},
    "download.drive": {"data.loading"},
    "download.record": {"errors", "results"},
    "download.part": set(),
    "download.web": {"errors", "data.loading", "data.origins", "data.files", "download.drive", "download.part"},
    "download.files": {
        *("errors", "data.loading", "data.origins", "data.files"),
        *("download.part", "download.record", "download.web", "download.unpack"),
    },
    "download.hub": {
        *("errors", "data.loading", "data.hub_cache", "data.hub_tables", "data.hub", "download.files", "download.web"),
    },
    "data.needs": {
        *("errors", "data.loading", "data.places", "download.files", "download.hub", "download.web"),
        *("data.sources", "data.shards", "data.files", "data.hub_tables", "data.hub", "data.first", "data.whatsup"),
    },
    "download.fetching": {
        "errors",
        "data.loading",
        "data.places",
        "registry",
        "taskfile",
        "download.files",
        "download.web",
    },
    "store.folder": {"errors"},
    "store.entryfile": set(),
    "store.identity": {"protocols", "secrets", "taskfile"},
    "store.pixels": {"types", "errors", "store.entryfile", "store.folder", "store.identity"},
    "store.pictures": {"types", "protocols", "store.entryfile", "store.folder", "store.pixels"},
    "store.scores": {
        *("types", "debiasing", "protocols", "taskfile", "terminal", "store.entryfile", "store.folder"),
        *("store.identity", "store.pixels", "store.pictures"),
    },
    "store.tasks": {"types", "debiasing", "fingerprint", "inblocks", "protocols", "taskfile", "store.scores"},
    "store.upkeep": {"errors", "store.entryfile", "store.folder"},
    "models": {"types", "errors", "blame", "protocols", "registry"},
    "download.model": {"types", "errors", "models", "download.fetching", "download.files"},
    "doctor": {
        *("types", "errors", "data.loading", "data.places", "registry", "taskfile", "models", "store.folder"),
    },
    "newtask": {"errors", "scenes"},
    "checks": {"types", "errors", "limits", "plaintext", "progress", "taskfile"},
    "summary": {"types", "blame", "errors", "stats"},
    "pages.rendering": set(),
    "leaderboard": {"blame", "data.rowfiles", "errors", "plaintext", "resultfile", "results", "summary"},
    "leaderboard_files": {"leaderboard", "pages.rendering", "plaintext", "table"},
    "report.numbers": {"leaderboard", "summary"},
    "report.curves": {"report.numbers"},
    "report.tagcharts": {"report.numbers", "summary"},
    "report.svg": {"report.curves", "report.tagcharts"},
    "report.gather": {"errors", "report.curves", "report.numbers", "resultfile", "textfile"},
    "report.groups": {"errors", "jsonl", "report.gather", "report.numbers", "summary"},
    "report.taskdata": {"types", "errors", "registry", "taskfile", "report.gather"},
    "report.pictures": {"types", "errors", "report.groups", "report.taskdata"},
    "report.scoregroups": {
        *("types", "errors", "matching", "registry", "scorefile", "summary"),
        *("report.gather", "report.groups", "report.numbers", "report.pictures", "report.taskdata"),
    },
    "report.page": {
        *("leaderboard_files", "pages.rendering", "summary", "table"),
        *("report.curves", "report.gather", "report.groups", "report.numbers", "report.pictures"),
        *("report.svg", "report.tagcharts"),
    },
    "report.figures": {
        *("errors", "plots", "results"),
        *("report.curves", "report.gather", "report.numbers", "report.svg", "report.tagcharts"),
    },
    "report.making": {
        *("errors", "report.gather", "report.groups", "report.page", "report.pictures", "report.scoregroups"),
    },
    "assertions": {"errors"},
    "resultfile": {"errors", "resultcheck", "results", "textfile"},
    "reproduce.agreement": set(),
    "reproduce.tables": {"errors", "reproduce.agreement", "summary", "ttmconfig"},
    "reproduce.rows": {"errors", "registry", "reproduce.agreement", "reproduce.tables", "summary"},
    "reproduce.running": {"errors", "evaluator", "registry", "reproduce.rows", "reproduce.tables"},
    "export.numbers": {"errors", "resultfile", "summary"},
    "export.lm_eval": {"export.numbers"},
    "export.hub": {"errors", "export.numbers"},
    "export.tables": {"plaintext", "export.numbers", "leaderboard_files", "stats", "summary", "table"},
    "baseline": {"comparison", "errors", "record", "results", "summary"},
    "comparison": {"errors", "jsonl", "resultcheck", "resultfile", "stats", "summary"},
    "trackers.numbers": set(),
    "trackers.tracking": {"types", "hookspecs", "terminal", "trackers.numbers"},
    "trackers.choosing": {"errors", "results", "runconfig", "trackers.tracking"},
    "trackers.wandb_run": {"results", "trackers.numbers"},
    "trackers.trackio_run": {"results", "trackers.numbers"},
    "trackers.tensorboard_run": {"results", "trackers.numbers"},
}
HEAVY = {"torch", "transformers", "datasets", "open_clip", "yaml", "pydantic", "logging", "json", "rich", "tqdm"}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def own(path: Path) -> set[str]:
    """Modules of this package that a file imports, those of a subpackage with its name: ``data.rows``."""
    found = set()
    for name in imports(path):
        parts = name.split(".")[1:] if name.startswith("ttmbench.") else []
        for length in (2, 1):
            if len(parts) >= length and (ROOT / "ttmbench" / Path(*parts[:length])).with_suffix(".py").exists():
                found.add("cli" if parts[0] == "cli" else ".".join(parts[:length]))
                break
    return found


def test_modules_import_only_what_lies_below_them():
    for name, allowed in ALLOWED.items():
        assert own((ROOT / "ttmbench" / Path(*name.split("."))).with_suffix(".py")) <= allowed, name


def test_the_maths_touches_no_files_and_no_models():
    for name in PURE - {"types"}:
        roots = {module.split(".")[0] for module in imports(ROOT / "ttmbench" / f"{name}.py")}
        assert roots <= {
            "__future__",
            "math",
            "fractions",
            "functools",
            "itertools",
            "collections",
            "typing",
            "numpy",
            "scipy",
            "jaxtyping",
            "ttmbench",
        }, name


def test_adapters_know_models_and_never_tasks():
    for path in (ROOT / "model_adapters").rglob("*.py"):
        assert own(path) <= {"protocols", "errors", "types", "arrays"}, path.name


def test_nothing_below_the_command_line_imports_it():
    for path in (ROOT / "ttmbench").rglob("*.py"):
        if path.name != "__main__.py" and path.parent.name != "cli":
            assert "cli" not in own(path), path.name


def test_nothing_reads_a_pickle_or_unsafe_yaml():
    for folder in ("ttmbench", "model_adapters", "scripts"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert "pickle" not in {name.split(".")[0] for name in imports(path)}, path.name
            for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
                if ast.unparse(call.func) == "torch.load":  # weights alone, and of those the tensors alone
                    options = {option.arg: ast.unparse(option.value) for option in call.keywords}
                    assert (folder, options.get("weights_only")) == ("model_adapters", "True"), path.name
            for word in ("allow_pickle=True", "yaml.unsafe_load", "yaml.full_load", "eval(", "exec("):
                assert word not in text.replace(".eval()", ""), (path.name, word)
