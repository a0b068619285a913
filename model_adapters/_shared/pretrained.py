"""Loading models of transformers: files are found and fetched first, then read without the network.

Weights are safetensors, or else a pickle that ``torch.load(weights_only=True)`` reads: it builds tensors, runs nothing.
A PEFT adapter (LoRA and others) is a folder or a Hub repository with ``adapter_config.json`` and
``adapter_model.safetensors`` or ``.bin``. It has to match its base exactly: no tensor may be unused or missing.
"""

from __future__ import annotations

import functools
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ttmbench._util.console import one_line, warn
from ttmbench._util.digests import json_digest, tensors_digest
from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters._shared.options import DualEncoderFiles, HubFiles, LanguageOptions, takes
from ttmbench.model_adapters._shared.placement import (
    TORCH_DTYPES,
    pick_device,
    remember_inputs,
)
from ttmbench.model_adapters._shared.repository import (
    Repository,
    find_repository,
    is_small,
    not_loaded,
    quiet_hub,
    read_json_file,
    read_weights,
)
from ttmbench.types import ModelFiles

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
    from transformers.image_processing_utils import BaseImageProcessor

ADAPTER_CONFIG = "adapter_config.json"
NAME = "default"  # peft's name of the one adapter, a part of the names of its parameters
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
KEPT = "_ttmbench_peft"  # of a model with an adapter: what a fingerprint says of it, and peft's model if not merged
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Where it came from and which version wrote it: a copy of the same adapter has other values.
_OF_A_COPY = ("base_model_name_or_path", "revision", "inference_mode", "peft_version", "auto_mapping")
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
    state: Any = read_weights(folder / adapter.files.weights[0])
    if not isinstance(state, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise DataError(f"{folder / adapter.files.weights[0]} holds no tensors by name")
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
    settings = {key: value for key, value in adapter.config.items() if key not in _OF_A_COPY}
    declared = {"merged": merge, "type": adapter.config["peft_type"], "config_sha256": json_digest(settings)}
    declared["weights_sha256"] = tensors_digest(state)
    setattr(plain, KEPT, (declared, None if merge else wrapped))
    return plain


@contextmanager
def _quiet() -> Iterator[None]:
    """A context in which peft warns of nothing: it asks transformers by old names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def merged(model: PreTrainedModel) -> PreTrainedModel:
    """A model as it can be saved: itself, or a copy into which its adapter is merged."""
    _, kept = getattr(model, KEPT, (None, None))
    if kept is None:
        return model
    with _quiet():
        copied = deepcopy(kept).merge_and_unload()
    delattr(copied, KEPT)
    return copied


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
"""Architectures whose code is in none of our dependencies, and what to use instead."""
UNUSED = "image_codebook."  # tensors of FLAVA that no score needs
Part = TypeVar("Part")


@dataclass(frozen=True)
class Pretrained:
    """A model of transformers whose small files are on this machine; its weights may not be."""

    asked: HubFiles
    repository: Repository
    files: ModelFiles
    adapter: AdapterFiles | None = None  # of peft, for the weights

    @property
    def name(self) -> str:
        """Hub id or folder, as the user gave it."""
        return self.files.name

    @property
    def fetches(self) -> bool:
        """Whether loading may use the network: code that a repository ships may fetch more."""
        return self.asked.trust_remote_code and not self.asked.offline

    @property
    def options(self) -> dict[str, object]:
        """What every ``from_pretrained`` takes."""
        trusts = self.asked.trust_remote_code
        return {"revision": self.files.commit, "local_files_only": not self.fetches, "trust_remote_code": trusts}


@dataclass(frozen=True)
class LoadedModel:
    """A model of transformers, the files of its weights, and what prepares its inputs."""

    model: PreTrainedModel
    files: ModelFiles | None
    tokenizer: PreTrainedTokenizerBase
    image_processor: BaseImageProcessor | None = None
    processor: ProcessorMixin | None = None

    def __post_init__(self) -> None:
        """DataError for a tokenizer of another model."""
        model: Any = self.model
        try:
            rows: int | None = int(model.get_input_embeddings().num_embeddings)
        except (NotImplementedError, AttributeError, TypeError):  # of dual encoders, which have no main modality
            rows = getattr(getattr(model.config, "text_config", None), "vocab_size", None)
        check_size(self.tokenizer, rows, self.files.name if self.files else model.name_or_path)

    def save(self, folder: Path, **options: object) -> None:
        """Writes model and preprocessing as ``from_pretrained`` loads them; the options are for the model."""
        with quiet_hub():
            merged(self.model).save_pretrained(folder, **options)
            for part in (self.tokenizer, self.image_processor) if self.processor is None else (self.processor,):
                if part is not None:
                    part.save_pretrained(folder)

    def describe(self, device: torch.device) -> dict[str, object]:
        """Entries of a fingerprint: everything except tensors that changes a score, the kind of device included."""
        processor, declared = self.processor, dict[str, object]()
        if processor is not None:
            known = {name: value for name, value in vars(processor).items() if isinstance(value, str | int | float)}
            declared["processor_sha256"] = digest_of({"class": type(processor).__name__, **known})
        if self.image_processor is not None:
            declared["preprocessing"] = plain(self.image_processor.to_dict())
        return {
            "config_sha256": digest_of(self.model.config.to_dict()),
            "attn_implementation": getattr(self.model.config, "_attn_implementation", None),
            "device": device.type,
            "tokenizer_sha256": tokenizer_digest(self.tokenizer),
            **declared,
            **quantization_of(self.model),
            **({"peft": getattr(self.model, KEPT)[0]} if hasattr(self.model, KEPT) else {}),
        }


def find(asked: HubFiles) -> Pretrained:
    """The repository of a model with one set of weights chosen; its small files are fetched.

    Raises:
        DataError: unavailable, incomplete, or without weights that transformers reads.
        UsageError: a model whose code is in no library.
    """
    name = asked.pretrained
    repository = find_repository(name, asked.revision, offline=asked.offline)
    if ADAPTER_CONFIG in repository.files and CONFIG not in repository.files:
        if asked.peft is not None:
            raise UsageError(f"{name} is an adapter of peft, and so is {asked.peft}; give one of them with its base")
        adapter = adapter_of(repository)
        base = asked.model_copy(update={"pretrained": base_of(adapter), "revision": adapter.revision})
        return _with_adapter(find(base), adapter)
    if asked.peft is not None:
        adapter = find_adapter(asked.peft, offline=asked.offline)
        # By the last part of its name: a copy lies in any folder.
        if adapter.base is not None and Path(adapter.base).name not in (Path(name).name, Path(name).resolve().name):
            warn(f"the adapter {adapter.files.name} was made for {one_line(adapter.base)}, and is put on {name}")
        return _with_adapter(find(asked.model_copy(update={"peft": None})), adapter)
    chosen = _choose(repository)
    if CONFIG not in repository.files:
        if repository.folder is not None and not repository.is_folder:
            raise repository.lacking([CONFIG])
        raise DataError(f"{name} has no {CONFIG}, so it is not a model of transformers")
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
    pretrained = find(asked)
    fetch_weights(pretrained)
    return [pretrained.files, *pretrained.files.beside]


def fetch_weights(model: Pretrained) -> None:
    """Fetches the weights of a model and of its adapter; DataError if they are unavailable."""
    model.repository.get(model.files.weights)
    if model.adapter is not None:
        model.adapter.repository.get([ADAPTER_CONFIG, *model.adapter.files.weights])


def _with_adapter(base: Pretrained, adapter: AdapterFiles) -> Pretrained:
    if base.adapter is not None:
        raise UsageError(f"{base.asked.pretrained} is an adapter itself, so it is not a base of {adapter.files.name}")
    return replace(base, adapter=adapter, files=replace(base.files, beside=(adapter.files,)))


def processor_of(model: Pretrained, asked: DualEncoderFiles) -> tuple[Pretrained, ModelFiles]:
    """Where tokenizer and image processor come from, ``processor`` or the model itself; the files of both."""
    if asked.processor is None:
        return model, model.files
    name, _, revision = asked.processor.partition("@")
    repository = find_repository(name, revision or None, offline=asked.offline)
    folder = repository.get(filter(is_small, repository.files))
    files = ModelFiles(name, folder, (), repository.commit)
    return Pretrained(asked, repository, files), replace(model.files, beside=(*model.files.beside, files))


def load_config(model: Pretrained) -> PretrainedConfig:
    """The model's configuration; DataError if it is damaged."""
    from transformers import AutoConfig

    return load_part(AutoConfig, model)


def load_part(kind: type[Part], model: Pretrained) -> Part:
    """A configuration, tokenizer, processor or image processor; DataError if it is missing or damaged.

    It names the files of a tokenizer that are missing, also where transformers fails for the lack of them.
    """
    from transformers import PreTrainedTokenizerBase

    name, folder = model.name, model.files.folder
    try:
        part: Part = _load(kind, model, name, model.options)
        for below, one in {"": part, **getattr(part, "__dict__", {})}.items():  # a processor has tokenizers of its own
            if isinstance(one, PreTrainedTokenizerBase):
                check_files(one, folder / ("" if below == "tokenizer" else below), name)
    except DataError as error:
        if any(word in kind.__name__ for word in ("Config", "Image")) or has_vocabulary(folder):
            raise
        raise lacking(name, folder, [SETTINGS, WHOLE]) from error
    return part


def load_weights(
    kind: type[PreTrainedModel],
    model: Pretrained,
    *,
    placement: Mapping[str, object] | None = None,
    config: PretrainedConfig | None = None,
) -> PreTrainedModel:
    """The model with its weights, which are fetched if need be.

    Args:
        kind: class or Auto class of transformers.
        model: where from, and the dtype of its tensors in memory.
        placement: of `placement_of`; None for the caller to decide.
        config: replaces the configuration of its files.

    Raises:
        DataError: the weights are unavailable, damaged, or have tensors missing.
    """
    fetch_weights(model)
    options: dict[str, object] = {
        "dtype": _dtype_of(model.asked),
        "use_safetensors": not model.files.are_pickles,
        "weights_only": True,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # refused here, by name
        **model.options,
    }
    chosen = {"attn_implementation": getattr(model.asked, "attn_implementation", None), "config": config}
    options |= {name: value for name, value in chosen.items() if value is not None}
    if placement is not None:
        options |= placement
    # From the folder, transformers reads and does nothing else; by a Hub id it would also ask the Hub to convert
    # pickles, in a thread. Code that a repository ships is found by the id alone.
    where = model.name if model.asked.trust_remote_code else str(model.files.folder)
    loaded, report = _load(kind, model, where, options)
    missing = sorted(name for name in report["missing_keys"] if not name.startswith(UNUSED))
    if missing:
        raise DataError(
            f"the weights of {model.name} lack {len(missing)} tensors of {type(loaded).__name__}, "
            f"the first is {missing[0]}"
        )
    if report["mismatched_keys"]:
        other = sorted(map(str, report["mismatched_keys"]))
        raise DataError(
            f"the weights of {model.name} have {len(other)} tensors of another shape than its {CONFIG} gives them, the "
            f"first is {other[0]} (shape of the weights first); use the {CONFIG} that belongs to them"
        )
    if model.adapter is not None:
        loaded = apply_adapter(loaded, model.adapter, model.name, getattr(model.asked, "merge", True))
    if placement is not None or getattr(loaded, "is_quantized", False):
        remember_inputs(loaded)
    return loaded


def _dtype_of(asked: HubFiles) -> torch.dtype | str:
    """Of weights in memory: of a model that writes text on an accelerator the checkpoint's, else float32."""
    if not isinstance(asked, LanguageOptions) or (asked.weights_dtype is None and pick_device(asked.device) == "cpu"):
        return torch.float32
    return "auto" if asked.weights_dtype is None else TORCH_DTYPES[asked.weights_dtype]


def load_whole(kind: type[PreTrainedModel], pretrained: Pretrained) -> LoadedModel:
    """A model with its tokenizer and image processor; errors as for `load_weights`."""
    from transformers import AutoImageProcessor, AutoTokenizer

    model, parts = load_weights(kind, pretrained), (AutoTokenizer, AutoImageProcessor)
    return LoadedModel(model, pretrained.files, *(load_part(part, pretrained) for part in parts))


def _refuse_unknown_code(name: str, config: object) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    stated = config if isinstance(config, dict) else {}
    named, code = stated.get("architectures"), stated.get("auto_map")
    for architecture in named if isinstance(named, list) else ():
        if architecture in NOT_HERE:
            raise UsageError(f"{name} is not supported ({architecture}): {NOT_HERE[architecture]}")
    if isinstance(code, dict) and stated.get("model_type") not in CONFIG_MAPPING_NAMES:
        raise UsageError(
            f"{name} is built by code of its repository ({code.get('AutoModel', 'auto_map')}), which is not run; "
            "--trust_remote_code runs it: read it first, and pin its commit (--model_args revision=...)"
        )


def _choose(repository: Repository) -> str:
    """The file of weights that is read, or the index of its shards."""
    name = repository.name
    for file in (*SAFETENSORS, *PICKLES):
        if file in repository.files:
            return file
    if any(file.startswith("open_clip") for file in repository.files):
        kind = "local-dir" if repository.is_folder else "hf-hub"
        raise DataError(f"{name} is a model of open_clip: --model open_clip --model_args model={kind}:{name}")
    if repository.folder is not None and not repository.is_folder:
        raise repository.lacking([SAFETENSORS[0]])
    code = next((f"; its code ({file}) is not run" for file in sorted(repository.files) if file.endswith(".py")), "")
    readable = f"{SAFETENSORS[0]}, {PICKLES[0]}, or shards of one"
    raise DataError(f"{name} has no weights that transformers reads ({readable}){code}")


def _shards(index: Path) -> list[str]:
    content = read_json_file(index)
    try:
        return sorted({str(PurePosixPath(shard)) for shard in content["weight_map"].values()})
    except (TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{index} is not an index of split weights ({type(error).__name__}: {error})") from None


def _load(kind: Any, model: Pretrained, where: str, options: Mapping[str, object]) -> Any:
    with quiet_hub(offline=not model.fetches):
        try:
            return kind.from_pretrained(where, **options)
        except Exception as error:
            raise not_loaded(model.name, error) from error


# Where files came from and which version wrote them: a copy of the same model has other values.
_VOLATILE = {"_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype", "processor_class"}


def quantization_of(model: PreTrainedModel) -> dict[str, object]:
    """What a fingerprint says of quantised weights; empty for others."""
    settings = getattr(model.config, "quantization_config", None) if getattr(model, "is_quantized", False) else None
    if settings is None:
        return {}
    known = settings if isinstance(settings, dict) else settings.to_dict()
    return {"quantization": json.loads(json.dumps(known, default=str))}


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """sha256 of everything that determines the tokens, without the current padding and truncation."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        stored = json.loads(backend.to_str())
        content = {"backend": {name: value for name, value in stored.items() if name not in ("padding", "truncation")}}
    elif hasattr(tokenizer, "get_vocab"):
        content = {"vocabulary": dict(tokenizer.get_vocab())}
    else:
        return _open_clip_digest(tokenizer)
    return digest_of(_settings(tokenizer) | content)


@functools.lru_cache(maxsize=4)  # 50,000 words and merges, of a tokenizer that several models may share
def _open_clip_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """`tokenizer_digest` of open_clip's own tokenizer."""
    merges = [(*pair, rank) for pair, rank in sorted(getattr(tokenizer, "bpe_ranks", {}).items())]
    return digest_of(_settings(tokenizer) | {"vocabulary": getattr(tokenizer, "encoder", None), "merges": merges})


def _settings(tokenizer: PreTrainedTokenizerBase) -> dict[str, object]:
    names = ("model_max_length", "padding_side", "truncation_side", "context_length", "special_tokens_map")
    return {"class": type(tokenizer).__name__, **{name: getattr(tokenizer, name, None) for name in names}}


def digest_of(settings: Mapping[str, object]) -> str:
    """sha256 of settings, in whatever order they are and wherever their files came from."""
    return json_digest(plain(settings))


def plain(value: object) -> object:
    """Settings as JSON, without entries that only say where they came from."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items() if name not in _VOLATILE}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else str(value)


SETTINGS, WHOLE = "tokenizer_config.json", "tokenizer.json"
_WHOLE = re.compile(r"tokenizer(\.\d[\d.]*)?\.json|tokenizer\.model.*|tekken\.json|tiktoken\.model")
_VOCABULARY = re.compile(rf"({_WHOLE.pattern}|vocab\..*|.*\.(model|tiktoken|bpe|spm|vocab)|byte_maps\.json)")
PROBES = ["A Dog", "a dog", "a dog."]
_ADVICE = "copy it from the model that these weights were trained from: tokenizer.save_pretrained(FOLDER)"


def check_files(tokenizer: PreTrainedTokenizerBase, folder: Path, name: str) -> None:
    """DataError if transformers has built a tokenizer without its files, from the model's type alone: an empty one.

    Tokenizers that read bytes need no vocabulary; those written in Python open their files themselves.
    """
    kind = type(tokenizer)
    named = {key: file for key, file in kind.vocab_files_names.items() if key != "tokenizer_file"}
    if not kind.vocab_files_names or not kind.__module__.startswith("transformers."):
        return  # code of a repository finds its files in its own way
    present = {file.name for file in folder.iterdir()} if folder.is_dir() else set[str]()
    absent = [] if SETTINGS in present else [SETTINGS]
    if getattr(tokenizer, "is_fast", False) and not any(_WHOLE.fullmatch(file) for file in present):
        apart = [file for file in named.values() if file not in present]
        if apart or not named:
            absent.append(WHOLE + (f" (or {' and '.join(apart)})" if apart else ""))
    if absent:
        raise lacking(name, folder, absent)


def has_vocabulary(folder: Path) -> bool:
    """Whether a folder contains a file that a tokenizer could read its vocabulary from."""
    return folder.is_dir() and any(_VOCABULARY.fullmatch(file.name) for file in folder.iterdir())


def lacking(name: str, folder: Path, files: Sequence[str]) -> DataError:
    """The error to raise for missing files of a tokenizer."""
    where = "" if str(folder) == name else f" in {folder}"
    return DataError(f"{name} is incomplete: the tokenizer lacks {' and '.join(files)}{where}; {_ADVICE}")


def check_size(tokenizer: PreTrainedTokenizerBase, rows: int | None, name: str) -> None:
    """DataError if a tokenizer has more words than the model's embedding has ``rows``; None if that is not known."""
    words = getattr(tokenizer, "vocab_size", None)
    if rows is not None and words is not None and words > rows:
        raise DataError(
            f"the tokenizer of {name} has {words} words and the model embeds {rows}, so it belongs to another model; "
            f"{_ADVICE}"
        )


def as_text(tokenizer: Any) -> Any:
    """A copy of a tokenizer, of transformers' or open_clip's, that takes special tokens in a caption for plain text."""
    made = copy(tokenizer)
    if hasattr(made, "bpe_ranks"):  # open_clip's own, which splits by a pattern and remembers words
        special = "|".join(made.decoder[number] for number in made.all_special_ids)
        made.pat, made.cache = _without(made.pat, special), {}
    elif hasattr(made, "tokenizer"):  # open_clip's wrapper
        made.tokenizer = as_text(made.tokenizer)
    else:
        made.split_special_tokens = True
    return made


def _without(pattern: Any, special: str) -> Any:
    """open_clip's pattern of words (of the package regex) without its special tokens."""
    import regex  # type: ignore[import-untyped,unused-ignore]

    return regex.compile(pattern.pattern.removeprefix(f"{special}|"), pattern.flags)


def captions_read(
    read: Iterable[Iterable[int]],
    cleaning: str | None,
    padding: str,
    max_tokens: int | None,
    special: frozenset[str] = frozenset(),
) -> dict[str, object]:
    """What a fingerprint and ``ttmbench show`` say of a caption on its way to a text encoder.

    Args:
        read: the tokens of `PROBES`, cleaned as captions are, which show what becomes of case and punctuation.
        cleaning: open_clip's name of what is done to a caption before the tokenizer.
        padding: transformers' name of it.
        max_tokens: the longest caption, tokens put around it included; None if there is no limit.
        special: special tokens for which a caption is refused; others are read as text.
    """
    upper, lower, ended = ([int(token) for token in row] for row in read)
    return {
        "cleaning": cleaning,
        "case": "lower" if upper == lower else "kept",
        "punctuation": "removed" if ended == lower else "kept",
        "padding": padding,
        "max_tokens": max_tokens,
        "special_tokens": "refused" if special else "text",
    }


def special_tokens(tokenizer: PreTrainedTokenizerBase, processor: ProcessorMixin | None = None) -> frozenset[str]:
    """Texts with a meaning of their own to a tokenizer or to a processor, such as ``<image>``."""
    named = {value for key, value in vars(processor or object).items() if key.endswith("_token")}
    marked = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    tokens = {*tokenizer.all_special_tokens, *marked, *named}
    return frozenset(token for token in tokens if isinstance(token, str) and len(token) > 1)


def not_text(tokenizer: Any) -> frozenset[str]:
    """The special tokens that keep their meaning in a tokenizer of `as_text`, as those of a Unigram vocabulary do."""
    inner, clean = getattr(tokenizer, "tokenizer", tokenizer), getattr(tokenizer, "clean_fn", str)
    if not hasattr(inner, "added_tokens_decoder"):
        return frozenset()
    known = inner.get_vocab()
    tokens = special_tokens(inner) - {inner.unk_token}
    found = {one: inner(clean(one), add_special_tokens=False)["input_ids"] for one in tokens}
    return frozenset(one for one, ids in found.items() if known.get(one) in ids)


def refused(captions: Iterable[str], tokens: frozenset[str]) -> list[str | None]:
    """Of each caption one of these tokens that it contains, however it is capitalised; None for a caption of text."""
    lower = {token.lower(): token for token in sorted(tokens)}
    return [next((token for low, token in lower.items() if low in caption.lower()), None) for caption in captions]
