"""``ttmbench doctor``: what of tasks and models is on this machine, and what mends what is not. No network is used."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from ttmbench._util.console import echo, warn
from ttmbench.cache.entry import cache_folder
from ttmbench.cache.maintenance import list_items
from ttmbench.cli.options import DATA_DIR, add_verbosity, names
from ttmbench.config import split_names
from ttmbench.data.availability import DataLocation, amount
from ttmbench.data.catalog import all_tasks, is_named, select_tasks
from ttmbench.data.loader import data_locations
from ttmbench.data.paths import data_folder
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.plugins.registry import Registry, build_registry, locate_files
from ttmbench.report.table import TableColumn, print_table
from ttmbench.types import AdapterSpec

State = Literal["present", "missing", "gated", "unknown"]
PACKAGES = ("ttmbench", "torch", "transformers", "open_clip_torch", "datasets", "huggingface_hub")
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
EXIT_MISSING = 4


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of ``ttmbench doctor``."""
    parser.add_argument(
        "names", nargs="*", metavar="TASK|MODEL", help="Required tasks and models: exit code 4 if one is unavailable"
    )
    parser.add_argument("--tasks", "-t", metavar="A,B", type=names, help="Required tasks, separated by commas")
    parser.add_argument("--models", "-M", metavar="A,B", type=names, help="Required models, separated by commas")
    parser.add_argument("--data_dir", metavar="DIR", help=DATA_DIR)
    parser.add_argument("--include_path", metavar="DIR", action="append", help="Directory with additional task files")
    parser.add_argument("--json", action="store_true", help="Print JSON")
    add_verbosity(parser)


def doctor(options: argparse.Namespace) -> int:
    """Prints one line a task and model; 4 if something that was asked for by name is not usable."""
    registry = build_registry(options.include_path or [], quiet=True)  # its own table tells of plugins
    named_tasks, named_models = _asked(registry, options)
    asked = bool(options.names) or options.tasks is not None or options.models is not None
    given = Path(options.data_dir) if options.data_dir else None
    tasks = select_tasks(registry, named_tasks) if asked else all_tasks(registry)
    models: dict[str, AdapterSpec] = {}
    for name in named_models if asked else sorted(registry.adapters):
        spec = registry.adapter(name)
        models.setdefault(spec.name, spec)
    findings = [check_task(registry, task, data_folder(given)) for task in tasks.values()]
    findings += [check_model(spec) for spec in models.values()]
    around = _surroundings(given)
    broken: dict[str, str] = {}
    for plugin in registry.plugins.broken:
        why = str(plugin).removeprefix(f"plugin '{plugin.name}' ")
        broken[plugin.name] = f"{broken[plugin.name]}; {why}" if plugin.name in broken else why
    if options.json:
        listed = [vars(finding) for finding in findings]
        echo(json.dumps({**around, "broken_plugins": broken, "findings": listed}, indent=2, ensure_ascii=False))
    else:
        _print_surroundings(around, broken)
        _print_findings(findings)
    lacking = [finding.name for finding in findings if finding.state != "present"]
    if asked and lacking:
        warn(f"not usable as it is: {', '.join(lacking)}")
        return EXIT_MISSING
    return 0


