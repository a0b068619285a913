"""Finding, fetching, loading and placing models of transformers; files are fetched, then read without the network.

A repository of the Hub is listed at one commit; where the Hub does not answer, or may not be asked, the copy in its
cache is. Weights are safetensors, or else a pickle that ``torch.load(weights_only=True)`` reads: tensors, plain values
and float64 numbers; settings are skipped, everything else is refused. A PEFT adapter (LoRA and others) is a folder or a
Hub repository with ``adapter_config.json`` and ``adapter_model.safetensors`` or ``.bin``. It has to match its base
exactly: no tensor may be unused or missing.
"""

from __future__ import annotations

import glob
import inspect
import json
import re
import shlex
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors.torch import load_file

from ttmbench._util import hub
from ttmbench._util.console import one_line, warn
from ttmbench._util.digests import json_digest, tensors_digest
from ttmbench._util.file_io import Unreadable, check_no_pointer, read_json
from ttmbench._util.third_party_errors import is_out_of_memory
from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters._shared.options import ChatOptions, DualEncoderFiles, HubFiles, LanguageOptions, takes
from ttmbench.types import ModelFiles

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
    from transformers.image_processing_utils import BaseImageProcessor

_EXTRAS = {  # module, also by the name in a message of transformers -> what pip installs; others install themselves
    **dict(accelerate="large", av="video", bitsandbytes="quantized", num2words="smolvlm", openai="api", peft="lora")
}
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:\[[a-z0-9,_-]+\])?"
_INSTALL = re.compile(rf"pip install ((?:{_NAME}(?: |(?=[`.,;'\n]|$)))+)")


def what_to_install(error: BaseException | None) -> str | None:
    """The command that installs a missing package; None if an error and its causes are about something else.

    >>> what_to_install(ModuleNotFoundError("No module named 'peft'", name="peft"))
    "pip install 'ttmbench[lora]'"
    >>> what_to_install(OSError("no such file")) is None
    True
    """
    while error is not None:
        asked = _INSTALL.search(str(error))
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        names = asked[1].split() if asked else [str(absent)]
        if asked or names[0] in _EXTRAS:
            named = (f"ttmbench[{_EXTRAS[name]}]" if name in _EXTRAS else name for name in names)
            return shlex.join(["pip", "install", *dict.fromkeys(named)])
        error = error.__cause__
    return None


_PLAIN = (3, "<", None, None, None, -1, -1, 0)  # numpy's state of float64: byte order, and no fields


class _Float64:
    """Stands for ``numpy.dtype`` in a pickle, and takes float64 alone."""

    def __init__(self, code: object, align: object = False, copy: object = False) -> None:
        if code != "f8":
            raise ValueError(f"it holds a number of numpy's type {code!r:.40}, and only float64 is read")

    def __setstate__(self, state: object) -> None:
        if state != _PLAIN:
            raise ValueError(f"it holds a float64 with the unknown settings {state!r:.80}")


def _number(kind: object, content: object) -> float:
    """Stands for numpy's ``scalar`` in a pickle."""
    if type(kind) is not _Float64 or type(content) is not bytes or len(content) != 8:
        raise ValueError("it holds a number of numpy that is not a float64 of 8 bytes")
    return float(struct.unpack("<d", content)[0])


class _Settings:
    """Stands for ``argparse.Namespace`` in a pickle, the settings of a training, and keeps nothing of it."""

    def __setstate__(self, state: object) -> None:
        pass


_STAND_INS: list[Any] = [
    *((_Float64, "numpy.dtype"), (_number, "numpy._core.multiarray.scalar"), (_Settings, "argparse.Namespace")),
    (_number, "numpy.core.multiarray.scalar"),  # its name in numpy 1
]


