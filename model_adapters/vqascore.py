"""VQAScore (arXiv:2404.01291): how likely a model is to say yes when it is asked whether an image shows a caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ttmbench.errors import UsageError
from ttmbench.model_adapters._shared import options
from ttmbench.model_adapters._shared.answers import answer_tokens, log_answers
from ttmbench.model_adapters._shared.device import pick_device
from ttmbench.model_adapters._shared.fingerprints import describe_model
from ttmbench.model_adapters._shared.image_text import (
    EncodedImage,
    ImageTextModel,
    PreparedImage,
    load_image_text,
    refuse_chat_arguments,
)
from ttmbench.model_adapters._shared.lora import add_lora, merged_state
from ttmbench.model_adapters._shared.options import takes
from ttmbench.model_adapters._shared.pair_model import TrainablePairModel, save_parts
from ttmbench.model_adapters._shared.pretrained import find, load_config, locate
from ttmbench.model_adapters._shared.qformer import CLASSES, QFormerModel, load_qformer

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["VQAScore", "load", "locate"]


@takes(options.VqaScoreOptions)
def load(asked: options.VqaScoreOptions) -> VQAScore:
    """Loads a model that can be asked about an image, from the hub or a folder.

    One with a chat template, or BLIP-2 or InstructBLIP, which are asked in the words of their papers.

    Raises:
        DataError: the weights are out of reach, damaged, or have tensors missing.
        UsageError: the model cannot be asked, or an argument is wrong.
    """
    found = find(asked)
    family = load_config(found).model_type
    if family not in CLASSES:
        return VQAScore(load_image_text(found, asked), asked)
    refuse_chat_arguments(asked)
    return VQAScore(load_qformer(found, family, torch.device(pick_device(asked.device))), asked)


class VQAScore(TrainablePairModel):
    """A model that is asked about pairs, as an adapter."""

    def __init__(self, chat: ImageTextModel | QFormerModel, asked: options.VqaScoreOptions) -> None:
        super().__init__(chat.model, asked, chat.files)
        self.chat, self.score, self.template = chat, asked.score, asked.template
        self.yes, self.no = answer_tokens(chat.tokenizer, "yes"), answer_tokens(chat.tokenizer, "no")
        self._answer = self._answer_alone() if asked.score in ("yes_token", "yes_and_end") else []
        self.lora = None if asked.lora is None else (asked.lora, asked.lora_targets)
        self._parts = describe_model(self.model, self.device, processor=chat.processor)
        if self.lora is not None:
            add_lora(self.model, *self.lora)

    def fingerprint(self) -> Mapping[str, Any]:
        """As for every pair model, the question, and the tokens that count as its answers."""
        own: dict[str, Any] = {"answer_ids": self._answer} if self._answer else {}
        if self.lora is not None:
            own |= {"lora_rank": self.lora[0], "lora_targets": self.lora[1]}
        return {
            **super().fingerprint(),
            "score": self.score,
            "prompt": self.chat.ask(self.template),
            "yes_tokens": self.yes,
            "no_tokens": self.no,
            "image_processor": type(self.chat.processor.image_processor).__name__,
            "weights": str(self.model.dtype).removeprefix("torch."),
            **self._parts,
            **self.chat.declared,
            **own,
        }

    def save_pretrained(self, folder: Path) -> None:
        """Weights and processor, as ``from_pretrained`` loads them; factors are added to the weights."""
        save_parts(folder, self.chat.processor)
        options = {} if self.lora is None else {"state_dict": merged_state(self.model)}
        self.model.save_pretrained(folder, **options)

    def prepare_images(self, images: Sequence[Image]) -> list[PreparedImage]:
        """The processor's own preprocessing of each image."""
        return self.chat.prepare(images)

    def prepare_captions(self, captions: Sequence[str]) -> list[str]:
        """The prompts that ask for each caption; how many tokens an image has in them, the image says."""
        return [self.chat.ask(self.template.replace("{caption}", caption)) for caption in captions]

    def encode_images(self, prepared: Any) -> list[tuple[PreparedImage, EncodedImage]]:
        """Each image with what the vision encoder gives of it."""
        self.model.eval()
        with self.arithmetic():
            return list(zip(prepared, self.chat.see(prepared), strict=True))

    def score_prepared(self, images: Any, captions: Any) -> np.ndarray:
        """The score as it was asked for, float32 [pairs]."""
        prepared, seen = [image for image, _ in images], [encoded for _, encoded in images]
        if self._answer:
            chosen = self._answer_probability(prepared, seen, captions)
        else:
            answers = self._log_answers(prepared, seen, captions)
            chosen = answers[:, 0] - answers[:, 1] if self.score == "log_odds" else answers[:, 0].exp()
        scores: np.ndarray = chosen.float().cpu().numpy()
        return scores

    def pair_loss(self, images: Any, captions: Any, matched: np.ndarray) -> torch.Tensor:
        """Cross-entropy of answering yes to what matches and no to what does not, over the whole vocabulary.

        Raises:
            UsageError: arithmetic or trained weights are in half precision that cannot train.
        """
        self.check_trainable()
        if self.lora is None and self.model.dtype != torch.float32:
            raise UsageError("weights in half precision are too coarse to train; use weights_dtype=fp32 or lora=16")
        self.model.train()
        with self.arithmetic():
            seen = self.chat.see(images)
        answers = self._log_answers(images, seen, captions)
        wanted = torch.from_numpy(np.where(matched, 0, 1)).to(self.device)
        return -answers.gather(1, wanted[:, None]).mean()

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """What is trained: all weights, or the factors beside them."""
        if self.lora is None:
            return super().state_dict()
        return {name: tensor for name, tensor in self.model.named_parameters() if tensor.requires_grad}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Puts weights back."""
        self.model.load_state_dict(state, strict=self.lora is None)

    def _answer_alone(self) -> list[int]:
        """The token "Yes" after the prompt ("yes" of BLIP-2's kin), and the one that ends it if that counts too."""
        ids = self.chat.answer_ids(self.chat.answer)
        if ids is None or len(ids) != 1:
            raise UsageError(
                f"score={self.score}: '{self.chat.answer}' is no single token after the prompt of {self.name}; "
                "score=probability sums every token that says yes"
            )
        return ids + ([int(self.chat.tokenizer.eos_token_id)] if self.score == "yes_and_end" else [])

    def _answer_probability(
        self, images: Sequence[PreparedImage], seen: Sequence[EncodedImage], prompts: Sequence[str]
    ) -> torch.Tensor:
        """The geometric mean of the answer's tokens, each given those before it; of one token its probability."""
        rows = [
            self.chat.continued(self.chat.row(image, prompt), self._answer[:-1])
            for image, prompt in zip(images, prompts, strict=True)
        ]
        with self.arithmetic():
            logs = self.chat.last_logits(seen, rows, len(self._answer)).log_softmax(dim=-1)
        return torch.stack([logs[:, place, token] for place, token in enumerate(self._answer)]).mean(dim=0).exp()

    def _log_answers(
        self, images: Sequence[PreparedImage], seen: Sequence[EncodedImage], prompts: Sequence[str]
    ) -> torch.Tensor:
        rows = [self.chat.row(image, prompt) for image, prompt in zip(images, prompts, strict=True)]
        with self.arithmetic():
            logits = self.chat.last_logits(seen, rows, 1)[:, 0]
        return log_answers(logits, list(self.yes.values()), list(self.no.values()))
