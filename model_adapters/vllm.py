"""Chat models in vLLM's engine, in this process: VQAScore, VisualGPTScore, or forced choices.

The engine batches and schedules by itself, and keeps what prompts begin with: an image is read once for all its
questions. It starts when the first prompt comes, so that stored scores need none. A caption's own log-probabilities
(`prompt_logprobs`) are computed from the prompt's first token on, since vLLM stores none of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ttmbench._util.images import about_frames, frames_of
from ttmbench._util.third_party_errors import error_line, is_out_of_memory
from ttmbench.errors import DataError, UsageError
from ttmbench.model_adapters._shared.chat_prompts import ChatPrompts
from ttmbench.model_adapters._shared.contrastive import declared_name
from ttmbench.model_adapters._shared.options import takes
from ttmbench.model_adapters._shared.pretrained import (
    Pretrained,
    describe_inputs,
    digest_of,
    fetch_weights,
    find,
    load_config,
    load_part,
    locate,
)
from ttmbench.model_adapters._shared.served_options import VllmOptions
from ttmbench.model_adapters.vqascore import answer_tokens
from ttmbench.protocols import ChoiceQuestion, ChoiceStyle

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PretrainedConfig, ProcessorMixin

__all__ = ["EngineModel", "load", "locate"]
AT_ONCE = 512  # pairs or questions that the engine is given together
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_HEX = re.compile("[0-9a-f]{64}")  # the Hub's cache names a large file by its sha256
_MEMORY = ("no available memory", "engine core initialization failed", "free memory", "kv cache")
ADVICE = (
    "where memory is short: a smaller max_model_len, a larger gpu_memory_utilization, tensor_parallel_size=N for "
    "several GPUs, or weights_dtype=bf16 (--model_args)"
)


@takes(VllmOptions)
def load(asked: VllmOptions) -> EngineModel:
    """A model in vLLM's engine, which is not started yet.

    Raises:
        DataError: the weights are unavailable.
        UsageError: vLLM is not installed, or a wrong argument.
    """
    from transformers import AutoProcessor

    try:
        import vllm  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise UsageError(f"vLLM cannot be imported ({error_line(error)}); pip install 'ttmbench[vllm]'") from None
    if asked.device == "cpu" and torch.cuda.is_available():
        raise UsageError("vLLM computes where its build does, here on a GPU; leave --device out, or hide the GPUs")
    pretrained = find(asked)
    config, processor = load_config(pretrained), load_part(AutoProcessor, pretrained)
    if not hasattr(processor, "image_processor") or not hasattr(processor, "tokenizer"):
        raise UsageError(f"{pretrained.name} has no processor for images and text")
    fetch_weights(pretrained)
    prompts = EnginePrompts(processor, config)
    engine = Engine(arguments_of(asked, pretrained, config), pretrained.name, f"vllm {vllm.__version__}")
    kind = {"vqascore": EngineVqaScore, "visualgpt": EngineCaptioner, "choice": EngineChooser}[asked.scorer]
    return kind(asked, pretrained, prompts, engine)


def arguments_of(asked: VllmOptions, pretrained: Pretrained, config: PretrainedConfig) -> dict[str, object]:
    """Arguments of vLLM's ``LLM``."""
    half = asked.dtype if asked.dtype != "fp32" else None
    own = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    arguments: dict[str, object] = {
        "model": str(pretrained.files.folder),
        "dtype": _DTYPES.get(asked.weights_dtype or half or "", own),
        "trust_remote_code": asked.trust_remote_code,
        "enable_prefix_caching": True,
        "tensor_parallel_size": asked.tensor_parallel_size,
        "gpu_memory_utilization": asked.gpu_memory_utilization,
        "seed": 0,
    }
    if asked.max_model_len is not None:
        arguments["max_model_len"] = asked.max_model_len
    clash = sorted(set(asked.engine or {}) & {"model", "tokenizer", "dtype", "trust_remote_code", "logprobs_mode"})
    if clash:
        raise UsageError(f"engine.{clash[0]} is set by the model's other arguments")
    return {**arguments, **(asked.engine or {})}


