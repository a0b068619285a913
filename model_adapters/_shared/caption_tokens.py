"""Tokens of captions as test-time methods use them: shifts of the first ones' embeddings, and unknown words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from ttmbench.errors import UsageError
from ttmbench.model_adapters._shared.contrastive import FP16, ContrastiveModel, Prepared
from ttmbench.model_adapters._shared.tokenizers import PROBES, as_text, captions_read, not_text, refused

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class CaptionTokens(ContrastiveModel[Prepared]):
    """A contrastive model of a library, with a tokenizer and maybe a module that embeds tokens.

    Attributes:
        tokenizer: a library's own.
        is_compiled: whether the towers are; a compiled tower passes over a shift.
    """

    tokenizer: Any
    is_compiled = False

    def _set_tokenizer(self, tokenizer: Any) -> None:
        self.tokenizer = as_text(tokenizer)
        self._not_text = not_text(self.tokenizer)

    def refused(self, captions: Sequence[str]) -> list[str | None]:
        """Of each caption a special token in it, where the tokenizer does not take it for text."""
        return refused(captions, self._not_text)

    def _captions_read(self, cleaning: str | None, padding: str, max_tokens: int | None) -> dict[str, object]:
        """`captions_read` of the fingerprint."""
        return captions_read(_ids(self.prepare_captions(PROBES)), cleaning, padding, max_tokens, self._not_text)

    def _token_embedding(self) -> nn.Embedding | None:
        """The module that embeds the tokens of captions; None if there is none of CLIP's kind."""
        return None

    @property
    def caption_width(self) -> int | None:
        """Dimension of a token's embedding, in text towers as CLIP and SigLIP have them; None in others."""
        embedding = self._token_embedding()
        return None if embedding is None else embedding.embedding_dim

    def encode_shifted_captions(self, prepared: Prepared, shift: torch.Tensor) -> torch.Tensor:
        """As `encode_captions`, with ``shift`` [k, width] added to the embeddings of each caption's first k tokens."""
        if self.dtype == torch.float16 and shift.requires_grad:
            raise UsageError(FP16)
        embedding = self._token_embedding()
        assert embedding is not None, "the width says so"
        mask = own_tokens(_ids(self._trimmed(prepared)), lambda captions: _ids(self.prepare_captions(captions)))
        with shifted(embedding, mask.to(self.device), shift.to(self.device)):
            with torch.compiler.set_stance("force_eager") if self.is_compiled else nullcontext():
                return self.encode_captions(prepared)

    def has_unknown_words(self, captions: Sequence[str]) -> list[bool]:
        """Which captions have a word that the tokenizer does not know; open_clip's own knows all."""
        of_hub = (
            self.tokenizer if hasattr(self.tokenizer, "unk_token_id") else getattr(self.tokenizer, "tokenizer", None)
        )
        return [False] * len(captions) if of_hub is None else with_unknown_words(of_hub, captions)


def _ids(prepared: Any) -> torch.Tensor:
    return prepared if isinstance(prepared, torch.Tensor) else prepared["input_ids"]


def own_tokens(ids: torch.Tensor, tokenize: Callable[[Sequence[str]], torch.Tensor]) -> torch.Tensor:
    """Which tokens are a caption's own: behind the start of text and before its end; bool [captions, length].

    Args:
        ids: tokens, int64 [captions, length].
        tokenize: captions -> tokens. An empty caption has its end where one of a word has the word.
    """
    empty, word = tokenize(["", "a"])
    first = int((empty != word).nonzero()[0])
    has_ended = (ids[:, first:] == empty[first]).cumsum(dim=1) > 0
    return functional.pad(~has_ended, (first, 0), value=False)


@contextmanager
def shifted(embedding: nn.Module, mask: torch.Tensor, shift: torch.Tensor) -> Iterator[None]:
    """A context in which a text tower's token embeddings are shifted.

    Args:
        embedding: the module that embeds tokens.
        mask: which tokens of the batch are the captions' own, bool [captions, length].
        shift: added to the embeddings of the first k of them, [k, width].
    """
    position = mask.cumsum(dim=1) - 1
    row = position.masked_fill(~mask | (position >= len(shift)), len(shift))
    added = functional.embedding(row, torch.cat([shift, torch.zeros_like(shift[:1])]))
    hook = embedding.register_forward_hook(lambda module, inputs, output: output + added)
    try:
        yield
    finally:
        hook.remove()


def with_unknown_words(tokenizer: PreTrainedTokenizerBase, captions: Sequence[str]) -> list[bool]:
    """Which captions have a word that a tokenizer does not know; none where it spells words out of smaller parts."""
    unknown = tokenizer.unk_token_id
    if unknown is None or unknown in (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id):
        return [False] * len(captions)
    # verbose: it would warn of lengths, which do not matter here.
    ids = tokenizer(list(captions), padding=False, truncation=False, verbose=False)["input_ids"]
    return [unknown in row for row in ids]
