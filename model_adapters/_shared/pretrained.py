"""Loading models of transformers: files are found and fetched first, then read without the network.

One set of weights is chosen from a repository's list: safetensors, in one file or in shards, and only where there are
none, a pickle, read by ``torch.load(weights_only=True)``, which builds tensors and runs nothing. Fingerprints say of a
model, beside the digest of its weights, its configuration, preprocessing, tokens and arithmetic.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import torch

from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters._shared.options import HubFiles, LanguageOptions, takes
from ttmbench.model_adapters._shared.placement import TORCH_DTYPES, Placement, remember_inputs
from ttmbench.model_adapters._shared.repository import (
    Repository,
    find_repository,
    is_small,
    not_loaded,
    quiet_hub,
    read_json_file,
)
from ttmbench.types import ModelFiles

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
    from transformers.image_processing_utils import BaseImageProcessor

SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
INDEX = ".index.json"
CONFIG = "config.json"
NOT_HERE = {
    "CLIPT5ForConditionalGeneration": (
        "its code is t2v_metrics' own, for transformers 4. InstructBLIP with Flan-T5 is asked by --model vqascore "
        "--model_args pretrained=Salesforce/instructblip-flan-t5-xl,score=yes_and_end, and scores of t2v_metrics "
        "are read by `ttmbench score FILE --task TASK`"
    ),
    "LlavaLlamaForCausalLM": "transformers reads the same weights as llava-hf/llava-1.5-7b-hf (or -13b-hf)",
}
"""Architectures whose code is in no library that is used here, and what to use instead."""


@dataclass(frozen=True)
class Pretrained:
    """A model of transformers: everything but its weights is on this machine.

    Attributes:
        asked: which model, and what may be done to get it.
        repository: that it is in.
        files: the folder that it lies in, and which weights are read.
    """

    asked: HubFiles
    repository: Repository
    files: ModelFiles

    @property
    def name(self) -> str:
        """Hub id or folder, as it was asked for."""
        return self.files.name

    @property
    def options(self) -> dict[str, Any]:
        """What every ``from_pretrained`` takes."""
        trusts = self.asked.trust_remote_code  # code that a repository ships may fetch more
        return {
            "revision": self.files.commit,
            "local_files_only": self.asked.offline or not trusts,
            "trust_remote_code": trusts,
        }


@dataclass(frozen=True)
class LoadedModel:
    """A model of transformers with what prepares its inputs, and the files that its weights were read from."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    image_processor: BaseImageProcessor
    files: ModelFiles | None = None

    @property
    def beside(self) -> tuple[PreTrainedTokenizerBase, BaseImageProcessor]:
        """What is saved beside the model."""
        return self.tokenizer, self.image_processor

    def describe(self, device: torch.device) -> dict[str, object]:
        """What of it changes a score and is in no tensor."""
        return describe_model(self.model, device, image_processor=self.image_processor, tokenizer=self.tokenizer)


def find(asked: HubFiles) -> Pretrained:
    """Looks a model up, chooses one set of its weights, and fetches the small files beside them.

    Raises:
        DataError: out of reach, only in part there, or without weights that transformers reads.
        UsageError: a model whose code is in no library.
    """
    name = asked.pretrained
    repository = find_repository(name, asked.revision, offline=asked.offline)
    chosen = _choose(repository, asked.weights == "safetensors")
    if CONFIG not in repository.files:
        if repository.folder is not None and not repository.is_folder:
            raise repository.lacking([CONFIG])
        raise DataError(f"{name} has no {CONFIG}, so it is no model of transformers")
    code = {file for file in repository.files if asked.trust_remote_code and file.endswith(".py")}
    folder = repository.get({file for file in repository.files if is_small(file)} | code)
    if not asked.trust_remote_code:
        _refuse_unknown_code(name, read_json_file(folder / CONFIG))
    shards = _shards(folder / chosen) if chosen.endswith(INDEX) else []
    absent = [shard for shard in shards if shard not in repository.files]
    if absent:
        raise repository.lacking(absent)
    return Pretrained(asked, repository, ModelFiles(name, folder, (chosen, *shards), repository.commit))


@takes(HubFiles)
def locate(asked: HubFiles) -> list[ModelFiles]:
    """The files that a model of transformers is loaded from, fetched unless ``offline``; errors as for `find`."""
    found = find(asked)
    found.repository.get(found.files.weights)
    return [found.files]


