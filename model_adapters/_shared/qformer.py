"""BLIP-2 and InstructBLIP asked about an image: queries read the image, and a language model continues the question.

The prompts are those of their papers (arXiv:2301.12597, section 4.1; arXiv:2305.06500 as t2v_metrics has it), and
InstructBLIP's queries read the question too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch

from ttmbench.errors import UsageError
from ttmbench.model_adapters._shared.contrastive import PIXELS, key_mask, on_device
from ttmbench.model_adapters._shared.image_text import (
    EncodedImage,
    PreparedImage,
    PromptedModel,
    Row,
    padded,
    refuse_old_transformers,
)
from ttmbench.model_adapters._shared.pretrained import (
    LoadedModel,
    Pretrained,
    load_part,
    load_weights,
    tokenizer_digest,
)
from ttmbench.model_adapters._shared.tokenizers import check_size

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedTokenizerBase

CLASSES = {"blip-2": "Blip2ForConditionalGeneration", "instructblip": "InstructBlipForConditionalGeneration"}
ASKED_QUERIES = "qformer_"  # prefix in a row: tokens of the question that InstructBLIP's queries read
WRITTEN = "decoder_input_ids"


class QFormerModel(PromptedModel):
    """BLIP-2 or InstructBLIP with a language model."""

    answer = "yes"

    def __init__(self, loaded: LoadedModel, device: torch.device) -> None:
        super().__init__(loaded, device)
        self._translates = not self.model.config.use_decoder_only_language_model
        self._reads_question = self.model.config.model_type == "instructblip"

    @property
    def declared(self) -> dict[str, object]:
        """Entries of a fingerprint beside those of every model."""
        if not self._reads_question:
            return {}
        return {"qformer_tokenizer_sha256": tokenizer_digest(self.processor.qformer_tokenizer)}

    def ask(self, question: str, images: int = 1) -> str:
        """The prompt after which the model answers, whose image is not a part of the text."""
        if self._reads_question:
            return f"Question: {question}"
        return f"Question: {question} Short answer:" if self._translates else f"Question: {question} Answer:"

    def with_caption(self, instruction: str, caption: str) -> str | None:
        """The question continued by an answer; None for encoder-decoders."""
        return None if self._translates else f"{self.ask(instruction)} {caption}"

    def prepare(self, images: Sequence[Image]) -> list[PreparedImage]:
        """Preprocesses each image once."""
        pixels = self.processor.image_processor(images=list(images), return_tensors="pt")[PIXELS]
        return [PreparedImage(image, None, {PIXELS: row[None]}) for image, row in zip(images, pixels, strict=True)]

    def row(self, image: PreparedImage, prompt: str) -> Row:
        """A prompt's tokens; the image's queries come before them."""
        if prompt not in image.rows:
            row = self._tokens(self.tokenizer, prompt)
            if self._reads_question:
                asked = self._tokens(self.processor.qformer_tokenizer, prompt)
                row |= {f"{ASKED_QUERIES}{name}": value for name, value in asked.items()}
            if self._translates:
                row[WRITTEN] = torch.tensor([self.model.config.text_config.decoder_start_token_id])
            image.rows[prompt] = row
        return image.rows[prompt]

    def continued(self, row: Row, ids: Sequence[int]) -> Row:
        """A prompt's tokens followed by tokens of the model's own text."""
        tokens = torch.tensor(ids, dtype=row["input_ids"].dtype)
        more = (
            {WRITTEN: tokens} if self._translates else {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        )
        return {**row, **{name: torch.cat([row[name], value]) for name, value in more.items()}}

    def _encoded(self, image: PreparedImage) -> EncodedImage:
        pixels = on_device(image.features[PIXELS], self.device).to(self.model.dtype)
        return EncodedImage(self.model.vision_model(pixel_values=pixels).last_hidden_state, {})

    def last_logits(self, seen: Sequence[EncodedImage], rows: Sequence[Row], count: int) -> torch.Tensor:
        """Next-token logits after the last ``count`` tokens of every row, float32 [rows, count, vocabulary]."""
        tokens = on_device(padded(rows, self._pad), self.device)
        queries = self._queries(torch.cat([image.output for image in seen]), tokens)
        words = self.model.get_input_embeddings()(tokens["input_ids"])
        shown = torch.ones(queries.shape[:2], dtype=torch.long, device=self.device)
        inputs: dict[str, torch.Tensor] = {
            "inputs_embeds": torch.cat([queries.to(words.dtype), words], dim=1),
            "attention_mask": torch.cat([shown, tokens["attention_mask"]], dim=1),
        }
        if self._translates:
            output = self.model.language_model(**inputs, decoder_input_ids=tokens[WRITTEN], use_cache=False)
            return cast(torch.Tensor, output.logits[:, -count:].float())
        states = self.model.language_model.base_model(**inputs, use_cache=False).last_hidden_state
        ends = inputs["attention_mask"].sum(dim=1)  # rows are padded on the right
        places = ends[:, None] + torch.arange(-count, 0, device=self.device)
        wanted = states.gather(1, places[:, :, None].expand(-1, -1, states.shape[-1]))
        return cast(torch.Tensor, self.model.get_output_embeddings()(wanted).float())

    def _queries(self, states: torch.Tensor, tokens: Row) -> torch.Tensor:
        """The language model's input for each image, [rows, queries, width]."""
        model = self.model
        queries = model.query_tokens.expand(len(states), -1, -1)
        count = queries.shape[1]
        options: dict[str, torch.Tensor] = {}
        if self._reads_question:
            mask = tokens[f"{ASKED_QUERIES}attention_mask"]
            options["input_ids"] = tokens[f"{ASKED_QUERIES}input_ids"]
            whole = torch.cat([mask.new_ones(len(states), count), mask], dim=1)
            options["attention_mask"] = key_mask(whole, model.qformer.config)
        read = model.qformer(query_embeds=queries, encoder_hidden_states=states, **options).last_hidden_state[:, :count]
        return model.language_projection(read.to(model.language_projection.weight.dtype))

    def _pad(self, name: str) -> int:
        if not name.endswith("input_ids"):
            return 0
        owner = self.processor.qformer_tokenizer if name.startswith(ASKED_QUERIES) else self.tokenizer
        return int(owner.pad_token_id or 0)

    @staticmethod
    def _tokens(tokenizer: PreTrainedTokenizerBase, prompt: str) -> Row:
        tokens = tokenizer(prompt, return_tensors="pt")
        return {name: tokens[name][0] for name in ("input_ids", "attention_mask")}


def load_qformer(pretrained: Pretrained, family: str, device: torch.device) -> QFormerModel:
    """Loads BLIP-2 or InstructBLIP, a key of `CLASSES`, with its language model.

    Raises:
        DataError: weights out of reach or damaged.
        UsageError: the model has a matching head and no language model.
    """
    import transformers

    processor = load_part(transformers.AutoProcessor, pretrained)
    refuse_old_transformers()
    model = load_weights(getattr(transformers, CLASSES[family]), pretrained)
    if model.get_output_embeddings() is None:
        raise UsageError(f"{pretrained.name} has no language model that could answer")
    if hasattr(processor, "qformer_tokenizer"):
        check_size(processor.qformer_tokenizer, model.config.qformer_config.vocab_size, pretrained.name)
    loaded = LoadedModel(model, pretrained.files, processor.tokenizer, processor.image_processor, processor)
    return QFormerModel(loaded, device)