def read_weights(path: Path) -> object:
    """The tensors of a file of weights, of a pickle also plain values and float64 numbers; DataError for anything else.

    An ``argparse.Namespace`` is left empty.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals(_STAND_INS):
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


# Beside the weights: configuration, tokenizer, processor and chat template, as the libraries look for them.
_ENDINGS = {".json", ".txt", ".model", ".jinja", ".tiktoken", ".bpe", ".vocab", ".spm"}
_FOLDERS = {"qformer_tokenizer", "additional_chat_templates"}


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

    def get(self, names: Iterable[str]) -> Path:
        """The folder that holds these files, which are fetched if need be; DataError if one is unavailable."""
        if self.folder is not None:
            for name in names:
                check_no_pointer(self.folder / name)
            return self.folder
        from huggingface_hub import snapshot_download

        patterns = sorted(glob.escape(name) for name in names)
        try:
            with quiet_hub(fetches=True):
                folder = hub.patiently(
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
        if self.is_folder:
            advice = "copy it again"
        elif self.folder is not None:
            advice = "`ttmbench download --model NAME` with a network completes it"
        else:
            advice = "another revision of it may be complete (--model_args revision=...)"
        return DataError(f"{self.name} is incomplete: missing {listed}; {advice}")


def find_repository(name: str, revision: str | None = None, *, offline: bool = False) -> Repository:
    """Lists a folder or a repository of the Hub, of its cache if ``offline``; DataError if there is none such."""
    if Path(name).is_dir():
        return Repository(name, None, None, _files_in(Path(name)), Path(name))
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        raise DataError(f"{name} must be a folder here or the name of a repository of the Hub") from None
    if offline:
        cached = _cached(name, revision)
        if cached is None:
            raise _not_cached(name, revision)
        return cached
    try:
        with quiet_hub():
            info = hub.patiently(lambda: HfApi().model_info(name, revision=revision))
    except Exception as error:
        status = hub.status_of(error)  # None without an answer
        may_be_cached = status is None or status in hub.PASSING or hub.trouble(error) == "gated"
        cached = _cached(name, revision) if may_be_cached else None
        if cached is None:
            raise _out_of_reach(name, revision, error) from error
        return cached
    files = frozenset(file.rfilename for file in info.siblings or ())
    return Repository(name, revision, info.sha, files, None)


def is_small(name: str) -> bool:
    """Whether a file is one that libraries read beside the weights.

    >>> [name for name in ("tokenizer.json", "model.safetensors", "onnx/config.json", "README.md") if is_small(name)]
    ['tokenizer.json']
    """
    path = PurePosixPath(name)
    return path.suffix in _ENDINGS and (len(path.parts) == 1 or path.parts[0] in _FOLDERS)


def read_json_file(path: Path) -> object:
    """The content of a JSON file, read strictly and bounded; DataError if it is damaged."""
    try:
        return read_json(path)
    except Unreadable as error:
        raise DataError(f"{path} {error}") from None


def _cached(name: str, revision: str | None) -> Repository | None:
    """The copy in the Hub's cache, which may be incomplete."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=[], local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return Repository(name, revision, folder.name, _files_in(folder), folder)


def _files_in(folder: Path) -> frozenset[str]:
    """Files of a folder and of the folders in it: models need nothing below."""
    paths = (file for pattern in ("*", "*/*") for file in folder.glob(pattern))
    return frozenset(file.relative_to(folder).as_posix() for file in paths if file.is_file())


@contextmanager
def quiet_hub(*, offline: bool = False, fetches: bool = False) -> Iterator[None]:
    """`ttmbench._util.hub.quiet_hub` for ``transformers`` too."""
    from transformers.utils import logging

    with hub.quiet_hub(offline=offline, fetches=fetches):
        before = logging.get_verbosity()
        logging.set_verbosity_error()
        if not (fetches and sys.stderr.isatty()):
            logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(before)
            logging.enable_progress_bar()


_CLASS = re.compile(r"<class '(?:\w+\.)*(\w+)'>")
_LISTED = re.compile(r"\s*Model type should be one of .*", re.DOTALL)
_TAKEN = (
    "hf takes dual encoders, vqascore chat models, blind language models; `ttmbench score` reads scores of other code"
)


def described(error: Exception) -> str:
    """Kind and text of an error in one line, without the list of everything that would have been right."""
    text = _LISTED.sub("", _CLASS.sub(r"\1", str(error)))
    return f"{type(error).__name__}: {one_line(text, 240)}"


def _not_cached(name: str, revision: str | None) -> DataError:
    """The error to raise offline for a model that has not been fetched."""
    from huggingface_hub import constants

    at = f" at revision {revision}" if revision else ""
    return DataError(
        f"model {name} is neither a folder here nor in {constants.HF_HUB_CACHE}{at}; run once with a network and "
        "without --offline, or `ttmbench download --model NAME`; the built-in model 'tiny-clip' needs no Hub"
    )


