"""Finding, fetching, loading and placing models of transformers; files are fetched, then read without the network.

A repository of the Hub is listed at one commit; where the Hub does not answer, or may not be asked, the copy in its
cache is. Weights are safetensors, or else a pickle that ``torch.load(weights_only=True)`` reads: tensors and plain
values; numbers of numpy and settings are skipped, everything else is refused. A PEFT adapter (LoRA and others) is a
folder or a Hub repository with ``adapter_config.json`` and ``adapter_model.safetensors`` or ``.bin``. It has to match
its base exactly: no tensor may be unused or missing.
"""

from __future__ import annotations

import glob
import inspect
import itertools
import json
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors.torch import load_file

from ttmbench._util.console import one_line, warn
from ttmbench._util.file_io import Unreadable, check_no_pointer, json_digest, read_json, tensors_digest
from ttmbench._util.third_party import (
    ACCEPT_TERMS,
    ADAPTER_CONFIG,
    CONFIG,
    HUB_ID,
    MODULES,
    UNKNOWN_TOKEN,
    patiently,
    quiet_hub,
    status_of,
    trouble,
)
from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters._shared.options import ChatOptions, DualEncoderFiles, HubFiles, LanguageOptions, takes
from ttmbench.types import ModelFiles

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
    from transformers.image_processing_utils import BaseImageProcessor


class _Skipped:
    """Stands in a pickle for numbers of numpy and for the settings of a training, and keeps nothing of them."""

    def __init__(self, *unused: object) -> None: ...

    def __setstate__(self, state: object) -> None: ...


_NUMBERS = ("numpy.dtype", "numpy._core.multiarray.scalar", "numpy.core.multiarray.scalar")  # the last in numpy 1
_SKIPPED: list[Any] = list(itertools.product([_Skipped], (*_NUMBERS, "argparse.Namespace")))


