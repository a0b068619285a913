"""Tokenizers in the files of old repositories: CLIP's and GPT-2's pairs of merges, BERT's words, SentencePiece."""

from __future__ import annotations

import gzip
import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

CLIP_SPLIT = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
TEXT = """
a red circle and a blue square on the left of a yellow star; the cat sits under the table in front of an armchair
two dogs on top of a green bottle to the right of the white mug, behind a black box: someone holds a small purple cup
a photo of an old person and a young person, the plant below, the sign above, big brown horse, gray, orange, pink
Does this figure show "the caption"? Please answer yes or no. Yes No USER ASSISTANT User Assistant Question: Answer:
caption right wrong statement image is not with near its there are have has one three four five six seven eight nine ten
triangle hexagon ring cross diamond heart moon pentagon left right bottom top above below beside between colour color
0 1 2 3 4 5 6 7 8 9
""".strip()


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


def token(content: str, **how: bool) -> dict[str, Any]:
    """A token as ``tokenizer_config.json`` describes it."""
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, **how}


@lru_cache
def letters() -> list[str]:
    """GPT-2's letter for each of the 256 bytes, in CLIP's order."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return [chr(byte) for byte in plain] + [chr(256 + index) for index in range(256 - len(plain))]


@lru_cache
def clip_vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """CLIP's own words and merges, from the file that open_clip ships."""
    import open_clip

    file = Path(open_clip.__file__).with_name("bpe_simple_vocab_16e6.txt.gz")
    lines = gzip.decompress(file.read_bytes()).decode("utf-8").split("\n")[1 : 49152 - 256 - 2 + 1]
    merges = [(first, second) for first, second in (line.split() for line in lines)]
    words = [*letters(), *(letter + "</w>" for letter in letters()), *(first + second for first, second in merges)]
    words += ["<|startoftext|>", "<|endoftext|>"]
    return {word: index for index, word in enumerate(words)}, merges


def write_clip(folder: Path, name: str) -> int:
    """CLIP's tokenizer as openai's repositories have it; returns the number of tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    vocabulary, merges = clip_vocabulary()
    start, end = "<|startoftext|>", "<|endoftext|>"
    made = Tokenizer(models.BPE(vocabulary, merges, unk_token=end, end_of_word_suffix="</w>"))
    made.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    split = pre_tokenizers.Split(Regex(CLIP_SPLIT), "removed", invert=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.post_processor = processors.RobertaProcessing(
        (end, vocabulary[end]), (start, vocabulary[start]), trim_offsets=False, add_prefix_space=False
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(start, normalized=True, special=True), AddedToken(end, special=True)])
    made.save(str(folder / "tokenizer.json"))
    write_json(folder / "vocab.json", vocabulary)
    _write_merges(folder, merges)
    normal = {"bos_token": token(start, normalized=True), "eos_token": token(end, normalized=True)}
    normal |= {"unk_token": token(end, normalized=True)}
    write_json(folder / "special_tokens_map.json", {**normal, "pad_token": end})
    write_json(
        folder / "tokenizer_config.json",
        {
            **{key: {**one, "__type": "AddedToken"} for key, one in normal.items()},
            "pad_token": end,
            "add_prefix_space": False,
            "errors": "replace",
            "do_lower_case": True,
            "name_or_path": name,
            "model_max_length": 77,
            "special_tokens_map_file": "./special_tokens_map.json",
            "tokenizer_class": "CLIPTokenizer",
        },
    )
    return len(vocabulary)


def write_sentencepiece(folder: Path) -> int:
    """SigLIP's tokenizer: ``spiece.model``, and a ``tokenizer.json`` beside it; returns the number of tokens."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    content, pieces = _trained_sentencepiece()
    (folder / "spiece.model").write_bytes(content)
    made = Tokenizer(models.Unigram(pieces, unk_id=2))
    made.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Strip()])
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    made.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    made.save(str(folder / "tokenizer.json"))
    wide = {"lstrip": True, "rstrip": True}
    write_json(
        folder / "special_tokens_map.json",
        {"eos_token": token("</s>", **wide), "pad_token": token("</s>", **wide), "unk_token": token("<unk>", **wide)},
    )
    write_json(
        folder / "tokenizer_config.json",
        {
            "added_tokens_decoder": {
                "1": {**token("</s>", **wide), "special": True},
                "2": {**token("<unk>", **wide), "special": True},
            },
            "additional_special_tokens": [],
            "clean_up_tokenization_spaces": True,
            "do_lower_case": True,
            "eos_token": "</s>",
            "model_input_names": ["input_ids"],
            "model_max_length": 64,
            "pad_token": "</s>",
            "processor_class": "SiglipProcessor",
            "sp_model_kwargs": {},
            "tokenizer_class": "SiglipTokenizer",
            "unk_token": "<unk>",
        },
    )
    return len(pieces)


@lru_cache
def _trained_sentencepiece() -> tuple[bytes, list[tuple[str, float]]]:
    """A unigram model with the special ids of SigLIP's (pad 0, end 1, unknown 2), and its pieces."""
    from io import BytesIO

    import sentencepiece

    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.lower().split("\n")),
        model_writer=model,
        vocab_size=200,
        hard_vocab_limit=False,
        **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "num_threads": 1, "minloglevel": 2},
    )
    read = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [(read.id_to_piece(index), read.get_score(index)) for index in range(read.get_piece_size())]
    return model.getvalue(), pieces


