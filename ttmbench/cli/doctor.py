"""``ttmbench doctor``: what of tasks and models is on this machine, and what mends what is not."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ttmbench.data.loading import data_folder
from ttmbench.doctor import Finding, look_at_model, look_at_task, surroundings, usable
from ttmbench.download.files import amount
from ttmbench.registry import build_registry
from ttmbench.runconfig import split_names
from ttmbench.terminal import complain, say
from ttmbench.types import AdapterSpec

EXIT_MISSING = 4


def doctor(options: argparse.Namespace) -> int:
    """Prints one line a task and model; 4 if something that was asked for by name is not usable."""
    registry = build_registry(options.include_path or [])
    asked = options.tasks is not None or options.models is not None
    given = Path(options.data_dir) if options.data_dir else None
    names = [name for words in options.tasks or [] for name in split_names(words)]
    tasks = registry.select_tasks(names or ([] if asked else sorted(registry.task_files)))
    models: dict[str, AdapterSpec] = {}
    for name in options.models or ([] if asked else sorted(registry.adapters)):
        spec = registry.adapter(name)
        models.setdefault(spec.name, spec)
    findings = [look_at_task(registry, task, data_folder(given)) for task in tasks.values()]
    findings += [look_at_model(spec) for spec in models.values()]
    around = surroundings(given)
    broken = {plugin.name: plugin.reason for plugin in registry.plugins.broken}
    if options.json:
        found = [vars(finding) for finding in findings]
        say(json.dumps({**around, "broken_plugins": broken, "findings": found}, indent=2, ensure_ascii=False))
    else:
        _print_surroundings(around, broken)
        _print_findings(findings)
    if asked and not usable(findings):
        lacking = [finding.name for finding in findings if finding.state != "present"]
        complain(f"not usable as it is: {', '.join(lacking)}")
        return EXIT_MISSING
    return 0


def _print_surroundings(around: dict[str, Any], broken: dict[str, str]) -> None:
    lines = [("python", around["python"])]
    lines += [(name, version or "not installed") for name, version in around["packages"].items()]
    lines.append(("devices", ", ".join(around["devices"])))
    for name, folder in around["folders"].items():
        state = "" if folder["exists"] else " (not there yet)"
        lines.append((name, f"{folder['path']}{state}, {amount(folder['free_bytes'])} free"))
    lines.append(("HF_TOKEN", "set" if around["HF_TOKEN"] else "not set: gated datasets and models cannot be fetched"))
    lines += [("HF_HUB_OFFLINE", "set: nothing is fetched from the hub")] if around["HF_HUB_OFFLINE"] else []
    lines += [(f"plugin {name}", f"could not be imported: {why}") for name, why in broken.items()]
    for name, value in lines:
        say(f"{name:<16}  {value}")


def _print_findings(findings: list[Finding]) -> None:
    width = max((len(finding.name) for finding in findings), default=0)
    for kind in ("task", "model"):
        chosen = [finding for finding in findings if finding.kind == kind]
        if chosen:
            say()
        for one in chosen:
            mend = f" -> {one.mend}" if one.mend else ""
            say(f"{kind:<5}  {one.name:<{width}}  {one.state:<7}  {one.detail}{mend}")
