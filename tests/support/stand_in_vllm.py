"""A stand-in for the package vllm: its documented offline API over a tiny model of transformers.

As in vLLM 0.24 to 0.33: ``LLM(model, ...)``, ``generate`` of tokens with images, ``SamplingParams`` with
``logprob_token_ids`` and ``prompt_logprobs``, structured outputs that name choices, and a prefix cache of blocks of 16
tokens, which a request for ``prompt_logprobs`` does not read.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import sys
from dataclasses import dataclass
from types import ModuleType

import torch

BLOCK = 16
_ENGINE_ARGUMENTS = {
    *("enable_prefix_caching", "max_model_len", "enforce_eager", "max_logprobs", "limit_mm_per_prompt", "seed"),
    *("tensor_parallel_size", "gpu_memory_utilization", "quantization", "trust_remote_code"),
}


class VLLMValidationError(ValueError):
    """As vLLM's."""


@dataclass
class StructuredOutputsParams:
    choice: list[str] | None = None
    regex: str | None = None

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.choice, self.regex)) != 1 or self.choice == []:
            raise VLLMValidationError("You must use one kind of structured outputs constraint")


@dataclass
class SamplingParams:
    temperature: float = 1.0
    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    detokenize: bool = True
    structured_outputs: StructuredOutputsParams | None = None
    skip_reading_prefix_cache: bool | None = None

    def __post_init__(self) -> None:
        if self.skip_reading_prefix_cache is None:
            self.skip_reading_prefix_cache = self.prompt_logprobs is not None


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None


@dataclass
class RequestOutput:
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    num_cached_tokens: int


class LLM:
    """An engine."""

    def __init__(self, model: str, *, dtype: str = "auto", **arguments: object) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        unknown = set(arguments) - _ENGINE_ARGUMENTS
        if unknown:
            raise TypeError(f"EngineArgs.__init__() got an unexpected keyword argument '{min(unknown)}'")
        self.arguments = {"dtype": dtype, **arguments}
        self.processor = AutoProcessor.from_pretrained(model)
        self.own = AutoModelForImageTextToText.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
        self.blocks: set[tuple[object, ...]] = set()
        self.outputs: list[RequestOutput] = []

    def generate(self, prompts, sampling_params=None, *, use_tqdm=True) -> list[RequestOutput]:
        made = [self._one(prompt, asked) for prompt, asked in zip(prompts, sampling_params, strict=True)]
        self.outputs += made
        return made

    def _one(self, prompt, asked) -> RequestOutput:
        images = prompt["multi_modal_data"]["image"]
        row, features = self._expanded(prompt["prompt_token_ids"], images)
        ids = row["input_ids"]
        longest = self.arguments.get("max_model_len")
        if longest is not None and len(ids) >= longest:
            raise VLLMValidationError(
                f"The decoder prompt (length {len(ids)}) is longer than the maximum model length of {longest}."
            )
        cached = 0 if asked.skip_reading_prefix_cache else self._cached(ids, images)
        self._keep(ids, images)
        logs = self._logs(row, features)
        places = None
        if asked.prompt_logprobs is not None:
            before = zip(ids[1:].tolist(), logs[:-1], strict=True)
            places = [None, *({token: Logprob(float(log[token]))} for token, log in before)]
        tokens, listed = [], []
        while len(tokens) < asked.max_tokens:
            last, allowed = logs[-1], self._allowed(asked, tokens)
            token = int(last.argmax()) if allowed is None else max(allowed, key=lambda one: float(last[one]))
            tokens.append(token)
            wanted = {token, *(asked.logprob_token_ids or ())}
            listed.append({one: Logprob(float(last[one])) for one in wanted})
            if token == self.processor.tokenizer.eos_token_id or len(tokens) == asked.max_tokens:
                break
            row = {name: torch.cat([value, value[-1:]]) for name, value in row.items()}
            row["input_ids"][-1] = token
            logs = self._logs(row, features)
        text = self.processor.tokenizer.decode(tokens, skip_special_tokens=True) if asked.detokenize else ""
        told = listed if asked.logprob_token_ids or asked.logprobs is not None else None
        return RequestOutput(ids.tolist(), places, [CompletionOutput(text, tokens, told)], cached)

    def _expanded(self, ids, images):
        """The prompt with as many placeholders an image as it has features, and the inputs of the vision encoder."""
        mark = self.processor.image_token
        token, images = self.processor.tokenizer.convert_tokens_to_ids(mark), list(images)
        parts, features, shown = [], [], iter(images)
        for one in ids:
            if one != token:
                parts.append({"input_ids": torch.tensor([one])})
                continue
            made = self.processor(text=mark, images=[next(shown)], add_special_tokens=False, return_tensors="pt")
            length = made["input_ids"].shape
            parts.append({name: value[0] for name, value in made.items() if value.shape == length})
            features.append({name: value for name, value in made.items() if value.shape != length})
        assert next(shown, None) is None, "every image has its place"
        names = set().union(*parts)
        filled = [
            {name: part.get(name, torch.full_like(part["input_ids"], name == "attention_mask")) for name in names}
            for part in parts
        ]
        joined = {name: torch.cat([value[name] for value in features]) for name in features[0]}
        return {name: torch.cat([part[name] for part in filled]) for name in names}, joined

    def _logs(self, row, features) -> torch.Tensor:
        dtype = self.own.dtype
        pixels = {name: value.to(dtype) if value.is_floating_point() else value for name, value in features.items()}
        with torch.no_grad():
            logits = self.own(**{name: value[None] for name, value in row.items()}, **pixels).logits[0]
        return logits.float().log_softmax(dim=-1)

    def _allowed(self, asked, tokens) -> set[int] | None:
        if asked.structured_outputs is None:
            return None
        words, end = self.processor.tokenizer, self.processor.tokenizer.eos_token_id
        choices = [
            [*words(text, add_special_tokens=False)["input_ids"], end] for text in asked.structured_outputs.choice
        ]
        return {one[len(tokens)] for one in choices if one[: len(tokens)] == tokens}

    def _keys(self, ids, images) -> list[tuple[object, ...]]:
        shown = tuple(hashlib.sha256(image.tobytes()).hexdigest() for image in images)
        return [(shown, *ids[:end].tolist()) for end in range(BLOCK, len(ids), BLOCK)]

    def _cached(self, ids, images) -> int:
        return BLOCK * sum(key in self.blocks for key in self._keys(ids, images))

    def _keep(self, ids, images) -> None:
        self.blocks.update(self._keys(ids, images))


def install(monkeypatch, engine: type = LLM) -> list[LLM]:
    """Makes ``import vllm`` give the stand-in; the list fills with the engines that are started."""
    started: list[LLM] = []

    def start(*words: object, **names: object) -> LLM:
        started.append(engine(*words, **names))
        return started[-1]

    package, inner = ModuleType("vllm"), ModuleType("vllm.sampling_params")
    package.__spec__ = importlib.machinery.ModuleSpec("vllm", None)
    vars(package).update(LLM=start, SamplingParams=SamplingParams, __version__="0.30.0", sampling_params=inner)
    vars(inner).update(SamplingParams=SamplingParams, StructuredOutputsParams=StructuredOutputsParams)
    monkeypatch.setitem(sys.modules, "vllm", package)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", inner)
    return started
