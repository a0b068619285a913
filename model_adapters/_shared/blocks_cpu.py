"""A transformer block on a processor, forward and backward written out.

A block is a layer norm, attention, a layer norm and two linear layers, each pair added to what came in. What autograd
makes of its twenty operations are passes over memory that take as long as the matrix products: casts of the same tensor
for queries, keys and values, an activation in three steps, intermediate results that are kept. Here the sums, layer
norms and softmax are in float32 and the matrix products in the precision that autocast asks for, as autocast has it.
Which modules of a library are blocks, and of which only the first token is read, is found out in `faster_cpu`; kernels
of attention are in `attention_cpu`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

from ttmbench.model_adapters._shared.attention_cpu import Attention
from ttmbench.model_adapters._shared.precision import products

QUICK = "quick"
ACTIVATIONS = (QUICK, "none", "tanh")
"""``x sigmoid(1.702 x)``, and GELU without and with its approximation by tanh, as torch calls them."""
_STEEP = 1.702


@dataclass(frozen=True)
class Linear:
    """Weights [out, in] and bias of a linear layer."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@dataclass(frozen=True)
class Norm:
    """Weights, bias and epsilon of a layer norm."""

    weight: torch.Tensor
    bias: torch.Tensor
    epsilon: float


@dataclass(frozen=True)
class Block:
    """The layers of a block.

    Attributes:
        norms: before attention, and before the linear layers.
        inputs: queries, keys and values, as one layer or as three.
        output: of attention.
        up: the first linear layer.
        down: the second.
        heads: of attention.
        activation: one of `ACTIVATIONS`.
    """

    norms: tuple[Norm, Norm]
    inputs: tuple[Linear, ...]
    output: Linear
    up: Linear
    down: Linear
    heads: int
    activation: str

    @property
    def tensors(self) -> list[torch.Tensor | None]:
        """All weights and biases, in the order in which gradients are returned."""
        layers: tuple[Norm | Linear, ...] = (*self.norms, *self.inputs, self.output, self.up, self.down)
        return [tensor for layer in layers for tensor in (layer.weight, layer.bias)]


