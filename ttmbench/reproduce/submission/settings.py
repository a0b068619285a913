"""What a submission's command means, and whether model and names are those that it gives."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from ttmbench._util.redact import GONE, redact, scrub, secrets_in_environment
from ttmbench._version import __version__
from ttmbench.config import RunConfig, make_run_config
from ttmbench.errors import TtmbenchError
from ttmbench.evaluator.adapters import make_adapter, model_info, model_settings
from ttmbench.plugins.registry import Registry, arguments_of, locate_files
from ttmbench.reproduce.submission.findings import Findings
from ttmbench.reproduce.submission.recorded import leaves
from ttmbench.results.document import ResultsDocument
from ttmbench.scoring.capabilities import Capabilities
from ttmbench.types import AdapterSpec

ReadCommand = Callable[[str], Mapping[str, object]]
"""The settings that a command line gives; raises ValueError if it is none. Nothing that it names is read."""

MOST_RESAMPLES = 100_000
"""A document may ask for any number of resamples; beyond this its intervals are not computed again."""

_NEEDS_A_FILE: dict[str, object] = {"samples": None, "baseline": None, "include_path": []}
_NAMES_WEIGHTS = ("weights_sha256", "features_sha256", "model")
_WEIGHTS = ("pretrained", "model", "path", "weights")
_DIGEST = re.compile(r"[0-9a-f]{40,}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/@:+()=,-]{0,199}")
_ALIKE = str.maketrans({"0": "o", "1": "l", "i": "l", "|": "l", "5": "s"})
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "tf32": "tf32"}
CAPABILITIES = {"DualEncoder", "PairScorer", "PreparedPairScorer", "ChoiceScorer", "Trainable", "PairTrainable"}
_OF_THE_MACHINE = ("device", "attn_implementation")
_BY_TRANSFORMERS = ("config_sha256", "preprocessing", "image_processor", "tokenizer_sha256")
_INFO = {"capabilities", "fingerprint", "source", "trained_on", "finetuned", "usage"}


def resolve(
    document: ResultsDocument, registry: Registry, read_command: ReadCommand, findings: Findings
) -> RunConfig | None:
    """The configuration that the command gives; None if it gives none that can be computed again, with a reason."""
    command, secrets = document.command, secrets_in_environment()
    texts = ((key, leaf) for key, leaf in leaves(document.to_dict()) if isinstance(leaf, str))
    for key, text in texts:
        if redact([text]) != text if key in ("command", "git_hash") else scrub(text, secrets) != text:
            findings.refuse(key, "holds what looks like a key, a token or a password; take it out and revoke it")
    try:
        plain = command.replace(GONE, "redacted")
        if shlex.join(shlex.split(plain)) != plain:
            raise ValueError("it is not quoted as a shell needs it")
        options = dict(read_command(command))
        if "config" in options:
            raise ValueError("its --config file is not available here; write out the options instead")
        config = make_run_config(options, "the command")
    except (TtmbenchError, ValueError) as error:
        findings.refuse("command", f"is not a run of ttmbench that can be read again: {error}")
        return None
    unreadable = [name for name, without in _NEEDS_A_FILE.items() if getattr(config, name) != without]
    paths = [word for word in (*config.tasks, *config.ttm_also) if re.search(r"[/\\]|\.ya?ml$", word)]
    if unreadable or paths:
        what = f"task {paths[0]}" if paths else f"--{unreadable[0]}"
        findings.refuse(
            "command", f"has {what}, a file that is not available here; numbers are compared on registered tasks"
        )
        return None
    if config.bootstrap_iters > MOST_RESAMPLES:
        findings.refuse("config.bootstrap_iters", f"is {config.bootstrap_iters}, at most {MOST_RESAMPLES} are taken")
        return None
    if config.model not in registry.adapters:
        findings.leave_open("config.model", f"is {config.model}, which this package does not have")
    version = document.packages.get("ttmbench")
    if version != __version__:
        other = f"is {version}, this is {__version__}; check the submission with the version that made it"
        findings.leave_open("packages.ttmbench", other)
    return config


def check_model(document: ResultsDocument, config: RunConfig, registry: Registry, findings: Findings) -> None:
    """Checks name, fingerprint and training data of the model against the command and the models known here."""
    _check_name(config, registry, findings)
    info, declared = document.model_info, document.fingerprint
    for key in sorted(info.keys() - _INFO):
        findings.refuse(f"model_info.{key}", "is a key that no run writes")
    can = info.get("capabilities")
    if (
        not isinstance(can, list)
        or not set(map(str, can)) <= CAPABILITIES
        or len({*map(str, can)}) < len(can)
        or not can
    ):
        findings.refuse("model_info.capabilities", f"is not a list of {', '.join(sorted(CAPABILITIES))}")
    if not declared:
        findings.refuse("model_info.fingerprint", "is missing; it says which weights the numbers are of")
        return
    has_digest = any(isinstance(value, str) and _DIGEST.fullmatch(value) for value in declared.values())
    if not has_digest and not any(declared.get(key) for key in _NAMES_WEIGHTS):
        findings.refuse("model_info.fingerprint", "names no digest or commit of weights, and no served model")
    _check_settings(document, config, findings)
    spec = registry.adapters[config.model][0] if config.model in registry.adapters else None
    if spec is None:
        return
    arguments = arguments_of(spec, config.model_args)
    pinned = {key: arguments[key] for key in ("pretrained", "model") if isinstance(arguments.get(key), str)}
    if pinned:
        for key in ("pretrained", "model", "revision"):
            # What a user names may be a folder, of which a fingerprint has the last part.
            by_user, expected = key in config.model_args, arguments.get(key)
            stated = declared.get(key)
            if (
                isinstance(expected, str)
                and (stated or key != "revision")
                and not (by_user and str(stated).endswith(Path(expected).name))
            ):
                findings.same(f"model_info.fingerprint.{key}", stated, expected, f"model {config.model} has")
    else:
        _check_shipped(document, config, registry, spec, findings)
    if spec.card is not None and "finetuned" not in info and not set(config.model_args) & set(_WEIGHTS):
        known = None if spec.card.trained_on is None else list(spec.card.trained_on)
        findings.same("model_info.trained_on", info.get("trained_on"), known, f"model {config.model} states")


def _check_shipped(
    document: ResultsDocument, config: RunConfig, registry: Registry, spec: AdapterSpec, findings: Findings
) -> None:
    """A model whose weights ship with its adapter is loaded, and says of itself what the document has to say."""
    try:
        if not locate_files(spec, config.model_args, True):
            return
        settings = model_settings(config.model_copy(update={"device": "cpu", "offline": True}), True)
        expected = model_info(Capabilities(make_adapter(registry, config.model, config.model_args, settings)))
    except TtmbenchError as error:
        findings.leave_open("model_info.fingerprint", f"model {config.model} cannot be loaded here ({error})")
        return
    from importlib.metadata import version  # what transformers writes of a model changes with its version

    for key in sorted(document.model_info.keys() - expected.keys() - {"trained_on"}):
        findings.refuse(f"model_info.{key}", f"is present, but model {config.model} does not state it")
    same = document.packages.get("transformers") == version("transformers")
    passed = (*_OF_THE_MACHINE, *(() if same else _BY_TRANSFORMERS))
    for key, value in expected.items():
        stated = document.model_info.get(key)
        if key == "fingerprint":
            value = {name: entry for name, entry in value.items() if name not in passed}
            stated = {name: entry for name, entry in document.fingerprint.items() if name not in passed}
        findings.same(f"model_info.{key}", stated, value, f"model {config.model} states")


def _check_settings(document: ResultsDocument, config: RunConfig, findings: Findings) -> None:
    """Precision, compilation and device of a fingerprint are those of the command."""
    declared, says = document.fingerprint, "the command gives"
    dtype = config.model_args.get("dtype", config.dtype)
    if declared.get("dtype") in _DTYPES.values():
        findings.same("model_info.fingerprint.dtype", declared["dtype"], _DTYPES.get(dtype, dtype), says)
    if isinstance(declared.get("compiled"), bool):
        findings.same("model_info.fingerprint.compiled", declared["compiled"], config.compile, says)
    if isinstance(declared.get("device"), str):
        kind = declared["device"].partition(":")[0]
        wanted = {device.partition(":")[0] for device in config.device.split(",")}
        if kind not in wanted | ({"cpu", "cuda", "mps", "xpu"} if "auto" in wanted else set()):
            findings.refuse("model_info.fingerprint.device", f"is {kind}, {says} {config.device}")
        if kind == "cuda" and document.hardware.get("accelerator") is None:
            findings.refuse("model_info.fingerprint.device", "is cuda, and hardware.accelerator is null")


def _check_name(config: RunConfig, registry: Registry, findings: Findings) -> None:
    """A name is plain, and is not (nearly) that of a model that the run does not use."""
    name = config.model_name
    if not _NAME.fullmatch(name):
        words = "has letters beyond A-Z, a-z, 0-9 and . _ / @ : + ( ) = , -, some of which look like others"
        findings.refuse("model_name", words)
        return
    used = {str(config.model_args[key]) for key in _WEIGHTS if key in config.model_args}
    if config.model in registry.adapters and not (used and registry.adapters[config.model][0].model_args):
        used |= {config.model, *_called(registry.adapters[config.model][0])}
    for other, (spec, _) in registry.adapters.items():
        names = {other, *_called(spec)}
        if not names & used and _looks_like(name) in set(map(_looks_like, names)):
            findings.refuse("model_name", f"is {name}, the command runs {config.model}, and {other} is another model")
            return


def _called(spec: AdapterSpec) -> set[str]:
    """A model's name, and the repository of its weights with and without its owner."""
    weights = [name for key in ("pretrained", "model") if isinstance(name := spec.model_args.get(key), str)]
    return {spec.name, *weights, *(name.rpartition("/")[2] for name in weights)}


def _looks_like(name: str) -> str:
    """A name without what a reader overlooks.

    >>> _looks_like("C1ip_B32") == _looks_like("clip-b32")
    True
    """
    plain = re.sub(r"[^a-z0-9|]", "", name.lower()).translate(_ALIKE)
    return plain.replace("rn", "m").replace("vv", "w")
