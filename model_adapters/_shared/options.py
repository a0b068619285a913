"""The arguments of each kind of model, without torch: ``--model_args``, but for those in `OF_THE_RUN` (``--device``).

`ttmbench show` prints the docstring of each field.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from ttmbench.errors import UsageError

OF_THE_RUN = ("device", "dtype", "compile", "offline", "trust_remote_code")
QUESTION = 'Does this figure show "{caption}"? Please answer yes or no.'
LORA_TARGETS = r".*(language_model|text_model)\..*\.(q|k|v|o)_proj"
OPENAI = "https://api.openai.com/v1"

Dtype = Literal["fp32", "bf16", "fp16"]
DTYPES: tuple[Dtype, ...] = ("fp32", "bf16", "fp16")
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
            first = error.errors()[0]
            name = str(first["loc"][0]) if first["loc"] else ""
            if first["type"] == "missing":
                raise UsageError(f"{name} must be given (--model_args {name}=...)") from None
            if first["type"] == "extra_forbidden":
                known = ", ".join(field.alias or name for name, field in cls.model_fields.items())
                raise UsageError(f"there is no argument '{name}'; known: {known}") from None
            if first["type"] == "value_error":
                raise UsageError(str(first["ctx"]["error"])) from None
            schema = cls.model_json_schema()["properties"][name]
            advice = schema.get("advice", "")
            raise UsageError(f"{name} {_wanted(schema, name)}, got {first['input']}{advice}") from None

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


class OnDevice(Options):
    """A model that torch computes."""

    device: Text = "auto"
    """``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``."""


class InPrecision(OnDevice):
    """A model whose arithmetic may be in half precision."""

    dtype: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Of the arithmetic; scores are fp32 in any case. ``tf32`` rounds the inputs of products on an NVIDIA GPU."""


class Compiled(Options):
    """A model whose towers may be compiled."""

    compile: bool = False
    """Run both towers through ``torch.compile``."""


class Weights(Options):
    """Which files of weights are read."""

    weights: Literal["auto", "safetensors"] = "auto"
    """``auto``: safetensors, else a pickle, read as tensors alone; ``safetensors`` refuses pickles."""
    offline: bool = False
    """Use files on this machine only."""


class HubFiles(Weights):
    """Which files of transformers a model is loaded from."""

    pretrained: Text
    """Hub id, or a folder that ``save_pretrained`` wrote."""
    revision: Text | None = None
    """Commit, tag or branch on the Hub; a folder has none."""
    peft: Text | None = None
    """A PEFT adapter (LoRA and others) for these weights: folder, Hub id or ``ID@COMMIT``. A folder or id of an adapter
    alone can stand for ``pretrained``, too: it names its base."""
    trust_remote_code: bool = False
    """Run code that the Hub repository ships."""

    @model_validator(mode="before")
    @classmethod
    def _read_old_weights(cls, values: dict[str, object]) -> dict[str, object]:
        """``weights=bf16`` is the old spelling of ``weights_dtype=bf16``."""
        dtype = values.get("weights")
        if dtype not in DTYPES or not ("weights_dtype" in cls.model_fields or cls is HubFiles):
            return values
        renamed = {} if cls is HubFiles else {"weights_dtype": values.get("weights_dtype") or dtype}
        return {**values, "weights": "auto", **renamed}


class HubModel(InPrecision, HubFiles):
    """A model of transformers."""

    merge: bool = True
    """Add the weights of ``peft`` to the model's own; ``false`` keeps them apart, and ``train=adapter`` trains them."""
    attn_implementation: Text | None = None
    """``eager`` or ``sdpa``: transformers' attention kernel; by default transformers chooses."""


class DualEncoderFiles(HubFiles):
    """Which files a dual encoder of transformers is loaded from."""

    processor: Text | None = None
    """Hub id or folder of tokenizer and image processor, where the model's own has none; ``ID@COMMIT`` for a commit."""


class ContrastiveOptions(Compiled, HubModel, DualEncoderFiles):
    """A dual encoder (``hf``)."""

    quick_gelu: bool | None = None
    """The activation of a CLIP: QuickGELU (OpenAI's CLIP and what was finetuned from it) or GELU; by default that of
    its configuration."""


class Cutting(Options):
    """A model that cuts captions."""

    max_tokens: int | None = None
    """Where captions are cut; by default as the model was trained (BLIP 35, BLIP-2 32, FLAVA its own)."""


class ContrastiveHalfOptions(Cutting, Compiled, HubModel):
    """The contrastive half of BLIP, BLIP-2 or FLAVA (``itc``)."""

    temperature: Annotated[float, Field(gt=0)] | None = None
    """Cosines are divided by it (BLIP and BLIP-2: 0.07); FLAVA has its own."""


