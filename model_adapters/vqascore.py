"""VQAScore (arXiv:2404.01291): how likely a model is to say yes when it is asked whether an image shows a caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ttmbench.errors import UsageError
from ttmbench.model_adapters._shared.answers import answer_tokens, log_answers
from ttmbench.model_adapters._shared.contrastive import count_parameters, declared_name, pick_device
from ttmbench.model_adapters._shared.fingerprints import describe_model
from ttmbench.model_adapters._shared.image_text import EncodedImage, ImageTextModel, PreparedImage, load_image_text
from ttmbench.model_adapters._shared.lora import TARGETS, add_lora, merged_state
from ttmbench.model_adapters._shared.pair_model import TrainablePairModel, save_parts
from ttmbench.model_adapters._shared.placement import Placement, own_parameters, refuse_placement
from ttmbench.model_adapters._shared.precision import check_dtype
from ttmbench.model_adapters._shared.pretrained import find, load_config, locate, weights_and_dtype
from ttmbench.model_adapters._shared.qformer import CLASSES, QFormerModel, load_qformer

if TYPE_CHECKING:
    from PIL.Image import Image

TEMPLATE = 'Does this figure show "{caption}"? Please answer yes or no.'
__all__ = ["SCORES", "TEMPLATE", "VQAScore", "load", "locate"]
SCORES = ("log_odds", "probability", "yes_token", "yes_and_end")


def load(
    *,
    pretrained: str,
    revision: str | None = None,
    weights: str = "auto",
    score: str = "log_odds",
    template: str = TEMPLATE,
    lora: int | None = None,
    lora_targets: str = TARGETS,
    weights_dtype: str | None = None,
    split_images: bool | None = None,
    pad_images: bool | None = None,
    attn_implementation: str | None = None,
    device_map: Any = None,
    max_memory: Any = None,
    offload_folder: str | None = None,
    load_in_4bit: bool = False,
    load_in_8bit: bool = False,
    quantization_config: Any = None,
    device: str = "auto",
    dtype: str = "fp32",
    offline: bool = False,
    trust_remote_code: bool = False,
) -> VQAScore:
    """Loads a model that can be asked about an image, from the hub or a folder.

    One with a chat template, or BLIP-2 or InstructBLIP, which are asked in the words of their papers.

    Args:
        pretrained: hub id, or a folder that ``save_pretrained`` wrote.
        revision: commit, tag or branch on the hub.
        weights: ``auto``: safetensors, else a pickle, read as tensors alone; ``safetensors`` refuses pickles.
        score: ``log_odds``, log P(yes) - log P(no); ``probability``, P(yes); or, as t2v_metrics has it, ``yes_token``,
            the probability of the one token "Yes", or ``yes_and_end``, its geometric mean with that of ending there.
        template: the question; ``{caption}`` stands for the caption.
        lora: train factors of this rank instead of all weights.
        lora_targets: regular expression for the names of the layers that get factors.
        weights_dtype: ``fp32``, ``bf16`` or ``fp16``: how they are kept in memory.
        split_images: cut images into tiles or not, where the model can do both.
        pad_images: pad images of LLaVA-1.5 to a square or not; by default what the checkpoint's processor says.
        attn_implementation: ``eager`` or ``sdpa``; by default transformers chooses.
        device_map: spread over devices as accelerate does: ``auto``, or part -> device; models with a chat template.
        max_memory: of ``device_map=auto``: device -> what it may hold.
        offload_folder: for weights that go to the disk.
        load_in_4bit: weights packed by bitsandbytes; models with a chat template, as are the next two.
        load_in_8bit: likewise.
        quantization_config: further settings of either, or of another method (``quant_method``).
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        dtype: of the arithmetic; the last layer and scores are fp32 in any case.
        offline: use what is on this machine only.
        trust_remote_code: run code that the hub repository ships.

    Returns:
        An adapter.

    Raises:
        DataError: the weights are out of reach, damaged, or have tensors missing.
        UsageError: the model cannot be asked, or an argument is wrong.
    """
    check_dtype(dtype)
    if score not in SCORES:
        raise UsageError(f"score '{score}' is unknown; known: {', '.join(SCORES)}")
    if "{caption}" not in template:
        raise UsageError(f"template {template!r} has no {{caption}}")
    placement = Placement.of(
        device=device,
        device_map=device_map,
        max_memory=max_memory,
        offload_folder=offload_folder,
        load_in_4bit=load_in_4bit,
        load_in_8bit=load_in_8bit,
        quantization_config=quantization_config,
    )
    weights, weights_dtype = weights_and_dtype(weights, weights_dtype)
    found = find(pretrained, revision, weights=weights, offline=offline, trust_remote_code=trust_remote_code)
    family = load_config(found).model_type
    where: dict[str, Any] = {
        "device": torch.device(pick_device(device)),
        "weights_dtype": weights_dtype,
        "attn_implementation": attn_implementation,
    }
    chat: ImageTextModel | QFormerModel
    if family in CLASSES:
        if split_images is not None or pad_images is not None:
            raise UsageError(f"{pretrained} neither splits nor pads images; leave split_images and pad_images out")
        refuse_placement(pretrained, placement)
        chat = load_qformer(found, family, **where)
    else:
        chat = load_image_text(found, split_images=split_images, pad_images=pad_images, placement=placement, **where)
    return VQAScore(
        chat,
        name=pretrained,
        score=score,
        template=template,
        device=device,
        dtype=dtype,
        lora=None if lora is None else (lora, lora_targets),
    )


class VQAScore(TrainablePairModel):
    """A model that is asked about pairs, as an adapter."""

    def __init__(
        self,
        chat: ImageTextModel | QFormerModel,
        *,
        name: str,
        score: str = "log_odds",
        template: str = TEMPLATE,
        device: str = "auto",
        dtype: str = "fp32",
        lora: tuple[int, str] | None = None,
    ) -> None:
        super().__init__(chat.model, device=device, dtype=dtype)
        self.chat, self.name, self.score, self.template = chat, name, score, template
        self.yes, self.no = answer_tokens(chat.tokenizer, "yes"), answer_tokens(chat.tokenizer, "no")
        self._answer = self._answer_alone() if score in ("yes_token", "yes_and_end") else []
        self.n_parameters = count_parameters(own_parameters(self.model))
        self.lora = lora
        self.files = chat.files
        self._parts = describe_model(self.model, self.device, processor=chat.processor)
        if lora is not None:
            add_lora(self.model, *lora)

    def fingerprint(self) -> Mapping[str, Any]:
        """Digest of the weights as they were loaded, the question, and the tokens that count as its answers."""
        own: dict[str, Any] = {"answer_ids": self._answer} if self._answer else {}
        if self.lora is not None:
            own |= {"lora_rank": self.lora[0], "lora_targets": self.lora[1]}
        return {
            "pretrained": declared_name(self.name),
            "architecture": type(self.model).__name__,
            "weights_sha256": self.weights_sha256,
            "score": self.score,
            "prompt": self.chat.ask(self.template),
            "yes_tokens": self.yes,
            "no_tokens": self.no,
            "image_processor": type(self.chat.processor.image_processor).__name__,
            "dtype": str(self.dtype).removeprefix("torch."),
            "weights": str(self.model.dtype).removeprefix("torch."),
            "n_parameters": self.n_parameters,
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
