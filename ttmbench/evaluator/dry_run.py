"""What a run would do and whether it can: everything but scoring, for ``--dry_run``."""

from __future__ import annotations

import os
from pathlib import Path

from ttmbench.config import RunConfig, is_address
from ttmbench.data.availability import amount
from ttmbench.data.loader import load_task_data, reach_data
from ttmbench.data.paths import is_local
from ttmbench.errors import DataError, UsageError
from ttmbench.evaluator.adapters import make_adapter, needs_data
from ttmbench.evaluator.evaluate import Chosen
from ttmbench.evaluator.output import results_file
from ttmbench.model import Model, StoredFeatures
from ttmbench.plugins.registry import load_target, locate_files, model_arguments
from ttmbench.types import Record


def plan(config: RunConfig, chosen: Chosen) -> Record:
    """Tasks, methods with their settings, and seeds of a run."""
    steps: Record = {"model": config.model, "tasks": {}}
    for name, task in chosen.tasks.items():
        spec = task.spec
        steps["tasks"][name] = {"source": spec.source, "group": spec.group.model_dump(), "metrics": spec.metrics}
        if config.methods:
            from ttmbench.evaluator.one_task import planned_settings

            specs = map(chosen.registry.methods.__getitem__, config.methods)
            planned = {spec.name: planned_settings(config, spec, chosen.settings[name]) for spec in specs}
            steps["tasks"][name]["methods"] = planned
    if config.methods:
        steps["seeds"] = config.run_seeds
    if chosen.also:
        steps["also"] = list(chosen.also)
    return steps


def check(config: RunConfig, chosen: Chosen) -> Record:
    """The plan with where data, model and results are, and how much there is to do; errors as the run would raise.

    A model whose files are here is loaded, and data that are here are read; others are looked for on the Hub.
    """
    steps, registry = plan(config, chosen), chosen.registry
    is_first = not needs_data(registry, config.model)  # the type of such a model says whether it reads data
    files, model = _model(config, chosen) if is_first else ([], None)
    for name, task in () if isinstance(model, StoredFeatures) else {**chosen.tasks, **chosen.also}.items():
        place, size = reach_data(registry, task, config, fetch=False)
        about = steps["tasks"][name] if name in chosen.tasks else {}
        about |= {"from": None if place is None else place.name, "bytes_to_fetch": size}
        if size is None:
            groups = load_task_data(registry, task, config.limit, True, config.data_dir, chosen.samples).groups
            images = {image.name for group in groups for image in group.images}
            captions = sum(len(group.captions) for group in groups)
            about |= {"groups": len(groups), "images": len(images), "captions": captions}
    files = files if is_first else _model(config, chosen)[0]
    return steps | {"model_files": files, "results": _results(config)}


def _model(config: RunConfig, chosen: Chosen) -> tuple[list[str], Model | None]:
    """The model's files and the model, or what a run would fetch and None; DataError if it cannot have it."""
    registry, spec = chosen.registry, chosen.registry.adapters[config.model]
    arguments = model_arguments(spec, config.model_args)
    try:
        files = locate_files(spec, config.model_args, offline=True)
    except DataError:
        named = str(arguments.get("pretrained", arguments.get("model", ""))).removeprefix("hf-hub:")
        if config.offline or not named or is_local(named) or Path(named).exists():
            raise
        if "model" not in arguments or "/" in named:  # else the tag of a library, which knows its address
            find = load_target("ttmbench.model_adapters._shared.pretrained:find_repository")
            if find(named, arguments.get("revision")).folder is not None:  # a part, in the cache: no answer of the Hub
                raise
        own = spec.card is None or arguments.get("pretrained") != spec.model_args.get("pretrained")
        size = "size unknown" if own or spec.card is None else spec.card.size
        return [f"{named}, to be downloaded ({size})"], None
    model = make_adapter(registry, config.model, config.model_args, config, True)
    if config.methods:
        from ttmbench.evaluator.one_task import check_methods

        check_methods(registry, config, chosen.tasks, chosen.settings, model)
    sizes = [sum((file.folder / name).stat().st_size for name in file.weights) for file in files or ()]
    return [f"{file.name}, {amount(size)}" for file, size in zip(files or (), sizes, strict=True) if size], model


def _results(config: RunConfig) -> str | None:
    """The results document that a run would write; UsageError for a place that cannot be written to."""
    if config.output_path is None or is_address(config.output_path):
        return config.output_path
    file = results_file(config.output_path, config.model_name, "DATE")
    above = next(folder for folder in file.parents if folder.exists())
    if file.is_dir() or not above.is_dir() or not os.access(above, os.W_OK):
        raise UsageError(f"--output_path {config.output_path} cannot be written to: see {above}")
    return str(file)