def _out_of_reach(name: str, revision: str | None, error: Exception) -> DataError:
    """The error to raise for a model that is unavailable: terms, an unknown name or revision, or no network."""
    status, trouble = hub.status_of(error), hub.trouble(error)
    if trouble == "gated":
        return DataError(f"{name}: {hub.accept_terms(f'https://huggingface.co/{name}')}")
    if trouble == "unknown revision":
        return DataError(f"{name} has no revision {revision} on the Hub; --model_args revision=main takes its newest")
    if trouble == "unknown":
        why = "it has no such repository, or a private one: HF_TOKEN names an account"
    elif trouble == "token":
        why = hub.UNKNOWN_TOKEN
    elif status in hub.PASSING:
        why = f"it answered {status}, and again after {hub.TRIES} tries"
    else:
        why = "it is not in the cache and the Hub cannot be reached" if status is None else one_line(str(error), 240)
    return DataError(
        f"model {name} is neither a folder here nor available from the Hub ({why}); the built-in model 'tiny-clip' "
        "needs no Hub"
    )


def not_loaded(name: str, error: Exception) -> DataError:
    """The error to raise for files that are here and cannot be loaded."""
    what = f"the model in folder {name}" if Path(name).is_dir() else f"model {name}"
    command = what_to_install(error)
    if command is not None:
        return DataError(f"{what} needs packages that are not installed: `{command}`")
    why = why_refused(error) if "weights_only" in str(error) else described(error)
    instead = f"; {_TAKEN}" if "Unrecognized configuration class" in why else ""
    return DataError(f"{what} cannot be loaded ({why}){instead}")


TORCH_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DTYPE_NAMES = {"fp32": "float32", "tf32": "tf32", "bf16": "bfloat16", "fp16": "float16"}  # in fingerprints


def pick_device(device: str) -> str:
    """The device, with ``auto`` resolved; UsageError for a device that does not exist here."""
    if "," in device:
        raise UsageError(f"device {device} names several devices, and only `run` divides its work among them; name one")
    if device != "auto":
        kind, _, number = device.partition(":")
        if kind == "cuda" and not torch.cuda.is_available():
            raise UsageError(f"device {device} was requested, but torch finds no CUDA device; use --device cpu")
        if kind == "cuda" and number.isdecimal() and int(number) >= torch.cuda.device_count():
            last = torch.cuda.device_count() - 1
            raise UsageError(f"device {device} was requested, but the last one torch finds is cuda:{last}")
        if kind == "mps" and not torch.backends.mps.is_available():
            raise UsageError("device mps was requested, but torch does not find one; use --device cpu")
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


_AUTOMATIC = ("auto", "balanced", "balanced_low_0", "sequential")
_ELSEWHERE = ("cpu", "disk", "meta")
_INPUTS = "_ttmbench_inputs_go_to"


def placement_of(asked: ChatOptions) -> dict[str, object] | None:
    """Arguments of ``from_pretrained`` for devices and quantisation; None if the user asks for neither."""
    device_map = asked.device_map
    if asked.load_in_4bit and asked.load_in_8bit:
        raise UsageError("load_in_4bit and load_in_8bit exclude each other")
    if device_map is None and (asked.max_memory is not None or asked.offload_folder is not None):
        raise UsageError("max_memory and offload_folder need device_map; add device_map=auto")
    if device_map is not None and asked.device != "auto":
        raise UsageError(f"device_map chooses the devices, so --device {asked.device} has no meaning; omit one")
    bits = {name: True for name in ("load_in_4bit", "load_in_8bit") if getattr(asked, name)}
    packed = {**(asked.quantization_config or {}), **bits}
    if device_map is None and not packed:
        return None
    if device_map is None or (not isinstance(device_map, Mapping) and device_map not in _AUTOMATIC):
        device_map = {"": asked.device if device_map is None else device_map}
    if isinstance(device_map, Mapping):
        device_map = {name: _device(device) for name, device in device_map.items()}
    options: dict[str, object] = {"device_map": device_map}
    if asked.max_memory is not None:
        sizes = asked.max_memory.items()
        options["max_memory"] = {int(name) if str(name).isdecimal() else name: size for name, size in sizes}
    if asked.offload_folder is not None:
        options["offload_folder"] = str(Path(asked.offload_folder).expanduser())
    if packed:
        options["quantization_config"] = _quantization(packed)
    if find_spec("accelerate") is None:
        what = "device_map" if asked.device_map is not None else "quantisation"
        raise UsageError(f"{what} needs the package accelerate: pip install 'ttmbench[large]'")
    return options


