"""Forced choices in words of a model with a chat template, by greedy generation.

Questions are asked one by one, without padding, so that no answer depends on the other questions, unless the user asks
for batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from ttmbench.errors import UsageError
from ttmbench.model_adapters._shared.image_text import (
    JOINED,
    ImageTextModel,
    load_image_text,
    own_forward_fails,
    padded,
)
from ttmbench.model_adapters._shared.options import ChoiceOptions, takes
from ttmbench.model_adapters._shared.pair_model import FrozenModel
from ttmbench.model_adapters._shared.pretrained import find, locate
from ttmbench.protocols import ChoiceQuestion, ChoiceStyle

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import BatchFeature, GenerationConfig

__all__ = ["ChatChooser", "load", "locate"]


@takes(ChoiceOptions)
def load(asked: ChoiceOptions) -> ChatChooser:
    """Loads a model that answers forced choices, from the Hub or a folder; errors as for `hf.load`."""
    return ChatChooser(load_image_text(find(asked), asked, encodes=False), asked)


class ChatChooser(FrozenModel):
    """A `ChoiceScorer` over an image-text-to-text model, whose generation settings are replaced."""

    def __init__(self, chat: ImageTextModel, asked: ChoiceOptions) -> None:
        if not chat.processor.chat_template:
            raise UsageError(f"{asked.pretrained} has no chat template, so it is not known how to ask it")
        super().__init__(chat.loaded, asked)
        self.chat, self.asked, self.max_tokens = chat, asked, asked.max_tokens
        self.choice_style = ChoiceStyle(asked.order, asked.side_by_side)
        chat.model.generation_config = _greedy(chat, asked.max_tokens)

    def fingerprint(self) -> Mapping[str, object]:
        """As for every model, and what else changes an answer; the questions are in the results under ``choice``."""
        return {
            **super().fingerprint(),
            "scorer": "choice",
            "order": self.choice_style.order,
            "side_by_side": self.choice_style.side_by_side,
            "decoding": "greedy",
            "max_tokens": self.max_tokens,
            **{name: True for name in ("constrained", "batched") if getattr(self.asked, name)},
            "prompt": self.chat.ask("{question}"),
            "image_processor": type(self.chat.processor.image_processor).__name__,
        }

    def answer(self, questions: Sequence[ChoiceQuestion]) -> list[str | None]:
        """One text a question, without special tokens and the space around it.

        Raises:
            UsageError: the template or the processor cannot show several images, or options cannot be distinguished.
        """
        if not self.asked.batched:
            return [self._answers([self._inputs(one.prompt, list(one.images))], [one])[0] for one in questions]
        inputs = [self._inputs(question.prompt, list(question.images)) for question in questions]
        answers: list[str | None] = [None] * len(questions)
        for members in _together(inputs):
            found = self._answers([inputs[at] for at in members], [questions[at] for at in members])
            for at, text in zip(members, found, strict=True):
                answers[at] = text
        return answers

    def _answers(self, inputs: Sequence[BatchFeature], questions: Sequence[ChoiceQuestion]) -> list[str]:
        """Answers to questions whose inputs go together."""
        self.chat.tokens_read += sum(one["input_ids"].shape[1] for one in inputs)
        whole = inputs[0] if len(inputs) == 1 else self._joined(inputs)
        whole = whole.to(self.device, self.model.dtype)  # whole numbers stay what they are
        chosen = [self._options(question) for question in questions] if self.asked.constrained else []
        first = {"max_new_tokens": 1, "output_logits": True, "return_dict_in_generate": True} if chosen else {}
        with torch.inference_mode(), self.arithmetic():
            try:
                made = self.model.generate(**whole, **first)
            except AttributeError as error:  # as for scores (Llama 4)
                raise own_forward_fails(self.chat.architecture, error) from error
        if not chosen:
            tokens = made[:, whole["input_ids"].shape[1] :]
            return [self.chat.tokenizer.decode(row, skip_special_tokens=True).strip() for row in tokens]
        logits = made.logits[0].float().cpu()
        best = [int(row[tokens].argmax()) for row, tokens in zip(logits, chosen, strict=True)]
        return [question.options[option] for question, option in zip(questions, best, strict=True)]

    def _options(self, question: ChoiceQuestion) -> list[int]:
        """The token that each option begins with."""
        tokens = [self.chat.tokenizer(text, add_special_tokens=False)["input_ids"][0] for text in question.options]
        if len(set(tokens)) < len(question.options) or not tokens:
            raise UsageError(
                f"constrained: the tokens of {self.name} do not tell the options {', '.join(question.options)} apart; "
                "omit it"
            )
        return [int(token) for token in tokens]

    def _joined(self, inputs: Sequence[BatchFeature]) -> BatchFeature:
        """Inputs of several questions as one batch, tokens padded on the left."""
        length = [one["input_ids"].shape for one in inputs]
        words = [name for name, value in inputs[0].items() if value.shape == length[0]]
        pad = self.model.generation_config.pad_token_id or 0
        rows = [{name: one[name][0] for name in words} for one in inputs]
        tokens = padded(rows, lambda name: pad if name == "input_ids" else 0, "left")
        shown = {name: torch.cat([one[name] for one in inputs]) for name in inputs[0] if name not in words}
        return type(inputs[0])({**tokens, **shown})

    def _inputs(self, prompt: str, images: Sequence[Image]) -> BatchFeature:
        asked = self.chat.ask_several(prompt, len(images))
        try:
            return self.chat.process(asked, images)
        except Exception as error:  # processors refuse in many ways
            if len(images) == 1:
                raise
            refused = f"{self.chat.architecture} cannot be shown {len(images)} images at once"
            raise UsageError(f"{refused}: {error}; {JOINED}") from error


def _together(inputs: Sequence[BatchFeature]) -> list[list[int]]:
    """Numbers of questions whose images can be one batch, since they differ in their number of rows alone."""
    alike: dict[object, list[int]] = {}
    for at, one in enumerate(inputs):
        length = one["input_ids"].shape
        key = tuple((name, None if value.shape == length else value.shape[1:]) for name, value in one.items())
        alike.setdefault(key, []).append(at)
    return list(alike.values())


def _greedy(chat: ImageTextModel, max_tokens: int) -> GenerationConfig:
    """Greedy decoding; of the model's own generation settings only its special tokens apply."""
    from transformers import GenerationConfig

    config, tokenizer = chat.model.generation_config, chat.tokenizer
    ends = tokenizer.eos_token_id if config.eos_token_id is None else config.eos_token_id
    first_end = ends[0] if isinstance(ends, list) else ends
    pads = next((pad for pad in (config.pad_token_id, tokenizer.pad_token_id, first_end) if pad is not None), None)
    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=max_tokens,
        bos_token_id=config.bos_token_id,
        eos_token_id=ends,
        pad_token_id=pads,
    )
