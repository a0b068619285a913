"""What a run is a function of: settings of the command line, ``--config`` or `simple_evaluate`, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ttmbench.assertions import parse_assertion
from ttmbench.errors import UsageError
from ttmbench.ttmconfig import describe

# One set of weights can be scored in each of these ways, so the way belongs to the name of the model.
SCORERS = ("vqascore", "visualgpt", "choice", "blind", "blip-it", "blip2-it", "flava-it")


class RunConfig(BaseModel):
    """Settings of a run; names are those of the command line's options.

    Attributes:
        model: name of a registered model.
        model_args: its arguments.
        tasks: names, tags, globs or files.
        task_args: changes to the tasks' ``source`` (the data seed of rendered tasks: ``seed=3``).
        include_path: folders of further task files.
        ttm: adapt by TTM before scoring.
        ttm_args: TTM settings that win over every default.
        ttm_preset: ``paper`` takes the task's preset for this model, and four seeds.
        simple_match: run SimpleMatch's overfitting step.
        oracle: also run TTM with an oracle's selection; it reads labels, so its numbers are no results.
        ttm_controls: also run TTM with other pseudo-labels: ``placebo`` (drawn at random), ``shuffle`` (moved to other
            groups).
        ttm_holdout: also adapt to a part of the groups and score the others; this share is held out.
        audit_labels: run TTM again with the captions of every group permuted, and fail if any selection differs.
        save_adapted: a new folder for the adapted model.
        seeds: of TTM and SimpleMatch; None is one seed, or four for ``paper``.
        limit: use the first groups only.
        samples: a JSON file listing the group ids to use.
        batch_size: images, captions or pairs scored at a time, fewer once memory runs out; changes no score. ``auto``
            begins large on an accelerator.
        device: ``auto`` or what torch calls it.
        dtype: of the model's arithmetic; weights and scores are fp32.
        compile: run the model through ``torch.compile``.
        deterministic: the same bits every time on one machine: deterministic algorithms alone, one thread, no TF32.
        output_path: a folder, or a ``.json`` file.
        log_samples: also write one line per group.
        save_scores: also write the score arrays.
        use_cache: folder in which raw scores are kept for later runs, or ``off``; by default TTMBENCH_CACHE, else one
            in the user's cache folder.
        offline: use what is on this machine only.
        data_dir: folder of data files; by default TTMBENCH_DATA, else one in the user's cache folder.
        overwrite: what becomes of an earlier run of the same command: ``failed`` runs what failed or is missing,
            ``missing`` leaves failures alone, ``always`` runs everything again, ``never`` refuses.
        on_error: stop at the first failed task, or go on to the next.
        assertions: conditions on results, such as ``shapes_color.group_match,ttm>=0.8``.
        baseline: a results document of another run, whose numbers this run's are compared with.
        track: trackers that are told of the run as it goes.
        track_args: their settings; ``wandb.mode`` is for one of them, ``project`` for all that have it.
        bootstrap_iters: resamples of bootstrap intervals; 0 for no interval of any kind.
        interval: how intervals are made: Wilson's, or a bootstrap over groups.
        seed: of everything that ``seeds`` does not govern, and the first of ``seeds`` if they are not given.
        trust_remote_code: run code that a hub repository ships.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    model_args: dict[str, Any] = {}
    tasks: list[str] = Field(min_length=1)
    task_args: dict[str, Any] = {}
    include_path: list[str] = []
    ttm: bool = False
    ttm_args: dict[str, Any] = {}
    ttm_preset: Literal["auto", "paper"] = "auto"
    simple_match: bool = False
    oracle: bool = False
    ttm_controls: list[Literal["placebo", "shuffle"]] = []
    ttm_holdout: float | None = Field(None, gt=0, lt=1)
    audit_labels: bool = False
    save_adapted: str | None = None
    seeds: list[int] | None = Field(None, min_length=1)
    limit: int | None = Field(None, ge=1)
    samples: str | None = None
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = 64
    device: str = "auto"
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
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
    track_args: dict[str, Any] = {}
    bootstrap_iters: int = Field(1000, ge=0)
    interval: Literal["wilson", "percentile", "bca"] = "wilson"
    seed: int = Field(0, ge=0)
    trust_remote_code: bool = False

    @property
    def model_name(self) -> str:
        """What results call the model: what the model arguments say of it, else its name.

        >>> RunConfig(model="hf", model_args={"pretrained": "google/siglip"}, tasks=["x"]).model_name
        'google/siglip'
        >>> RunConfig(model="open_clip", model_args={"model": "RN50", "pretrained": "cc12m"}, tasks=["x"]).model_name
        'RN50/cc12m'
        >>> RunConfig(model="vqascore", model_args={"pretrained": "llava-hf/llava"}, tasks=["x"]).model_name
        'vqascore/llava-hf/llava'
        """
        given = [self.model_args.get(key) for key in ("model", "pretrained", "path")]
        said = [part.removeprefix("local-dir:").removeprefix("hf-hub:") for part in given if isinstance(part, str)]
        parts = [Path(part).resolve().name if Path(part).exists() else part for part in said]
        if parts and self.model.startswith(SCORERS):
            parts.insert(0, self.model)
        return "/".join(parts) or self.model

    @property
    def adapts(self) -> bool:
        """Whether the run has a test-time stage."""
        return self.ttm or self.simple_match or self.oracle

    @property
    def run_seeds(self) -> list[int]:
        """Seeds of TTM and SimpleMatch."""
        if self.seeds is not None:
            return self.seeds
        return [self.seed + offset for offset in range(4 if self.ttm_preset == "paper" else 1)]


