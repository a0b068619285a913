"""``ttmbench doctor``: which tasks and models are available locally, and how to get the others; without the network."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from ttmbench._util.console import echo, print_line, warn
from ttmbench._util.machine import installed_version
from ttmbench.cli.parser import add_run_options
from ttmbench.config import split_names
from ttmbench.data.availability import DataLocation, amount
from ttmbench.data.loader import data_locations
from ttmbench.data.paths import cache_folder, data_folder
from ttmbench.data.task_file import TaskFile, all_tasks, is_named, select_tasks
from ttmbench.errors import DataError, TtmbenchError, UsageError
from ttmbench.plugins.registry import Registry, build_registry, locate_files, unknown
from ttmbench.report.terminal import TableColumn, print_table
from ttmbench.types import AdapterSpec, Record

PACKAGES = ("ttmbench", "torch", "transformers", "open_clip_torch", "datasets", "huggingface_hub")
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench doctor``."""
    required = "Required tasks and models: exit code 4 if one is unavailable"
    parser.add_argument("names", nargs="*", metavar="TASK|MODEL", help=required)
    parser.add_argument("--tasks", "-t", metavar="A,B", type=split_names, help="Required tasks, separated by commas")
    parser.add_argument("--models", "-M", metavar="A,B", type=split_names, help="Required models, separated by commas")
    add_run_options(parser, "data_dir", "include_path", title="")
    parser.add_argument("--json", action="store_true", help="Print JSON")


def doctor(options: argparse.Namespace) -> int:
    """Print each required task and model, else those that are here; exit code 4 if one is unavailable."""
    registry = build_registry(options.include_path or [], quiet=True)  # the table below has the broken plugins
    named_tasks, named_models = _required(registry, options)
    is_named_any = bool(options.names) or options.tasks is not None or options.models is not None
    data_dir = data_folder(options.data_dir)
    tasks = select_tasks(registry, named_tasks) if is_named_any else all_tasks(registry)
    specs = [registry.adapters[name] for name in (named_models if is_named_any else sorted(registry.adapters))]
    findings = [check_task(registry, task, data_dir) for task in tasks.values()]
    findings += [check_model(spec) for spec in {spec.name: spec for spec in specs}.values()]
    environment = _environment(data_dir)
    broken: dict[str, str] = {}
    for plugin in registry.broken:
        broken[plugin.name] = "; ".join(filter(None, (broken.get(plugin.name), plugin.reason)))
    if options.json:
        listed = [finding._asdict() for finding in findings]
        document = {**environment, "broken_plugins": broken, "findings": listed}
        echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        _print_environment(environment, broken)
        echo()
        shown = [finding for finding in findings if is_named_any or finding.state == "present"]
        _print_findings(shown, environment["folders"])
        if not is_named_any:
            others = len(findings) - len(shown)
            print_line(
                f"\n{others} other tasks and models: `ttmbench doctor NAME` says how to get one, or those of a tag"
            )
    unavailable = [finding.name for finding in findings if finding.state != "present"]
    if is_named_any and unavailable:
        warn(f"unavailable: {', '.join(unavailable)}")
        return DataError.exit_code
    return 0


