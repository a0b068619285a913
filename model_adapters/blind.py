"""Scorers of captions alone: a language model, or P(t) of a generative model from noise (arXiv:2306.01879, part 4)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from PIL.Image import Image

from ttmbench.errors import UsageError
from ttmbench.model import PairScorer
from ttmbench.model_adapters import visualgpt
from ttmbench.model_adapters._shared.options import BlindOptions, takes
from ttmbench.model_adapters._shared.pair_model import FrozenModel, full_precision
from ttmbench.model_adapters._shared.pretrained import LoadedModel, find, load_part, load_weights, locate

__all__ = ["BlindCaptioner", "BlindLanguageModel", "load", "locate"]
AT_ONCE = 64


@takes(BlindOptions)
def load(asked: BlindOptions) -> BlindLanguageModel | BlindCaptioner:
    """Loads a language model, or a generative model that gets noise for images; errors as for `hf.load`."""
    import transformers

    pretrained = find(asked)
    config = load_part(transformers.AutoConfig, pretrained)
    if hasattr(config, "vision_config"):
        return BlindCaptioner(visualgpt.load(**asked.model_dump()))
    if type(config) in transformers.AutoModelForSeq2SeqLM._model_mapping:
        kind = transformers.AutoModelForSeq2SeqLM
    elif type(config) in transformers.AutoModelForCausalLM._model_mapping or asked.trust_remote_code:
        kind = transformers.AutoModelForCausalLM
    else:
        raise UsageError(f"{asked.pretrained} is of type '{config.model_type}', which writes no text")
    model, tokenizer = load_weights(kind, pretrained), load_part(transformers.AutoTokenizer, pretrained)
    return BlindLanguageModel(LoadedModel(model, pretrained.files, tokenizer), asked)


class BlindScorer(PairScorer):
    """Scores captions alone, each once."""

    blind = True

    def __init__(self) -> None:
        self._known: dict[str, float] = {}

    def score_pairs(self, images: Sequence[Image], captions: Sequence[str]) -> np.ndarray:
        """The score of each caption, whatever the image: float32 [pairs]."""
        new = [caption for caption in dict.fromkeys(captions) if caption not in self._known]
        for start in range(0, len(new), AT_ONCE):
            batch = new[start : start + AT_ONCE]
            self._known.update(zip(batch, self._score(batch).tolist(), strict=True))
        return np.array([self._known[caption] for caption in captions], dtype=np.float32)

    @abstractmethod
    def _score(self, captions: Sequence[str]) -> np.ndarray: ...


class BlindCaptioner(BlindScorer):
    """log P(t) of a generative model, from noise images (Eq. 13)."""

    def __init__(self, captioner: visualgpt.Captioner) -> None:
        super().__init__()
        self.captioner, self.files, self.special_tokens = captioner, captioner.files, captioner.special_tokens

    def fingerprint(self) -> Mapping[str, object]:
        """The model's, without entries that concern scores with an image."""
        entries = {key: value for key, value in self.captioner.fingerprint().items() if key not in ("alpha", "prior")}
        return {**entries, "score": "log P(t) from noise images"}

    def _score(self, captions: Sequence[str]) -> np.ndarray:
        return self.captioner.log_priors(captions)


class BlindLanguageModel(BlindScorer, FrozenModel):
    """Mean log-likelihood of the caption's tokens under a language model, causal or sequence-to-sequence."""

    def __init__(self, loaded: LoadedModel, asked: BlindOptions) -> None:
        BlindScorer.__init__(self)
        FrozenModel.__init__(self, loaded, asked)
        self.tokenizer, self.prompt, self.end_token = loaded.tokenizer, asked.prompt, asked.end_token
        if isinstance(self.model.get_output_embeddings(), torch.nn.Linear):
            full_precision(self.model.get_output_embeddings())

    def fingerprint(self) -> Mapping[str, object]:
        """As for every model, and the text around a caption."""
        return {
            **self._declared,
            "score": "mean log-likelihood of the caption's tokens, without an image",
            "prompt": self.prompt,
            "end_token": self.end_token,
        }

    def _score(self, captions: Sequence[str]) -> np.ndarray:
        ask = self._translate if self.model.config.is_encoder_decoder else self._continue
        with torch.inference_mode(), self.arithmetic():
            logits, ids, scored = ask(captions)
        tokens = logits.float().log_softmax(dim=-1).gather(2, ids[:, :, None])[:, :, 0]
        means = torch.where(scored, tokens, 0).sum(dim=1) / scored.sum(dim=1)
        return means.cpu().numpy()

    def _continue(self, captions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits before every token, the tokens, and which of them are the caption's."""
        before = self._ids(self.prompt) if self.prompt else []
        rows, starts = [], []
        for caption in captions:
            text = self._ids(f"{self.prompt} {caption}" if self.prompt else caption)
            shared = next((i for i, (a, b) in enumerate(zip(before, text, strict=False)) if a != b), len(before))
            rows.append([self._start(), *text] + ([self.tokenizer.eos_token_id] if self.end_token else []))
            starts.append(1 + min(shared, len(text) - 1))
        ids, seen = self._padded(rows)
        position = torch.arange(ids.shape[1], device=self.device)
        scored = (position >= torch.tensor(starts, device=self.device)[:, None]) & (seen == 1)
        logits = self.model(input_ids=ids, attention_mask=seen).logits
        return logits[:, :-1], ids[:, 1:], scored[:, 1:]

    def _translate(self, captions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The same for an encoder-decoder, which reads the prompt and writes the caption as its tokenizer ends it."""
        prompt = self.tokenizer(self.prompt)["input_ids"] or [self._start()]
        source = torch.tensor([prompt] * len(captions), device=self.device)
        labels = [self.tokenizer(caption, return_special_tokens_mask=True) for caption in captions]
        ids, seen = self._padded([label["input_ids"] for label in labels])
        scored = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(label["special_tokens_mask"]) == 0 for label in labels], batch_first=True
        ).to(self.device)
        if self.end_token:
            last = torch.arange(ids.shape[1], device=self.device) == seen.sum(dim=1, keepdim=True) - 1
            scored |= last & (ids == self.tokenizer.eos_token_id)
        start = torch.full_like(ids[:, :1], self.model.config.decoder_start_token_id)
        logits = self.model(
            input_ids=source,
            attention_mask=torch.ones_like(source),
            decoder_input_ids=torch.cat([start, ids[:, :-1]], dim=1),
            decoder_attention_mask=torch.cat([torch.ones_like(start), seen[:, :-1]], dim=1),
        ).logits
        return logits, ids, scored

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _start(self) -> int:
        """The token before a text, so that its first token has a probability too."""
        tokens = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        start = next((token for token in tokens if token is not None), None)
        if start is None:
            raise UsageError(f"the tokenizer of {self.name} has no token to begin a text with")
        return int(start)

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens padded on the right, and the mask over them."""
        pad = self.tokenizer.pad_token_id
        tensors = [torch.tensor(row) for row in rows]
        ids = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=0 if pad is None else pad)
        seen = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in tensors], batch_first=True)
        return ids.to(self.device), seen.to(self.device)