def remember_inputs(model: PreTrainedModel) -> None:
    """Notes on a model that accelerate placed where its inputs go: its first device that computes."""
    placed = getattr(model, "hf_device_map", None) or {}
    devices = [f"cuda:{name}" if isinstance(name, int) else str(name) for name in placed.values()]
    computing = [device for device in devices if device not in _ELSEWHERE]
    where = computing[0] if computing else "cpu" if devices else str(next(model.parameters()).device)
    setattr(model, _INPUTS, torch.device(where))


def settle(model: torch.nn.Module, device: torch.device) -> torch.device:
    """Moves a model to a device, unless accelerate placed it, and returns that of its inputs; or UsageError."""
    placed: torch.device | None = getattr(model, _INPUTS, None)
    if placed is not None:
        return placed
    try:
        model.to(device)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        size = sum(parameter.nbytes for parameter in model.parameters())
        raise UsageError(
            f"device {device} has too little free memory for the model's weights ({size / 1e9:.3g} GB); use a smaller "
            "model or another device, or for chat models --model_args weights_dtype=bf16 or device_map=auto"
        ) from None
    return device


def untrainable(model: PreTrainedModel) -> str | None:
    """Why a model cannot be trained as it is loaded; None if it can."""
    if getattr(model, "is_quantized", False):
        return "its weights are quantised, and a step of training is smaller than their resolution"
    placed = getattr(model, "hf_device_map", None) or {}
    away = sorted({str(device) for device in placed.values()} & set(_ELSEWHERE))
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
    return _Weights(model) if getattr(model, "hf_device_map", None) else model.state_dict()


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


def _device(device: int | str) -> int | str:
    """A device of a map, which must exist here; a number is that of an accelerator."""
    if device in _ELSEWHERE[:2] or isinstance(device, int):
        return device
    if device == "auto":
        return pick_device(device)
    try:
        torch.device(device)
    except (RuntimeError, TypeError):
        raise UsageError(
            f"device_map: {device} is not a device; known: {', '.join(_AUTOMATIC)}, cpu, disk, cuda:0, and the number "
            "of a device"
        ) from None
    return pick_device(device)


def _quantization(packed: dict[str, object]) -> object:
    """The ``quantization_config``; UsageError for unknown settings, or if bitsandbytes is missing."""
    if "quant_method" in packed:
        return packed
    from transformers import BitsAndBytesConfig

    known = [name for name in inspect.signature(BitsAndBytesConfig).parameters if name != "kwargs"]
    for name in packed:
        if name not in known:
            raise UsageError(f"quantization_config.{name} is unknown; known: {', '.join(known)}, quant_method")
    bits = next((name for name in ("load_in_4bit", "load_in_8bit") if packed.get(name)), None)
    if bits is None:
        raise UsageError("quantization_config needs load_in_4bit=true or load_in_8bit=true, or a quant_method")
    if find_spec("bitsandbytes") is None:
        raise UsageError(f"{bits} needs the package bitsandbytes: pip install 'ttmbench[quantized]'")
    return BitsAndBytesConfig(
        **{
            name: DTYPE_NAMES.get(str(value), value) if name.endswith(("_dtype", "_storage")) else value
            for name, value in packed.items()
        }
    )


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

    DataError for one that does not fit, is damaged, or adds tokens; UsageError without peft, or for quantised weights.
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
        processor, declared, model = self.processor, dict[str, object](), self.model
        # Offloading separates parameters that share their weights.
        placed = getattr(model, "hf_device_map", None)
        tied = (getattr(model, "all_tied_weights_keys", None) or {}) if placed else {}
        if processor is not None:
            known = {name: value for name, value in vars(processor).items() if isinstance(value, str | int | float)}
            declared["processor_sha256"] = json_digest(plain({"class": type(processor).__name__, **known}))
        if self.image_processor is not None:
            declared["preprocessing"] = plain(self.image_processor.to_dict())
        if getattr(model, "is_quantized", False) and (settings := getattr(model.config, "quantization_config", None)):
            known = settings if isinstance(settings, dict) else settings.to_dict()
            declared["quantization"] = json.loads(json.dumps(known, default=str))
        return {
            "pretrained": declared_name(name),
            "architecture": type(model).__name__,
            "weights_sha256": weights,
            "dtype": DTYPE_NAMES[dtype],
            "n_parameters": sum(one.numel() for name, one in model.named_parameters() if name not in tied),
            "config_sha256": json_digest(plain(model.config.to_dict())),
            "attn_implementation": getattr(model.config, "_attn_implementation", None),
            "device": device.type,
            "tokenizer_sha256": tokenizer_digest(self.tokenizer),
            **declared,
            **({"peft": getattr(model, KEPT)[0]} if hasattr(model, KEPT) else {}),
        }


