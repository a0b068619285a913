"""The tokens with which a model says yes or no, and what their probabilities make of a pair."""

from __future__ import annotations

from typing import Any

import torch

from ttmbench.errors import UsageError

_STARTS = ("", "▁", "Ġ")  # how vocabularies write a space before a word


def answer_tokens(tokenizer: Any, word: str) -> dict[str, int]:
    """Every single token that says a word: with and without a space before it, capitalised or not.

    Args:
        tokenizer: of the model.
        word: such as ``yes``.

    Returns:
        Token as the vocabulary writes it -> id.

    Raises:
        UsageError: no single token says it.
    """
    vocabulary = tokenizer.get_vocab()
    found: dict[str, int] = {}
    for form in (word.capitalize(), word.lower()):
        for text in (form, f" {form}"):
            ids = tokenizer.encode(text, add_special_tokens=False)
            if len(ids) == 1 and ids[0] != tokenizer.unk_token_id:
                found[str(tokenizer.convert_ids_to_tokens(ids[0]))] = int(ids[0])
        found |= {start + form: int(vocabulary[start + form]) for start in _STARTS if start + form in vocabulary}
    if not found:
        raise UsageError(f"this model's vocabulary has no single token for '{word}', so its answer cannot be read off")
    return dict(sorted(found.items()))


def log_answers(logits: torch.Tensor, yes: list[int], no: list[int]) -> torch.Tensor:
    """Log-probabilities of the two answers.

    Args:
        logits: of the next token, float32 [pairs, vocabulary].
        yes: tokens that say yes.
        no: tokens that say no.

    Returns:
        log P(yes) and log P(no), float32 [pairs, 2].
    """
    logs = logits.log_softmax(dim=-1)
    return torch.stack([logs[:, yes].logsumexp(dim=-1), logs[:, no].logsumexp(dim=-1)], dim=1)
