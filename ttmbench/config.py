"""Settings of a run (command line, ``--config``, `simple_evaluate`) and of TTM, validated on creation."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
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
    beneath,
    name_of_model,
    nested,
    of_this_machine,
    read_batch_size,
    read_dtype,
    read_limit,
    read_rerank,
    read_value,
    refuse_password,
    split_names,
    with_own_options,
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
    def _read_part_args(cls, value: object) -> object:
        return beneath(value, PART_KINDS, "part_args") if isinstance(value, Mapping) else value

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> Arguments:
        """Omits parts and ``train`` that have their default; settings of parts appear as given."""
        fields = TTMConfig.model_fields
        dumped = {key: value for key, value in dump(self).items() if key not in UNSAID or value != fields[key].default}
        of_parts = dumped.pop("part_args", {})
        return dumped | {f"{kind}.{key}": value for kind, each in of_parts.items() for key, value in each.items()}

    @field_validator("lr", mode="before")
    @classmethod
    def _not_chosen(cls, value: object) -> object:
        if value == "auto":
            raise ValueError(
                "must be a number, since no rule without labels chooses it well on all built-in tasks "
                "(docs/finetune.md); 'ttmbench analyze lr' compares learning rates"
            )
        return value

    @field_validator("tau_start", mode="before")
    @classmethod
    def _auto(cls, value: object) -> object:
        return None if value == "auto" else value

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


class RunConfig(BaseModel):
    """Settings of a run, named like the options of the command line.

    Attributes:
        model: name of a registered model.
        model_args: its arguments.
        model_name: the model's name in results; by default from the model arguments, else ``model``.
        tasks: names, tags, globs or files.
        task_args: changes to the tasks' ``source`` (the data seed of rendered tasks: ``seed=3``).
        include_path: folders of further task files.
        ttm: adapt by TTM before scoring.
        ttm_args: TTM settings that override every default.
        ttm_preset: ``paper`` takes the task's preset for this model, and four seeds.
        methods: names of further test-time methods; ``ttm``, ``simple_match``, ``oracle``, ``placebo`` and ``shuffle``
            are the same as their own options.
        method_args: their settings, named ``METHOD.KEY``.
        simple_match: run SimpleMatch's overfitting step.
        oracle: upper bound: also run TTM with correct pseudo-labels only (uses labels).
        ttm_controls: also run TTM with random (``placebo``) or permuted (``shuffle``) pseudo-labels.
        ttm_holdout: also hold out this fraction of groups from adaptation and score it.
        ttm_also: other tasks on which each adapted model is evaluated too, compared with the original model.
        audit_labels: run TTM again with the captions of every group permuted, and fail if any selection differs.
        save_adapted: a new folder for adapted models.
        rerank: for models that score pairs, in retrieval tasks: the model named by ``model`` ranks all candidates, and
            the best ``k`` of each query are ranked again; all other keys are arguments of that model.
        seeds: of TTM and SimpleMatch; None is one seed, or four for ``paper``.
        limit: use the first groups only: a number, or below 1 a fraction of the task's groups, rounded up.
        samples: a JSON file listing the group ids to use.
        batch_size: images, captions or pairs scored at a time, reduced if memory runs out; changes no score. ``auto``
            (or ``auto:4``) starts large on an accelerator.
        device: ``auto`` or a torch device; seeds and pairs of a run are distributed over several, separated by commas.
        dtype: compute dtype; weights and scores are fp32. ``tf32`` rounds the inputs of matrix products on an NVIDIA
            GPU. torch's names are accepted too.
        compile: run the model through ``torch.compile``.
        deterministic: bit-identical results on the same machine: deterministic algorithms only, one thread, no TF32.
        output_path: a folder, or a ``.json`` file.
        log_samples: also write one line per group.
        save_scores: also write the score arrays.
        use_cache: folder of cached raw scores, or ``off``; default: TTMBENCH_CACHE, else in the user's cache folder.
        offline: use local files only.
        data_dir: folder of data files; default: TTMBENCH_DATA, else in the user's cache folder.
        overwrite: if there is an earlier run of the same command, ``failed`` runs its failed and missing tasks,
            ``missing`` only its missing tasks, ``always`` all tasks again, and ``never`` stops with an error.
        on_error: stop at the first failed task, or continue with the next.
        assertions: conditions on results, such as ``shapes_color.group_match,ttm>=0.8``.
        baseline: a results document of another run to compare with.
        track: experiment trackers.
        track_args: settings of the trackers; ``wandb.mode`` applies to one tracker, ``project`` to all that accept it.
        bootstrap_iters: resamples of bootstrap intervals; 0 for no interval of any kind.
        interval: Wilson's score interval, or a bootstrap over groups.
        seed: random seed of everything except TTM and SimpleMatch; also the first of ``seeds`` by default.
        trust_remote_code: run code from a Hub repository.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    model_args: Arguments = {}
    model_name: str = Field(default_factory=lambda settings: name_of_model(**settings), min_length=1)
    tasks: list[str] = Field(min_length=1)
    task_args: Arguments = {}
    include_path: list[str] = []
    ttm: bool = False
    ttm_args: Arguments = {}
    ttm_preset: Literal["auto", "paper"] = "auto"
    methods: list[str] = []
    method_args: Arguments = {}
    simple_match: bool = False
    oracle: bool = False
    ttm_controls: list[Literal["placebo", "shuffle"]] = []
    ttm_holdout: float | None = Field(None, gt=0, lt=1)
    ttm_also: list[str] = []
    audit_labels: bool = False
    save_adapted: str | None = None
    rerank: Arguments = {}
    seeds: list[int] | None = Field(None, min_length=1)
    limit: int | float | None = None
    samples: str | None = None
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = 64
    device: str = "auto"
    dtype: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    compile: bool = False
    deterministic: bool = False
    output_path: str | None = None
    log_samples: bool = False
    save_scores: bool = False
    use_cache: str | None = None
    offline: bool = False
    data_dir: str | None = None
    overwrite: Literal["never", "failed", "missing", "always"] = "failed"
    on_error: Literal["raise", "continue"] = "raise"
    assertions: list[str] = []
    baseline: str | None = None
    track: list[Literal["wandb", "trackio", "tensorboard"]] = []
    track_args: Arguments = {}
    bootstrap_iters: int = Field(1000, ge=0)
    interval: Literal["wilson", "percentile", "bca"] = "wilson"
    seed: int = Field(0, ge=0)
    trust_remote_code: bool = False

    @model_validator(mode="before")
    @classmethod
    def _methods_with_options(cls, values: Any) -> Any:
        return with_own_options(values) if isinstance(values, Mapping) and values.get("methods") else values

    @field_validator("rerank", mode="before")
    @classmethod
    def _read_rerank(cls, value: object) -> object:
        return read_rerank(parse_pairs(value) if isinstance(value, str) else value)

    @field_validator("model_args", mode="before")
    @classmethod
    def _read_model_args(cls, value: object) -> object:
        pairs = parse_pairs(value) if isinstance(value, str) else value
        if not isinstance(pairs, Mapping):
            return pairs
        pairs = nested(pairs, ("device_map", "max_memory", "quantization_config", "chat_template_kwargs"))
        return {key: read_dtype(item) if key in ("dtype", "weights_dtype") else item for key, item in pairs.items()}

    @field_validator("dtype", "batch_size", "limit", mode="before")
    @classmethod
    def _read_spelling(cls, value: object, info: ValidationInfo) -> object:
        readers = {"dtype": read_dtype, "batch_size": read_batch_size, "limit": read_limit}
        return None if value is None else readers[str(info.field_name)](value)

    @property
    def own_columns(self) -> list[str]:
        """Methods that have command-line options (TTM and its variants), by the filter of their numbers."""
        columns: dict[str, bool] = {"simple_match": self.simple_match, "ttm": self.ttm}
        for name in self.ttm_controls:
            columns[name] = True
        columns |= {"holdout": self.ttm and self.ttm_holdout is not None, "oracle": self.oracle}
        return [name for name, is_asked in columns.items() if is_asked]

    @property
    def arithmetic(self) -> object:
        """The compute dtype, which may be given as a model argument."""
        return self.model_args.get("dtype", self.dtype)

    @property
    def run_seeds(self) -> list[int]:
        """Seeds of TTM and SimpleMatch."""
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
        config = RunConfig.model_validate(of_this_machine(settings))
    except ValidationError as error:
        raise UsageError(f"{origin}: {_describe(error, RunConfig)}") from None
    for key, name in config.model_args.items():
        if key.endswith("_env") and name not in os.environ and not re.fullmatch("[A-Z_][A-Z0-9_]*", str(name)):
            raise UsageError(
                f"{origin}: {key} takes the name of an environment variable, such as OPENAI_API_KEY, and not the key "
                "itself; the value given is the name of no variable, and is not shown"
            )
    if config.seeds is not None and (min(config.seeds) < 0 or len(set(config.seeds)) < len(config.seeds)):
        raise UsageError(f"{origin}: seeds must be different whole numbers from 0, got {config.seeds}")
    named, left = bool(config.methods), config.ttm or config.simple_match or bool(config.methods)
    trains = bool(config.own_columns) or named, "is for test-time training, so it needs ttm, simple_match or oracle"
    ttm = config.ttm, "is for TTM, so it needs ttm"
    file = config.output_path is not None, "writes a file, so it needs output_path"
    needs = {
        **dict.fromkeys(("ttm_args", "ttm_preset"), trains),
        "seeds": (trains[0], f"{trains[1]}, or methods"),
        "method_args": (named, "is for methods, so it needs methods"),
        "ttm_controls": ttm,
        **dict.fromkeys(("ttm_holdout", "ttm_also", "audit_labels"), (ttm[0] or named, f"{ttm[1]}, or methods")),
        **dict.fromkeys(("log_samples", "save_scores"), file),
        "save_adapted": (left, "saves an adapted model, so it needs ttm, simple_match or methods"),
    }
    for name, (is_met, why) in needs.items():
        if not is_met and getattr(config, name) not in (RunConfig.model_fields[name].default, ""):
            raise UsageError(f"{origin}: {name} {why}")
    if config.deterministic and config.batch_size == "auto":
        raise UsageError(f"{origin}: batch_size must be a number for deterministic, since it changes the last bits")
    if config.deterministic and config.arithmetic == "tf32":
        raise UsageError(f"{origin}: deterministic needs dtype fp32, bf16 or fp16, got tf32")
    return config


def parse_pairs(text: str) -> Arguments:
    """Parses ``k=v,k2=v2``, with numbers, true, false and none converted to Python values.

    >>> parse_pairs("lr=1e-4,epochs=5,keep_optimizer_state=true,schedule=cosine")
    {'lr': 0.0001, 'epochs': 5, 'keep_optimizer_state': True, 'schedule': 'cosine'}
    """
    pairs: Arguments = {}
    for part in split_names(text):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise UsageError(f"arguments must be key=value, separated by commas, got '{part}'")
        pairs[key.strip()] = read_value(value.strip())
    return pairs