def _asked(registry: Registry, options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The tasks and the models that were asked for; UsageError for a name of neither."""
    tasks = [name for words in options.tasks or [] for name in split_names(words)]
    models = list(options.models or [])
    for name in (name for words in options.names for name in split_names(words)):
        if name in registry.adapters:
            models.append(name)
        else:
            try:
                select_tasks(registry, [name])
            except UsageError:
                if is_named(registry, name):
                    raise
                known = [*registry.task_files, *registry.adapters]
                raise UsageError(registry.unknown("task or model", name, known)) from None
            tasks.append(name)
    return tasks, models


def _print_surroundings(around: dict[str, Any], broken: dict[str, str]) -> None:
    lines = [("python", around["python"])]
    lines += [(name, version or "not installed") for name, version in around["packages"].items()]
    lines.append(("devices", ", ".join(around["devices"])))
    for name, folder in around["folders"].items():
        state = "" if folder["exists"] else " (not there yet)"
        lines.append((name, f"{folder['path']}{state}, {amount(folder['free_bytes'])} free"))
        if folder.get("outdated_bytes"):
            of_others = f"{amount(folder['outdated_bytes'])} of other versions of ttmbench, which this one does not use"
            lines.append(("", f"{of_others}: `ttmbench cache prune --outdated`"))
    lines.append(("HF_TOKEN", "set" if around["HF_TOKEN"] else "not set: gated datasets and models cannot be fetched"))
    lines += [("HF_HUB_OFFLINE", "set: nothing is fetched from the hub")] if around["HF_HUB_OFFLINE"] else []
    lines += [(f"plugin {name}", why) for name, why in broken.items()]
    print_table((TableColumn("machine", "key"), TableColumn("state")), lines)


def _print_findings(findings: list[Finding]) -> None:
    if not findings:
        return
    echo()
    rows: list[list[str]] = []
    for finding in findings:
        if rows and rows[-1][0] != finding.kind:
            rows.append([])
        mend = f" -> {finding.mend}" if finding.mend else ""
        rows.append([finding.kind, finding.name, finding.state, f"{finding.detail}{mend}"])
    print_table([*(TableColumn(name, "key") for name in ("kind", "name", "state")), TableColumn("detail")], rows)


@dataclass(frozen=True)
class Finding:
    """One task or model.

    Attributes:
        kind: task or model.
        name: as it is called.
        state: ``gated`` is missing, with terms to accept first; ``unknown`` is nothing that could be told.
        detail: where it is, or what is not there and where it was looked for.
        mend: the command or page that mends it; empty if there is nothing to mend.
    """

    kind: Literal["task", "model"]
    name: str
    state: State
    detail: str
    mend: str = ""


def check_task(registry: Registry, task: TaskFile, data_dir: Path) -> Finding:
    """Whether a task could be run offline, from the data folder or a cache."""
    name = task.spec.task
    command = f"ttmbench download {name}"
    try:
        places, tags = data_locations(registry, task, data_dir)
        absent = [place.missing() for place in places]
        untagged = [need.name for need in tags if need.missing() is not None]
    except TtmbenchError as error:
        return Finding("task", name, "unknown", str(error), f"ttmbench validate {name} --schema_only")
    here = next((place for place in places if place.is_here), None)
    if here is not None:
        without = f"; without the tags of {', '.join(untagged)}" if untagged else ""
        return Finding("task", name, "present", f"{here.name}{_where(here)}{without}", command if untagged else "")
    if any(place.needs is None for place in places):
        return Finding("task", name, "unknown", f"{places[0].name} does not tell what it needs", command)
    listed = [f"{_list(missing)}{_where(place)}" for place, missing in zip(places, absent, strict=True)]
    detail = f"not here: {'; nor '.join(listed)}"
    if not task.spec.gated:
        return Finding("task", name, "missing", detail, command)
    pages = ", ".join(dict.fromkeys(need.origin for place in places for need in place.needs or ()))
    token = "" if token_is_set() else ", set HF_TOKEN to a token of that account"
    return Finding("task", name, "gated", detail, f"accept the terms at {pages}{token}, then `{command}`")


def check_model(spec: AdapterSpec) -> Finding:
    """Whether a model's weights are here; unknown for a name that fixes none, and an adapter that does not tell."""
    absent = [need for need in spec.needs if not _installed(need)]
    if absent:
        command = f"pip install {shlex.join(spec.needs)}"
        return Finding("model", spec.name, "missing", f"{absent[0]} is not installed", command)
    try:
        files = locate_files(spec, {}, offline=True)
    except DataError as error:
        return _absent(spec, str(error))
    except Exception as error:  # a library that cannot tell is no reason to tell nothing
        return Finding("model", spec.name, "unknown", f"{type(error).__name__}: {error}")
    if files is None:
        return Finding("model", spec.name, "unknown", "its arguments name no weights")
    shown = [f"{file.name}{f' at {file.commit[:8]}' if file.commit else ''} in {file.folder}" for file in files]
    return Finding("model", spec.name, "present", ", ".join(shown))


def _absent(spec: AdapterSpec, why: str) -> Finding:
    """A model that cannot be loaded offline; ``why`` says what to do as well, which is said here for its name."""
    command = f"ttmbench download --model {spec.name}"
    why = why.partition(";")[0].replace("is neither a folder here nor in", "is not in")
    if spec.card is None or not spec.card.gated or token_is_set():
        return Finding("model", spec.name, "missing", why, command)
    page = f"https://huggingface.co/{spec.model_args.get('pretrained')}"
    return Finding("model", spec.name, "gated", why, f"accept the terms at {page}, set HF_TOKEN, then `{command}`")


def _surroundings(data_dir: Path | None) -> dict[str, Any]:
    """Versions, devices, folders and whether a token is set, as JSON values; None for an absent package."""
    from huggingface_hub import constants

    prepared, cache = os.environ.get("HF_DATASETS_CACHE"), cache_folder(None)
    folders = {
        "data folder": _folder(data_folder(data_dir)),
        "hub cache": _folder(Path(constants.HF_HUB_CACHE)),
        "datasets cache": _folder(Path(prepared) if prepared else Path(constants.HF_HOME) / "datasets"),
    }
    if cache is not None:
        folders["score cache"] = {**_folder(cache), "outdated_bytes": _outdated_bytes(cache)}
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "devices": _devices(),
        "folders": folders,
        "HF_TOKEN": token_is_set(),
        "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"),
    }