def make_run_config(settings: Mapping[str, Any], origin: str = "the run's settings") -> RunConfig:
    """Checks settings.

    Args:
        settings: option -> value.
        origin: where they come from, for the message.

    Returns:
        The configuration.

    Raises:
        UsageError: an unknown option, a value out of range, an assertion that cannot be read, or no data folder.
    """
    try:
        config = RunConfig(**settings)
    except ValidationError as error:
        raise UsageError(f"{origin}: {describe(error, RunConfig)}") from None
    if config.seeds is not None and (min(config.seeds) < 0 or len(set(config.seeds)) < len(config.seeds)):
        raise UsageError(f"{origin}: seeds must be different whole numbers from 0, got {config.seeds}")
    needs_ttm = {
        "ttm_controls": config.ttm_controls,
        "ttm_holdout": config.ttm_holdout,
        "audit_labels": config.audit_labels,
    }
    for name, value in needs_ttm.items():
        if value and not config.ttm:
            raise UsageError(f"{origin}: {name} says something about TTM, so it needs ttm")
    if config.save_adapted and not (config.ttm or config.simple_match):
        raise UsageError(f"{origin}: save_adapted needs ttm or simple_match, else nothing is adapted")
    if config.deterministic and config.batch_size == "auto":
        raise UsageError(f"{origin}: deterministic needs a batch_size that is a number, for it moves the last bits")
    for assertion in config.assertions:
        parse_assertion(assertion)
    if config.data_dir is not None:
        from ttmbench.data.loading import given_data_folder

        given_data_folder(config.data_dir)
    return config


def split_names(text: str) -> list[str]:
    """``a, b`` as a list, as ``--tasks`` takes it.

    >>> split_names("shapes_color, shapes_place,")
    ['shapes_color', 'shapes_place']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_pairs(text: str) -> dict[str, Any]:
    """``k=v,k2=v2`` with numbers, true, false and none read as such.

    >>> parse_pairs("lr=1e-4,epochs=5,keep_optimizer_state=true,schedule=cosine")
    {'lr': 0.0001, 'epochs': 5, 'keep_optimizer_state': True, 'schedule': 'cosine'}
    """
    pairs: dict[str, Any] = {}
    for part in split_names(text):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise UsageError(f"'{part}' is not key=value")
        pairs[key.strip()] = _read_value(value.strip())
    return pairs


def read_config_file(path: Path) -> dict[str, Any]:
    """Settings of a YAML file for ``--config``; UsageError if it is no mapping."""
    from ttmbench.textfile import Unreadable, read_yaml

    try:
        content = read_yaml(path)
    except Unreadable as error:
        raise UsageError(f"--config {path}: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"--config {path}: is no mapping of options")
    settings = {str(key).replace("-", "_"): value for key, value in content.items()}
    if len(settings) < len(content):
        raise UsageError(f"--config {path}: an option is given twice, with dashes and with underscores")
    return settings


def _read_value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
