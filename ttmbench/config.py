"""Settings of a run (command line, ``--config``, `simple_evaluate`) and of TTM, validated on creation."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict, get_args

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

from ttmbench._util.option_values import (
    name_of_model,
    nested,
    read_batch_size,
    read_device,
    read_dtype,
    read_limit,
    read_place,
    read_rerank,
    read_value,
    refuse_password,
    split_names,
    with_dots,
    with_ttm,
)
from ttmbench._util.third_party_errors import describe as _describe  # pydantic evaluates these annotations
from ttmbench.errors import UsageError
from ttmbench.method_spec import PartKind

DEFAULT_LEARNING_RATE = 1e-5
AUTHORS_LEARNING_RATE = 4e-5  # default of the authors' published code
_WITHOUT_A_SOURCE = (
    f"{DEFAULT_LEARNING_RATE:g} is this package's default, {AUTHORS_LEARNING_RATE:g} that of the authors' code"
)
NO_LEARNING_RATE = f"none is known for this model and task; {_WITHOUT_A_SOURCE}"
UNKNOWN_LEARNING_RATE = f"no available copy of the paper states its value legibly; {_WITHOUT_A_SOURCE}"
DEFAULT_SHARE = 0.5
PART_KINDS: tuple[PartKind, ...] = get_args(PartKind)
UNSAID = ("train", *PART_KINDS)
"""Settings of TTM that are omitted from records while they have their default."""
Settings = Mapping[str, Any]
Arguments = dict[str, Any]
"""Option or argument -> value."""


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
        train: which parameters are trained, as `ttmbench.ttm.parameters.select` names them.
        part_args: kind of a part -> settings of that part, each given as ``KIND.KEY``.

    The other attributes name TTM's replaceable parts (`ttmbench.ttm.parts`).
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

    @property
    def other_parts(self) -> list[PartKind]:
        """Kinds of parts that differ from the default or have settings."""
        default = {kind: TTMConfig.model_fields[kind].default for kind in PART_KINDS}
        return [kind for kind in PART_KINDS if kind in self.part_args or getattr(self, kind) != default[kind]]

    @model_validator(mode="before")
    @classmethod
    def _read(cls, values: Any) -> Any:
        """``KIND.KEY`` settings of parts go to ``part_args``, and ``tau_start=auto`` is none."""
        if not isinstance(values, Mapping):
            return values
        if values.get("lr") == "auto":
            raise ValueError(
                "'lr': must be a number, since no rule without labels chooses it well on all built-in tasks "
                "(docs/finetune.md); 'ttmbench analyze lr' compares learning rates"
            )
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

    @model_validator(mode="after")
    def _shares_are_shares(self) -> TTMConfig:
        self.by_share(is_global=False)
        return self

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
        pairs[key.strip()] = read_value(item.strip())
    return pairs


def _option(description: str, *flags: str, group: str = "", metavar: str = "", **field: Any) -> Any:
    """An option of a run.

    Args:
        description: its first line is what ``--help`` prints; the page on the command line has the others, too.
        flags: short spellings; one with two dashes replaces the field's name on the command line.
        group: heading in ``--help``; none for the common options.
        metavar: what a value is, if its type does not say so; an option with a list may be repeated if it has no comma.
        field: default and bounds, as `pydantic.Field` takes them.
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
    include_path: Names = _option("Directory with additional task files", group=_DATA, metavar="DIR", default=[])
    samples: str | None = _option("JSON list with the group IDs to use", group=_DATA, metavar="FILE", default=None)
    rerank: Annotated[Pairs, AfterValidator(read_rerank)] = _option(
        "First retrieval stage: model=NAME selects k=N candidates to rerank\nOther keys are arguments of that model "
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
    methods: Names = _option(
        "Test-time methods from `ttmbench ls methods`: ttm, overfit, tent, ...\n`oracle`, `placebo` and `shuffle` are "
        "[upper bound and controls](ttm.md#controls)",
        default=[],
    )
    method_args: Annotated[Pairs, AfterValidator(with_dots)] = _option(
        "Settings for methods, such as tent.lr=1e-3,zero.share=0.3",
        group=_TRAINING,
        metavar="NAME.K=V,...",
        default={},
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
    log_samples: bool = _option("Also write one JSON line per group", default=False)
    save_scores: bool = _option("Also write the score arrays", default=False)
    overwrite: Literal["never", "failed", "missing", "always"] = _option(
        "Tasks from an earlier run to repeat (default: failed and missing)\n`failed` also repeats missing tasks; "
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
        "Required result: task.metric,filter>=0.9\nThe operators are `>=`, `<=`, `>`, `<` and `==`, the number is a "
        "fraction; `task/mean.metric,filter` is for [means over tags](task-file.md#means), and `task.coverage>=0.6` "
        "for [missing images](tasks.md#missing-images). Repeatable",
        *("--assert",),
        group=_OUTPUT,
        metavar="COND",
        default=[],
    )

    @model_validator(mode="before")
    @classmethod
    def _read_short_forms(cls, values: Any) -> Any:
        """TTM as a method, with its settings given as ``ttm``."""
        if not isinstance(values, Mapping):
            return values
        ttm = values.get("ttm")
        if isinstance(ttm, TTMConfig | Mapping):
            given = ttm.model_dump(exclude_unset=True) if isinstance(ttm, TTMConfig) else ttm
            values = {**values, "ttm": True, "ttm_args": {**given, **parse_pairs(values.get("ttm_args", {}))}}
        return with_ttm(values)

    @field_validator("model_args")
    @classmethod
    def _read_model_args(cls, pairs: Arguments) -> Arguments:
        pairs = nested(pairs, ("device_map", "max_memory", "quantization_config", "chat_template_kwargs"))
        return {key: read_dtype(item) if key in ("dtype", "weights_dtype") else item for key, item in pairs.items()}

    @field_validator("output_path", "save_adapted", "use_cache", "data_dir", "samples", "baseline", "include_path")
    @classmethod
    def _read_places(cls, value: Any, info: ValidationInfo) -> Any:
        """Paths in place of ``file://`` addresses; only results may lie at another address."""
        name = str(info.field_name)
        if isinstance(value, list):
            return [read_place(name, folder) for folder in value]
        return read_place(name, value, may_be_address=name == "output_path")

    @property
    def arithmetic(self) -> object:
        """The compute dtype, which may be given as a model argument."""
        return self.model_args.get("dtype", self.dtype)

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
        raise UsageError(f"{origin}: {_describe(error, RunConfig)}") from None
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
    if config.deterministic and config.arithmetic == "tf32":
        raise UsageError(f"{origin}: deterministic needs dtype fp32, bf16 or fp16, got tf32")
    return config


class RunOptions(TypedDict, total=False):
    """Names and types of the options of `RunConfig`, for editors and type checkers."""

    model_name: str | None
    model_args: Mapping[str, Any] | str
    task_args: Mapping[str, Any] | str
    limit: int | float | None
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
