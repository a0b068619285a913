"""The arguments of each kind of model, without torch: ``--model_args``, but for those in `OF_THE_RUN` (``--device``).

`ttmbench show` prints the docstring of each field.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Annotated, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from ttmbench._util.third_party import describe
from ttmbench.errors import UsageError

OPENAI = "https://api.openai.com/v1"
OF_THE_RUN = ("device", "dtype", "compile", "offline", "trust_remote_code")
QUESTION = 'Does this figure show "{caption}"? Please answer yes or no.'
LORA_TARGETS = r".*(language_model|text_model)\..*\.(q|k|v|o)_proj"

Dtype = Literal["fp32", "bf16", "fp16"]
Order = Literal["random", "both"]


def _text(value: object) -> object:
    """A revision of digits is read as a number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number or isinstance(value, PathLike) else value


Text = Annotated[str, BeforeValidator(_text)]
Count = Annotated[int, Field(gt=0)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Result = TypeVar("Result")


class Options(BaseModel):
    """Arguments of a kind of model; its `load` takes them as keywords."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, protected_namespaces=()
    )

    @classmethod
    def read(cls, arguments: Mapping[str, object]) -> Self:
        """The checked arguments; UsageError names the first that is missing, unknown or wrong."""
        try:
            return cls.model_validate(dict(arguments))
        except ValidationError as error:
            raise UsageError(describe(error, cls)) from None

    @classmethod
    def described(cls) -> dict[str, dict[str, object]]:
        """Meaning and default of each argument of ``--model_args``."""
        return {
            field.alias or name: {"meaning": " ".join((field.description or "").split())}
            | ({} if field.is_required() else {"default": field.default})
            for name, field in cls.model_fields.items()
            if name not in OF_THE_RUN
        }


Kind = TypeVar("Kind", bound=Options)


def takes(kind: type[Kind]) -> Callable[[Callable[[Kind], Result]], Callable[..., Result]]:
    """Makes a function of an options object one of keywords, ``load(pretrained=...)``, which its signature lists."""

    def decorate(function: Callable[[Kind], Result]) -> Callable[..., Result]:
        @functools.wraps(function)
        def with_keywords(**arguments: object) -> Result:
            return function(kind.read(arguments))

        with_keywords.__signature__ = inspect.signature(kind)  # type: ignore[attr-defined]
        return with_keywords

    return decorate


class InPrecision(Options):
    """A model whose arithmetic may be in half precision."""

    device: Text = "auto"
    """``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``."""
    dtype: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Of the arithmetic; scores are fp32 in any case. ``tf32`` rounds the inputs of products on an NVIDIA GPU."""


class Compiled(Options):
    """A model whose towers may be compiled."""

    compile: bool = False
    """Run both towers through ``torch.compile``."""


class HubFiles(Options):
    """Which files of transformers a model is loaded from."""

    pretrained: Text
    """Hub ID, or a folder written by ``save_pretrained``; ``tiny_clip`` and ``tiny_clip_seed1`` are in the package."""
    revision: Text | None = None
    """Commit, tag or branch on the Hub."""
    trust_remote_code: bool = False
    """Run code that the Hub repository ships."""
    offline: bool = False
    """Use files on this machine only."""
    peft: Text | None = None
    """PEFT adapter (such as LoRA) for these weights: folder, Hub ID or ``ID@COMMIT``. ``pretrained`` also accepts an
    adapter alone, which names its base.
    """


class HubModel(InPrecision, HubFiles):
    """A model of transformers."""

    merge: bool = True
    """Merge the weights of ``peft`` into the model; with ``false``, ``train=adapter`` trains them separately."""
    attn_implementation: Text | None = None
    """Attention kernel of transformers: ``eager`` or ``sdpa`` (default: chosen by transformers)."""


class DualEncoderFiles(HubFiles):
    """Which files a dual encoder of transformers is loaded from."""

    processor: Text | None = None
    """Folder, Hub ID or ``ID@COMMIT`` of the tokenizer and image processor, if the model's repository has none."""


class HfOptions(Compiled, HubModel, DualEncoderFiles):
    """A dual encoder (``hf``)."""

    quick_gelu: bool | None = None
    """Activation of a CLIP: QuickGELU (OpenAI's CLIP and models fine-tuned from it) or GELU (default: from its
    configuration).
    """


class Cutting(Options):
    """A model that cuts captions."""

    max_tokens: int | None = None
    """Maximum tokens of a caption (default: as trained; BLIP 35, BLIP-2 32, BridgeTower 50, others their own)."""


class ItcOptions(Cutting, Compiled, HubModel):
    """The contrastive half of BLIP, BLIP-2 or FLAVA (``itc``)."""


class ItmOptions(Cutting, HubModel):
    """The matching head of BLIP, BLIP-2, FLAVA, ViLT or BridgeTower (``itm``)."""

    itm_start: Literal["enc", "cls"] | None = None
    """First token of a caption, for BLIP: ``enc`` ([ENC], as trained, the default) or ``cls`` ([CLS], as in the
    forward of transformers).
    """


class LanguageOptions(HubModel):
    """A model that writes text."""

    weights_dtype: Dtype | None = None
    """Data type of the weights in memory (default: fp32 on a CPU, the checkpoint's on an accelerator)."""


class ChatOptions(LanguageOptions):
    """A model that sees images and writes text; one with a chat template may be spread over devices or quantised."""

    split_images: bool | None = None
    """Whether to cut images into tiles, if the model supports both."""
    pad_images: bool | None = None
    """Whether to pad images of LLaVA-1.5 to a square (default: from the checkpoint's processor)."""
    chat_template_kwargs: dict[str, object] | None = None
    """Variables of the chat template, such as ``chat_template_kwargs.enable_thinking=false``."""
    device_map: str | int | dict[str, int | str] | None = None
    """Distribution over devices by accelerate: ``auto`` or another strategy of transformers, a device, or module ->
    device.
    """
    max_memory: dict[int | str, int | str] | None = None
    """Memory limits for ``device_map=auto``: device -> bytes, or text such as ``20GiB``."""
    offload_folder: Text | None = None
    """Directory for weights that are offloaded to disk."""
    load_in_4bit: bool = False
    """Weights packed by bitsandbytes."""
    load_in_8bit: bool = False
    """Weights packed by bitsandbytes."""
    quantization_config: dict[str, object] | None = None
    """Further quantization settings, or another method (``quant_method``)."""


class YesNoOptions(Options):
    """Whether an image shows a caption, asked."""

    score: Literal["log_odds", "probability", "yes_token", "yes_and_end"] = "log_odds"
    """``log_odds``: log P(yes) - log P(no); ``probability``: P(yes); or as in t2v_metrics ``yes_token``: the
    probability of the token "Yes" alone, or ``yes_and_end``: its geometric mean with the probability of ending
    there.
    """
    template: str = QUESTION
    """Question, with ``{caption}`` for the caption."""

    @model_validator(mode="after")
    def _check_template(self) -> Self:
        if "{caption}" not in self.template:
            raise ValueError(f"template {self.template!r} has no {{caption}}")
        return self


class VqascoreOptions(YesNoOptions, ChatOptions):
    """A model that is asked whether an image shows a caption (``vqascore``)."""

    answer_prefix: Text = ""
    """Text that the answer begins with before yes or no, such as ``</think>`` for a model that thinks first."""
    lora: Count | None = None
    """Rank of LoRA factors that are trained instead of all weights."""
    lora_targets: str = LORA_TARGETS
    """Regular expression for the names of layers with LoRA factors."""


class Choosing(Options):
    """Forced choices in words."""

    order: Order = "random"
    """Order of options in forced choices: ``random`` by seed, or ``both``."""
    side_by_side: bool = False
    """Join the two images of a forced choice, for models that accept one."""
    max_tokens: Count = 100
    """Maximum length of an answer in words."""


class ChoiceOptions(Choosing, ChatOptions):
    """A model that answers forced choices in words (``choice``)."""

    constrained: bool = False
    """Answer with the option whose first token is most probable, in one pass, instead of generating text."""


class NoiseOptions(LanguageOptions):
    """Scores of captions, and their priors from noise images."""

    noise_images: Count | None = None
    """Number of noise images (default: from the task, else 3)."""
    noise_mean: float = 0.0
    """Mean of the noise, in normalised pixels."""
    noise_std: Amount = 0.25
    """Standard deviation of the noise, in normalised pixels."""
    noise_seed: int = 0
    """Seed of the noise."""
    prompt: Text = ""
    """Text before the caption; for a chat model, the user's turn with the image; for an encoder-decoder, its input."""
    end_token: bool = False
    """Also score the token that ends the caption."""


class VisualgptOptions(NoiseOptions, ChatOptions):
    """A model that writes captions (``visualgpt``)."""

    alpha: float = Field(0.0, ge=0, le=1)
    """Fraction of log P(t) that is subtracted, from 0 to 1 (Eq. 7); `ttmbench analyze alpha` compares values."""
    prior: Literal["noise", "test_images"] = "noise"
    """Source of P(t): ``noise``, or ``test_images``, the mean over the task's images."""


class BlindOptions(NoiseOptions):
    """A scorer of captions alone (``blind``)."""

    noise_images: Count = 3
    """Number of noise images for a generative model."""


class EmbeddingsOptions(Options):
    """Precomputed embeddings."""

    path: Text
    """npz or safetensors file with ``img`` [groups * images, d] and ``cap`` [groups * captions, d], group by group,
    of any norm; or a folder written by ``--save_adapted``. Retrieval also needs ``image_of_caption`` int [captions],
    unless every image has equally many; classification needs one row of ``cap`` per class, and ``label`` int
    [images]. The file may contain the scalars ``logit_scale`` and ``logit_bias``.
    """
    logit_scale: float | None = None
    """Factor on cosines, not its logarithm (default: from the file, else CLIP's 100)."""
    logit_bias: float | None = None
    """Bias of every logit; with a bias the loss is SigLIP's pairwise sigmoid."""
    device: Text = "auto"
    """As for ``hf``."""


class CrossEncoderOptions(LanguageOptions):
    """A reranker, through ``CrossEncoder`` of Sentence Transformers (``cross_encoder``)."""

    prompt: str | None = None
    """Instruction for a pair: a name among the model's prompts, or a text (default: the model's own)."""


class MultiVectorOptions(LanguageOptions):
    """Late interaction, through ``MultiVectorEncoder`` of Sentence Transformers (``multi_vector``)."""

    image_prompt: str | None = None
    """Instruction for images: a name among the model's prompts, or a text, which has a space or punctuation; empty for
    none (default: the model's ``document``, ``passage`` or ``corpus``, as ``encode_document`` chooses).
    """
    caption_prompt: str | None = None
    """Instruction for captions, likewise (default: the model's ``query``, as ``encode_query`` chooses)."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Scores are similarities divided by it (default: the model's own, else 0.02)."""


class SentenceTransformersOptions(MultiVectorOptions):
    """An embedding model, through ``SentenceTransformer`` (``sentence_transformers``)."""

    dimensions: Count | None = None
    """Keep this many leading dimensions of each vector (Matryoshka)."""


class OpenClipFiles(Options):
    """Which files a model of open_clip is loaded from."""

    model: Text | None = None
    """Name of an architecture (``ViT-B-32``), ``hf-hub:<id>``, or ``local-dir:<folder>``."""
    architecture: Text | None = Field(None, alias="model_config")
    """JSON file with an architecture, instead of ``model``: as in open_clip's ``model_configs``, or an
    ``open_clip_config.json``.
    """
    pretrained: Text | None = None
    """Weights for an architecture: a tag (``laion2b_s34b_b79k``), a file (safetensors, or a checkpoint of
    open_clip's training or OpenAI's code, such as ``epoch_32.pt``), or ``hf-hub:<id>[/file]``.
    """
    revision: Text | None = None
    """Commit, tag or branch of the Hub repository."""
    lora_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Scale of LoRA factors A and B of rank r in the file: weights become W + lora_alpha / r B A."""
    interpolate: Annotated[float, Field(ge=0, le=1)] | None = None
    """Interpolate between the weights of ``base`` (0) and ``pretrained`` (1), as in WiSE-FT; the number of text
    positions is that of ``pretrained``.
    """
    base: Text = "openai"
    """Base weights for ``interpolate``: a tag of the same architecture, or a file."""
    offline: bool = False
    """Use files on this machine only."""

    @model_validator(mode="after")
    def _check_architecture(self) -> Self:
        if (self.model is None) == (self.architecture is None):
            how = "model=NAME (or hf-hub:ID, local-dir:FOLDER), or model_config=FILE for an architecture of your own"
            raise ValueError(f"give {how}" if self.model is None else f"give either {how}, not both")
        return self


class OpenClipOptions(Compiled, InPrecision, OpenClipFiles):
    """A model of open_clip."""

    quick_gelu: bool | None = None
    """Activation: QuickGELU (OpenAI's CLIP and models fine-tuned from it) or GELU (default: from the tag, the
    ``open_clip_config.json`` or the architecture).
    """


class OpenaiOptions(Choosing):
    """A model behind an OpenAI-compatible server."""

    model: Text
    """Model name on the server."""
    base_url: str = OPENAI
    """API address without ``/chat/completions``."""
    scorer: Literal["vqascore", "choice"] = "vqascore"
    """``vqascore`` (a score per pair, from log-probabilities) or ``choice`` (forced choices in words)."""
    api_key_env: Text = "OPENAI_API_KEY"
    """Environment variable with the key."""
    api_version: Text | None = None
    """API version of Azure, such as ``2024-10-21``; the key is then sent in the header ``api-key``."""
    concurrency: Count = 16
    """Number of concurrent requests."""
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    """Seconds to wait for the server."""
    retries: Annotated[int, Field(ge=0)] = 8
    """Number of retries, with growing pauses or those that the server asks for."""
    cache: Text | None = None
    """File of stored answers (default: in the user's cache folder)."""
    max_cost: Amount | None = None
    """Maximum cost of a run; needs both prices."""
    price_in: Amount | None = None
    """Price per million input tokens."""
    price_out: Amount | None = None
    """Price per million output tokens."""
    image_size: Count | None = 512
    """Longest side of an image in pixels; larger images are shrunk, ``none`` keeps them."""
    image_format: Literal["jpeg", "png"] = "jpeg"
    """Encoding of images: ``jpeg`` or ``png``."""
    detail: Text | None = "high"
    """Image detail requested from the server; ``none`` omits it."""
    temperature: float | None = 0.0
    """Sampling temperature of the request; ``none`` omits it."""
    top_logprobs: Count = 20
    """Number of listed tokens for VQAScore; a server may allow fewer."""
    chat_template_kwargs: dict[str, object] | None = None
    """Variables of the chat template for vLLM and SGLang, such as ``chat_template_kwargs.enable_thinking=false``."""
    score_as: Literal["log_odds", "probability", "yes_token"] = "log_odds"
    """Score of VQAScore: ``log_odds`` of yes, its ``probability``, or ``yes_token``, the probability of the token
    "Yes" alone.
    """
    on_refusal: Literal["error", "wrong"] | None = None
    """Groups with a pair without VQAScore: ``error`` (default), or ``wrong`` to count them as incorrect."""
    offline: bool = False
    """Use stored answers only."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.max_cost is not None and (self.price_in is None or self.price_out is None):
            raise ValueError("max_cost needs price_in and price_out: what a million tokens cost")
        if self.scorer == "choice" and self.on_refusal is not None:
            raise ValueError("on_refusal is for scorer=vqascore; in forced choices a refusal is a wrong answer")
        return self
