"""``ttmbench download``: the data and weights that a later run with ``--offline`` needs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ttmbench._util.console import echo, warn
from ttmbench.cli.parser import add_run_options, count
from ttmbench.config import parse_pairs, split_names
from ttmbench.data.availability import DataNeed, amount
from ttmbench.data.loader import data_locations, load_task_data
from ttmbench.data.paths import data_folder
from ttmbench.data.task_file import TaskFile, select_tasks
from ttmbench.errors import INTERRUPTED, DataError, TtmbenchError, UsageError
from ttmbench.plugins.registry import Registry, build_registry, locate_files, model_arguments
from ttmbench.types import AdapterSpec


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench download``."""
    add = parser.add_argument
    add("names", nargs="*", metavar="TASKS", help="Task names, tags, globs or YAML files")
    names = ("model", "model_args", "tasks", "data_dir", "include_path", "trust_remote_code")
    add_run_options(parser, *names, title="")
    add("--alternative", metavar="N", type=count, help="Download each task from its N-th source only")
    add("--dry_run", action="store_true", help="List the downloads with their sizes and exit")


def download(options: argparse.Namespace) -> int:
    """Download the files of tasks and a model, one line each; exit code 4 if any is missing at the end."""
    registry = build_registry(options.include_path or [])
    names = [name for text in [*options.names, options.tasks or ""] for name in split_names(text)]
    if not names and options.model is None:
        raise UsageError("download needs tasks, --model NAME or both, such as `ttmbench download winoground`")
    model = None if options.model is None else registry.adapters[options.model]
    tasks, folder = select_tasks(registry, names), data_folder(options.data_dir)
    if options.data_dir and (folder.exists() or not options.dry_run):  # a later run expects it, even if it is empty
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--data_dir must be a folder, and {folder} is not ({error.strerror or error})") from None
    model_args = parse_pairs(options.model_args or "")
    model_args |= {"trust_remote_code": True} if options.trust_remote_code else {}
    downloads = Downloads(registry, folder, options.alternative, options.dry_run)
    try:
        missing = [] if model is None or _fetch_model(model, model_args, options.dry_run) else [f"model {model.name}"]
        missing += [name for name, task in tasks.items() if not downloads.fetch(task)]
    except KeyboardInterrupt:
        warn("interrupted; run the same command again to resume")
        return INTERRUPTED
    if missing:
        raise DataError(f"the download is incomplete for {', '.join(missing)}; the lines above give the reasons")
    return 0


@dataclass
class Downloads:
    """Fetches for several tasks, shared needs once; prints a line for each. A dry run only says what is missing."""

    registry: Registry
    data_dir: Path
    alternative: int | None
    dry_run: bool
    _done: dict[str, tuple[str, bool]] = field(default_factory=dict)  # need -> its origin, and whether it is here

    def fetch(self, task: TaskFile) -> bool:
        """Fetches what a task needs, from its first location that has it all; whether it is read offline then."""
        name, detail = task.spec.task, ""
        places, tags = data_locations(self.registry, task, self.data_dir)
        if self.alternative is not None:
            places = [places[min(self.alternative, len(places)) - 1]]
        here = next((place for place in places if place.is_here), None)
        places = places if here is None else [here]
        if self.dry_run:
            self._lacking([*(places[0].needs or ()), *tags])
            rest = f"; fallback: {', '.join(place.name for place in places[1:])}" if places[1:] else ""
            _print(f"{name}:", "present" if here else "incomplete", f"{places[0].name}{rest}")
            return True
        lacking: list[str] = []
        for place in places:
            # A place that does not list its needs fetches them when it is read.
            failed = self._read(task, offline=False)[1] if place.needs is None else self._lacking(place.needs)
            if not failed:
                lacking = []
                break
            lacking += failed
        untagged = self._lacking(tags)
        if not lacking:
            detail, lacking = self._read(task, offline=True)
        if lacking := list(dict.fromkeys([*lacking, *untagged])):
            detail = f"{', '.join(lacking)}; `ttmbench download {name}` resumes when that is fixed"
        _print(f"{name}:", "missing" if lacking else "ready", detail)
        return not lacking

    def _lacking(self, needs: Sequence[DataNeed]) -> list[str]:
        """Fetches missing needs; the names of those that are still missing."""
        for need in needs:
            origin, _ = self._done.get(need.name, (need.origin, False))
            if origin != need.origin:
                raise DataError(f"{need.name} cannot come from both {origin} and {need.origin}: use two data folders")
            if need.name in self._done:
                continue
            try:
                if need.missing() is None:
                    status, detail = "present", need.where
                elif self.dry_run:
                    status, detail = "would fetch", f"{amount(need.size())}, {need.origin}"
                else:
                    status, detail = "fetched", f"{need.fetch()}, from {need.origin}"
            except TtmbenchError as error:
                status, detail = "failed", str(error)
            _print(need.name, status, detail)
            self._done[need.name] = need.origin, status != "failed"
        return [need.name for need in needs if not self._done[need.name][1]]

    def _read(self, task: TaskFile, offline: bool) -> tuple[str, list[str]]:
        """Reads a task: a description of its data, and errors."""
        data_dir = self.data_dir if self.data_dir.is_dir() else None
        try:
            loaded = load_task_data(self.registry, task, offline=offline, data_dir=data_dir)
        except TtmbenchError as error:
            return "", [str(error)]
        passed = loaded.source.get("passed_over") or (loaded.source.get("data") or {}).get("passed_over")
        coverage = loaded.source.get("coverage")
        of = f" of {coverage['rows']}" if coverage else ""
        return f"{len(loaded.groups)}{of} groups" + (f", without {', '.join(passed)}" if passed else ""), []


def _fetch_model(spec: AdapterSpec, model_args: Mapping[str, object], dry_run: bool) -> bool:
    """Fetches a model's files and checks them again without the network; whether nothing is missing."""
    try:
        files = locate_files(spec, model_args, offline=dry_run)
        if files is not None and not dry_run:
            files = locate_files(spec, model_args, offline=True) or files
    except TtmbenchError as error:
        arguments, card = model_arguments(spec, model_args), spec.card
        named = arguments.get("pretrained") or arguments.get("model") or arguments.get("path") or spec.name
        is_named = arguments.get("pretrained") == spec.model_args.get("pretrained")
        size = f"about {card.size}" if card is not None and is_named else "size unknown"
        _print(spec.name, *(("would fetch", f"{size}, from {named}") if dry_run else ("failed", str(error))))
        return dry_run
    if files is None:
        _print(spec.name, "failed", f"its name and --model_args name no files to fetch; it is: {spec.summary}")
        return dry_run
    for file in files:
        sizes = [(file.folder / name).stat().st_size for name in file.weights]
        what = f"{', '.join(file.weights)}, {amount(sum(sizes))}" if sizes else "tokenizer and configuration"
        commit = f"at {file.commit} " if file.commit else ""
        _print(file.name, "fetched" if commit and not dry_run else "present", f"{what}, {commit}in {file.folder}")
    _print(f"{spec.name}:", "ready", "with --offline")
    return True


def _print(name: str, status: str, detail: str) -> None:
    echo(f"{name:<40}  {status:<11}  {detail}".rstrip(), flush=True)