def run_block(block: Block, x: torch.Tensor, mask: torch.Tensor | None, *, first: bool = False) -> torch.Tensor:
    """What a block gives, float32.

    Args:
        block: its layers.
        x: [rows, tokens, width].
        mask: added to the logits of attention, as `attention_cpu.additive` gives it.
        first: compute only what it gives for the first token, which looks at all. Only keys and values are then a
            matrix product over all tokens: a sixth of the block, where its linear layers are four times as wide.

    Returns:
        The same shape; [rows, 1, width] if only the first token is asked for.
    """
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    if first:
        block, mask = _with_queries_apart(block), None if mask is None else mask[..., :1, :]
    attention = Attention((x.shape[-1] // block.heads) ** -0.5, mask)
    result: torch.Tensor = _RunBlock.apply(x.float(), block, attention, first, dtype, *block.tensors)
    return result


class _RunBlock(torch.autograd.Function):
    """`run_block` with its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        block: Block,
        attention: Attention,
        first: bool,
        dtype: torch.dtype,
        *tensors: torch.Tensor | None,
    ) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            shape = x.shape
            x = x.reshape(-1, shape[-1])
            inputs = [_cast(layer, dtype) for layer in block.inputs]
            output, up, down = (_cast(layer, dtype) for layer in (block.output, block.up, block.down))

            seen, *norm1 = _normalised(x, block.norms[0], dtype)
            asking = [_asking(seen, shape, first), *(seen for _ in inputs[1:])]
            projected = [
                functional.linear(one, layer.weight, layer.bias) for one, layer in zip(asking, inputs, strict=True)
            ]
            heads = _heads(projected, shape, block.heads)
            means, kept = attention.forward(*heads)
            means = means.reshape(-1, shape[-1])
            middle = torch.add(_asking(x, shape, first), means @ output.weight.T)
            _add_bias(middle, block.output)

            read, *norm2 = _normalised(middle, block.norms[1], dtype)
            before = functional.linear(read, up.weight, up.bias)
            after, factor = _activated(before, block.activation)
            out = torch.add(middle, after @ down.weight.T, alpha=factor)
            _add_bias(out, block.down)

        weights = [layer.weight for layer in (*inputs, output, up, down)]
        ctx.block, ctx.attention, ctx.first, ctx.shape, ctx.dtype = block, attention, first, shape, dtype
        ctx.save_for_backward(*(x, seen, *norm1, *heads, means, kept, middle, read, *norm2, before, after, *weights))
        return out.reshape(shape[0], -1, shape[-1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        with products(grad.device, ctx.dtype):
            return _gradients(ctx, grad)


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Of what `_RunBlock` was given, from that of what it gave."""
    block, shape, first = ctx.block, ctx.shape, ctx.first
    x, seen, mean1, scale1, *rest = ctx.saved_tensors
    query, key, value, means, kept, middle, read, mean2, scale2, before, after, *weights = rest
    *inputs, output, up, down = weights
    dtype, needed = ctx.dtype, iter(ctx.needs_input_grad[5:])
    wanted = {name: (next(needed), next(needed)) for name in _names(block)}
    grad = grad.reshape(middle.shape).float().contiguous()

    of_out, factor = grad.to(dtype), 1 / _STEEP if block.activation == QUICK else 1.0
    found = {"down": (_of_weight(wanted["down"], of_out, after, factor), _of_bias(wanted["down"], grad))}
    of_before = _activation_backward(of_out @ down, before, block.activation)
    found["up"] = (_of_weight(wanted["up"], of_before, read), _of_bias(wanted["up"], of_before))
    of_middle, *found_norm = _norm_backward(of_before @ up, middle, mean2, scale2, block.norms[1])
    found["norm1"] = (found_norm[0], found_norm[1])
    of_middle.add_(grad)

    of_output = of_middle.to(dtype)
    found["output"] = (_of_weight(wanted["output"], of_output, means), _of_bias(wanted["output"], of_middle))
    split = (shape[0], -1, block.heads, shape[-1] // block.heads)
    of_heads = ctx.attention.backward(
        (of_output @ output).reshape(split), query, key, value, means.reshape(split), kept
    )
    of_inputs = _joined([one.reshape(-1, shape[-1]) for one in of_heads], len(inputs))
    for number, one in enumerate(of_inputs):
        name, looked = f"input{number}", seen if number else _asking(seen, shape, first)
        found[name] = (_of_weight(wanted[name], one, looked), _of_bias(wanted[name], one))
    apart = 1 if first else 0  # the queries of the first tokens are added where they belong, the others to all
    of_seen = of_inputs[apart] @ inputs[apart]
    for one, weight in zip(of_inputs[apart + 1 :], inputs[apart + 1 :], strict=True):
        of_seen.addmm_(one, weight)
    if first:
        _asking(of_seen, shape, first).addmm_(of_inputs[0], inputs[0])
    of_x, *found_norm = _norm_backward(of_seen, x, mean1, scale1, block.norms[0])
    found["norm0"] = (found_norm[0], found_norm[1])
    _asking(of_x, shape, first).add_(of_middle)
    grads = [one for name in wanted for one in found[name]]
    return of_x.reshape(shape), None, None, None, None, *grads


def _names(block: Block) -> list[str]:
    return ["norm0", "norm1", *(f"input{number}" for number in range(len(block.inputs))), "output", "up", "down"]


def _with_queries_apart(block: Block) -> Block:
    """A block whose queries are given by a layer of their own."""
    if len(block.inputs) > 1:
        return block
    (whole,) = block.inputs
    width = whole.weight.shape[1]
    parts = (slice(width), slice(width, None))
    inputs = tuple(Linear(whole.weight[part], None if whole.bias is None else whole.bias[part]) for part in parts)
    return replace(block, inputs=inputs)


def _asking(x: torch.Tensor, shape: torch.Size, first: bool) -> torch.Tensor:
    """Of [rows * tokens, width] what belongs to tokens that are asked for: the first of every row, or all."""
    return x.view(shape)[:, 0] if first else x


def _joined(parts: list[torch.Tensor], layers: int) -> list[torch.Tensor]:
    """Gradients of queries, keys and values as so many layers gave them: one of all, of the last two, or three."""
    kept = layers - 1
    return parts if layers == len(parts) else [*parts[:kept], torch.cat(parts[kept:], dim=1)]


def _cast(layer: Linear, dtype: torch.dtype) -> Linear:
    return Linear(layer.weight.to(dtype), None if layer.bias is None else layer.bias.to(dtype))


def _normalised(x: torch.Tensor, norm: Norm, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The rows of x after a layer norm, and what its gradient needs."""
    y, mean, scale = torch.native_layer_norm(x, (x.shape[-1],), norm.weight, norm.bias, norm.epsilon)
    return y.to(dtype), mean, scale


def _norm_backward(
    grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, norm: Norm
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.ops.aten.native_layer_norm_backward(
        grad.float(), x, (x.shape[-1],), mean, scale, norm.weight, norm.bias, (True, True, True)
    )


def _heads(
    projected: Sequence[torch.Tensor], shape: torch.Size, heads: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values, each [rows, heads, its tokens, head size]."""
    *apart, last = projected
    parts = (*apart, *last.chunk(3 - len(apart), dim=1))
    query, key, value = (one.view(shape[0], -1, heads, shape[-1] // heads).transpose(1, 2) for one in parts)
    return query, key, value


def _activated(before: torch.Tensor, activation: str) -> tuple[torch.Tensor, float]:
    """What the activation gives, and a factor that it is still to be multiplied with; ``before`` may change."""
    if activation == QUICK:  # x sigmoid(1.702 x) = silu(1.702 x) / 1.702; what is kept of x is 1.702 x
        return functional.silu(before.mul_(_STEEP)), 1 / _STEEP
    return functional.gelu(before, approximate=activation), 1.0


def _activation_backward(grad: torch.Tensor, before: torch.Tensor, activation: str) -> torch.Tensor:
    """The gradient before the activation; both factors of the quick one cancel."""
    if activation == QUICK:
        return torch.ops.aten.silu_backward(grad, before)
    return torch.ops.aten.gelu_backward(grad, before, approximate=activation)


def _add_bias(to: torch.Tensor, layer: Linear) -> None:
    if layer.bias is not None:
        to.add_(layer.bias)


def _of_weight(
    wanted: tuple[bool, bool], grad: torch.Tensor, x: torch.Tensor, factor: float = 1.0
) -> torch.Tensor | None:
    if not wanted[0]:
        return None
    found = (grad.T @ x).float()
    return found if factor == 1.0 else found.mul_(factor)


def _of_bias(wanted: tuple[bool, bool], grad: torch.Tensor) -> torch.Tensor | None:
    return grad.sum(dim=0).float() if wanted[1] else None
