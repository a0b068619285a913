"""PEFT adapters (LoRA and others) on a model of transformers: found, applied, merged or kept apart.

An adapter is a folder or a Hub repository with ``adapter_config.json`` and ``adapter_model.safetensors`` (or ``.bin``,
read as tensors alone). It has to match its base exactly: no tensor may be unused or missing.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ttmbench._util.console import one_line
from ttmbench._util.digests import json_digest, tensors_digest
from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters._shared.repository import Repository, find_repository, read_json_file, read_weights
from ttmbench.types import ModelFiles

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ADAPTER_CONFIG = "adapter_config.json"
NAME = "default"  # peft's name of the one adapter, a part of the names of its parameters
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
KEPT = "_ttmbench_peft"  # an attribute of models that have an adapter
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Where it came from and which version wrote it: a copy of the same adapter has other values.
_VOLATILE = ("base_model_name_or_path", "revision", "inference_mode", "peft_version", "auto_mapping")
_NEEDS_PEFT = "peft needs the package peft; pip install 'ttmbench[lora]'"


@dataclass(frozen=True)
class AdapterFiles:
    """An adapter whose configuration is on this machine; its weights may not be."""

    repository: Repository
    files: ModelFiles
    config: Mapping[str, Any]

    @property
    def base(self) -> str | None:
        """The model that it names as its base."""
        name = self.config.get("base_model_name_or_path")
        return name if isinstance(name, str) and name else None

    @property
    def revision(self) -> str | None:
        """The revision of the base that it names."""
        revision = self.config.get("revision")
        return revision if isinstance(revision, str) and revision else None


@dataclass(frozen=True)
class AppliedAdapter:
    """What is known of the adapter of a loaded model; ``kept`` is peft's model where it was not merged."""

    declared: Mapping[str, object]
    kept: Any = None


def find_adapter(name: str, *, offline: bool) -> AdapterFiles:
    """An adapter by folder, Hub id or ``ID@COMMIT``; DataError if it is unavailable or incomplete."""
    place, _, revision = (name, "", "") if Path(name).is_dir() else name.partition("@")
    return adapter_of(find_repository(place, revision or None, offline=offline))


def adapter_of(repository: Repository) -> AdapterFiles:
    """The adapter of a repository; its configuration is fetched. DataError as for `find_adapter`."""
    weights = next((file for file in _WEIGHTS if file in repository.files), None)
    if ADAPTER_CONFIG not in repository.files or weights is None:
        absent = [file for file in (ADAPTER_CONFIG, _WEIGHTS[0]) if file not in repository.files]
        raise DataError(f"{repository.name} is not an adapter of peft: it has no {absent[0]}")
    folder = repository.get([ADAPTER_CONFIG])
    config = read_json_file(folder / ADAPTER_CONFIG)
    if not isinstance(config, dict) or not isinstance(config.get("peft_type"), str):
        raise DataError(f"{folder / ADAPTER_CONFIG} is not a configuration of an adapter: it has no peft_type")
    return AdapterFiles(repository, ModelFiles(repository.name, folder, (weights,), repository.commit), config)


def base_of(adapter: AdapterFiles) -> str:
    """The base that an adapter names, a Hub id; UsageError for a folder of another machine, with what to give."""
    name, base = adapter.files.name, adapter.base
    if base is None:
        raise UsageError(f"{name} names no base; give it: --model_args pretrained=BASE,peft={name}")
    if not _HUB_ID.fullmatch(base):
        raise UsageError(
            f"{name} names the folder {one_line(base, 200)} as its base, and paths in files are not followed; give the "
            f"base yourself: --model_args pretrained=BASE,peft={name}"
        )
    return base


def apply_adapter(model: PreTrainedModel, adapter: AdapterFiles, base: str, merge: bool) -> PreTrainedModel:
    """The model with the adapter's weights added to its own (``merge``) or kept apart in its layers.

    Raises:
        DataError: the adapter does not fit the model, is damaged, or adds tokens instead of weights.
        UsageError: peft is not installed, or weights are quantised and should be merged.
    """
    try:
        from peft import PeftConfig, PeftModel, set_peft_model_state_dict  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise UsageError(_NEEDS_PEFT) from None
    name, folder = adapter.files.name, adapter.repository.get([ADAPTER_CONFIG, *adapter.files.weights])
    if merge and getattr(model, "is_quantized", False):
        raise UsageError("an adapter cannot be merged into quantised weights without loss; use merge=false")
    state = _state(folder / adapter.files.weights[0])
    try:
        config = PeftConfig.from_pretrained(str(folder))
        if config.is_prompt_learning:
            raise DataError(f"{name} is of kind {config.peft_type.value}, which adds tokens and no weights to layers")
        config.inference_mode = False
        # Layers are filled with random numbers before the adapter's own come.
        with torch.random.fork_rng(devices=[]), _quiet():
            wrapped = PeftModel(model, config, adapter_name=NAME, autocast_adapter_dtype=False)
            loaded: Any = set_peft_model_state_dict(wrapped, state, adapter_name=NAME)
    except DataError:
        raise
    except Exception as error:  # peft raises many kinds for one that does not fit
        raise DataError(f"the adapter {name} does not fit {base} ({one_line(str(error), 240)})") from error
    absent = [key for key in loaded.missing_keys if f".{NAME}" in key]
    for keys, what in ((loaded.unexpected_keys, "has"), (absent, "lacks")):
        if keys:
            raise DataError(f"the adapter {name} does not fit {base}: it {what} {keys[0]}, one of {len(keys)} tensors")
    with _quiet():
        plain = wrapped.merge_and_unload() if merge else wrapped.get_base_model()
    for parameter in plain.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    declared = {"merged": merge, **_declared(adapter.config), "weights_sha256": tensors_digest(state)}
    setattr(plain, KEPT, AppliedAdapter({"peft": declared}, None if merge else wrapped))
    return plain


@contextmanager
def _quiet() -> Iterator[None]:
    """A context in which peft warns of nothing: it asks transformers by old names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _declared(config: Mapping[str, Any]) -> dict[str, object]:
    settings = {key: value for key, value in config.items() if key not in _VOLATILE}
    return {"type": config["peft_type"], "config_sha256": json_digest(settings)}


def applied_to(model: object) -> AppliedAdapter:
    """What is known of a model's adapter; nothing for a model without one."""
    known = getattr(model, KEPT, None)
    return known if isinstance(known, AppliedAdapter) else AppliedAdapter({})


def merged(model: PreTrainedModel) -> PreTrainedModel:
    """A model as it can be saved: itself, or a copy into which its adapter is merged."""
    kept = applied_to(model).kept
    if kept is None:
        return model
    with _quiet():
        copied = deepcopy(kept).merge_and_unload()
    delattr(copied, KEPT)
    return copied


def _state(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of an adapter; DataError if they cannot be read."""
    content = read_weights(path)
    if not isinstance(content, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in content.values()):
        raise DataError(f"{path} holds no tensors by name")
    return content
