"""Forced choices in words of a model with a chat template, by greedy generation.

Questions are asked one by one, without padding, so that no answer depends on the other questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from ttmbench.errors import UsageError
from ttmbench.model import ChoiceModel, ChoiceQuestion, ChoiceStyle
from ttmbench.model_adapters._shared.image_text import ImageTextModel, load_image_text
from ttmbench.model_adapters._shared.options import ChoiceOptions, takes
from ttmbench.model_adapters._shared.pair_model import FrozenModel
from ttmbench.model_adapters._shared.pretrained import find, locate

if TYPE_CHECKING:
    from transformers import GenerationConfig

__all__ = ["ChatChooser", "load", "locate"]


@takes(ChoiceOptions)
def load(asked: ChoiceOptions) -> ChatChooser:
    """Loads a model that answers forced choices, from the Hub or a folder; errors as for `hf.load`."""
    return ChatChooser(load_image_text(find(asked), asked, encodes=False), asked)


class ChatChooser(FrozenModel, ChoiceModel):
    """Forced choices of an image-text-to-text model, whose generation settings are replaced."""

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
            **self._declared,
            "scorer": "choice",
            "order": self.choice_style.order,
            "side_by_side": self.choice_style.side_by_side,
            "decoding": "greedy",
            "max_tokens": self.max_tokens,
            **({"constrained": True} if self.asked.constrained else {}),
            "prompt": self.chat.ask("{question}"),
            "image_processor": type(self.chat.processor.image_processor).__name__,
        }

    def answer(self, questions: Sequence[ChoiceQuestion]) -> list[str | None]:
        """One text a question, without special tokens; UsageError for several images, or options that begin alike."""
        return [self._answer(question) for question in questions]

    def _answer(self, question: ChoiceQuestion) -> str:
        inputs = self.chat.show_several(question.prompt, list(question.images)).to(self.device, self.model.dtype)
        self.chat.tokens_read += inputs["input_ids"].shape[1]
        options = self._options(question) if self.asked.constrained else []
        first = {"max_new_tokens": 1, "output_logits": True, "return_dict_in_generate": True} if options else {}
        with torch.inference_mode(), self.arithmetic():
            made = self.model.generate(**inputs, **first)
        if options:
            return question.options[int(made.logits[0][0].float().cpu()[options].argmax())]
        tokens = made[0, inputs["input_ids"].shape[1] :]
        return str(self.chat.tokenizer.decode(tokens, skip_special_tokens=True)).strip()

    def _options(self, question: ChoiceQuestion) -> list[int]:
        """The token that each option begins with."""
        tokens = [self.chat.tokenizer(text, add_special_tokens=False)["input_ids"][0] for text in question.options]
        if len(set(tokens)) < len(question.options) or not tokens:
            raise UsageError(
                f"constrained: the tokens of {self.name} do not tell the options {', '.join(question.options)} apart; "
                "omit it"
            )
        return [int(token) for token in tokens]


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