class EnginePrompts(ChatPrompts):
    """The prompts of a model that is known by its processor and configuration."""

    def __init__(self, processor: ProcessorMixin, config: PretrainedConfig) -> None:
        self.processor, self.tokenizer, self.kind = processor, processor.tokenizer, config.model_type
        self.architecture = str((config.architectures or [config.model_type])[0])
        if not processor.chat_template:
            raise UsageError(f"{self.architecture} has no chat template, so it is not known how to ask it")

    def ids(self, prompt: str) -> list[int]:
        """Tokens of a prompt, with one placeholder an image, which the engine expands."""
        return [int(token) for token in self.tokenizer(prompt, **self.special_tokens(prompt))["input_ids"]]


class Engine:
    """vLLM's engine, started when the first prompt comes.

    Args:
        arguments: of ``LLM``.
        name: the model's, for messages.
        version: of the engine.
    """

    def __init__(self, arguments: Mapping[str, object], name: str, version: str) -> None:
        self.arguments, self.name, self.version = arguments, name, version
        self.tokens_read = 0  # of prompts so far, images' tokens among them

    @cached_property
    def _llm(self) -> Any:
        from vllm import LLM

        try:
            return LLM(**self.arguments)
        except Exception as error:  # of many libraries; the engine's process reports its own on the screen
            raise self._failed(error, "could not start") from error

    def generate(self, prompts: Sequence[Mapping[str, object]], settings: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The engine's output for each prompt; the settings are those of ``SamplingParams``, one a prompt."""
        from vllm import SamplingParams

        parameters = [SamplingParams(**{"temperature": 0.0, "max_tokens": 1, **one}) for one in settings]
        engine = self._llm
        try:
            outputs = list(engine.generate(list(prompts), parameters, use_tqdm=False))
        except Exception as error:
            raise self._failed(error, "failed") from error
        self.tokens_read += sum(len(output.prompt_token_ids) for output in outputs)
        return outputs

    def next_tokens(self, prompts: Sequence[Mapping[str, object]], tokens: Sequence[int]) -> np.ndarray:
        """Log-probabilities of some tokens after each prompt, over the whole vocabulary, float64 [prompts, tokens]."""
        wanted = {"logprob_token_ids": list(tokens), "detokenize": False}
        outputs = self.generate(prompts, [wanted] * len(prompts))
        first = [output.outputs[0].logprobs[0] for output in outputs]
        return np.array([[float(one[token].logprob) for token in tokens] for one in first])

    def _failed(self, error: Exception, what: str) -> DataError | UsageError:
        said = error_line(error)
        if is_out_of_memory(error) or any(words in str(error).lower() for words in _MEMORY):
            return UsageError(f"vLLM {what} with {self.name}: {said}; {ADVICE}")
        if "not supported" in str(error):
            return UsageError(f"vLLM cannot run {self.name}: {said}; --model vqascore computes it by transformers")
        if "max_model_len" in str(error) or "maximum model length" in str(error):
            return UsageError(f"vLLM {what} with {self.name}: {said}; a larger max_model_len (--model_args) may help")
        return DataError(f"vLLM {what} with {self.name}: {said}")


class EngineModel:
    """Base of the three ways of asking a model in the engine."""

    pairs_at_once = AT_ONCE
    untrainable = (
        "vLLM computes no gradients and gives no features; --model vqascore reads the same weights and can be trained"
    )

    def __init__(self, asked: VllmOptions, pretrained: Pretrained, prompts: EnginePrompts, engine: Engine) -> None:
        self.asked, self.prompts, self.engine, self.files = asked, prompts, engine, pretrained.files
        self._declared = {
            "pretrained": declared_name(pretrained.name),
            "architecture": prompts.architecture,
            "weights_sha256": weights_digest(pretrained),
            "config_sha256": digest_of(load_config(pretrained).to_dict()),
            **describe_inputs(prompts.tokenizer, prompts.processor.image_processor, prompts.processor),
            "image_processor": type(prompts.processor.image_processor).__name__,
            "engine": engine.version,
            "weights": engine.arguments["dtype"],
            "dtype": engine.arguments["dtype"],
            "engine_arguments": dict(asked.engine or {}),
            "scorer": asked.scorer,
        }

    def fingerprint(self) -> Mapping[str, object]:
        """Digest of the weights' files, and what else changes a score."""
        return self._declared

    @property
    def tokens_read(self) -> int:
        """Tokens of the prompts that the engine was given so far."""
        return self.engine.tokens_read

    def _prompts(self, asked: Sequence[list[int]], shown: Sequence[Sequence[Image]]) -> list[dict[str, object]]:
        """Prompts as the engine takes them, of tokens and images."""
        pairs = zip(asked, shown, strict=True)
        return [{"prompt_token_ids": ids, "multi_modal_data": {"image": list(images)}} for ids, images in pairs]


class EngineVqaScore(EngineModel):
    """A `PairScorer`: how likely the model is to say yes when it is asked."""

    frames = 1  # of each video (`ttmbench.protocols.ShowsFrames`)

    def __init__(self, asked: VllmOptions, pretrained: Pretrained, prompts: EnginePrompts, engine: Engine) -> None:
        super().__init__(asked, pretrained, prompts, engine)
        self.yes, self.no = (answer_tokens(prompts.tokenizer, word) for word in ("yes", "no"))
        self._answer: list[int] = []
        if asked.score in ("yes_token", "yes_and_end"):
            ids = prompts.answer_ids(prompts.answer)
            if ids is None or len(ids) != 1:
                raise UsageError(
                    f"score={asked.score}: '{prompts.answer}' is not a single token after the prompt of "
                    f"{pretrained.name}; score=probability sums every token that says yes"
                )
            self._answer = ids + ([int(prompts.tokenizer.eos_token_id)] if asked.score == "yes_and_end" else [])

    def fingerprint(self) -> Mapping[str, object]:
        """As for every model in the engine, and the question."""
        extra = {"answer_ids": self._answer} if self._answer else {}
        asked = {"score": self.asked.score, "prompt": self._text(self.asked.template)}
        return {**self._declared, **asked, "yes_tokens": self.yes, "no_tokens": self.no, **extra}

    def score_pairs(self, images: Sequence[Image], captions: Sequence[str]) -> np.ndarray:
        """The score as it was asked for, float32 [pairs]."""
        asked = [self.prompts.ids(self._text(self.asked.template.replace("{caption}", text))) for text in captions]
        shown = [frames_of(image) for image in images]
        if self._answer:
            logs = []
            for place, token in enumerate(self._answer):
                begun = [[*ids, *self._answer[:place]] for ids in asked]
                logs.append(self.engine.next_tokens(self._prompts(begun, shown), [token])[:, 0])
            return np.exp(np.mean(logs, axis=0)).astype(np.float32)
        words = [*self.yes.values(), *self.no.values()]
        both = self.engine.next_tokens(self._prompts(asked, shown), words)
        yes, no = (np.logaddexp.reduce(side, axis=1) for side in np.split(both, [len(self.yes)], axis=1))
        return (np.exp(yes) if self.asked.score == "probability" else yes - no).astype(np.float32)

    def _text(self, question: str) -> str:
        return self.prompts.ask(about_frames(self.frames) + question, self.frames)


class EngineCaptioner(EngineModel):
    """A `PairScorer`: the mean log-likelihood of a caption's tokens as the model's own turn."""

    def fingerprint(self) -> Mapping[str, object]:
        """As for every model in the engine, and the prompt."""
        return {
            **self._declared,
            "score": "mean log-likelihood of the caption's tokens",
            "prompt": self.prompts.before_caption(self.asked.prompt),
            "end_token": self.asked.end_token,
        }

    def score_pairs(self, images: Sequence[Image], captions: Sequence[str]) -> np.ndarray:
        """The score log P(t|i) per token, float32 [pairs]."""
        rows = [self._row(caption) for caption in captions]
        prompts = self._prompts([ids for ids, _ in rows], [[image] for image in images])
        outputs = self.engine.generate(prompts, [{"prompt_logprobs": 0, "detokenize": False}] * len(prompts))
        scores = []
        for output, (ids, own) in zip(outputs, rows, strict=True):
            # Counted from the end: in what the engine returns, the image takes as many places as it has features.
            last = zip(output.prompt_logprobs[-own:], ids[-own:], strict=True)
            scores.append(np.mean([float(place[token].logprob) for place, token in last]))
        return np.array(scores, dtype=np.float32)

    def _row(self, caption: str) -> tuple[list[int], int]:
        """Tokens of the prompt with the caption, and how many of them are the caption's."""
        prompt = self.prompts.ids(self.prompts.before_caption(self.asked.prompt))
        whole = self.prompts.with_caption(self.asked.prompt, caption)
        if whole is None:
            added = [int(token) for token in self.prompts.tokenizer(caption, add_special_tokens=False)["input_ids"]]
            ids, before = [*prompt, *added], len(prompt)
        else:
            ids = self.prompts.ids(whole)
            most = min(len(prompt), len(ids) - 1)
            before = next((at for at in range(most) if ids[at] != prompt[at]), most)
        if self.asked.end_token:
            ids = [*ids, int(self.prompts.tokenizer.eos_token_id)]
        return ids, len(ids) - before


class EngineChooser(EngineModel):
    """A `ChoiceScorer` by greedy decoding, by default of the options alone."""

    def __init__(self, asked: VllmOptions, pretrained: Pretrained, prompts: EnginePrompts, engine: Engine) -> None:
        super().__init__(asked, pretrained, prompts, engine)
        self.choice_style = ChoiceStyle(asked.order, asked.side_by_side)

    def fingerprint(self) -> Mapping[str, object]:
        """As for every model in the engine, and what changes an answer."""
        asked = self.asked
        return {
            **self._declared,
            **{"order": asked.order, "side_by_side": asked.side_by_side, "decoding": "greedy"},
            **{"constrained": asked.constrained, "max_tokens": asked.max_tokens},
            "prompt": self.prompts.ask("{question}"),
        }

    def answer(self, questions: Sequence[ChoiceQuestion]) -> list[str | None]:
        """One text a question; UsageError if the template cannot show several images."""
        from vllm.sampling_params import StructuredOutputsParams  # type: ignore[import-not-found,unused-ignore]

        shown = [list(question.images) for question in questions]
        asked = [
            self.prompts.ids(self.prompts.ask_several(question.prompt, len(images)))
            for question, images in zip(questions, shown, strict=True)
        ]
        settings: list[dict[str, object]] = [{"max_tokens": self.asked.max_tokens} for _ in questions]
        for question, one in zip(questions, settings, strict=True):
            if self.asked.constrained and question.options:
                one["structured_outputs"] = StructuredOutputsParams(choice=list(question.options))
        outputs = self.engine.generate(self._prompts(asked, shown), settings)
        return [output.outputs[0].text.strip() for output in outputs]


def weights_digest(pretrained: Pretrained) -> str:
    """sha256 over names and contents of the files of weights; the Hub's cache names large files by their own sha256."""
    total = hashlib.sha256()
    for name in sorted(pretrained.files.weights):
        path = Path(pretrained.files.folder, name).resolve()
        if path.parent.name == "blobs" and _HEX.fullmatch(path.name):
            digest = path.name
        else:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{name}:{digest};".encode())
    return total.hexdigest()