def load_config(model: Pretrained) -> Any:
    """The model's configuration; DataError if it is damaged."""
    from transformers import AutoConfig

    return load_part(AutoConfig, model)


def load_part(kind: Any, model: Pretrained) -> Any:
    """A configuration, tokenizer, processor or image processor; DataError if it is not there, or damaged."""
    return _load(kind, model, model.name, model.options)


def load_weights(
    kind: Any,
    model: Pretrained,
    *,
    unused: tuple[str, ...] = (),
    placement: Placement | None = None,
    config: PretrainedConfig | None = None,
) -> Any:
    """A model with its weights, which are fetched if need be.

    Args:
        kind: class or Auto class of transformers.
        model: where from, and how its tensors are kept in memory.
        unused: beginnings of tensors' names that may be missing, because no score needs them.
        placement: where the weights go, and how they are packed; None for the caller to say.
        config: the model's configuration where it is not the one of its files.

    Returns:
        The model.

    Raises:
        DataError: the weights are out of reach, damaged, or have tensors missing.
    """
    model.repository.get(model.files.weights)
    dtype = model.asked.weights_dtype if isinstance(model.asked, LanguageOptions) else None
    options = {
        "dtype": TORCH_DTYPES[dtype or "fp32"],
        "use_safetensors": not model.files.are_pickles,
        "weights_only": True,
        "output_loading_info": True,
        **model.options,
    }
    chosen = {"attn_implementation": getattr(model.asked, "attn_implementation", None), "config": config}
    options |= {name: value for name, value in chosen.items() if value is not None}
    if placement is not None:
        options |= placement.options()
    # From the folder, transformers reads and does nothing else; by a hub id it would also ask the hub to convert
    # pickles, in a thread. Code that a repository ships is found by the id alone.
    where = model.name if model.asked.trust_remote_code else str(model.files.folder)
    loaded, report = _load(kind, model, where, options)
    missing = sorted(name for name in report["missing_keys"] if not name.startswith(unused or ("\0",)))
    if missing:
        raise DataError(
            f"the weights of {model.name} lack {len(missing)} tensors of {type(loaded).__name__}, "
            f"the first is {missing[0]}"
        )
    if placement is not None or getattr(loaded, "is_quantized", False):
        remember_inputs(loaded)
    return loaded


def load_whole(kind: type[PreTrainedModel], found: Pretrained) -> LoadedModel:
    """A model with its tokenizer and image processor, but for FLAVA's codebook, which no score needs."""
    from transformers import AutoImageProcessor, AutoTokenizer

    model = load_weights(kind, found, unused=("image_codebook.",))
    return LoadedModel(model, load_part(AutoTokenizer, found), load_part(AutoImageProcessor, found), found.files)


def _refuse_unknown_code(name: str, config: PretrainedConfig) -> None:
    named = config.get("architectures") if isinstance(config, dict) else None
    for architecture in named if isinstance(named, list) else ():
        if architecture in NOT_HERE:
            raise UsageError(f"{name} is not supported ({architecture}): {NOT_HERE[architecture]}")


def _choose(repository: Repository, safetensors_only: bool) -> str:
    """The file of weights that is read, or the index of its shards."""
    name = repository.name
    for file in (*SAFETENSORS, *PICKLES):
        if file in repository.files:
            if safetensors_only and file in PICKLES:
                raise DataError(
                    f"{name} holds its weights as {file} and not as safetensors, which weights=safetensors asks for; "
                    "another revision may hold both (--model_args revision=...)"
                )
            return file
    if any(file.startswith("open_clip") for file in repository.files):
        kind = "local-dir" if repository.is_folder else "hf-hub"
        raise DataError(f"{name} is a model of open_clip: --model open_clip --model_args model={kind}:{name}")
    if repository.folder is not None and not repository.is_folder:
        raise repository.lacking([SAFETENSORS[0]])
    raise DataError(f"{name} has no weights that transformers reads ({SAFETENSORS[0]}, {PICKLES[0]}, or shards of one)")