class MatchingOptions(Cutting, HubModel):
    """The matching head of BLIP, BLIP-2 or FLAVA (``itm``)."""

    itm_start: Literal["enc", "cls"] | None = None
    """Of BLIP, the token that a caption begins with: ``enc``, [ENC], as the head was trained and the default; ``cls``,
    [CLS], as the forward of transformers has it."""


class LanguageOptions(HubModel):
    """A model that writes text."""

    weights_dtype: Dtype | None = None
    """Of the weights in memory; by default fp32 on a CPU, and the checkpoint's own on an accelerator."""


class ChatOptions(LanguageOptions):
    """A model that sees images and writes text; one with a chat template may be spread over devices or quantised."""

    split_images: bool | None = None
    """Cut images into tiles or not, where the model can do both."""
    pad_images: bool | None = None
    """Pad images of LLaVA-1.5 to a square or not; by default as the checkpoint's processor does."""
    device_map: str | int | dict[str, int | str] | None = None
    """Spread over devices as accelerate does: ``auto``, another of transformers' words, a device, or part -> device."""
    max_memory: dict[int | str, int | str] | None = None
    """Of ``device_map=auto``: device -> memory, in bytes or as text such as ``20GiB``."""
    offload_folder: Text | None = None
    """For weights that go to the disk."""
    load_in_4bit: bool = False
    """Weights packed by bitsandbytes."""
    load_in_8bit: bool = False
    """Weights packed by bitsandbytes."""
    quantization_config: dict[str, object] | None = None
    """Further settings of either, or of another method (``quant_method``)."""


class YesNoOptions(Options):
    """Whether an image shows a caption, asked."""

    score: Literal["log_odds", "probability", "yes_token", "yes_and_end"] = "log_odds"
    """``log_odds``, log P(yes) - log P(no); ``probability``, P(yes); or, as t2v_metrics has it, ``yes_token``, the
    probability of the one token "Yes", or ``yes_and_end``, its geometric mean with that of ending there."""
    template: str = QUESTION
    """The question; ``{caption}`` stands for the caption."""

    @model_validator(mode="after")
    def _check_template(self) -> Self:
        if "{caption}" not in self.template:
            raise ValueError(f"template {self.template!r} has no {{caption}}")
        return self


class VqaScoreOptions(YesNoOptions, ChatOptions):
    """A model that is asked whether an image shows a caption (``vqascore``)."""

    lora: Count | None = None
    """Train factors of this rank instead of all weights."""
    lora_targets: str = LORA_TARGETS
    """Regular expression for the names of the layers that get factors."""


class Choosing(Options):
    """Forced choices in words."""

    order: Order = "random"
    """Of options in forced choices: ``random`` by seed, or ``both``."""
    side_by_side: bool = False
    """Join the two images of a forced choice, for models that take one."""
    max_tokens: Count = 100
    """Of an answer in words; most end after a few."""


class ChoiceOptions(Choosing, ChatOptions):
    """A model that answers forced choices in words (``choice``)."""

    constrained: bool = False
    """Answer by the option whose own token is most probable, in one pass, instead of writing."""
    batched: bool = False
    """Answer a batch's questions at once, padded on the left, where an answer may change by rounding."""


class NoiseOptions(LanguageOptions):
    """Scores of captions, and their priors from noise images."""

    noise_images: Count | None = None
    """How many noise images; by default as many as the task says, or else 3."""
    noise_mean: float = 0.0
    """Of the noise, in pixels as the model gets them, after normalisation."""
    noise_std: Amount = 0.25
    """Of the noise, in normalised pixels."""
    noise_seed: int = 0
    """Draws the noise."""
    prompt: Text = ""
    """Text before the caption; of a chat model, the user's turn beside the image; the input of an encoder-decoder."""
    end_token: bool = False
    """Also score the token that ends the caption."""


class VisualGptOptions(NoiseOptions, ChatOptions):
    """A model that writes captions (``visualgpt``)."""

    alpha: float = Field(
        0.0, ge=0, le=1, json_schema_extra={"advice": "; `ttmbench analyze alpha` shows what each would give"}
    )
    """The fraction of log P(t) that a run subtracts, from 0 to 1 (Eq. 7)."""
    prior: Literal["noise", "test_images"] = "noise"
    """Where P(t) comes from: ``noise``, or ``test_images``, the mean over the task's images."""


class BlindOptions(NoiseOptions):
    """A scorer of captions alone (``blind``)."""

    noise_images: Count = 3
    """How many noise images a generative model gets."""


