"""Tokenizers of SigLIP and SigLIP 2 as their repositories have them, but for their size; difficult captions."""

from __future__ import annotations

import io
import json
from functools import lru_cache
from pathlib import Path

import transformers as tf
from tokenizers import Tokenizer, models, normalizers, processors

CAPTIONS = {
    "plain": "a red dog on the left of a cat",
    "capitals": "A Red DOG ON the Left",
    "punctuation": "a dog's bowl, (two) cats; well-made!?",
    "curly": "a “red” dog’s café — naïve",
    "decomposed": "a cafe\u0301",
    "entities": "cats &amp; dogs &lt;b&gt; &amp;quot;x",
    "underscores": "a_red_dog",
    "spaces": "  a   red \t dog\n cat\u00a0and  ",
    "over-long": "a red dog and a blue cat " * 40,
    "only punctuation": "?!...",
    "empty": "",
    "unicode": "İstanbul ß ﬁ ＲＥＤ dog 🐶",
    "mojibake": "cafÃ© sold",
    "end of text": "a <|endoftext|> b",
    "end of sequence": "a </s> b",
}
SENTENCES = ["a red dog on the left of a cat", "a blue café is well made", "two cats naïve dogs bowl", "b x i istanbul"]
END, LENGTH = "</s>", 64
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]


@lru_cache
def _pieces() -> bytes:
    import sentencepiece

    written = io.BytesIO()
    numbers = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "num_threads": 1, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 9), model_writer=written, vocab_size=60, hard_vocab_limit=False, **numbers
    )
    return written.getvalue()


def siglip(folder: Path) -> Path:
    """SentencePiece in SigLIP's own class, for which a library has to be installed."""
    return _sentencepiece(folder, "Siglip", do_lower_case=True)


def t5(folder: Path) -> Path:
    """The same pieces in T5's class and as ``tokenizer.json``, as timm's repositories have them."""
    tf.T5TokenizerFast.from_pretrained(_sentencepiece(folder, "T5", extra_ids=0)).save_pretrained(folder)
    (folder / "spiece.model").unlink(missing_ok=True)
    return folder


def _sentencepiece(folder: Path, kind: str, **more: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spiece.model").write_bytes(_pieces())
    named = {"eos_token": END, "pad_token": END, "unk_token": "<unk>", "model_max_length": LENGTH, **more}
    settings = {**named, "tokenizer_class": f"{kind}Tokenizer", "model_input_names": ["input_ids"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def gemma(folder: Path) -> Path:
    """Gemma's for SigLIP 2: ``do_lower_case`` is stated and the tokenizer does not obey it."""
    letters = sorted({*map(chr, range(33, 127)), *"éï\u2581"})
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *letters])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    made.add_special_tokens(SPECIAL)
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    settings = {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "pad", "unk")} | {"do_lower_case": True}
    settings |= {"tokenizer_class": "GemmaTokenizer", "padding_side": "right", "processor_class": "SiglipProcessor"}
    settings |= {"add_bos_token": False, "add_eos_token": True, "model_max_length": 10**30}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_input_names": ["input_ids"]}))
    return folder