def _required(registry: Registry, options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The required tasks and models; UsageError for a name of neither."""
    tasks, models = list(options.tasks or []), list(options.models or [])
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
                raise UsageError(unknown("task or model", name, known, registry.broken)) from None
            tasks.append(name)
    return tasks, models


def _print_environment(environment: Record, broken: dict[str, str]) -> None:
    lines = [("python", environment["python"])]
    lines += [(name, version or "not installed") for name, version in environment["packages"].items()]
    lines.append(("devices", ", ".join(environment["devices"])))
    for name, folder in environment["folders"].items():
        state = "" if folder["exists"] else " (does not exist yet)"
        lines.append((name, f"{folder['path']}{state}, {amount(folder['free_bytes'])} free"))
    token = "set" if environment["HF_TOKEN"] else "not set: gated datasets and models cannot be downloaded"
    lines.append(("HF_TOKEN", token))
    lines += [("HF_HUB_OFFLINE", "set: nothing is downloaded from the Hub")] if environment["HF_HUB_OFFLINE"] else []
    lines += [(name, value) for name, value in environment["allocator"].items()]
    lines += [(f"plugin {name}", why) for name, why in broken.items()]
    print_table((TableColumn("machine", "key"), TableColumn("state")), lines)


def _print_findings(findings: list[Finding], folders: Record) -> None:
    """A line for each task and model, with short commits and the names of folders."""
    rows: list[list[str]] = []
    for finding in findings:
        if rows and rows[-1][0] != finding.kind:
            rows.append([])
        detail = re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", finding.detail)
        for name, folder in folders.items():
            detail = detail.replace(f"in {folder['path']}", f"in the {name}").replace(f"the {name} in the", "the")
        detail += f" -> {finding.fix}" if finding.fix else ""
        rows.append([finding.kind, finding.name, finding.state, detail])
    columns = [TableColumn("kind"), TableColumn("name", "key"), TableColumn("state", "key"), TableColumn("detail")]
    print_table(columns, rows)


class Finding(NamedTuple):
    """One task or model, where it is or what is missing, and the command or page that makes it available."""

    kind: Literal["task", "model"]
    name: str
    state: Literal["present", "missing", "gated", "unknown"]  # gated: missing, and its terms have to be accepted first
    detail: str
    fix: str = ""


def check_task(registry: Registry, task: TaskFile, data_dir: Path) -> Finding:
    """Whether a task can be run offline, from the data folder or a cache."""
    name = task.spec.task
    command = f"ttmbench download {name}"
    try:
        locations, tags = data_locations(registry, task, data_dir)
        missing = [location.missing() for location in locations]
        untagged = [need.name for need in tags if need.missing() is not None]
    except TtmbenchError as error:
        return Finding("task", name, "unknown", str(error), f"ttmbench validate {name} --schema_only")
    local = next((location for location in locations if location.is_here), None)
    if local is not None:
        without = f"; without the tags of {', '.join(untagged)}" if untagged else ""
        return Finding("task", name, "present", f"{local.name}{_where(local)}{without}", command if untagged else "")
    if any(location.needs is None for location in locations):
        return Finding("task", name, "unknown", f"{locations[0].name} does not declare its files", command)
    said = [[name if why.startswith("it is not") else f"{name} ({why})" for name, why in of.items()] for of in missing]
    listed = [", ".join(names) + _where(location) for location, names in zip(locations, said, strict=True)]
    detail = f"needs {'; or '.join(listed)}"
    if not task.spec.gated:
        return Finding("task", name, "missing", detail, command)
    pages = ", ".join(dict.fromkeys(need.origin for location in locations for need in location.needs or ()))
    token = "" if token_is_set() else ", set HF_TOKEN to a token of that account"
    return Finding("task", name, "gated", detail, f"accept the terms at {pages}{token}, then `{command}`")


def check_model(spec: AdapterSpec) -> Finding:
    """Whether the weights of a model are available; unknown if neither its name nor its adapter determines them."""
    absent = next((need for need in spec.needs if not _installed(need)), None)
    if absent is not None:
        command = f"pip install {shlex.join(spec.needs)}"
        return Finding("model", spec.name, "missing", f"{absent} is not installed", command)
    try:
        files = locate_files(spec, {}, offline=True)
    except DataError as error:
        return _missing_model(spec, str(error))
    except Exception as error:  # of a library; the other models are still checked
        return Finding("model", spec.name, "unknown", f"{type(error).__name__}: {error}")
    if files is None:
        return Finding(
            "model", spec.name, "unknown", "needs --model_args that name the weights, such as pretrained=..."
        )
    shown = [f"{file.name}{f' at {file.commit[:8]}' if file.commit else ''} in {file.folder}" for file in files]
    return Finding("model", spec.name, "present", ", ".join(shown))


def _missing_model(spec: AdapterSpec, why: str) -> Finding:
    """A model that cannot be loaded offline, with a command in place of the advice in ``why``."""
    if spec.card is not None and spec.card.refused:
        return Finding("model", spec.name, "missing", why.partition("; ")[0], why.partition("; ")[2])
    if spec.card is not None and spec.card.page:
        command = f"{spec.card.page}, then --model_args pretrained=FILE"
        return Finding("model", spec.name, "missing", f"{spec.card.weights} has to be downloaded manually", command)
    command = f"ttmbench download --model {spec.name}"
    why = why.partition(";")[0]
    if spec.card is None or not spec.card.gated or token_is_set():
        return Finding("model", spec.name, "missing", why, command)
    page = f"https://huggingface.co/{spec.model_args.get('pretrained')}"
    return Finding("model", spec.name, "gated", why, f"accept the terms at {page}, set HF_TOKEN, then `{command}`")


def _environment(data_dir: Path) -> Record:
    """Versions (None for an absent package), devices, folders, and whether a token is set."""
    from huggingface_hub import constants

    folders = {"data folder": _folder(data_dir), "hub cache": _folder(Path(constants.HF_HUB_CACHE))}
    if (cache := cache_folder(None)) is not None:
        folders["score cache"] = _folder(cache)
    return {
        "python": platform.python_version(),
        "packages": {name: installed_version(name) for name in PACKAGES},
        "devices": _devices(),
        "folders": folders,
        "allocator": {name: value for name, value in os.environ.items() if name.startswith(("MALLOC_", "GLIBC_TUN"))},
        "HF_TOKEN": token_is_set(),
        "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"),
    }


def token_is_set() -> bool:
    """Whether the environment or a login has a token for the Hub."""
    from huggingface_hub import constants

    return any(os.environ.get(name) for name in TOKENS) or Path(constants.HF_TOKEN_PATH).is_file()


def _where(location: DataLocation) -> str:
    return "".join(f" in {where}" for where in dict.fromkeys(need.where for need in location.needs or ()))


def _installed(need: str) -> bool:
    """Whether a package is installed, by the name of its distribution or module, with the packages of its extras."""
    plain, _, extras = need.rstrip("]").partition("[")
    if installed_version(plain) is None:
        return find_spec(plain.replace("-", "_")) is not None
    return all(
        installed_version(re.split(r"[^\w.-]", requirement, maxsplit=1)[0]) is not None
        for requirement, _, marker in (line.partition(";") for line in requires(plain) or ())
        if any(re.search(rf"extra == ['\"]{re.escape(extra)}['\"]", marker) for extra in extras.split(","))
    )


def _devices() -> list[str]:
    import torch

    cuda = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    gpus = [f"cuda:{index} ({gpu.name}, {gpu.total_memory >> 30} GiB)" for index, gpu in enumerate(cuda)]
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]


def _folder(path: Path) -> Record:
    """A folder, with the free bytes of its disk; None if unknown."""
    try:
        free = shutil.disk_usage(next(folder for folder in (path, *path.parents) if folder.exists())).free
    except (OSError, StopIteration):
        free = None
    return {"path": str(path), "exists": path.is_dir(), "free_bytes": free}