class TinyClipOptions(Compiled, InPrecision):
    """The built-in model."""

    training_seed: int = 0
    """Which training run, 0 or 1."""
    attn_implementation: Text | None = None
    """As for ``hf``."""


class EmbeddingsOptions(OnDevice):
    """Precomputed embeddings."""

    path: Text
    """An npz or safetensors file with ``img`` [groups * images, d] and ``cap`` [groups * captions, d], group by group,
    of any norm. For retrieval also ``image_of_caption`` int [captions], unless every image has as many; for
    classification ``cap`` has a row a class, and ``label`` int [images] says which one is true. The file may hold the
    scalars ``logit_scale`` and ``logit_bias``. Or a folder that ``--save_adapted`` wrote."""
    logit_scale: float | None = None
    """Factor of cosines, not its logarithm; by default the file's, else 100 (CLIP's)."""
    logit_bias: float | None = None
    """Added to every logit; with one the loss is SigLIP's pairwise sigmoid."""


class ServedOptions(Choosing):
    """A model behind an OpenAI-compatible server."""

    model: Text
    """Its name on the server."""
    base_url: str = OPENAI
    """Of the API, without ``/chat/completions``."""
    scorer: Literal["vqascore", "choice"] = "vqascore"
    """``vqascore`` (a score per pair, from log-probabilities) or ``choice`` (forced choices in words)."""
    api_key_env: Text = "OPENAI_API_KEY"
    """Environment variable that holds the key."""
    api_version: Text | None = None
    """Of Azure, such as ``2024-10-21``: goes into the address, and the key into the header ``api-key``."""
    concurrency: Count = 16
    """Questions at a time."""
    timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    """Seconds until an answer must have arrived."""
    retries: Annotated[int, Field(ge=0)] = 8
    """Tries after the first."""
    backoff: Amount = 0.5
    """Seconds before the second try; doubles with each, up to a minute."""
    cache: Text | None = None
    """File of stored answers; by default one in the user's cache folder."""
    max_cost: Amount | None = None
    """Limit of a run's costs; needs both prices."""
    price_in: Amount | None = None
    """Of a million tokens sent."""
    price_out: Amount | None = None
    """Of a million tokens received."""
    image_size: Count | None = 512
    """Longest side in pixels; larger images are made smaller. ``none`` sends them as they are."""
    image_format: Literal["jpeg", "png"] = "jpeg"
    """How images are encoded."""
    detail: Text | None = "high"
    """How closely the server is asked to look at images; ``none`` leaves it out."""
    temperature: float | None = 0.0
    """Of the request; ``none`` leaves it out."""
    top_logprobs: Count = 20
    """Tokens listed with VQAScore; fewer where the server refuses as many."""
    score_as: Literal["log_odds", "probability", "yes_token"] = "log_odds"
    """``log_odds`` of yes, its ``probability``, or that of the token "Yes" alone (``yes_token``)."""
    on_refusal: Literal["error", "wrong"] | None = None
    """With VQAScore, ``error`` (the default) or ``wrong`` for groups with a pair that has no score."""
    batch_requests: Text | None = None
    """Write the questions into this file of OpenAI's batch API instead of asking them."""
    batch_answers: Text | None = None
    """Read answers from a batch's output: a file, or a folder of such files."""
    offline: bool = False
    """Use stored answers only."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.max_cost is not None and (self.price_in is None or self.price_out is None):
            raise ValueError("max_cost needs price_in and price_out: what a million tokens cost")
        if self.scorer == "choice" and self.on_refusal is not None:
            raise ValueError("on_refusal is for scorer=vqascore; in forced choices a refusal is a wrong answer")
        return self


def _wanted(schema: Mapping[str, Any], name: str) -> str:
    """The permitted values of a JSON schema, in words."""
    schema = next((choice for choice in schema.get("anyOf", [schema]) if choice.get("type") != "null"), schema)
    if "enum" in schema:
        *others, last = schema["enum"]
        return f"must be {', '.join(others)} or {last}"
    if schema.get("type") == "object":
        return f"takes names with values, such as {name}.NAME=VALUE"
    if "maximum" in schema:
        bounds = f" from {schema['minimum']:g} to {schema['maximum']:g}"
    else:
        words = (("exclusiveMinimum", "above"), ("minimum", "at least"))
        bounds = "".join(f" {word} {schema[key]:g}" for key, word in words if key in schema)
    kinds = {"boolean": "true or false", "integer": f"a whole number{bounds}", "number": f"a number{bounds}"}
    return f"must be {kinds.get(str(schema.get('type')), 'text')}"
