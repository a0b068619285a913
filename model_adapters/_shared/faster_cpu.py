"""Towers of transformers, open_clip and timm made faster on a processor: the same weights, names and numbers.

Two kinds of layers are run in another way there: convolutions that cut an image into patches, as a matrix product, and
transformer blocks, as `blocks_cpu` has them. A layer stays where it is and what it is, under its name and with its
parameters; only its forward pass is another. A block that has more to it than is known here is left alone, and one of
each kind is tried on random numbers before any is changed. Of the last block of an image tower only the first token is
computed where the features are made of no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn import functional

from ttmbench.model_adapters._shared.attention_cpu import additive
from ttmbench.model_adapters._shared.blocks_cpu import ACTIVATIONS, QUICK, Block, Linear, Norm, run_block
from ttmbench.model_adapters._shared.pixels import few_images

OWN = "own"
"""What a fingerprint says of attention computed here, in place of a library's name for its kernel."""
_DTYPES = (torch.float32, torch.bfloat16)


def make_faster(model: nn.Module, *, blocks: bool = True) -> bool:
    """Changes how a model on a processor computes; does nothing to one that is elsewhere.

    Args:
        model: in float32, of any library; changed in place.
        blocks: also transformer blocks, and with them the kernel of attention.

    Returns:
        Whether blocks were changed.
    """
    if any(parameter.device.type != "cpu" for parameter in model.parameters()):
        return False
    changed, known = False, dict[Any, bool]()
    for module in list(model.modules()):
        if type(module) is nn.Conv2d and _cuts_patches(module):
            module.__class__ = PatchProduct
        found = _read(module) if blocks else None
        if found is not None:
            block, (forward, read) = found
            kind = (type(module), block.heads, block.up.weight.shape, block.activation)
            if kind not in known:
                known[kind] = _is_same(module, block)
            if known[kind]:
                module.__class__ = _faster_class(type(module), forward, read)  # type: ignore[arg-type]
                changed = True
    return changed


