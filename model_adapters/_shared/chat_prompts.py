"""Prompts of chat models, by the chat templates and tokenizers of transformers: the model itself is not needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from ttmbench.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

# Models without a chat template: the text before a question, and the request for a caption.
PREFIXES = {"paligemma": ("answer en ", "caption en")}
JOINED = "--model_args side_by_side=true joins them into one"


class Prompts(ABC):
    """How a model is asked."""

    answer = "Yes"  # as the model was taught to write it
    tokenizer: PreTrainedTokenizerBase

    @abstractmethod
    def ask(self, question: str, images: int = 1) -> str:
        """The prompt that shows the images and asks: the model's next token begins its answer."""

    @abstractmethod
    def with_caption(self, instruction: str, caption: str) -> str | None:
        """The prompt continued by the model's own text; None where the prompt cannot contain it."""

    def answer_ids(self, answer: str) -> list[int] | None:
        """The tokens of an answer where the model's turn begins with it; None if it changes the prompt's own tokens."""
        asked, whole = self.ask("?"), self.with_caption("?", answer)
        if whole is None:
            return [int(token) for token in self.tokenizer(answer, add_special_tokens=False)["input_ids"]]
        before, both = (self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (asked, whole))
        return [int(token) for token in both[len(before) :]] if both[: len(before)] == before else None


class ChatPrompts(Prompts):
    """Prompts of an image-text-to-text model with a chat template, or of one of `PREFIXES`.

    Attributes:
        processor: of transformers.
        kind: the model's type.
        architecture: its class, for messages.
        template_kwargs: variables of the chat template.
    """

    processor: ProcessorMixin
    kind: str
    architecture: str
    template_kwargs: Mapping[str, object] = MappingProxyType({})

    def check_prompts(self) -> None:
        """UsageError for a model that cannot be asked."""
        if not self.processor.chat_template and self.kind not in PREFIXES:
            raise UsageError(f"{self.architecture} has no chat template, so it is not known how to ask it")

    def ask(self, question: str, images: int = 1) -> str:
        """The prompt that shows the images and asks: the model's next token begins its answer."""
        if not self.processor.chat_template:
            return f"{self.processor.image_token * images}{PREFIXES[self.kind][0]}{question}"
        return self._render(question, images=images)

    def ask_several(self, question: str, images: int) -> str:
        """As `ask`; UsageError if the template shows fewer images."""
        if images == 1:
            return self.ask(question)
        refused = f"{self.architecture} cannot be shown {images} images at once"
        try:
            asked = self.ask(question, images)
            marks = asked.count(getattr(self.processor, "image_token", None) or "\0")
            counted = marks == images if marks else asked != self.ask(question, images - 1)
        except UsageError as error:
            raise UsageError(f"{refused}: {error}; {JOINED}") from error
        if not counted:
            raise UsageError(f"{refused}: its chat template shows fewer; {JOINED}")
        return asked

    def before_caption(self, instruction: str) -> str:
        """The prompt that shows the image, after which a caption may follow."""
        if not self.processor.chat_template:
            return f"{self.processor.image_token}{instruction or PREFIXES[self.kind][1]}"
        return self._render(instruction)

    def with_caption(self, instruction: str, caption: str) -> str | None:
        """The same with the caption as the model's turn, left open; None where no template can say that."""
        if not self.processor.chat_template:
            return None
        try:
            return self._render(instruction, caption)
        except UsageError:
            return None

    def special_tokens(self, prompt: str) -> dict[str, bool]:
        """Options of the tokenizer for a prompt: one that begins with the first token would get it twice."""
        bos = self.tokenizer.bos_token
        return {"add_special_tokens": False} if bos and prompt.startswith(bos) else {}

    def _render(self, question: str, answer: str | None = None, images: int = 1) -> str:
        content: list[dict[str, str]] = [{"type": "image"} for _ in range(images)]
        if question:
            content.append({"type": "text", "text": question})
        turns: list[dict[str, object]] = [{"role": "user", "content": content}]
        if answer is not None:
            turns.append({"role": "assistant", "content": [{"type": "text", "text": answer}]})
        last = {"add_generation_prompt": True} if answer is None else {"continue_final_message": True}
        try:
            prompt: str = self.processor.apply_chat_template(turns, tokenize=False, **last, **self.template_kwargs)
        except Exception as error:  # templates are programs of their own, which may refuse in any way
            raise UsageError(f"the chat template of {self.architecture} refused: {error}") from error
        return prompt
