"""Fetches what tasks and models need for a later run with ``--offline``.

The first location of a task from which everything can be fetched is used, or one that is already here. At the end each
task is read without the network, which shows that nothing is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ttmbench.data.availability import DataLocation, DataNeed, amount
from ttmbench.data.download.http import Web
from ttmbench.data.download.images import ListedImages
from ttmbench.data.loader import data_locations, load_task_data
from ttmbench.data.task_file import TaskFile
from ttmbench.errors import DataError, TtmbenchError
from ttmbench.plugins.registry import Registry, arguments_of, locate_files
from ttmbench.types import AdapterSpec, ModelFiles

Status = Literal["present", "fetched", "failed", "would fetch", "ready", "missing", "not all here"]


@dataclass(frozen=True)
class FetchLine:
    """The status of a file, a dataset, a model or a task."""

    name: str
    status: Status
    detail: str = ""
    is_task: bool = False


@dataclass(frozen=True)
class Plan:
    """What a task needs: the locations that may be used, in order, and its files of further tags."""

    task: TaskFile
    places: Sequence[DataLocation]
    tags: Sequence[DataNeed]

    @property
    def name(self) -> str:
        """The task's name."""
        return self.task.spec.task

    @property
    def needs(self) -> list[DataNeed]:
        """Everything that any of the locations needs, and the files of tags."""
        return [*(need for location in self.places for need in location.needs or ()), *self.tags]

    @property
    def here(self) -> DataLocation | None:
        """The first location with nothing missing."""
        return next((location for location in self.places if location.is_here), None)


def plans(registry: Registry, tasks: Mapping[str, TaskFile], data_dir: Path, alternative: int | None) -> list[Plan]:
    """What each task needs. ``alternative``: only use this location of each task, from 1, or its last.

    UsageError if a source is wrong; DataError if two tasks need one path from two addresses.
    """
    planned = []
    origins: dict[str, str] = {}
    for task in tasks.values():
        places, tags = data_locations(registry, task, data_dir)
        if alternative is not None:
            places = [places[min(alternative, len(places)) - 1]]
        planned.append(Plan(task, places, tags))
        for need in planned[-1].needs:
            first = origins.setdefault(need.name, need.origin)
            if first != need.origin:
                raise DataError(
                    f"{need.name} cannot come from both {first} and {need.origin}; download such tasks into different "
                    "data folders (--data_dir)"
                )
    return planned


def preview(plan: Plan, web: Web) -> Iterator[FetchLine]:
    """What would be fetched for a task, with sizes as far as they are known. Writes nothing."""
    location = plan.here or plan.places[0]
    others = [alternative.name for alternative in plan.places if alternative is not location]
    sizes: list[int | None] = []
    for need in [*(location.needs or ()), *plan.tags]:
        if need.missing() is None:
            yield FetchLine(need.name, "present", need.where)
        else:
            sizes.append(need.size(web))
            yield FetchLine(need.name, "would fetch", f"{amount(sizes[-1])}, {need.origin}")
    known = [size for size in sizes if size is not None]
    total = f"{amount(sum(known))}{' and more' if len(known) < len(sizes) else ''} to fetch"
    rest = f"; if that fails: {', '.join(others)}" if others and plan.here is None else ""
    if location.needs is None:
        yield FetchLine(plan.name, "would fetch", f"all that {location.name} reads{rest}", is_task=True)
    elif sizes:
        yield FetchLine(
            plan.name, "not all here", f"{total if known else 'size unknown'}, from {location.name}{rest}", is_task=True
        )
    else:
        yield FetchLine(plan.name, "present", location.name, is_task=True)