def read_weights(path: Path) -> object:
    """The tensors of a file of weights, of a pickle also plain values; DataError for anything else."""
    check_no_pointer(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals(_SKIPPED):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:
        raise DataError(f"{path} cannot be read: {why_refused(error)}") from error


def why_refused(error: Exception) -> str:
    """Why ``torch.load(weights_only=True)`` refused a file, without its advice to read it all the same."""
    text = str(error)
    if "TorchScript" in text:
        return "it is a program (TorchScript), and only tensors are read"
    asked = re.search(r"GLOBAL (\S+)", text)
    if asked is not None:
        return (
            f"it holds more than tensors ({one_line(asked[1], 80)}), and reading that could run a program; save "
            "the tensors alone, by torch.save({'state_dict': model.state_dict()}, FILE)"
        )
    cause = text.rpartition("WeightsUnpickler error: ")[2].partition("\n")[0]
    return f"it is damaged, or holds more than tensors ({type(error).__name__}: {one_line(cause, 240)})"


# Beside the weights: configuration, tokenizer, processor, chat template and code, as the libraries look for them.
_SMALL = re.compile(
    r"((qformer_tokenizer|additional_chat_templates)/.+|[^/]+)\.(json|txt|model|jinja|tiktoken|bpe|vocab|spm|py)"
)


@dataclass(frozen=True)
class Repository:
    """Files by name at one commit, in a folder if they need not be fetched; a user's own folder has no commit."""

    name: str
    revision: str | None
    commit: str | None
    files: frozenset[str] = field(repr=False)
    folder: Path | None

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of the user's own, and not a copy from the Hub."""
        return self.commit is None

    def get(self, names: Iterable[str] | None = None) -> Path:
        """The folder with these files, by default those beside the weights, fetched if need be; or DataError."""
        names = [name for name in self.files if _SMALL.fullmatch(name)] if names is None else names
        if self.folder is None:
            return self._fetch(sorted(glob.escape(name) for name in names))
        return self.folder

    def _fetch(self, patterns: list[str]) -> Path:
        from huggingface_hub import snapshot_download

        try:
            with quiet_hub(fetches=True):
                folder = patiently(
                    lambda: snapshot_download(self.name, revision=self.revision, allow_patterns=patterns)
                )
        except Exception as error:
            raise _out_of_reach(self.name, self.revision, error) from error
        if Path(folder).name != self.commit:
            raise DataError(f"{self.name} was changed on the Hub while it was fetched; run the command again")
        return Path(folder)

    def lacking(self, names: Sequence[str]) -> DataError:
        """The error to raise for missing files."""
        listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        advice = "`ttmbench download --model NAME`, or another revision (--model_args revision=...), completes it"
        advice = "copy it again" if self.is_folder else advice
        return DataError(f"{self.name} is incomplete: missing {listed}; {advice}")


BUILT_IN = Path(str(resources.files("ttmbench.model_adapters"))) / "assets"  # folders of weights in the package


def find_repository(name: str, revision: str | None = None, *, offline: bool = False) -> Repository:
    """Lists a folder, also one in `BUILT_IN`, or a repository of the Hub, of its cache if ``offline``; or DataError."""
    if Path(name).is_file():
        raise DataError(f"{name} is a file; give a folder, or the name of a repository of the Hub")
    folder, commit = next((path for path in (Path(name), BUILT_IN / name) if path.is_dir()), None), None
    if folder is None:
        found = _on_hub(name, revision, offline)
        if isinstance(found, Repository):
            return found
        folder, commit = found, found.name
    paths = (file for pattern in ("*", "*/*") for file in folder.glob(pattern))  # models need nothing below
    files = frozenset(file.relative_to(folder).as_posix() for file in paths if file.is_file())
    return Repository(name if commit else str(folder), revision, commit, files, folder)


def _on_hub(name: str, revision: str | None, offline: bool) -> Repository | Path:
    """A repository of the Hub; its copy in the cache, which may be incomplete, where the Hub gives no answer."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    refused: Exception | None = None
    if not offline:
        try:
            with quiet_hub():
                info = patiently(lambda: HfApi().model_info(name, revision=revision))
            files = frozenset(file.rfilename for file in info.siblings or ())
            return Repository(name, revision, info.sha, files, None)
        except Exception as error:
            refused = error
    # Without a status there was no answer.
    if refused is None or status_of(refused) is None or trouble(refused) in ("gated", "unreachable"):
        try:
            return Path(snapshot_download(name, revision=revision, allow_patterns=[], local_files_only=True))
        except LocalEntryNotFoundError:
            pass
        except HFValidationError:
            raise DataError(f"{name} must be a folder here or the name of a repository of the Hub") from None
    raise _out_of_reach(name, revision, refused) from refused


def read_json_file(path: Path) -> object:
    """The content of a JSON file, read strictly and bounded; DataError if it is damaged."""
    try:
        return read_json(path)
    except Unreadable as error:
        raise DataError(f"{path} {error}") from None


_CLASS = re.compile(r"<class '(?:\w+\.)*(\w+)'>")
_LISTED = re.compile(r"\s*Model type should be one of .*", re.DOTALL)


def described(error: Exception) -> str:
    """Kind and text of an error in one line, without the list of everything that would have been right."""
    text = _LISTED.sub("", _CLASS.sub(r"\1", str(error)))
    return f"{type(error).__name__}: {one_line(text, 240)}"


def _out_of_reach(name: str, revision: str | None, error: Exception | None) -> DataError:
    """The error to raise for a model that is unavailable; without an ``error`` the Hub was not to be asked."""
    from huggingface_hub import constants

    kind = trouble(error) if error is not None else "offline"
    at = f" at revision {revision}" if revision else ""
    known = {
        "offline": f"it is not in {constants.HF_HUB_CACHE}{at}; run once with a network and without --offline, or "
        "`ttmbench download --model NAME`",
        "gated": ACCEPT_TERMS.format(f"https://huggingface.co/{name}"),
        "unknown revision": f"it has no revision {revision}; --model_args revision=main takes its newest",
        "unknown": "it has no such repository, or a private one: HF_TOKEN names an account",
        "token": UNKNOWN_TOKEN,
        "unreachable": f"it is not in the cache and the Hub cannot be reached ({one_line(str(error), 120)})",
    }
    why = known.get(kind, one_line(str(error), 240))
    return DataError(
        f"model {name} is neither a folder here nor available from the Hub: {why}; the built-in model 'tiny-clip' "
        "needs no Hub"
    )


def not_loaded(name: str, error: Exception, part: str = "") -> DataError:
    """The error to raise for files that are here and cannot be loaded; ``part`` is the class that was to read them."""
    what = f"the model in folder {name}" if Path(name).is_dir() else f"model {name}"
    for file in Path(name).rglob("*") if Path(name).is_dir() else ():
        check_no_pointer(file)
    why = described(error)
    if "trust_remote_code=True" in str(error):
        return _coded(name)
    if "weights_only" in str(error):
        why = why_refused(error)
    instead = f"; if it lacks files, {_ADVICE}" if part == "AutoTokenizer" else ""
    return DataError(f"{what} cannot be loaded ({f'{part}: ' if part else ''}{why}){instead}")


def _coded(name: str, named: str = "code of its repository") -> DataError:
    """The error to raise for a model that needs code of its repository."""
    advice = "--trust_remote_code runs it: read it first, and pin its commit (--model_args revision=...)"
    return DataError(f"model {name} is built by {named}, which is not run; {advice}")


def check_code(asked: HubFiles, folder: Path) -> None:
    """DataError for a model of its repository's own classes, by its small files, unless that code may be run."""
    from transformers import CONFIG_MAPPING

    config, modules = (read_json_file(folder / one) if (folder / one).is_file() else {} for one in (CONFIG, MODULES))
    own = [str(one.get("type")) for one in modules if isinstance(one, dict)] if isinstance(modules, list) else []
    own = [one for one in own if not one.startswith("sentence_transformers.")]
    if isinstance(config, dict) and config.get("auto_map") and config.get("model_type") not in CONFIG_MAPPING:
        own += map(str, config["auto_map"].values())
    if own and not asked.trust_remote_code:
        raise _coded(asked.pretrained, f"code of its repository ({one_line(own[0], 80)})")


TORCH_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DTYPE_NAMES = {"fp32": "float32", "tf32": "tf32", "bf16": "bfloat16", "fp16": "float16"}  # in fingerprints


def pick_device(device: str) -> str:
    """The device, with ``auto`` resolved; UsageError for one that torch cannot use here."""
    found = device.replace("auto", "cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:  # also for several, among which `run` alone divides its work
        why = one_line(str(error), 160)
        raise UsageError(f"device {device} was requested, but torch cannot use it ({why}); use --device cpu") from None
    return found


_AWAY = ("cpu", "disk", "meta")  # parts of a model that is spread are stored there and computed elsewhere
_INPUTS = "_ttmbench_inputs_go_to"
_TYPES = ("_dtype", "_storage")  # endings of settings that are types of numbers


def spread(model: torch.nn.Module) -> Mapping[str, int | str]:
    """Module -> device of a model that accelerate spread over several; empty for others."""
    return getattr(model, "hf_device_map", None) or {}


def placement_of(asked: ChatOptions) -> dict[str, object] | None:
    """Arguments of ``from_pretrained`` for devices and quantisation; None if the user asks for neither."""
    bits = {name: True for name in ("load_in_4bit", "load_in_8bit") if getattr(asked, name)}
    packed = {**(asked.quantization_config or {}), **bits}
    if asked.device_map is None and (asked.max_memory is not None or asked.offload_folder is not None):
        raise UsageError("max_memory and offload_folder need device_map; add device_map=auto")
    if asked.device_map is not None and asked.device != "auto":
        raise UsageError(f"device_map chooses the devices, so --device {asked.device} has no meaning; omit one")
    if asked.device_map is None and not packed:
        return None
    options: dict[str, object] = {"device_map": asked.device_map}
    if asked.device_map is None:
        options["device_map"] = {"": pick_device(asked.device)}
    if asked.max_memory is not None:
        sizes = asked.max_memory.items()
        options["max_memory"] = {int(name) if str(name).isdecimal() else name: size for name, size in sizes}
    if asked.offload_folder is not None:
        options["offload_folder"] = str(Path(asked.offload_folder).expanduser())
    if packed:
        options["quantization_config"] = packed if "quant_method" in packed else _bits_and_bytes(packed, asked)
    return options


def _bits_and_bytes(packed: dict[str, object], asked: ChatOptions) -> object:
    """The ``quantization_config``; UsageError for settings that it would ignore."""
    from transformers import BitsAndBytesConfig

    known = [name for name in inspect.signature(BitsAndBytesConfig).parameters if name != "kwargs"]
    unknown = [name for name in packed if name not in known]
    if unknown:
        raise UsageError(f"quantization_config.{unknown[0]} is unknown; known: {', '.join(known)}, quant_method")
    if not (packed.get("load_in_4bit") or packed.get("load_in_8bit")):
        raise UsageError("quantization_config needs load_in_4bit=true or load_in_8bit=true, or a quant_method")
    of_types = {name: DTYPE_NAMES.get(str(value), value) for name, value in packed.items() if name.endswith(_TYPES)}
    try:
        return BitsAndBytesConfig(**{**packed, **of_types})
    except (ImportError, ValueError) as error:
        raise not_loaded(asked.pretrained, error) from error


def remember_inputs(model: PreTrainedModel) -> None:
    """Notes on a model that accelerate placed where its inputs go: its first device that computes."""
    devices = [f"cuda:{name}" if isinstance(name, int) else str(name) for name in spread(model).values()]
    computing = [device for device in devices if device not in _AWAY]
    where = computing[0] if computing else "cpu" if devices else str(next(model.parameters()).device)
    setattr(model, _INPUTS, torch.device(where))


def settle(model: torch.nn.Module, device: torch.device) -> torch.device:
    """Moves a model to a device, unless accelerate placed it, and returns that of its inputs."""
    placed: torch.device | None = getattr(model, _INPUTS, None)
    if placed is None:
        model.to(device)
    return placed or device


def untrainable(model: PreTrainedModel) -> str | None:
    """Why a model cannot be trained as it is loaded; None if it can."""
    if getattr(model, "is_quantized", False):
        return "its weights are quantised, and a step of training is smaller than their resolution"
    away = sorted({str(device) for device in spread(model).values()} & {*_AWAY})
    if away:
        return (
            f"a part of its weights is offloaded ({', '.join(away)}) and copied in for each pass, so no gradient "
            "reaches it"
        )
    return None


def replace_forward(module: torch.nn.Module, forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Gives a module another forward; accelerate's hooks around it stay."""
    vars(module)["_old_forward" if hasattr(module, "_hf_hook") else "forward"] = forward


def with_weights(module: torch.nn.Module) -> AbstractContextManager[object]:
    """A context in which offloaded parameters of a module are loaded, for calls other than its forward."""
    if not hasattr(module, "_hf_hook"):
        return nullcontext()
    from accelerate.utils import align_module_device

    return align_module_device(module)


def weights_of(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    """A model's state dict; a lazy one if accelerate placed the model."""
    return _Weights(model) if spread(model) else model.state_dict()


class _Weights(Mapping[str, torch.Tensor]):
    """A state dict whose tensors are loaded one by one, since all at once may not fit into memory."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.names = model, list(model.state_dict())

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, name: str) -> torch.Tensor:
        owner, _, attribute = name.rpartition(".")
        module = self.model.get_submodule(owner)
        with with_weights(module):
            return getattr(module, attribute).detach().cpu().clone()


NAME = "default"  # peft's name of the one adapter, a part of the names of its parameters
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
KEPT = "_ttmbench_peft"  # of a model with an adapter: what a fingerprint says of it, and peft's model if not merged
# Where it came from and which version wrote it: a copy of the same adapter has other values.
_OF_A_COPY = ("base_model_name_or_path", "revision", "inference_mode", "peft_version", "auto_mapping")


def _adapter_of(asked: HubFiles, repository: Repository) -> tuple[Pretrained, dict[str, Any]]:
    """An adapter and its configuration, which is fetched; DataError if it is unavailable or incomplete."""
    weights = next((file for file in _WEIGHTS if file in repository.files), None)
    if ADAPTER_CONFIG not in repository.files or weights is None:
        absent = [file for file in (ADAPTER_CONFIG, _WEIGHTS[0]) if file not in repository.files]
        raise DataError(f"{repository.name} is not an adapter of peft: it has no {absent[0]}")
    folder = repository.get([ADAPTER_CONFIG])
    config = read_json_file(folder / ADAPTER_CONFIG)
    if not isinstance(config, dict) or not isinstance(config.get("peft_type"), str):
        raise DataError(f"{folder / ADAPTER_CONFIG} is not a configuration of an adapter: it has no peft_type")
    files = ModelFiles(repository.name, folder, (weights,), repository.commit)
    return Pretrained(asked, repository, files), config


def adapter_of(asked: HubFiles, place: str) -> tuple[Pretrained, dict[str, Any]]:
    """The adapter in a folder or a repository of the Hub (``ID@COMMIT``); its configuration; errors likewise."""
    name, _, revision = (place, "", "") if Path(place).is_dir() else place.partition("@")
    return _adapter_of(asked, find_repository(name, revision or None, offline=asked.offline))


def apply_adapter(model: PreTrainedModel, adapter: Pretrained, base: str, merge: bool) -> PreTrainedModel:
    """The model with the adapter's weights added to its own (``merge``) or kept apart in its layers.

    DataError for one that does not fit, is damaged, or adds tokens; UsageError without peft, or for quantised weights.
    """
    try:
        from peft import PeftConfig, PeftModel, set_peft_model_state_dict  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise UsageError("peft needs the package peft; pip install 'ttmbench[lora]'") from None
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
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):  # it asks by old names
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
    with warnings.catch_warnings(action="ignore"):
        plain = wrapped.merge_and_unload() if merge else wrapped.get_base_model()
    for parameter in plain.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    stated: Any = read_json_file(folder / ADAPTER_CONFIG)
    settings = {key: value for key, value in stated.items() if key not in _OF_A_COPY}
    declared = {"merged": merge, "type": stated["peft_type"], "config_sha256": json_digest(settings)}
    declared["weights_sha256"] = tensors_digest(state)
    setattr(plain, KEPT, (declared, None if merge else wrapped))
    return plain


def merged(model: PreTrainedModel) -> PreTrainedModel:
    """A model as it can be saved: itself, or a copy into which its adapter is merged."""
    _, kept = getattr(model, KEPT, (None, None))
    if kept is None:
        return model
    with warnings.catch_warnings(action="ignore"):
        copied = deepcopy(kept).merge_and_unload()
    delattr(copied, KEPT)
    return copied


SAFETENSORS = ("model.safetensors", "model.safetensors.index.json")
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
INDEX = ".index.json"
NOT_HERE = {
    "CLIPT5ForConditionalGeneration": "use --model vqascore --model_args pretrained=Salesforce/instructblip-flan-t5-xl,"
    "score=yes_and_end, or `ttmbench score FILE --task TASK` with scores of t2v_metrics, which has its code",
    "LlavaLlamaForCausalLM": "use llava-hf/llava-1.5-7b-hf (or -13b-hf), which are the same weights",
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
    adapter: Pretrained | None = None  # of peft, for the weights
    processor: Pretrained | None = None  # where tokenizer and image processor come from, if not from here


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

    def describe(self, name: str, weights: str, device: torch.device, dtype: str) -> dict[str, object]:
        """Entries of a fingerprint: all that changes a score, with the ``weights``' digest and the kind of device."""
        processor, model, declared = self.processor, self.model, dict[str, object]()
        # Offloading separates parameters that share their weights.
        tied = model.all_tied_weights_keys if getattr(model, "hf_device_map", None) else {}
        if processor is not None:
            known = {name: value for name, value in vars(processor).items() if isinstance(value, str | int | float)}
            declared["processor_sha256"] = json_digest(plain({"class": type(processor).__name__, **known}))
        if self.image_processor is not None:
            declared["preprocessing"] = plain(self.image_processor.to_dict())
        if getattr(model, "is_quantized", False) and (settings := getattr(model.config, "quantization_config", None)):
            known = settings if isinstance(settings, dict) else settings.to_dict()
            declared["quantization"] = json.loads(json.dumps(known, default=str))
        if hasattr(model, KEPT):
            declared["peft"] = getattr(model, KEPT)[0]
        return {
            "pretrained": Path(name).name if Path(name).exists() else name,
            "architecture": type(model).__name__,
            "weights_sha256": weights,
            "dtype": DTYPE_NAMES[dtype],
            "n_parameters": sum(one.numel() for name, one in model.named_parameters() if name not in tied),
            "config_sha256": json_digest(plain(model.config.to_dict())),
            "attn_implementation": getattr(model.config, "_attn_implementation", None),
            "device": device.type,
            "tokenizer_sha256": tokenizer_digest(self.tokenizer),
            **declared,
        }


def find(asked: HubFiles) -> Pretrained:
    """The repository of a model with one set of weights chosen; its small files are fetched; or DataError."""
    repository = find_repository(asked.pretrained, asked.revision, offline=asked.offline)
    if asked.peft is not None or (ADAPTER_CONFIG in repository.files and CONFIG not in repository.files):
        return _with_adapter(asked, repository)
    chosen = next((file for file in (*SAFETENSORS, *PICKLES) if file in repository.files), None)
    if chosen is None or CONFIG not in repository.files:
        raise _unreadable(repository, SAFETENSORS[0] if chosen is None else CONFIG)
    folder = repository.get()
    text = (folder / CONFIG).read_text(encoding="utf-8", errors="replace")
    for kind in [one for one in NOT_HERE if f'"{one}"' in text and not asked.trust_remote_code]:
        raise UsageError(f"{repository.name} is not supported ({kind}): {NOT_HERE[kind]}")
    weights = (chosen, *(_shards(repository, folder / chosen) if chosen.endswith(INDEX) else ()))
    found = Pretrained(asked, repository, ModelFiles(repository.name, folder, weights, repository.commit))
    processor = getattr(asked, "processor", None)
    return found if processor is None else _with_processor(found, processor)


def _shards(repository: Repository, index: Path) -> list[str]:
    """The files of split weights; DataError for a damaged index, and for files that are missing."""
    content: Any = read_json_file(index)
    try:
        shards = sorted({str(PurePosixPath(shard)) for shard in content["weight_map"].values()})
    except (TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{index} is not an index of split weights ({described(error)})") from None
    absent = [shard for shard in shards if shard not in repository.files]
    if absent:
        raise repository.lacking(absent)
    return shards


def _with_adapter(asked: HubFiles, repository: Repository) -> Pretrained:
    """A model with ``peft``, or the base that a repository of an adapter alone names; UsageError for a wrong base."""
    name, is_alone = asked.pretrained, CONFIG not in repository.files and ADAPTER_CONFIG in repository.files
    if asked.peft is None:
        adapter, stated = _adapter_of(asked, repository)
    elif is_alone:
        raise UsageError(f"{name} is an adapter of peft, and so is {asked.peft}; give one of them with its base")
    else:
        adapter, stated = adapter_of(asked, asked.peft)
    base, revision = (str(stated.get(key) or "") for key in ("base_model_name_or_path", "revision"))
    changes: dict[str, object] = {"peft": None}
    if is_alone:
        if not HUB_ID.fullmatch(base):
            named = f"the folder {one_line(base, 200)} as its" if base else "no"
            raise UsageError(f"{name} names {named} base, and paths in files are not followed; give the base yourself")
        changes = {"pretrained": base, "revision": revision or None}
    elif base and Path(base).name not in (Path(name).name, Path(name).resolve().name):  # a copy lies in any folder
        warn(f"the adapter {adapter.files.name} was made for {one_line(base)}, and is put on {name}")
    model = find(asked.model_copy(update=changes))
    if model.adapter is not None:
        raise UsageError(f"{model.asked.pretrained} is an adapter itself, so it is not a base of {adapter.files.name}")
    return replace(model, adapter=adapter, files=replace(model.files, beside=(adapter.files, *model.files.beside)))


def _with_processor(model: Pretrained, place: str) -> Pretrained:
    """A model whose tokenizer and image processor come from another repository."""
    name, _, revision = place.partition("@")
    repository = find_repository(name, revision or None, offline=model.asked.offline)
    files = ModelFiles(name, repository.get(), (), repository.commit)
    beside = replace(model.files, beside=(*model.files.beside, files))
    return replace(model, files=beside, processor=Pretrained(model.asked, repository, files))


@takes(DualEncoderFiles)
def locate(asked: DualEncoderFiles) -> list[ModelFiles]:
    """The files that a model of transformers is loaded from, fetched unless ``offline``; errors as for `find`."""
    model = find(asked)
    check_code(asked, model.files.folder)
    model.repository.get(model.files.weights)
    if model.adapter is not None:
        model.adapter.repository.get([ADAPTER_CONFIG, *model.adapter.files.weights])
    return [model.files, *model.files.beside]


def weights_dtype(asked: LanguageOptions) -> torch.dtype | str:
    """Of the weights in memory: as asked, else float32 on a CPU and the checkpoint's (``auto``) on an accelerator."""
    if asked.weights_dtype is not None:
        return TORCH_DTYPES[asked.weights_dtype]
    return torch.float32 if pick_device(asked.device) == "cpu" else "auto"


def load_part(kind: type[Part], model: Pretrained) -> Part:
    """A configuration, tokenizer, processor or image processor; DataError if it is damaged or lacks files."""
    from transformers import PreTrainedTokenizerBase

    part: Part = _load(kind, model, model.files.name)
    for below, one in {"": part, **getattr(part, "__dict__", {})}.items():  # a processor has tokenizers of its own
        if isinstance(one, PreTrainedTokenizerBase):
            check_files(one, model.files.folder / ("" if below == "tokenizer" else below), model.files.name)
    return part


def load_weights(
    kind: type[PreTrainedModel],
    model: Pretrained,
    *,
    placement: Mapping[str, object] | None = None,
    config: PretrainedConfig | None = None,
) -> PreTrainedModel:
    """The model with its weights, which are fetched if need be; DataError if they cannot be, or do not fit.

    ``placement`` is of `placement_of`; ``config`` replaces the configuration of its files.
    """
    asked, name = model.asked, model.files.name
    model.repository.get(model.files.weights)
    options: dict[str, object] = {"use_safetensors": not model.files.are_pickles, "weights_only": True}
    options["dtype"] = weights_dtype(asked) if isinstance(asked, LanguageOptions) else torch.float32
    options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # which are refused here, by name
    chosen = {"attn_implementation": getattr(asked, "attn_implementation", None), "config": config, **(placement or {})}
    options |= {key: value for key, value in chosen.items() if value is not None}
    # From the folder, transformers reads and does nothing else; by a Hub id it would also ask the Hub to convert
    # pickles, in a thread. Code that a repository ships is found by the id alone.
    loaded, report = _load(kind, model, name if asked.trust_remote_code else str(model.files.folder), **options)
    missing = [key for key in report["missing_keys"] if not key.startswith(UNUSED)]
    if keys := missing or [*map(str, report["mismatched_keys"])]:
        how, fits = "missing" if missing else "of another shape (theirs first)", type(loaded).__name__
        what = f"{len(keys)} tensors are {how}, such as {min(keys)}"
        raise DataError(f"the weights of {name} do not fit {fits} with its {CONFIG}: {what}")
    if model.adapter is not None:
        loaded = apply_adapter(loaded, model.adapter, name, getattr(asked, "merge", True))
    if placement is not None or getattr(loaded, "is_quantized", False):
        remember_inputs(loaded)
    return loaded


def load_whole(
    kind: type[PreTrainedModel],
    pretrained: Pretrained,
    processor: ProcessorMixin | None = None,
    placement: Mapping[str, object] | None = None,
) -> LoadedModel:
    """A model with a processor, or with its tokenizer and image processor; errors as for `load_weights`."""
    from transformers import AutoImageProcessor, AutoTokenizer

    model, files = load_weights(kind, pretrained, placement=placement), pretrained.files
    if processor is not None:
        return LoadedModel(model, files, processor.tokenizer, processor.image_processor, processor)
    return LoadedModel(model, files, *(load_part(part, pretrained) for part in (AutoTokenizer, AutoImageProcessor)))


def _unreadable(repository: Repository, absent: str) -> DataError:
    """The error to raise for a repository without weights that are read, or without a configuration."""
    name = repository.name
    if repository.folder is not None and not repository.is_folder:
        return repository.lacking([absent])
    if absent == CONFIG:
        return DataError(f"{name} has no {CONFIG}, so it is not a model of transformers")
    code = next((f"; its code ({file}) is not run" for file in sorted(repository.files) if file.endswith(".py")), "")
    readable = f"{SAFETENSORS[0]}, {PICKLES[0]}, or shards of one"
    return DataError(f"{name} has no weights that transformers reads ({readable}){code}")


def _load(kind: Any, model: Pretrained, where: str, **options: object) -> Any:
    """What ``from_pretrained`` returns; code that a repository ships, where it is trusted, may fetch more."""
    trusts = model.asked.trust_remote_code
    offline = not trusts or model.asked.offline
    common = {"revision": model.files.commit, "local_files_only": offline, "trust_remote_code": trusts}
    with quiet_hub(offline=offline):
        try:
            return kind.from_pretrained(where, **common, **options)
        except Exception as error:
            raise not_loaded(model.files.name, error, kind.__name__) from error


# Where files came from and which version wrote them: a copy of the same model has other values.
_VOLATILE = {"_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype", "processor_class"}


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """sha256 of everything that determines the tokens, without the current padding and truncation."""
    names = ("model_max_length", "padding_side", "truncation_side", "context_length", "special_tokens_map")
    content = {"class": type(tokenizer).__name__, **{name: getattr(tokenizer, name, None) for name in names}}
    if hasattr(tokenizer, "backend_tokenizer"):
        stored = json.loads(tokenizer.backend_tokenizer.to_str())
        content["backend"] = {key: value for key, value in stored.items() if key not in ("padding", "truncation")}
    elif hasattr(tokenizer, "get_vocab"):
        content["vocabulary"] = dict(tokenizer.get_vocab())
    else:  # open_clip's own
        merges = [(*pair, rank) for pair, rank in sorted(getattr(tokenizer, "bpe_ranks", {}).items())]
        content |= {"vocabulary": getattr(tokenizer, "encoder", None), "merges": merges}
    return json_digest(plain(content))


def plain(value: object) -> object:
    """Settings as JSON, without entries that only say where they came from."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items() if name not in _VOLATILE}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else str(value)


SETTINGS, WHOLE = "tokenizer_config.json", "tokenizer.json"
_WHOLE = re.compile(r"tokenizer(\.\d[\d.]*)?\.json|tokenizer\.model.*|tekken\.json|tiktoken\.model")
PROBES = ["A Dog", "a dog", "a dog."]
_ADVICE = "copy it from the model that these weights were trained from: tokenizer.save_pretrained(FOLDER)"


def check_files(tokenizer: PreTrainedTokenizerBase, folder: Path, name: str) -> None:
    """DataError if transformers has built a tokenizer without its files, from the model's type alone: an empty one.

    Tokenizers that read bytes need no vocabulary; those written in Python open their files themselves.
    """
    kind = type(tokenizer)
    if not kind.vocab_files_names or not kind.__module__.startswith("transformers."):
        return  # code of a repository finds its files in its own way
    present = {file.name for file in folder.glob("*")}
    named = {file for key, file in kind.vocab_files_names.items() if key != "tokenizer_file"}
    is_whole = any(map(_WHOLE.fullmatch, present)) or (named and named <= present)
    words = [] if is_whole or not getattr(tokenizer, "is_fast", False) else [" or ".join([WHOLE, *sorted(named)])]
    settings = [] if SETTINGS in present or _reads_as(tokenizer, folder / WHOLE) else [SETTINGS]
    if absent := " and ".join(settings + words):
        raise DataError(f"{name} is incomplete: the tokenizer lacks {absent} in {folder}; {_ADVICE}")


def _reads_as(tokenizer: PreTrainedTokenizerBase, file: Path) -> bool:
    """Whether a tokenizer without a file of settings lacks none: its type states the special tokens that it has.

    Its ids are those of ``tokenizer.json`` alone.
    """
    from tokenizers import Tokenizer

    if not file.is_file():
        return False
    own, named = Tokenizer.from_file(str(file)), tokenizer.special_tokens_map
    own.no_padding()
    own.no_truncation()
    if not {"bos_token", "eos_token", "pad_token", "unk_token"} <= set(named):
        return False
    if any(own.token_to_id(token) is None for token in named.values()):
        return False
    ids: list[list[int]] = tokenizer(PROBES)["input_ids"]
    return ids == [one.ids for one in own.encode_batch(PROBES)]


def check_size(tokenizer: PreTrainedTokenizerBase, rows: int | None, name: str) -> None:
    """DataError if a tokenizer has more words than the model's embedding has ``rows`` (None: unknown)."""
    words = getattr(tokenizer, "vocab_size", None)
    if rows is not None and words is not None and words > rows:
        raise DataError(
            f"the tokenizer of {name} has {words} words and the model embeds {rows}, so it belongs to another model; "
            f"{_ADVICE}"
        )


def as_text(tokenizer: Any, clean: Callable[[str], str] = str) -> tuple[Any, frozenset[str]]:
    """A copy of a tokenizer of transformers that takes special tokens in a caption for plain text.

    Also those that keep their meaning all the same, as the ones of a Unigram vocabulary do.
    """
    made = copy(tokenizer)
    made.split_special_tokens = True
    known, tokens = made.get_vocab(), special_tokens(made) - {made.unk_token}
    found = {one: made(clean(one), add_special_tokens=False)["input_ids"] for one in tokens}
    return made, frozenset(one for one, ids in found.items() if known.get(one) in ids)


def captions_read(
    read: Iterable[Iterable[int]], cleaning: str | None, padding: str, max_tokens: int | None, special: frozenset[str]
) -> dict[str, object]:
    """What a fingerprint and ``show`` say of captions; ``read`` are the tokens of `PROBES`, cleaned as captions are."""
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