def write_gemma(folder: Path) -> int:
    """SigLIP 2's tokenizer: Gemma's class, a ``tokenizer.json`` and no SentencePiece file."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    fixed = ["<pad>", "<eos>", "<bos>", "<unk>"]
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=[*fixed, *(f"<0x{byte:02X}>" for byte in range(256))], show_progress=False
    )
    made.train_from_iterator(TEXT.split("\n"), trainer)
    made.post_processor = processors.TemplateProcessing(
        single="$A:0 <eos>", pair="$A:0 $B:1 <eos>", special_tokens=[("<eos>", 1)]
    )
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in fixed])
    made.save(str(folder / "tokenizer.json"))
    named = dict(zip(("pad_token", "eos_token", "bos_token", "unk_token"), fixed, strict=True))
    write_json(folder / "special_tokens_map.json", {key: token(one) for key, one in named.items()})
    added = {str(index): {**token(one), "special": True} for index, one in enumerate(fixed)}
    write_json(
        folder / "tokenizer_config.json",
        {
            **{"add_bos_token": False, "add_eos_token": True, "added_tokens_decoder": added},
            **{"additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"], **named},
            **{"clean_up_tokenization_spaces": False, "do_lower_case": True, "model_input_names": ["input_ids"]},
            **{"model_max_length": 64, "padding_side": "right", "processor_class": "SiglipProcessor"},
            **{"sp_model_kwargs": {}, "spaces_between_special_tokens": False, "tokenizer_class": "GemmaTokenizer"},
            "use_default_system_prompt": False,
        },
    )
    return made.get_vocab_size()


def _write_merges(folder: Path, merges: list[tuple[str, str]]) -> None:
    lines = ["#version: 0.2", *(f"{first} {second}" for first, second in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_bert(folder: Path, processor: str, extra: tuple[str, ...] = ()) -> int:
    """BERT's words with the ids of its special tokens; ``extra`` come after all others. Returns how many."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    fixed = ["[PAD]", *(f"[unused{index}]" for index in range(99)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    signs = sorted({letter for letter in TEXT.lower() if not letter.isspace()})
    plain = [*fixed, *signs, *(f"##{letter}" for letter in signs), *sorted(set(re.findall(r"\w\w+", TEXT.lower())))]
    vocabulary = {word: index for index, word in enumerate(plain)}
    (folder / "vocab.txt").write_text("\n".join(plain) + "\n", encoding="utf-8")
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 101), ("[SEP]", 102)]
    )
    roles = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    special = dict(zip(roles, [fixed[0], *fixed[100:]], strict=True))
    made.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in (*special.values(), *extra)])
    made.save(str(folder / "tokenizer.json"))
    write_json(folder / "special_tokens_map.json", special)
    write_json(
        folder / "tokenizer_config.json",
        {
            **special,
            **{"do_basic_tokenize": True, "do_lower_case": True, "model_max_length": 512, "never_split": None},
            **{"processor_class": processor, "special_tokens_map_file": None, "strip_accents": None},
            **{"tokenize_chinese_chars": True, "tokenizer_class": "BertTokenizer"},
        },
    )
    return made.get_vocab_size()


def write_bytes_bpe(folder: Path, first: tuple[str, ...], last: tuple[str, ...], begins_with: str | None = None) -> int:
    """GPT-2's kind of tokenizer: special tokens before and after the words. Returns how many tokens there are."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(first),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEXT, *TEXT.split()], trainer)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in last])
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    if begins_with is not None:
        at = made.token_to_id(begins_with)
        made.post_processor = processors.TemplateProcessing(
            single=f"{begins_with} $A", pair=f"{begins_with} $A {begins_with} $B", special_tokens=[(begins_with, at)]
        )
    made.save(str(folder / "tokenizer.json"))
    saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    write_json(folder / "vocab.json", saved["vocab"])
    _write_merges(folder, [tuple(merge) for merge in saved["merges"]])
    return made.get_vocab_size()


def write_llama(folder: Path) -> int:
    """Llama's tokenizer with LLaVA's two additions: ``tokenizer.model`` and ``tokenizer.json``."""
    from io import BytesIO

    import sentencepiece
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.split("\n")),
        model_writer=model,
        model_type="bpe",
        vocab_size=900,
        hard_vocab_limit=False,
        **{"byte_fallback": True, "normalization_rule_name": "identity", "num_threads": 1, "minloglevel": 2},
    )
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    read = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = {read.id_to_piece(index): index for index in range(read.get_piece_size())}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces and not piece.startswith("<")
    ]
    made = Tokenizer(models.BPE(pieces, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fixed = ["<unk>", "<s>", "</s>", "<image>", "<pad>"]
    made.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in fixed])
    made.save(str(folder / "tokenizer.json"))
    ids = {one: made.token_to_id(one) for one in fixed}
    write_json(folder / "added_tokens.json", {one: ids[one] for one in fixed[3:]})
    named = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    write_json(folder / "special_tokens_map.json", {key: token(one) for key, one in named.items()})
    write_json(
        folder / "tokenizer_config.json",
        {
            **{"add_bos_token": True, "add_eos_token": False, "add_prefix_space": None},
            "added_tokens_decoder": {str(ids[one]): {**token(one), "special": True} for one in fixed},
            **{**named, "clean_up_tokenization_spaces": False, "extra_special_tokens": {"image_token": "<image>"}},
            **{"image_token": "<image>", "legacy": False, "model_max_length": 1000000000000000019884624838656},
            **{"padding_side": "left", "processor_class": "LlavaProcessor", "sp_model_kwargs": {}},
            **{"tokenizer_class": "LlamaTokenizer", "trust_remote_code": False, "use_default_system_prompt": False},
        },
    )
    return made.get_vocab_size()