def _shards(index: Path) -> list[str]:
    content = read_json_file(index)
    try:
        return sorted({str(PurePosixPath(shard)) for shard in content["weight_map"].values()})
    except (TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{index} is no index of weights in several files ({type(error).__name__}: {error})") from None


def _load(kind: Any, model: Pretrained, where: str, options: Mapping[str, Any]) -> Any:
    with quiet_hub(offline=model.options["local_files_only"]):
        try:
            return kind.from_pretrained(where, **options)
        except Exception as error:
            raise not_loaded(model.name, error) from error


_LEAVES = (str, int, float)
# Where files came from and which version wrote them: the same model has others after a copy.
_VOLATILE = {"_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype", "processor_class"}


def describe_model(
    model: PreTrainedModel,
    device: torch.device,
    *,
    image_processor: BaseImageProcessor | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    processor: ProcessorMixin | None = None,
) -> dict[str, object]:
    """What of a model of transformers changes a score and is in no tensor.

    Args:
        model: with its configuration, in which head counts and activations are.
        device: the kind of device rounds in its own way.
        image_processor: its settings are stated in full.
        tokenizer: by a digest.
        processor: of both; what it sets itself is stated too.

    Returns:
        Entries of a fingerprint.
    """
    declared: dict[str, object] = {
        "config_sha256": digest_of(model.config.to_dict()),
        "attn_implementation": getattr(model.config, "_attn_implementation", None),
        "device": device.type,
        **quantization_of(model),
    }
    if processor is not None:
        image_processor, tokenizer = processor.image_processor, processor.tokenizer
        own = {name: value for name, value in vars(processor).items() if isinstance(value, str | int | float)}
        declared["processor_sha256"] = digest_of({"class": type(processor).__name__, **own})
    if image_processor is not None:
        declared["preprocessing"] = plain(image_processor.to_dict())
    if tokenizer is not None:
        declared["tokenizer_sha256"] = tokenizer_digest(tokenizer)
    return declared


def quantization_of(model: PreTrainedModel) -> dict[str, object]:
    """What a fingerprint says of packed weights; empty for others."""
    settings = getattr(model.config, "quantization_config", None) if getattr(model, "is_quantized", False) else None
    if settings is None:
        return {}
    known = settings if isinstance(settings, dict) else settings.to_dict()
    return {
        "quantization": {
            name: value if value is None or isinstance(value, str | int | float | list | dict) else str(value)
            for name, value in known.items()
        }
    }


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """sha256 of what a tokenizer makes tokens from, whatever it was last asked to pad or cut."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None and not hasattr(tokenizer, "get_vocab"):
        return _tables_digest(tokenizer)
    description = _settings(tokenizer)
    if backend is not None:
        description["backend"] = {
            name: value for name, value in json.loads(backend.to_str()).items() if name not in ("padding", "truncation")
        }
    else:
        description["vocabulary"] = dict(tokenizer.get_vocab())
    return digest_of(description)


@functools.lru_cache(maxsize=4)  # 50,000 words and merges, of a tokenizer that several models may share
def _tables_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """`tokenizer_digest` of open_clip's own: a dictionary and the ranks of its merges."""
    description = _settings(tokenizer)
    description["vocabulary"] = getattr(tokenizer, "encoder", None)
    description = plain(description)  # before there are 50,000 merges in it, which are plain
    description["merges"] = [(*pair, rank) for pair, rank in sorted(getattr(tokenizer, "bpe_ranks", {}).items())]
    return _sha256(description)


def _settings(tokenizer: PreTrainedTokenizerBase) -> dict[str, object]:
    names = ("model_max_length", "padding_side", "truncation_side", "context_length", "special_tokens_map")
    return {"class": type(tokenizer).__name__, **{name: getattr(tokenizer, name, None) for name in names}}


def digest_of(settings: Mapping[str, object]) -> str:
    """sha256 of settings, in whatever order they are and wherever their files came from."""
    return _sha256(plain(settings))


def _sha256(settings: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def plain(value: object) -> Any:
    """Settings as JSON has them, without what only says where they came from."""
    if value is None or isinstance(value, _LEAVES):
        return value
    if isinstance(value, Mapping):  # a vocabulary has leaves alone, for which a call each is most of the time
        return {
            str(name): inner if isinstance(inner, _LEAVES) else plain(inner)
            for name, inner in value.items()
            if name not in _VOLATILE
        }
    if isinstance(value, list | tuple):
        return [inner if isinstance(inner, _LEAVES) else plain(inner) for inner in value]
    return str(value)
