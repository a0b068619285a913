"""Settings of a run (command line, ``--config``, `simple_evaluate`) and of TTM, validated on creation."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeGuard

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from ttmbench._util.third_party import describe as _describe  # pydantic evaluates these annotations
from ttmbench.errors import UsageError

DEFAULT_LEARNING_RATE = 1e-5
AUTHORS_LEARNING_RATE = 4e-5  # default of the authors' published code
_WITHOUT_A_SOURCE = (
    f"{DEFAULT_LEARNING_RATE:g} is this package's default, {AUTHORS_LEARNING_RATE:g} that of the authors' code"
)
NO_LEARNING_RATE = f"none is known for this model and task; {_WITHOUT_A_SOURCE}"
UNKNOWN_LEARNING_RATE = f"no available copy of the paper states its value legibly; {_WITHOUT_A_SOURCE}"
DEFAULT_SHARE = 0.5
# As `ttmbench.types.PartKind`, whose module imports numpy: no `--help` should wait for it.
PART_KINDS = ("selection", "pseudo_labels", "loss", "optimizer", "lr_schedule", "stopping", "teacher")
_WORDS = {"true": True, "false": False, "none": None, "null": None}
UNSAID = ("train", *PART_KINDS)
"""Settings of TTM that are omitted from records while they have their default."""
Settings = Mapping[str, Any]
Arguments = dict[str, Any]
"""Option or argument -> value."""
RENAMED = {
    "simple_match": "methods overfit",
    "oracle": "methods oracle",
    "ttm_controls": "methods placebo,shuffle",
    "ttm_holdout": "holdout",
    "ttm_also": "also",
}
"""Earlier name of an option -> what is written now."""
_DTYPES = {"float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
_DEVICE = re.compile(r"(auto|cpu|mps)(?::0)?|(cuda|xpu|hpu|npu|xla):?(\d*)")
_KNOWN_DEVICES = "known: auto, cpu, cuda, cuda:1, mps"
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]+:/")  # s3:/x too, but not C:/x
_PASSWORD = re.compile(r"\w://[^/\s@,]*:(?!\d+[,/])[^/\s]*@")  # but not http://host:8000,user=a@b


class TTMConfig(BaseModel):
    """Hyperparameters of TTM; defaults follow the paper (section B.1 of arXiv:2510.07632) where it gives them.

    Attributes:
        iterations: number of iterations, T.
        epochs: epochs in each iteration.
        lr: learning rate at the start of the first iteration; None uses the model's default or 1e-5.
        lr_restart: factor on ``lr`` from one iteration to the next.
        lr_floor: end of the cosine inside an iteration, as a fraction of its start.
        weight_decay: of AdamW.
        betas: of AdamW.
        batch_groups: groups in a batch; None means 50, or 100 for groups with one image, and slightly more if the last
            batch would otherwise be small (`batch_units`).
        keep_optimizer_state: carry AdamW's state from one iteration to the next.
        schedule: name of a threshold schedule.
        tau_start: tau_1; None or ``auto`` uses the margin that selects a fraction ``coverage`` of the groups.
        tau_end: tau_T.
        coverage: fraction of groups that an automatic tau_1 selects.
        threshold: ``absolute`` compares margins (global variant: pair scores) with tau_t in logits; ``share`` selects
            the top 1 - tau_t, with tau_1 and tau_T in [0, 1]; ``auto`` is absolute for groups, share for the global
            variant.
        ties: ``exclude`` never selects a tied pair of a global task, ``include`` may, as the authors' code does.
        augment: train on random crops of enlarged images.
        augment_scale: their enlargement in each direction.
        lr_note: source of ``lr``; printed with the results.
        train: which parameters are trained, as `ttmbench.methods.parameters.select` names them.
        part_args: kind of a part -> settings of that part, each given as ``KIND.KEY``.

    The other attributes name TTM's replaceable parts (`ttmbench.methods.parts`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    iterations: int = Field(10, ge=1)
    epochs: int = Field(20, ge=1)
    lr: float | None = Field(None, gt=0, allow_inf_nan=False)
    lr_restart: float = Field(0.95, gt=0, le=1)
    lr_floor: float = Field(0.1, ge=0, le=1)
    weight_decay: float = Field(0.05, ge=0, allow_inf_nan=False)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    batch_groups: int | None = Field(None, ge=1)
    keep_optimizer_state: bool = False
    schedule: str = "linear"
    tau_start: float | None = Field(None, allow_inf_nan=False)
    tau_end: float = Field(0.0, allow_inf_nan=False)
    coverage: float = Field(0.25, gt=0, le=1)
    threshold: Literal["auto", "absolute", "share"] = "auto"
    ties: Literal["exclude", "include"] = "exclude"
    augment: bool = False
    augment_scale: float = Field(1.1, gt=1, le=4)
    lr_note: str | None = None
    train: str = "all"
    selection: str = "threshold"
    pseudo_labels: str = "matching"
    loss: str = "own"
    optimizer: str = "adamw"
    lr_schedule: str = "cosine"
    stopping: str = "never"
    teacher: str = "none"
    part_args: dict[str, Arguments] = {}

    @classmethod
    def takes(cls, key: str) -> bool:
        """Whether a key is a setting of TTM or of one of its parts."""
        return key in cls.model_fields or key.startswith(tuple(f"{kind}." for kind in PART_KINDS))

    @model_validator(mode="before")
    @classmethod
    def _read(cls, values: Any) -> Any:
        """``KIND.KEY`` settings of parts go to ``part_args``, and ``tau_start=auto`` is none."""
        if not isinstance(values, Mapping):
            return values
        dotted = [key for key in values if key.partition(".")[0] in PART_KINDS and "." in key]
        read: Arguments = {key: value for key, value in values.items() if key not in dotted}
        if dotted:
            read["part_args"] = {kind: dict(given) for kind, given in read.get("part_args", {}).items()}
        for key in dotted:
            kind, _, setting = key.partition(".")
            read["part_args"].setdefault(kind, {})[setting] = values[key]
        return {**read, "tau_start": None} if read.get("tau_start") == "auto" else read

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> Arguments:
        """Omits parts and ``train`` that have their default; settings of parts appear as given."""
        fields = TTMConfig.model_fields
        dumped = {key: value for key, value in dump(self).items() if key not in UNSAID or value != fields[key].default}
        of_parts = dumped.pop("part_args", {})
        return dumped | {f"{kind}.{key}": value for kind, each in of_parts.items() for key, value in each.items()}

    def by_share(self, is_global: bool) -> bool:
        """Whether tau_t is a fraction; UsageError if it is and ``tau_start`` or ``tau_end`` is outside [0, 1]."""
        shares = self.threshold == "share" or (self.threshold == "auto" and is_global)
        for name, value in (("tau_start", self.tau_start), ("tau_end", self.tau_end)):
            if shares and value is not None and not 0 <= value <= 1:
                raise UsageError(
                    f"{name} must be a fraction between 0 and 1 for threshold=share (the default of the global "
                    f"variant), which selects the top 1 - {name}, got {value:g}; choose another {name}, or "
                    "threshold=absolute for logits"
                )
        return shares

    def with_changes(self, changes: Mapping[str, object], origin: str) -> TTMConfig:
        """A checked copy with some settings replaced.

        Raises:
            UsageError: an unknown setting or a value out of range; the message begins with ``origin``.
        """
        if "lr" in changes:
            changes = {"lr_note": None, **changes}
        of_others = tuple(f"{kind}." for kind in PART_KINDS if kind in changes)  # another part has other settings
        before = {key: value for key, value in self.model_dump().items() if not key.startswith(of_others)}
        try:
            return TTMConfig.model_validate({**before, **changes})
        except ValidationError as error:
            raise UsageError(f"{origin}: {_describe(error, TTMConfig)}") from None