@dataclass
class Downloads:
    """Fetches for several tasks, shared needs once; ``echo`` gets each line as soon as it is known."""

    registry: Registry
    data_dir: Path
    web: Web
    echo: Callable[[FetchLine], None]
    _done: dict[str, bool] = field(default_factory=dict)

    def fetch(self, plan: Plan) -> bool:
        """Fetches what a task needs; whether nothing is missing at the end."""
        lacking: list[str] = []
        for location in [plan.here] if plan.here else plan.places:
            if location.needs is not None:
                lacking += self._fetch_all(location.needs)
                here = bool(location.is_here)
            else:  # a source that does not list what it needs fetches it when it is read
                _, failed = self._read(plan, offline=False)
                lacking += failed
                here = not lacking
                if not failed:
                    self.echo(FetchLine(location.name, "fetched", "read once by its own reader"))
            if here:
                lacking = []
                break
        tags = self._fetch_all(plan.tags)
        detail = ""
        if not lacking:
            detail, lacking = self._read(plan, offline=True)
        lacking += tags
        if lacking:
            more = f"; `ttmbench download {plan.name}` resumes when that is fixed"
            self.echo(FetchLine(plan.name, "missing", f"{', '.join(dict.fromkeys(lacking))}{more}", is_task=True))
            return False
        self.echo(FetchLine(plan.name, "ready", detail, is_task=True))
        return True

    def _fetch_all(self, needs: Sequence[DataNeed]) -> list[str]:
        """Fetches missing needs; the names of those that are still missing."""
        return [need.name for need in needs if not self._fetch_one(need)]

    def _fetch_one(self, need: DataNeed) -> bool:
        if need.name in self._done:
            return self._done[need.name]
        try:
            if need.missing() is None:
                line = FetchLine(need.name, "present", need.where)
            else:
                line = FetchLine(need.name, "fetched", f"{need.fetch(self.web)}, from {need.origin}")
                still = need.missing()
                if still is not None:
                    raise DataError(f"{need.name} was fetched, and {still}")
        except TtmbenchError as error:
            line = FetchLine(need.name, "failed", str(error))
        self.echo(line)
        self._done[need.name] = line.status != "failed"
        return self._done[need.name]

    def _read(self, plan: Plan, offline: bool) -> tuple[str, list[str]]:
        """Reads a task: a description of its data, and errors."""
        data_dir = self.data_dir if self.data_dir.is_dir() else None
        try:
            loaded = load_task_data(self.registry, plan.task, offline=offline, data_dir=data_dir)
        except TtmbenchError as error:
            return "", [str(error)]
        passed = loaded.source.get("passed_over") or (loaded.source.get("data") or {}).get("passed_over")
        coverage = loaded.source.get("coverage")
        of = f" of {coverage['rows']}" if coverage else ""
        return f"{len(loaded.groups)}{of} groups" + (f", without {', '.join(passed)}" if passed else ""), []


def ask_again(planned: Sequence[Plan]) -> None:
    """Forgets which images were lost, so that they are asked for again."""
    for need in (need for plan in planned for need in plan.needs):
        if isinstance(need, ListedImages):
            need.ask_again()


def fetch_model(spec: AdapterSpec, model_args: Mapping[str, object], echo: Callable[[FetchLine], None]) -> bool:
    """Fetches a model's files and checks them again without the network; whether nothing is missing."""
    try:
        files = locate_files(spec, model_args, offline=False)
        if files is not None:
            files = locate_files(spec, model_args, offline=True) or files
    except TtmbenchError as error:
        echo(FetchLine(spec.name, "failed", str(error)))
        return False
    if files is None:
        echo(FetchLine(spec.name, "failed", f"its name and --model_args name no files to fetch; it is: {spec.summary}"))
        return False
    for file in files:
        echo(FetchLine(file.name, "present" if file.commit is None else "fetched", _detail(file)))
    echo(FetchLine(spec.name, "ready", "with --offline", is_task=True))
    return True


def preview_model(spec: AdapterSpec, model_args: Mapping[str, object]) -> FetchLine:
    """What would be fetched for a model, with the size where it is known. Never touches the network."""
    arguments = arguments_of(spec, model_args)
    name = str(arguments.get("pretrained") or arguments.get("model") or arguments.get("path") or spec.name)
    try:
        files = locate_files(spec, model_args, offline=True)
    except TtmbenchError:
        files = None
    if files:
        return FetchLine(spec.name, "present", ", ".join(map(_detail, files)), is_task=True)
    as_named = arguments.get("pretrained") == spec.model_args.get("pretrained")
    size = f"about {spec.card.size}" if spec.card is not None and as_named else "size unknown"
    revision = f" at {arguments['revision']}" if arguments.get("revision") else ""
    return FetchLine(spec.name, "would fetch", f"{size}, from {name}{revision}", is_task=True)


def _detail(files: ModelFiles) -> str:
    sizes = [(files.folder / name).stat().st_size for name in files.weights]
    what = f"{', '.join(files.weights)}, {amount(sum(sizes))}" if sizes else "tokenizer and configuration"
    return f"{what}, {f'at {files.commit} ' if files.commit else ''}in {files.folder}"
