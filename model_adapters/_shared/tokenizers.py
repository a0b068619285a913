"""Tokenizers: the files that they need, the size of their vocabulary, and captions in which special tokens are text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttmbench.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

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
