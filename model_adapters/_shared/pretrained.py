"""Loading models of transformers: files are found and fetched first, then read without the network.

One set of weights is chosen from a repository's list: safetensors, in one file or in shards, and only where there are
none, a pickle, read by ``torch.load(weights_only=True)``, which builds tensors and runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters._shared.device import TORCH_DTYPES
from ttmbench.model_adapters._shared.fingerprints import describe_model
from ttmbench.model_adapters._shared.options import HubFiles, LanguageOptions, takes
from ttmbench.model_adapters._shared.placement import Placement, remember_inputs
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
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
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