def declared_name(pretrained: str) -> str:
    """The name of weights in a fingerprint: a Hub id, or the last part of a path."""
    return Path(pretrained).name if Path(pretrained).exists() else pretrained


def find(asked: HubFiles) -> Pretrained:
    """The repository of a model with one set of weights chosen; its small files are fetched; or DataError."""
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
    chosen = next((file for file in (*SAFETENSORS, *PICKLES) if file in repository.files), None)
    if chosen is None:
        raise _no_weights(repository)
    if CONFIG not in repository.files:
        if repository.folder is not None and not repository.is_folder:
            raise repository.lacking([CONFIG])
        raise DataError(f"{name} has no {CONFIG}, so it is not a model of transformers")
    code = {file for file in repository.files if asked.trust_remote_code and file.endswith(".py")}
    folder = repository.get({file for file in repository.files if is_small(file)} | code)
    if not asked.trust_remote_code:
        _refuse_unknown_code(name, read_json_file(folder / CONFIG))
    shards: list[str] = []
    if chosen.endswith(INDEX):
        content: Any = read_json_file(folder / chosen)
        try:
            shards = sorted({str(PurePosixPath(shard)) for shard in content["weight_map"].values()})
        except (TypeError, KeyError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}"
            raise DataError(f"{folder / chosen} is not an index of split weights ({why})") from None
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


def load_part(kind: type[Part], model: Pretrained) -> Part:
    """A configuration, tokenizer, processor or image processor; DataError if it is missing or damaged.

    It names the files of a tokenizer that are missing, also where transformers fails for the lack of them.
    """
    from transformers import PreTrainedTokenizerBase

    name, folder = model.files.name, model.files.folder
    try:
        part: Part = _load(kind, model, name)
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
    """The model with its weights, which are fetched if need be; DataError if they cannot be, or do not fit.

    ``placement`` is of `placement_of`; ``config`` replaces the configuration of its files.
    """
    fetch_weights(model)
    asked = model.asked
    dtype: torch.dtype | str = torch.float32
    # Of a model that writes text on an accelerator the checkpoint's.
    if isinstance(asked, LanguageOptions) and (asked.weights_dtype or pick_device(asked.device) != "cpu"):
        dtype = TORCH_DTYPES[asked.weights_dtype] if asked.weights_dtype else "auto"
    options: dict[str, object] = {
        "dtype": dtype,
        "use_safetensors": not model.files.are_pickles,
        "weights_only": True,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # refused here, by name
    }
    chosen = {"attn_implementation": getattr(asked, "attn_implementation", None), "config": config, **(placement or {})}
    options |= {name: value for name, value in chosen.items() if value is not None}
    # From the folder, transformers reads and does nothing else; by a Hub id it would also ask the Hub to convert
    # pickles, in a thread. Code that a repository ships is found by the id alone.
    where = model.files.name if asked.trust_remote_code else str(model.files.folder)
    loaded, report = _load(kind, model, where, **options)
    missing = sorted(name for name in report["missing_keys"] if not name.startswith(UNUSED))
    if missing:
        raise DataError(
            f"the weights of {model.files.name} lack {len(missing)} tensors of {type(loaded).__name__}, "
            f"the first is {missing[0]}"
        )
    if report["mismatched_keys"]:
        other = sorted(map(str, report["mismatched_keys"]))
        raise DataError(
            f"the weights of {model.files.name} have {len(other)} tensors of another shape than its {CONFIG} gives, "
            f"the first is {other[0]} (shape of the weights first); use the {CONFIG} that belongs to them"
        )
    if model.adapter is not None:
        loaded = apply_adapter(loaded, model.adapter, model.files.name, getattr(asked, "merge", True))
    if placement is not None or getattr(loaded, "is_quantized", False):
        remember_inputs(loaded)
    return loaded


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


