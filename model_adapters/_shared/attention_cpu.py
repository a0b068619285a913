"""Attention on a processor, forward and backward, by the kernel that is fastest there for the precision.

In float32 that is torch's fused kernel. Its backward pass is slow in bf16, where matrix products over a few images at a
time take a fraction of the time. Softmax is in float32 there too; what it gives is kept for the backward pass where
tokens are so few that it is no larger than the other tensors of a block, else computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

_FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FUSED_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_AT_A_TIME = 2**21  # logits: what is computed on stays in the processor's cache
_KEPT_UP_TO = 64  # tokens


@dataclass(frozen=True)
class Attention:
    """How heads look at each other.

    Attributes:
        scale: what logits are multiplied with.
        mask: added to logits, float32, broadcast to [rows, heads, queries, tokens]; None if every token sees all.
    """

    scale: float
    mask: torch.Tensor | None = None

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weighted means of values.

        Args:
            query: [rows, heads, queries, head size].
            key: of every token, [rows, heads, tokens, head size].
            value: likewise.

        Returns:
            The means [rows, queries, heads, head size], and what `backward` needs beside them, if anything.
        """
        if query.dtype == torch.float32:
            out, logsumexp = _FUSED(query, key, value, 0.0, False, attn_mask=self.mask, scale=self.scale)
            return out.transpose(1, 2), logsumexp
        out = torch.empty_like(query.transpose(1, 2), memory_format=torch.contiguous_format)
        kept = []
        for part in _parts(query, key):
            shares = self._shares(query[part], key[part], part).to(query.dtype)
            out[part] = (shares @ value[part]).transpose(1, 2)
            if key.shape[2] <= _KEPT_UP_TO:
                kept.append(shares)
        return out, torch.cat(kept) if kept else None

    def backward(
        self,
        grad: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        kept: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Gradients of queries, keys and values, each [rows, its tokens, heads, head size], from that of the means."""
        if query.dtype == torch.float32:
            grads = _FUSED_BACKWARD(
                grad.transpose(1, 2),
                *(query, key, value, out.transpose(1, 2), kept, 0.0, False),
                attn_mask=self.mask,
                scale=self.scale,
            )
            of_query, of_key, of_value = (one.transpose(1, 2) for one in grads)
            return of_query, of_key, of_value
        of_query, of_key, of_value = (
            torch.empty_like(one.transpose(1, 2), memory_format=torch.contiguous_format) for one in (query, key, value)
        )
        for part in _parts(query, key):
            of_out = grad[part].transpose(1, 2)
            shares = self._shares(query[part], key[part], part) if kept is None else kept[part].float()
            of_shares = (of_out @ value[part].mT).float()
            of_logits = torch._softmax_backward_data(of_shares, shares, -1, torch.float32)
            of_logits = of_logits.mul_(self.scale).to(query.dtype)
            of_query[part] = (of_logits @ key[part]).transpose(1, 2)
            of_key[part] = (of_logits.mT @ query[part]).transpose(1, 2)
            of_value[part] = (shares.to(query.dtype).mT @ of_out).transpose(1, 2)
        return of_query, of_key, of_value

    def _shares(self, query: torch.Tensor, key: torch.Tensor, part: slice) -> torch.Tensor:
        """What each token takes of each, float32."""
        logits = (query @ key.mT).float().mul_(self.scale)
        if self.mask is not None:
            logits.add_(self.mask[part] if self.mask.ndim == 4 and len(self.mask) > 1 else self.mask)
        return torch.softmax(logits, dim=-1)


def additive(mask: torch.Tensor | None, causal: bool, tokens: int) -> torch.Tensor | None:
    """A mask as it is added to logits, float32 [rows or 1, heads or 1, tokens, tokens].

    Args:
        mask: True where a token is seen, or numbers that are added; None for none.
        causal: without a mask, no token sees what comes after it.
        tokens: how many there are.

    Returns:
        The mask; None if every token sees all.
    """
    if mask is None:
        return torch.full((1, 1, tokens, tokens), -torch.inf).triu(1) if causal else None
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape).masked_fill_(~mask, torch.finfo(torch.float32).min)
    mask = mask.float()
    return mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape))


def _parts(query: torch.Tensor, key: torch.Tensor) -> Iterator[slice]:
    rows, heads, queries, _ = query.shape
    size = max(1, _AT_A_TIME // (heads * queries * key.shape[2]))
    return (slice(start, start + size) for start in range(0, rows, size))
