"""Devices and precision: a model on one device, or spread and quantised by transformers with accelerate."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ttmbench._util.digests import tensors_digest
from ttmbench._util.third_party_errors import is_out_of_memory
from ttmbench.errors import UsageError
from ttmbench.model_adapters._shared.options import ChatOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TORCH_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def dtype_name(dtype: str) -> str:
    """How fingerprints call the dtype of a model's arithmetic."""
    return "tf32" if dtype == "tf32" else str(TORCH_DTYPES[dtype]).removeprefix("torch.")


def arithmetic(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[object]:
    """A context in which matrix products are computed in ``dtype``, float32 or half precision by autocast."""
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


def plain_attention(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[None]:
    """A context in which attention in bf16 on a CPU is matrix products and a softmax.

    The backward pass of torch's fused kernel would take more time there than all the rest of a training run.
    """
    if device.type == "cpu" and dtype == torch.bfloat16:
        return sdpa_kernel(SDPBackend.MATH)
    return nullcontext()


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
_TORCH_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_INPUTS = "_ttmbench_inputs_go_to"


def placement_of(asked: ChatOptions) -> dict[str, object] | None:
    """Arguments of ``from_pretrained`` for the devices and the quantisation of a model; None if the user names none.

    Raises:
        UsageError: arguments contradict each other, or a package is missing.
    """
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
    _need("accelerate", "device_map" if asked.device_map is not None else "quantisation", "large")
    return options


def remember_inputs(model: PreTrainedModel) -> None:
    """Notes on a model that accelerate placed where its inputs go: its first device that computes."""
    devices = [f"cuda:{name}" if isinstance(name, int) else str(name) for name in _map_of(model).values()]
    computing = [device for device in devices if device not in _ELSEWHERE]
    where = computing[0] if computing else "cpu" if devices else str(next(model.parameters()).device)
    setattr(model, _INPUTS, torch.device(where))


def settle(model: torch.nn.Module, device: torch.device) -> torch.device:
    """Moves a model to a device, unless accelerate placed it; returns the device of its inputs.

    UsageError if the device has too little memory.
    """
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
    away = sorted({str(device) for device in _map_of(model).values()} & set(_ELSEWHERE))
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
    return _Weights(model) if _map_of(model) else model.state_dict()


def weights_digest(model: torch.nn.Module) -> str:
    """The digest of a model's weights, which does not depend on the device map."""
    try:
        return tensors_digest(weights_of(model))
    except KeyError as error:
        raise UsageError(
            f"device_map: {error} shares its weights with a part that is elsewhere; put both on one device"
        ) from None


def own_parameters(model: PreTrainedModel) -> Iterator[torch.nn.Parameter]:
    """Parameters, each once, also where offloading separated parameters that share their weights."""
    tied = getattr(model, "all_tied_weights_keys", None) or {} if _map_of(model) else {}
    return (parameter for name, parameter in model.named_parameters() if name not in tied)


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


def _map_of(model: PreTrainedModel) -> dict[str, object]:
    device_map = getattr(model, "hf_device_map", None)
    return device_map if isinstance(device_map, dict) else {}


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
    _need("bitsandbytes", bits, "quantized")
    return BitsAndBytesConfig(
        **{
            name: _TORCH_NAMES.get(str(value), value) if name.endswith(("_dtype", "_storage")) else value
            for name, value in packed.items()
        }
    )


def _need(package: str, what: str, extra: str) -> None:
    if find_spec(package) is None:
        raise UsageError(f"{what} needs the package {package}: pip install 'ttmbench[{extra}]'")