def read_first_token_only(
    tower: nn.Module, features: Callable[[torch.Tensor], torch.Tensor], size: tuple[int, int]
) -> bool:
    """Has the last block of an image tower compute its first token alone, if features are made of no other.

    It is tried, with blocks that pass on what they get: noise in all other tokens of the last one, and their absence,
    must leave features as they are. ``last_hidden_state`` of a tower so changed has one token.

    Args:
        tower: whose blocks `make_faster` has changed; one without such blocks stays as it is.
        features: of pixels [1, 3, height, width], by this tower.
        size: height and width.

    Returns:
        Whether the last block was changed.
    """
    blocks: list[Any] = [module for module in tower.modules() if hasattr(module, "read_block")]
    if not blocks:
        return False
    generator, order = torch.Generator().manual_seed(0), list[int]()
    pixels = torch.randn((1, 3, *size), generator=generator)

    def with_last(output: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        def passing(number: int, x: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
            order.append(number)
            return output(x) if number == len(blocks) - 1 else x

        with _run_as([partial(passing, number) for number in range(len(blocks))], blocks), torch.no_grad():
            return features(pixels)

    def noisy(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x[:, :1], torch.randn(x[:, 1:].shape, generator=generator)), dim=1)

    try:
        expected = with_last(lambda x: x)
        others = [with_last(noisy), with_last(lambda x: x[:, :1])]
    except (
        RuntimeError,
        IndexError,
        TypeError,
        ValueError,
    ):  # a tower that needs all tokens, or calls blocks otherwise
        return False
    if order != 3 * list(range(len(blocks))) or not all(torch.allclose(one, expected, atol=1e-6) for one in others):
        return False
    blocks[-1].first_only = True
    return True


def read_all_tokens(tower: nn.Module) -> None:
    """Has the last block of a tower compute all tokens again, which rounds otherwise."""
    blocks: list[Any] = [module for module in tower.modules() if hasattr(module, "first_only")]
    for block in blocks:
        block.first_only = False


@contextmanager
def _run_as(forwards: Sequence[Callable[..., torch.Tensor]], modules: Sequence[Any]) -> Iterator[None]:
    for module, forward in zip(modules, forwards, strict=True):
        module.forward = forward
    try:
        yield
    finally:
        for module in modules:
            del module.forward


class PatchProduct(nn.Conv2d):
    """A convolution whose windows neither overlap nor leave gaps: a matrix product of patches and weights."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Features of every patch, [images, out, rows, columns]."""
        if input.device.type != "cpu" or input.ndim != 4:
            return super().forward(input)
        (high, wide), (images, channels) = self.kernel_size, input.shape[:2]
        rows, columns = input.shape[2] // high, input.shape[3] // wide
        whole = input[:, :, : rows * high, : columns * wide]
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else input.dtype
        patches = input.new_empty((images, rows, columns, channels, high, wide), dtype=dtype)
        for part in few_images(whole):  # first the precision and then the order: at once takes four times as long
            windows = whole[part].to(dtype).view(-1, channels, rows, high, columns, wide)
            patches[part] = windows.permute(0, 2, 4, 1, 3, 5)
        features = functional.linear(patches.flatten(3).flatten(0, 2), self.weight.flatten(1), self.bias)
        return features.view(images, rows, columns, -1).permute(0, 3, 1, 2)


def _cuts_patches(layer: nn.Conv2d) -> bool:
    return (
        layer.kernel_size == layer.stride
        and layer.groups == 1
        and tuple(layer.dilation) == (1, 1)
        and layer.padding in ("valid", (0, 0))
        and layer.kernel_size != (1, 1)
    )


def _of_transformers(layer: Any) -> Block | None:
    """A layer of CLIP, SigLIP or one of their kin."""
    attention, mlp = layer.self_attn, layer.mlp
    if attention.dropout or attention.head_dim * attention.num_heads != attention.embed_dim:
        return None
    return Block(
        norms=(_norm(layer.layer_norm1), _norm(layer.layer_norm2)),
        inputs=tuple(_linear(one) for one in (attention.q_proj, attention.k_proj, attention.v_proj)),
        output=_linear(attention.out_proj),
        up=_linear(mlp.fc1),
        down=_linear(mlp.fc2),
        heads=attention.num_heads,
        activation=_activation(mlp.activation_fn),
    )


def _of_open_clip(layer: Any) -> Block | None:
    """A block of open_clip's own towers."""
    attention = layer.attn
    if type(attention) is not nn.MultiheadAttention or not (attention.batch_first and attention._qkv_same_embed_dim):
        return None
    extra = attention.dropout or attention.add_zero_attn or attention.bias_k is not None or hasattr(layer, "ln_1_kv")
    if extra or not (isinstance(layer.ls_1, nn.Identity) and isinstance(layer.ls_2, nn.Identity)):
        return None
    return Block(
        norms=(_norm(layer.ln_1), _norm(layer.ln_2)),
        inputs=(Linear(attention.in_proj_weight, attention.in_proj_bias),),
        output=Linear(attention.out_proj.weight, attention.out_proj.bias),
        up=_linear(layer.mlp.c_fc),
        down=_linear(layer.mlp.c_proj),
        heads=attention.num_heads,
        activation=_activation(layer.mlp.gelu),
    )


def _of_timm(layer: Any) -> Block | None:
    """A block of timm's vision transformer."""
    attention, mlp = layer.attn, layer.mlp
    nothing = (layer.ls1, layer.ls2, layer.drop_path1, layer.drop_path2, attention.q_norm, attention.k_norm, mlp.norm)
    drops = (attention.attn_drop, attention.proj_drop, mlp.drop1, mlp.drop2)
    if not all(isinstance(one, nn.Identity) for one in nothing) or any(one.p for one in drops):
        return None
    return Block(
        norms=(_norm(layer.norm1), _norm(layer.norm2)),
        inputs=(_linear(attention.qkv),),
        output=_linear(attention.proj),
        up=_linear(mlp.fc1),
        down=_linear(mlp.fc2),
        heads=attention.num_heads,
        activation=_activation(mlp.act),
    )


def _forward_transformers(self: Any, hidden_states: torch.Tensor, attention_mask: Any = None, **kwargs: Any) -> Any:
    causal = bool(kwargs.get("is_causal", False))
    return _run(self, hidden_states, attention_mask, causal, attention_mask=attention_mask, **kwargs)


def _forward_open_clip(self: Any, q_x: torch.Tensor, k_x: Any = None, v_x: Any = None, attn_mask: Any = None) -> Any:
    if k_x is not None or v_x is not None:
        return super(type(self), self).forward(q_x, k_x, v_x, attn_mask)
    mask = None if attn_mask is None else attn_mask.float()  # what is added, also where it is 0 and 1
    if mask is not None and mask.ndim == 3:  # one for every head of every row
        mask = mask.view(len(q_x), -1, *mask.shape[1:])
    return _run(self, q_x, mask, False, attn_mask=attn_mask)


def _forward_timm(self: Any, x: torch.Tensor, attn_mask: Any = None, is_causal: bool = False) -> Any:
    return _run(self, x, attn_mask, is_causal, attn_mask=attn_mask, is_causal=is_causal)


_Reader = Callable[[Any], "Block | None"]
_LAYERS: tuple[tuple[tuple[str, ...], Callable[..., Any], _Reader], ...] = (
    (("self_attn", "layer_norm1", "layer_norm2", "mlp"), _forward_transformers, _of_transformers),
    (("attn", "ln_1", "ln_2", "ls_1", "ls_2", "mlp"), _forward_open_clip, _of_open_clip),
    (("attn", "norm1", "norm2", "ls1", "ls2", "mlp"), _forward_timm, _of_timm),
)
"""What a layer of each library has, its forward pass here, and how its parts are found."""


def _read(module: nn.Module) -> tuple[Block, tuple[Callable[..., Any], _Reader]] | None:
    """A module as a block, and how it is run; None for one that is no block, or none that is known."""
    for names, forward, read in _LAYERS:
        if all(hasattr(module, name) for name in names):
            try:
                block = read(module)
            except (AttributeError, _UnknownError):
                return None
            tensors = [] if block is None else [tensor for tensor in block.tensors if tensor is not None]
            if block is None or any(tensor.dtype != torch.float32 for tensor in tensors):
                return None
            return block, (forward, read)
    return None


def _is_same(module: nn.Module, block: Block) -> bool:
    """Whether a block gives what the library's own forward pass gives of random numbers."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((2, 3, block.output.weight.shape[0]), generator=generator)
    parameters = (None,) if hasattr(module, "self_attn") else ()
    with torch.no_grad():
        theirs = module(x, *parameters)
        return isinstance(theirs, torch.Tensor) and torch.allclose(run_block(block, x, None), theirs, atol=1e-4)


@cache
def _faster_class(kind: type, forward: Callable[..., Any], read: _Reader) -> type:
    own = {"forward": forward, "read_block": staticmethod(read), "first_only": False}
    return type(f"Faster{kind.__name__}", (kind,), own)


def _run(self: Any, x: torch.Tensor, mask: Any, causal: bool, **theirs: Any) -> Any:
    """A block's output by `run_block`; by the library where that does not fit."""
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    if x.device.type != "cpu" or dtype not in _DTYPES or not (mask is None or isinstance(mask, torch.Tensor)):
        return super(type(self), self).forward(x, **theirs)
    return run_block(self.read_block(self), x, additive(mask, causal, x.shape[1]), first=self.first_only)


class _UnknownError(Exception):
    """A part of a block is of a kind that is not known here."""


def _norm(layer: nn.Module) -> Norm:
    if not isinstance(layer, nn.LayerNorm) or layer.weight is None or layer.bias is None:
        raise _UnknownError
    return Norm(layer.weight, layer.bias, layer.eps)


def _linear(layer: nn.Module) -> Linear:
    if type(layer) is not nn.Linear:
        raise _UnknownError
    return Linear(layer.weight, layer.bias)


_ACTIVATIONS: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def _activation(function: Callable[[torch.Tensor], torch.Tensor]) -> str:
    """Which of the known activations a function is, by what it gives."""
    if function not in _ACTIVATIONS:
        points = torch.linspace(-4, 4, 33)
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            given = function(points)
            for name in ACTIVATIONS:
                quick = points * torch.sigmoid(1.702 * points)
                known = quick if name == QUICK else functional.gelu(points, approximate=name)
                if torch.allclose(given, known, atol=1e-6):
                    _ACTIVATIONS[function] = name
                    return name
        raise _UnknownError
    return _ACTIVATIONS[function]