def _no_weights(repository: Repository) -> DataError:
    """The error to raise for a repository without a file of weights, or an index of its shards, that is read."""
    name = repository.name
    if any(file.startswith("open_clip") for file in repository.files):
        kind = "local-dir" if repository.is_folder else "hf-hub"
        return DataError(f"{name} is a model of open_clip: --model open_clip --model_args model={kind}:{name}")
    if repository.folder is not None and not repository.is_folder:
        return repository.lacking([SAFETENSORS[0]])
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
            raise not_loaded(model.files.name, error) from error


# Where files came from and which version wrote them: a copy of the same model has other values.
_VOLATILE = {"_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype", "processor_class"}


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """sha256 of everything that determines the tokens, without the current padding and truncation."""
    names = ("model_max_length", "padding_side", "truncation_side", "context_length", "special_tokens_map")
    settings = {"class": type(tokenizer).__name__, **{name: getattr(tokenizer, name, None) for name in names}}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content: dict[str, object]
    if backend is not None:
        stored = json.loads(backend.to_str())
        content = {"backend": {name: value for name, value in stored.items() if name not in ("padding", "truncation")}}
    elif hasattr(tokenizer, "get_vocab"):
        content = {"vocabulary": dict(tokenizer.get_vocab())}
    else:  # open_clip's own
        merges = [(*pair, rank) for pair, rank in sorted(getattr(tokenizer, "bpe_ranks", {}).items())]
        content = {"vocabulary": getattr(tokenizer, "encoder", None), "merges": merges}
    return json_digest(plain(settings | content))


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
    """DataError if a tokenizer has more words than the model's embedding has ``rows`` (None: unknown)."""
    words = getattr(tokenizer, "vocab_size", None)
    if rows is not None and words is not None and words > rows:
        raise DataError(
            f"the tokenizer of {name} has {words} words and the model embeds {rows}, so it belongs to another model; "
            f"{_ADVICE}"
        )


def as_text(tokenizer: Any) -> tuple[Any, frozenset[str]]:
    """A copy of a tokenizer, of transformers' or open_clip's, that takes special tokens in a caption for plain text.

    Also those that keep their meaning all the same, as the ones of a Unigram vocabulary do.
    """
    made = copy(tokenizer)
    if not hasattr(made, "added_tokens_decoder") and hasattr(
        made, "bpe_ranks"
    ):  # open_clip's own, which splits by a pattern and remembers words
        import regex  # type: ignore[import-untyped,unused-ignore]

        special = "|".join(made.decoder[number] for number in made.all_special_ids)
        made.pat, made.cache = regex.compile(made.pat.pattern.removeprefix(f"{special}|"), made.pat.flags), {}
        return made, frozenset()
    inner = copy(made.tokenizer) if hasattr(made, "tokenizer") else made  # open_clip's wrapper has one
    if inner is not made:
        made.tokenizer = inner
    inner.split_special_tokens = True
    if not hasattr(inner, "added_tokens_decoder"):
        return made, frozenset()
    known, clean = inner.get_vocab(), getattr(made, "clean_fn", str)
    tokens = special_tokens(inner) - {inner.unk_token}
    found = {one: inner(clean(one), add_special_tokens=False)["input_ids"] for one in tokens}
    return made, frozenset(one for one, ids in found.items() if known.get(one) in ids)


def captions_read(
    read: Iterable[Iterable[int]],
    cleaning: str | None,
    padding: str,
    max_tokens: int | None,
    special: frozenset[str] = frozenset(),
) -> dict[str, object]:
    """What a fingerprint and ``ttmbench show`` say of a caption on its way to a text encoder.

    ``read`` are the tokens of `PROBES`, cleaned as captions are: they show what becomes of case and punctuation.
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