def token_is_set() -> bool:
    """Whether a token of the hub is at hand, in the environment or from a login; its value is never shown."""
    from huggingface_hub import constants

    return any(os.environ.get(name) for name in TOKENS) or Path(constants.HF_TOKEN_PATH).is_file()


def _where(place: DataLocation) -> str:
    return "".join(f" in {where}" for where in dict.fromkeys(need.where for need in place.needs or ()))


def _list(missing: dict[str, str]) -> str:
    return ", ".join(name if why.startswith("it is not") else f"{name} ({why})" for name, why in missing.items())


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _installed(need: str) -> bool:
    """Whether a package is there, by the name of its distribution or of its module, with what its extras ask for."""
    plain, _, extras = need.rstrip("]").partition("[")
    if _version(plain) is None:
        return find_spec(plain.replace("-", "_")) is not None
    asked = [requirement.partition(";") for requirement in requires(plain) or ()]
    wanted = [
        re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        for extra in extras.split(",")
        for requirement, _, marker in asked
        if re.search(rf"extra == ['\"]{re.escape(extra)}['\"]", marker)
    ]
    return all(_version(name) is not None for name in wanted)


def _devices() -> list[str]:
    import torch

    cuda = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    named = [f"cuda:{index} ({about.name}, {about.total_memory >> 30} GiB)" for index, about in enumerate(cuda)]
    return ["cpu", *named, *(["mps"] if torch.backends.mps.is_available() else [])]


def _folder(path: Path) -> dict[str, Any]:
    """A folder, whether it is there, and the bytes that are free where it is or would be; None if unknown."""
    try:
        free = shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists())).free
    except (OSError, StopIteration):
        free = None
    return {"path": str(path), "exists": path.is_dir(), "free_bytes": free}


def _outdated_bytes(cache: Path) -> int:
    """What files of other versions take in the score cache; 0 where it cannot be read."""
    try:
        return sum(item.bytes for item in list_items(cache) if item.outdated is not None)
    except TtmbenchError:
        return 0