def with_rate_note(preset: Settings) -> Arguments:
    """Settings of a task file's preset, with an ``lr_note`` if its learning rate is unknown (``lr: null``)."""
    return {"lr_note": UNKNOWN_LEARNING_RATE, **preset} if preset.get("lr", 0) is None else dict(preset)


def read_dtype(value: object) -> object:
    """The name of a dtype here; other values stay the same.

    >>> read_dtype("bfloat16"), read_dtype("torch.float32"), read_dtype("fp16"), read_dtype("int8")
    ('bf16', 'fp32', 'fp16', 'int8')
    """
    name = str(value).removeprefix("torch.")
    return _DTYPES.get(name, value)


def nested(settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Settings with ``name.key`` nested under ``name``, for some names.

    >>> nested({"max_memory.0": "20GiB", "max_memory.cpu": "60GiB", "a.b": 1}, ["max_memory"])
    {'max_memory': {'0': '20GiB', 'cpu': '60GiB'}, 'a.b': 1}
    """
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        name, dot, rest = key.partition(".")
        if dot and name in names:
            inner = tree.setdefault(name, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{name} is given whole and as {key}")
            inner[rest] = value
        elif isinstance(tree.get(key), dict):
            raise ValueError(f"{key} is given whole and as {key}.{next(iter(tree[key]))}")
        else:
            tree[key] = value
    return tree


def read_batch_size(value: object) -> int | Literal["auto"]:
    """A batch size; ``auto:4`` is ``auto``, since the size is reduced whenever memory runs out.

    >>> read_batch_size("auto:4"), read_batch_size("8"), read_batch_size(8)
    ('auto', 8, 8)
    """
    if re.fullmatch(r"auto(:\d+)?", str(value)):
        return "auto"
    with suppress(ValueError, OverflowError):
        if (number := float(str(value))) >= 1 and number == int(number):
            return int(number)
    raise ValueError("must be a whole number from 1, or auto")


def read_limit(value: object) -> int | float:
    """A limit as a count or a fraction below 1; ValueError for other values.

    >>> read_limit("8"), read_limit(0.1), read_limit(8.0)
    (8, 0.1, 8)
    """
    with suppress(ValueError, OverflowError):
        number = float(str(value))
        if 0 < number < 1:
            return number
        if number >= 1 and number == int(number):
            return int(number)
    raise ValueError("must be a whole number of groups from 1, or a fraction of them between 0 and 1")


def groups_of(limit: float | None, total: int | None) -> int | None:
    """Number of groups that a limit allows of ``total``, rounded up; None for all, and for a fraction of unknown total.

    >>> groups_of(0.1, 205), groups_of(8, 205), groups_of(None, 205), groups_of(0.1, None)
    (21, 8, None, None)
    """
    if limit is None or limit >= 1:
        return None if limit is None else int(limit)
    return None if total is None else math.ceil(limit * total)


def read_rerank(pairs: object) -> object:
    """The first-stage ranker of a model that scores pairs; ValueError without a model, or for a wrong k.

    >>> read_rerank({"model": "clip-b32", "k": 64}), read_rerank({})
    ({'model': 'clip-b32', 'k': 64}, {})
    """
    if not isinstance(pairs, Mapping) or not pairs:
        return pairs
    if not isinstance(pairs.get("model"), str):
        raise ValueError("must have model=NAME, which ranks all candidates, and may have k=N")
    k = pairs.get("k", 1)
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError("k must be a whole number from 1")
    return dict(pairs)


def read_references(value: object) -> tuple[str, int | None] | None:
    """Another task and how many of its first groups are references of a method, None for all; None for the test's own.

    >>> read_references("shapes_place"), read_references("shapes_place:50"), read_references("others")
    (('shapes_place', None), ('shapes_place', 50), None)
    """
    if not isinstance(value, str) or value in ("task", "others"):
        return None
    name, colon, groups = value.rpartition(":")
    return (name, int(groups)) if colon and groups.isdecimal() and int(groups) else (value, None)


def read_device(given: object) -> str:
    """A device by torch's name, or several, separated by commas; a number is a CUDA device. UsageError for others.

    In a list a number is one of the kind before it, and the CPU may be repeated.

    >>> read_device("cuda:0,1,2"), read_device("cpu,cpu")
    ('cuda:0,cuda:1,cuda:2', 'cpu,cpu')
    >>> read_device("CPU"), read_device("cuda0"), read_device("gpu:1"), read_device(0), read_device("mps:0")
    ('cpu', 'cuda:0', 'cuda:1', 'cuda:0', 'mps')
    """
    devices: list[str] = []
    for word in filter(None, map(str.strip, str(given).split(","))):
        kind = devices[-1].partition(":")[0] if devices else "cuda"
        name = (
            f"{'cuda' if kind == 'cpu' else kind}:{word}" if word.isdecimal() else word.lower().replace("gpu", "cuda")
        )
        match = _DEVICE.fullmatch(name)
        if match is None:
            raise UsageError(f"unknown device {word}; {_KNOWN_DEVICES}")
        alone, kind, number = match.groups()
        devices.append(alone or (f"{kind}:{int(number)}" if number else kind))
    for name in devices:
        if len(devices) > 1 and name != "cpu" and (":" not in name or devices.count(name) > 1):
            raise UsageError(f"several devices must differ and have numbers, such as cuda:0,cuda:1, got {given}")
    if not devices:
        raise UsageError(f"unknown device {given}; {_KNOWN_DEVICES}")
    return ",".join(devices)


def is_address(given: object) -> TypeGuard[str]:
    """Whether a value is an address such as ``s3://bucket/results``."""
    return isinstance(given, str) and _ADDRESS.match(given) is not None


def refuse_password(name: str, value: object) -> None:
    """UsageError for an address with user and password in a text or a container of texts, which are written down."""
    if _PASSWORD.search(str(value)):
        raise UsageError(
            f"{name} must have no password, and has an address of the form scheme://user:password@host; remove "
            "user:password@ and give them in an environment variable or the storage library's own configuration"
        )


def refuse_address(name: str, address: str, may_be_address: bool = False) -> None:
    """UsageError for an address, given for a file or folder, unless the option ``may_be_address`` of a storage."""
    refuse_password(name, address)
    scheme = address.partition(":")[0].lower()
    if not may_be_address or scheme in ("http", "https"):
        raise UsageError(
            f"{name} must be a local path, and {address} is an address: give a local folder and copy it with a "
            f"tool for {scheme}, or mount it as a folder"
        )


# One set of weights can be scored in each of these ways, so the way belongs to the name of the model.
_SCORERS = ("vqascore", "visualgpt", "choice", "blind", "blip-it", "blip2-it", "flava-it")


def name_of_model(settings: Mapping[str, Any]) -> str:
    """A model's default name in results: from its arguments, else its registered name.

    >>> name_of_model({"model": "hf", "model_args": {"pretrained": "google/siglip"}}), name_of_model({"model": "tiny"})
    ('google/siglip', 'tiny')
    >>> name_of_model({"model": "open_clip", "model_args": {"model": "RN50", "pretrained": "cc12m"}})
    'RN50/cc12m'
    >>> name_of_model({"model": "vqascore", "model_args": {"pretrained": "llava-hf/llava", "peft": "me/adapter"}})
    'vqascore/llava-hf/llava+me/adapter'
    """
    model, model_args = settings.get("model", ""), settings.get("model_args", {})
    given = [model_args.get(key) for key in ("model", "pretrained", "path")]
    detail = [part.removeprefix("local-dir:").removeprefix("hf-hub:") for part in given if isinstance(part, str)]
    parts = [Path(part).resolve().name if Path(part).exists() else part for part in detail]
    if parts and model.startswith(_SCORERS):
        parts.insert(0, model)
    adapter = model_args.get("peft")
    named = "/".join(parts) or model
    return f"{named}+{Path(adapter).name if Path(adapter).exists() else adapter}" if isinstance(adapter, str) else named


def split_names(given: Any) -> list[str]:
    """``a, b`` as a list, as ``--tasks`` takes it; others than texts stay.

    >>> split_names("shapes_color, shapes_place,")
    ['shapes_color', 'shapes_place']
    """
    return [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else given


def with_dots(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of methods named ``METHOD.KEY``, from which they may also be nested.

    >>> with_dots({"tent": {"lr": 1, "images": 8}, "dn.strength": 0.5})
    {'tent.lr': 1, 'tent.images': 8, 'dn.strength': 0.5}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, Mapping) else {key: value}
    return flat


def parse_pairs(value: Any) -> Arguments:
    """Arguments from ``k=v,k2=v2``, with numbers, true, false and none as Python values; others than texts stay.

    >>> parse_pairs("lr=1e-4,epochs=5,keep_optimizer_state=true,schedule=cosine")
    {'lr': 0.0001, 'epochs': 5, 'keep_optimizer_state': True, 'schedule': 'cosine'}
    """
    if not isinstance(value, str):
        return value
    pairs: Arguments = {}
    for part in split_names(value):
        key, equals, item = part.partition("=")
        if not equals or not key:
            raise UsageError(f"arguments must be key=value, separated by commas, got '{part}'")
        text, values = item.strip(), list[Any]()
        for kind in (int, float):
            with suppress(ValueError):
                values.append(kind(text))
        pairs[key.strip()] = _WORDS.get(text.lower(), next(iter(values), text))
    return pairs


def _option(description: str, *flags: str, group: str = "", metavar: str = "", **field: Any) -> Any:
    """An option of a run, with a default and bounds as `pydantic.Field` takes them.

    The description's first line is for ``--help``, the whole for the page on the command line. A flag with two dashes
    replaces the field's name; a list whose ``metavar`` has no comma may be repeated.
    """
    extra: Any = {"flags": flags, "group": group, "metavar": metavar}
    return Field(description=description, json_schema_extra=extra, **field)


Names = Annotated[list[str], BeforeValidator(split_names)]
Pairs = Annotated[Arguments, BeforeValidator(parse_pairs)]
_DATA, _TRAINING, _EXECUTION, _OUTPUT = "model and data", "test-time training", "execution", "output"


class RunConfig(BaseModel):
    """Settings of a run: the options of ``ttmbench run`` and ``--config``, and the arguments of `simple_evaluate`.

    Each is described by its field, where ``--help`` and the page on the command line have it from. Lists may also be
    texts with commas, and arguments texts of the form ``k=v,k2=v2``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = _option("Model name from `ttmbench ls models`", "-M", "-m", metavar="NAME")
    model_args: Pairs = _option("Model arguments, such as pretrained=DIR,revision=main", "-a", default={})
    model_name: str = _option(
        "Model name in results (default: last part of its path)",
        *("--name",),
        group=_DATA,
        metavar="NAME",
        default_factory=name_of_model,
        min_length=1,
    )
    tasks: Names = _option("Task names, tags, globs or YAML files; see `ttmbench ls tasks`", "-t", min_length=1)
    limit: Annotated[int | float, BeforeValidator(read_limit)] | None = _option(
        "Use only the first N groups, or a fraction if below 1\nThe fraction is rounded up, per task",
        *("-L",),
        metavar="N",
        default=None,
    )
    task_args: Pairs = _option(
        "Overrides for the tasks' source, such as seed=3\nThey change the `source` of every chosen task, but not its "
        "`kind`; `caption_template=...` sets its [template](task-file.md#keys)",
        group=_DATA,
        default={},
    )
    metrics: Names = _option("Further metrics, such as text_ece; see `ttmbench ls metrics`", group=_DATA, default=[])
    include_path: Names = _option("Directory with additional task files", group=_DATA, metavar="DIR", default=[])
    samples: str | None = _option("JSON list with the group IDs to use", group=_DATA, metavar="FILE", default=None)
    rerank: Annotated[Pairs, AfterValidator(read_rerank)] = _option(
        "Two-stage retrieval: rerank the top k=N of a first model=NAME\nOther keys are arguments of that model "
        "([re-ranking](#re-ranking))",
        group=_DATA,
        default={},
    )
    ttm: bool = _option("Adapt the model with test-time matching: --methods ttm", default=False, exclude=True)
    ttm_args: Pairs = _option(
        "TTM settings: lr, epochs, iterations, schedule, tau_start, ...\nThey are also for `overfit`, `oracle`, "
        "`placebo`, `shuffle` and `selftrain`",
        default={},
    )
    ttm_preset: Literal["auto", "paper"] = _option(
        "TTM preset; paper uses the task's settings and four seeds\n`auto` derives thresholds from the margins; "
        "`paper` fails if the task has no preset for this model",
        default="auto",
    )
    seeds: Annotated[list[int], BeforeValidator(split_names)] | None = _option(
        "Test-time training seeds (default: one seed)", metavar="0,1,2,3", default=None, min_length=1
    )
    methods: Annotated[Names, AfterValidator(lambda names: list(dict.fromkeys(names)))] = _option(
        "Test-time methods from `ttmbench ls methods`: ttm, overfit, tent, ...\n`oracle`, `placebo` and `shuffle` are "
        "[upper bound and controls](ttm.md#controls)",
        default=[],
    )
    method_args: Annotated[Pairs, AfterValidator(with_dots)] = _option(
        "Settings for methods, such as tent.lr=1e-3,zero.share=0.3", group=_TRAINING, metavar="NAME.K=V,...", default={}
    )
    holdout: float | None = _option(
        "Also hold out this fraction of groups from adaptation and score it\n[How to read it](ttm.md#controls)",
        group=_TRAINING,
        default=None,
        gt=0,
        lt=1,
    )
    also: Names = _option(
        "Also evaluate adapted models on these tasks\n[How to read it](ttm.md#controls)", group=_TRAINING, default=[]
    )
    audit_labels: bool = _option(
        "Repeat with permuted captions; fail if selections change\nThe run fails if a selection or a clear matching of "
        "TTM or a method changes",
        group=_TRAINING,
        default=False,
    )
    save_adapted: str | None = _option(
        "New directory for adapted models' weights\nThey have their library's format, and lie in `DIR/<task>/seed_<n>` "
        "for several tasks or seeds; several methods use `DIR/<method>`",
        group=_TRAINING,
        metavar="DIR",
        default=None,
    )
    batch_size: Annotated[int | Literal["auto"], BeforeValidator(read_batch_size)] = _option(
        "Batch size; auto finds one that fits\nImages, captions or pairs scored at a time; halved when [memory runs "
        "out](resume.md#trouble-while-running). `auto` starts at 1024 on a GPU. Changes scores by rounding at most",
        *("-b",),
        metavar="N|auto",
        default=64,
    )
    device: Annotated[str, BeforeValidator(read_device)] = _option(
        "Device: auto, cpu, cuda, cuda:1, mps; `run` accepts several: cuda:0,1\nSeeds and pairs are distributed over "
        "several",
        metavar="NAME",
        default="auto",
    )
    dtype: Annotated[Literal["fp32", "tf32", "bf16", "fp16"], BeforeValidator(read_dtype)] = _option(
        "Compute dtype; scores are always float32\nOn CPUs, bf16 is faster only with AMX or AVX512-BF16. `tf32` needs "
        "an NVIDIA GPU since Ampere; with `fp32`, torch still rounds the inputs of convolutions to TF32 on such GPUs "
        "unless `--deterministic` is given. torch's names are accepted, too",
        default="fp32",
    )
    use_cache: str | None = _option(
        "Score cache (default: TTMBENCH_CACHE, else the user cache)", metavar="DIR|off", default=None
    )
    offline: bool = _option("Use local files only; do not access the network", default=False)
    data_dir: str | None = _option(
        "Directory with data files (default: TTMBENCH_DATA, else the user cache)", metavar="DIR", default=None
    )
    seed: int = _option(
        "Seed for the bootstrap and fine-tuning, and first test-time seed",
        group=_EXECUTION,
        metavar="N",
        default=0,
        ge=0,
    )
    deterministic: bool = _option(
        "Bitwise identical results on one machine; uses one thread\nDeterministic algorithms only, and no TF32",
        group=_EXECUTION,
        default=False,
    )
    trust_remote_code: bool = _option("Run code from the Hub repository", group=_EXECUTION, default=False)
    compile: bool = _option(
        "Compile the model with torch.compile\nNeeds a C++ compiler", group=_EXECUTION, default=False
    )
    interval: Annotated[
        Literal["wilson", "percentile", "bca"],
        BeforeValidator(lambda name: name.lower() if isinstance(name, str) else name),
    ] = _option("Confidence interval: Wilson's, or a bootstrap over groups", group=_EXECUTION, default="wilson")
    bootstrap_iters: int = _option(
        "Bootstrap resamples; 0 disables intervals", group=_EXECUTION, metavar="N", default=1000, ge=0
    )
    on_error: Literal["raise", "continue"] = _option(
        "Stop or continue after a failed task", group=_EXECUTION, default="raise"
    )
    output_path: str | None = _option("Results directory or file", "-o", metavar="DIR|x.json", default=None)
    log_samples: bool = _option("Also write captions, image names and answers of each group", default=False)
    save_scores: bool = _option("Also write the score arrays", default=False)
    overwrite: Literal["never", "failed", "missing", "always"] = _option(
        "Which tasks of an earlier run to repeat (default: failed and missing)\n`failed` also repeats missing tasks; "
        "`never` refuses to write where results exist ([resume](resume.md))",
        group=_OUTPUT,
        default="failed",
    )
    baseline: str | None = _option("Results file to compare with", group=_OUTPUT, metavar="RESULT", default=None)
    track: Annotated[list[Literal["wandb", "trackio", "tensorboard"]], BeforeValidator(split_names)] = _option(
        "Experiment trackers: wandb, trackio, tensorboard", group=_OUTPUT, default=[]
    )
    track_args: Pairs = _option(
        "Tracker settings: project, name, dir, wandb.mode, ...\n`wandb.mode` is for one tracker, `project` for all "
        "that take it",
        group=_OUTPUT,
        default={},
    )
    assertions: list[str] = _option(
        "Required result: task.metric,method>=0.9\nThe operators are `>=`, `<=`, `>`, `<` and `==`, the number is a "
        "fraction; `task/mean.metric,method` is for [means over tags](task-file.md#means), and `task.coverage>=0.6` "
        "for [missing images](tasks.md#missing-images). Repeatable",
        *("--assert",),
        group=_OUTPUT,
        metavar="COND",
        default=[],
    )

    @model_validator(mode="before")
    @classmethod
    def _read_short_forms(cls, values: Any) -> Any:
        """The short form ``ttm`` as a name in ``methods``, with its settings, so that a run is written in one way."""
        if not isinstance(values, Mapping):
            return values
        options, ttm, asked = dict(values), values.get("ttm"), split_names(values.get("methods") or [])
        options.pop("ttm", None)
        if isinstance(ttm, TTMConfig | Mapping):
            given = ttm.model_dump(exclude_unset=True) if isinstance(ttm, TTMConfig) else ttm
            ttm, options["ttm_args"] = True, {**given, **parse_pairs(values.get("ttm_args", {}))}
        if not isinstance(ttm, bool | None):
            raise UsageError(f"'ttm' must be true or false, got {ttm!r:.80}")
        if ttm and isinstance(asked, Sequence):  # other methods are refused with the other options
            options["methods"] = ["ttm", *asked]
        return options

    @field_validator("model_args")
    @classmethod
    def _read_model_args(cls, pairs: Arguments) -> Arguments:
        pairs = nested(pairs, ("device_map", "max_memory", "quantization_config", "chat_template_kwargs"))
        return {key: read_dtype(item) if key in ("dtype", "weights_dtype") else item for key, item in pairs.items()}

    @field_validator("output_path", "save_adapted", "use_cache", "data_dir", "samples", "baseline", "include_path")
    @classmethod
    def _read_places(cls, value: Any, info: ValidationInfo) -> Any:
        """Only results may lie at an address."""
        for address in filter(is_address, value if isinstance(value, list) else [value]):
            refuse_address(str(info.field_name), address, may_be_address=info.field_name == "output_path")
        return value

    def arithmetic(self) -> AbstractContextManager[None]:
        """Inside, torch computes as the run asks; UsageError for TF32 without an NVIDIA GPU."""
        from ttmbench._util import machine

        if self.deterministic:
            return machine.deterministic(self.seed)
        return machine.tf32(self.device) if self.model_args.get("dtype", self.dtype) == "tf32" else nullcontext()

    @property
    def run_seeds(self) -> list[int]:
        """Seeds of test-time methods."""
        if self.seeds is not None:
            return self.seeds
        return [self.seed + offset for offset in range(4 if self.ttm_preset == "paper" else 1)]


def make_run_config(settings: Settings, origin: str = "the run's settings") -> RunConfig:
    """Checks settings.

    Raises:
        UsageError: an unknown option or a value out of range; the message begins with ``origin``.
    """
    refuse_password(origin, dict(settings))
    try:
        config = RunConfig.model_validate(settings)
    except ValidationError as error:
        old = next((name for name in RENAMED if name in settings), None)
        why = _describe(error, RunConfig) if old is None else f"'{old}' is now written: {RENAMED[old]}"
        raise UsageError(f"{origin}: {why}") from None
    except UsageError as error:  # of one of its readers
        raise UsageError(f"{origin}: {error}") from None
    for key, name in config.model_args.items():
        if key.endswith("_env") and name not in os.environ and not re.fullmatch("[A-Z_][A-Z0-9_]*", str(name)):
            raise UsageError(
                f"{origin}: {key} takes the name of an environment variable, such as OPENAI_API_KEY, and not the key "
                "itself; the value given is the name of no variable, and is not shown"
            )
    if config.seeds is not None and (min(config.seeds) < 0 or len(set(config.seeds)) < len(config.seeds)):
        raise UsageError(f"{origin}: seeds must be different whole numbers from 0, got {config.seeds}")
    file = config.output_path is not None, "writes a file, so it needs output_path"
    methods = bool(config.methods), "is for test-time methods, so it needs ttm or methods"
    of_methods = ("ttm_args", "ttm_preset", "method_args", "seeds", "holdout", "also", "audit_labels", "save_adapted")
    needs = {**dict.fromkeys(of_methods, methods), **dict.fromkeys(("log_samples", "save_scores"), file)}
    for name, (is_met, why) in needs.items():
        if not is_met and getattr(config, name) != RunConfig.model_fields[name].default:
            raise UsageError(f"{origin}: {name} {why}")
    if config.deterministic and config.batch_size == "auto":
        raise UsageError(
            f"{origin}: batch_size must be a number for deterministic, since another size changes the last bits"
        )
    if config.deterministic and "tf32" in (config.dtype, config.model_args.get("dtype")):
        raise UsageError(f"{origin}: deterministic needs dtype fp32, bf16 or fp16, got tf32")
    return config


class RunOptions(TypedDict, total=False):
    """Names and types of the options of `RunConfig`, for editors and type checkers."""

    model_name: str | None
    model_args: Mapping[str, Any] | str
    task_args: Mapping[str, Any] | str
    limit: int | float | None
    metrics: Sequence[str] | str
    include_path: Sequence[str]
    samples: str | None
    rerank: Mapping[str, Any] | str
    ttm: bool | TTMConfig | Mapping[str, Any] | None
    ttm_args: Mapping[str, Any] | str
    ttm_preset: Literal["auto", "paper"]
    seeds: Sequence[int] | None
    methods: Sequence[str] | str
    method_args: Mapping[str, Any] | str
    holdout: float | None
    also: Sequence[str] | str
    audit_labels: bool
    save_adapted: str | None
    batch_size: int | Literal["auto"]
    device: str
    dtype: Literal["fp32", "tf32", "bf16", "fp16"]
    use_cache: str | None
    offline: bool
    data_dir: str | None
    seed: int
    deterministic: bool
    trust_remote_code: bool
    compile: bool
    interval: Literal["wilson", "percentile", "bca"]
    bootstrap_iters: int
    on_error: Literal["raise", "continue"]
    output_path: str | None
    log_samples: bool
    save_scores: bool
    overwrite: Literal["never", "failed", "missing", "always"]
    baseline: str | None
    track: Sequence[Literal["wandb", "trackio", "tensorboard"]]
    track_args: Mapping[str, Any] | str
    assertions: Sequence[str]
