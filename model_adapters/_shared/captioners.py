"""VisualGPTScore by BLIP's captioner, by BLIP-2 and by models with a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ttmbench.model_adapters._shared.captioning import CaptionModel, kept
from ttmbench.model_adapters._shared.contrastive import PIXELS
from ttmbench.model_adapters._shared.image_text import EncodedImage, ImageTextModel, PreparedImage, Row
from ttmbench.model_adapters._shared.options import VisualGptOptions
from ttmbench.model_adapters._shared.pair_model import full_precision
from ttmbench.types import ModelFiles

if TYPE_CHECKING:
    from PIL.Image import Image

Tokens = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class _FixedImages(CaptionModel):
    """What BLIP and BLIP-2 share: images of one size, and a tokenizer of their own."""

    def __init__(
        self, model: Any, tokenizer: Any, image_processor: Any, asked: VisualGptOptions, files: ModelFiles | None = None
    ) -> None:
        super().__init__(model, (tokenizer, image_processor), asked, files)
        self.tokenizer, self.image_processor = tokenizer, image_processor
        full_precision(self._head())

    def _head(self) -> torch.nn.Linear:
        head: torch.nn.Linear = self.model.get_output_embeddings()
        return head

    def prepare_images(self, images: Sequence[Image]) -> torch.Tensor:
        """The model's own preprocessing: normalised pixels [images, channels, height, width]."""
        pixels: torch.Tensor = self.image_processor(images=list(images), return_tensors="pt")[PIXELS]
        return pixels

    def _place(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.to(self.device, self.model.dtype, non_blocking=True)

    def _with_pixels(self, prepared: Any, draw: Any) -> Any:
        return draw(prepared.shape)

    def _tokens(self, texts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens, attention mask and which tokens are a text's own (not put around it), padded on the right."""
        found = self.tokenizer(
            list(texts),
            padding="longest",
            padding_side="right",
            return_special_tokens_mask=True,
            return_tensors="pt",
        ).to(self.device)
        return found["input_ids"], found["attention_mask"], found["special_tokens_mask"] == 0

    def _prompted(self, captions: Sequence[str]) -> tuple[list[str], int]:
        """Captions with the prompt before them, and how many tokens of each are the prompt's."""
        if not self.prompt:
            return list(captions), 0
        return [f"{self.prompt} {caption}" for caption in captions], int(self._tokens([self.prompt])[2].sum())


class BlipCaptioner(_FixedImages):
    """BLIP (arXiv:2201.12086): a text decoder that attends to the image's states in every layer."""

    def _head(self) -> torch.nn.Linear:
        head: torch.nn.Linear = self.model.text_decoder.get_output_embeddings()
        return head

    def _see(self, prepared: Any) -> torch.Tensor:
        states: torch.Tensor = self.model.vision_model(pixel_values=self._place(prepared)).last_hidden_state
        return states

    def _next_tokens(self, images: Any, captions: Sequence[str]) -> Tokens:
        texts, before = self._prompted(captions)
        ids, seen, own = self._tokens(texts)
        # Decoding starts with the decoder's own first token where the tokenizer puts [CLS].
        ids[:, 0] = self.model.config.text_config.bos_token_id
        place = torch.arange(ids.shape[1], device=ids.device)
        scored = own & (place > before)
        if self.end_token:
            scored |= (ids == self.tokenizer.sep_token_id) & (seen == 1)
        mask, targets, rows = kept(ids, scored)
        logits = self.model.text_decoder(input_ids=ids, attention_mask=seen, encoder_hidden_states=images).logits
        return logits[:, :-1][mask], targets, rows


class Blip2Captioner(_FixedImages):
    """BLIP-2 (arXiv:2301.12597): a language model that reads the Q-Former's states before the text."""

    def _see(self, prepared: Any) -> torch.Tensor:
        features: torch.Tensor = self.model.get_image_features(self._place(prepared), return_dict=True).pooler_output
        return features

    def _next_tokens(self, images: Any, captions: Sequence[str]) -> Tokens:
        if self.model.config.use_decoder_only_language_model:
            return self._decoded(images, captions)
        return self._translated(images, captions)

    def _decoded(self, images: torch.Tensor, captions: Sequence[str]) -> Tokens:
        texts, before = self._prompted(captions)
        ids, seen, own = self._tokens(texts)
        first = int(own[0].int().argmax())  # tokens that are put before a text
        place = torch.arange(ids.shape[1], device=ids.device)
        scored = own & (place >= first + before)
        if self.end_token:
            ids, seen, scored = self._ended(ids, seen, scored)
        states, mask = self._behind_image(images, ids, seen)
        logits = self.model.language_model(inputs_embeds=states, attention_mask=mask).logits
        # The image's last state predicts the first token.
        wanted, rows = ids[scored], scored.nonzero()[:, 0]
        return logits[:, images.shape[1] - 1 : -1][scored], wanted, rows

    def _ended(self, ids: torch.Tensor, seen: torch.Tensor, scored: torch.Tensor) -> Tokens:
        length = seen.sum(dim=1, keepdim=True)
        room = torch.zeros_like(ids[:, :1])
        ids = torch.cat([ids, room], dim=1).scatter(1, length, self.tokenizer.eos_token_id)
        seen = torch.cat([seen, room], dim=1).scatter(1, length, 1)
        return ids, seen, torch.cat([scored, room.bool()], dim=1).scatter(1, length, True)

    def _translated(self, images: torch.Tensor, captions: Sequence[str]) -> Tokens:
        ids, seen, _ = self._tokens([self.prompt] * len(captions))
        states, mask = self._behind_image(images, ids, seen)
        labels, given, own = self._tokens(captions)
        scored = (own | (labels == self.tokenizer.eos_token_id)) & (given == 1) if self.end_token else own
        start = torch.full_like(labels[:, :1], self.model.config.text_config.decoder_start_token_id)
        logits = self.model.language_model(
            inputs_embeds=states,
            attention_mask=mask,
            decoder_input_ids=torch.cat([start, labels[:, :-1]], dim=1),
            decoder_attention_mask=torch.cat([torch.ones_like(start), given[:, :-1]], dim=1),
        ).logits
        return logits[scored], labels[scored], scored.nonzero()[:, 0]

    def _behind_image(
        self, images: torch.Tensor, ids: torch.Tensor, seen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        words = self.model.get_input_embeddings()(ids)
        return (
            torch.cat([images.to(words.dtype), words], dim=1),
            torch.cat([torch.ones(images.shape[:2], dtype=seen.dtype, device=seen.device), seen], dim=1),
        )


class ChatCaptioner(CaptionModel):
    """A model with a chat template: the caption as what it says after the image."""

    def __init__(self, chat: ImageTextModel, asked: VisualGptOptions) -> None:
        super().__init__(chat.model, (chat.processor,), asked, chat.files)
        self.chat = chat
        doubles = hasattr(chat.model.config.vision_config, "temporal_patch_size")
        self._frames = int(chat.processor.image_processor.temporal_patch_size) if doubles else 1

    def fingerprint(self) -> Mapping[str, Any]:
        """As for every model that writes captions, and that noise is an image where a model takes it as a film."""
        own = {} if self._frames == 1 else {"noise_frames": f"{self._frames}, equal"}
        return {**super().fingerprint(), **own}

    def declared_prompt(self) -> str:
        """The whole prompt, as the template makes it."""
        return self.chat.before_caption(self.prompt)

    def prepare_images(self, images: Sequence[Image]) -> list[PreparedImage]:
        """The processor's own preprocessing of each image."""
        return self.chat.prepare(images)

    def _see(self, prepared: Any) -> list[tuple[PreparedImage, EncodedImage]]:
        return list(zip(prepared, self.chat.see(prepared), strict=True))

    def _with_pixels(self, prepared: Any, draw: Any) -> Any:
        (image,) = prepared
        shape = image.features[PIXELS].shape
        if self._frames == 1:
            pixels = draw(shape)
        else:  # rows of patches, each (channels, frames, pixels): an image is shown as equal frames, so noise is too
            channels = len(self.chat.processor.image_processor.image_mean)
            one = draw((shape[0], channels, 1, shape[1] // (channels * self._frames)))
            pixels = one.expand(-1, -1, self._frames, -1).reshape(shape)
        return [replace(image, features={**image.features, PIXELS: pixels})]

    def _next_tokens(self, images: Any, captions: Sequence[str]) -> Tokens:
        rows, masks = [], []
        for (image, _), caption in zip(images, captions, strict=True):
            row, before = self._row(image, caption)
            rows.append(row)
            masks.append(torch.arange(len(row["input_ids"])) >= before)
        logits = self.chat.logits([seen for _, seen in images], rows, [_predicting(mask) for mask in masks])
        targets = torch.cat([row["input_ids"][mask] for row, mask in zip(rows, masks, strict=True)])
        pairs = torch.cat([torch.full((int(mask.sum()),), place) for place, mask in enumerate(masks)])
        return logits, targets.to(self.device), pairs.to(self.device)

    def _row(self, image: PreparedImage, caption: str) -> tuple[Row, int]:
        """The prompt with the caption, and where the caption begins."""
        prompt = self.chat.row(image, self.chat.before_caption(self.prompt))
        whole = self.chat.with_caption(self.prompt, caption)
        ids = prompt["input_ids"]
        if whole is not None:
            row = self.chat.row(image, whole)
            shared = min(len(ids), len(row["input_ids"]) - 1)
            differs = (ids[:shared] != row["input_ids"][:shared]).nonzero()
            before = int(differs[0]) if len(differs) else shared
        else:
            own = self.chat.tokenizer(caption, add_special_tokens=False)["input_ids"]
            row, before = self.chat.continued(prompt, own), len(ids)
        if self.end_token:
            row = self.chat.continued(row, [self.chat.tokenizer.eos_token_id])
        return row, before


def _predicting(scored: torch.Tensor) -> torch.Tensor:
    """The positions whose logits predict the scored tokens: one to the left."""
    return torch.cat([scored[1:], scored.new_zeros(1)])
