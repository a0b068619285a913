"""Fetches a model's weights and what lies beside them, so that a later run with ``--offline`` finds all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ttmbench.data.download.files import amount
from ttmbench.data.fetch_tasks import FetchLine
from ttmbench.errors import TtmbenchError
from ttmbench.plugins.models import arguments_of, locate_files
from ttmbench.types import AdapterSpec, ModelFiles


def fetch_model(spec: AdapterSpec, model_args: Mapping[str, Any], echo: Callable[[FetchLine], None]) -> bool:
    """Fetches a model's files and looks at them once more without the network.

    Args:
        spec: the model.
        model_args: the user's arguments.
        echo: takes each line as soon as it is known.

    Returns:
        Whether nothing is missing.
    """
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
    for one in files:
        echo(FetchLine(one.name, "present" if one.commit is None else "fetched", _detail(one)))
    echo(FetchLine(spec.name, "ready", "with --offline", is_task=True))
    return True


def preview_model(spec: AdapterSpec, model_args: Mapping[str, Any]) -> FetchLine:
    """What would be fetched for a model, with the size where it is known. Nothing is fetched, and nothing is asked."""
    arguments = arguments_of(spec, model_args)
    name = str(arguments.get("pretrained") or arguments.get("model") or arguments.get("path") or spec.name)
    try:
        files = locate_files(spec, model_args, offline=True)
    except TtmbenchError:
        files = None
    if files:
        return FetchLine(spec.name, "present", ", ".join(_detail(one) for one in files), is_task=True)
    as_named = arguments.get("pretrained") == spec.model_args.get("pretrained")
    size = f"about {spec.card.size}" if spec.card is not None and as_named else "size unknown"
    revision = f" at {arguments['revision']}" if arguments.get("revision") else ""
    return FetchLine(spec.name, "would fetch", f"{size}, from {name}{revision}", is_task=True)


def _detail(files: ModelFiles) -> str:
    sizes = [(files.folder / name).stat().st_size for name in files.weights]
    what = f"{', '.join(files.weights)}, {amount(sum(sizes))}" if sizes else "tokenizer and configuration"
    return f"{what}, {f'at {files.commit} ' if files.commit else ''}in {files.folder}"
