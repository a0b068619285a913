"""Parses values of options: dtypes, sizes, devices, paths."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeGuard

from ttmbench.errors import UsageError

DTYPES = {"float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
_DEVICE = re.compile(r"(auto|cpu|mps)(?::0)?|(cuda|xpu|hpu|npu|xla):?(\d*)")
_KNOWN_DEVICES = "known: auto, cpu, cuda, cuda:1, mps"
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]+://")
_PASSWORD = re.compile(r"\w://[^/\s@,]*:(?!\d+[,/])[^/\s]*@")  # but not http://host:8000,user=a@b
_HALF_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")  # gs:/x, but not C:/x


def read_dtype(value: object) -> object:
    """The name of a dtype here; other values stay the same.

    >>> read_dtype("bfloat16"), read_dtype("torch.float32"), read_dtype("fp16"), read_dtype("int8")
    ('bf16', 'fp32', 'fp16', 'int8')
    """
    name = str(value).removeprefix("torch.")
    return DTYPES.get(name, value)


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


def number_of(value: object) -> float:
    """A number, also of its text; NaN for anything else."""
    try:
        return float(str(value))
    except ValueError:
        return math.nan


def read_batch_size(value: object) -> int | Literal["auto"]:
    """A batch size; ``auto:4`` is ``auto``, since the size is reduced whenever memory runs out.

    >>> read_batch_size("auto:4"), read_batch_size("8"), read_batch_size(8)
    ('auto', 8, 8)
    """
    if re.fullmatch(r"auto(:\d+)?", str(value)):
        return "auto"
    number = number_of(value)
    if not (number >= 1 and number.is_integer()):
        raise ValueError("must be a whole number from 1, or auto")
    return int(number)


def read_limit(value: object) -> int | float:
    """A limit as a count or a fraction below 1; ValueError for other values.

    >>> read_limit("8"), read_limit(0.1), read_limit(8.0)
    (8, 0.1, 8)
    """
    number = number_of(value)
    if not (0 < number < 1 or (number >= 1 and number.is_integer())):
        raise ValueError("must be a whole number of groups from 1, or a fraction of them between 0 and 1")
    return int(number) if number >= 1 else number


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

    >>> read_device("cuda:0,1,2"), read_device("cpu,cpu")
    ('cuda:0,cuda:1,cuda:2', 'cpu,cpu')
    >>> read_device("CPU"), read_device("cuda0"), read_device("gpu:1"), read_device(0), read_device("mps:0")
    ('cpu', 'cuda:0', 'cuda:1', 'cuda:0', 'mps')
    """
    text = str(given).strip().lower()
    if "," in text:
        return _read_devices(text)
    match = _DEVICE.fullmatch(f"cuda:{text}" if text.isdecimal() else text.replace("gpu", "cuda"))
    if match is None:
        raise UsageError(f"unknown device {given}; {_KNOWN_DEVICES}")
    alone, kind, number = match.groups()
    return alone or (f"{kind}:{int(number)}" if number else kind)


def _read_devices(text: str) -> str:
    """Several devices; a number is one of the kind before it, and the CPU may be repeated."""
    devices: list[str] = []
    for device in filter(None, (part.strip() for part in text.split(","))):
        kind = devices[-1].partition(":")[0] if devices and device.isdecimal() else ""
        devices.append(read_device(f"{kind}:{device}" if kind not in ("", "cpu") else device))
    for name in devices:
        if len(devices) > 1 and name != "cpu" and (":" not in name or devices.count(name) > 1):
            raise UsageError(f"several devices must differ and have numbers, such as cuda:0,cuda:1, got {text}")
    if not devices:
        raise UsageError(f"unknown device {text}; {_KNOWN_DEVICES}")
    return ",".join(devices)


def is_address(given: object) -> TypeGuard[str]:
    """Whether a value is an address such as ``s3://bucket/results``.

    >>> is_address("s3://bucket/results"), is_address("results/s3")
    (True, False)
    """
    return isinstance(given, str) and _ADDRESS.match(given) is not None


def refuse_password(name: str, value: object) -> None:
    """UsageError for an address with user and password in a text or a container of texts, which are written down."""
    if _PASSWORD.search(str(value)):
        raise UsageError(
            f"{name} must have no password, and has an address of the form scheme://user:password@host; remove "
            "user:password@ and give them in an environment variable or the storage library's own configuration"
        )


def read_place(name: str, given: object, may_be_address: bool = False) -> Any:
    """The file or folder of an option; the path of a ``file://`` address.

    Other addresses, except those of web pages, are returned if the option ``may_be_address``, else a UsageError.

    >>> read_place("output_path", "file:///data/my%20results"), read_place("data_dir", "data")
    ('/data/my results', 'data')
    """
    if isinstance(given, str) and _HALF_ADDRESS.match(given):
        raise UsageError(f"{name} {given} must be an address with ://, or a path: ./{given} is a local folder")
    if not is_address(given):
        return given
    refuse_password(name, given)
    scheme, _, rest = given.partition("://")
    if scheme.lower() == "file":
        host, slash, path = rest.partition("/")
        if host.lower() not in ("", "localhost") or not slash:
            raise UsageError(f"{name} must name a local file or folder, such as file:///folder, got {given}")
        from urllib.request import url2pathname  # with http and ssl, which no start-up should wait for

        return url2pathname(f"/{path}")
    if may_be_address and scheme.lower() not in ("http", "https"):
        return given
    raise UsageError(
        f"{name} must be a local path, and {given} is an address: give a local folder and copy it with a "
        f"tool for {scheme}, or mount it as a folder"
    )


def place_of(given: object, what: str = "the path") -> Path:
    """A local path; results at an address are fetched with the files beside them (`ttmbench._util.remote.fetched`)."""
    location = read_place(what, given, may_be_address=True)
    if not is_address(location):
        return Path(location)
    from ttmbench._util.remote import fetched

    return fetched(location, what)


# One set of weights can be scored in each of these ways, so the way belongs to the name of the model.
SCORERS = ("vqascore", "visualgpt", "choice", "blind", "blip-it", "blip2-it", "flava-it")


def name_of_model(settings: Mapping[str, Any]) -> str:
    """A model's default name in results: from its arguments, else its registered name.

    >>> name_of_model({"model": "hf", "model_args": {"pretrained": "google/siglip"}}), name_of_model({"model": "tiny"})
    ('google/siglip', 'tiny')
    >>> name_of_model({"model": "open_clip", "model_args": {"model": "RN50", "pretrained": "cc12m"}})
    'RN50/cc12m'
    >>> name_of_model({"model": "vqascore", "model_args": {"pretrained": "llava-hf/llava"}})
    'vqascore/llava-hf/llava'
    >>> name_of_model({"model": "hf", "model_args": {"pretrained": "openai/clip", "peft": "me/adapter"}})
    'openai/clip+me/adapter'
    """
    model, model_args = settings.get("model", ""), settings.get("model_args", {})
    given = [model_args.get(key) for key in ("model", "pretrained", "path")]
    detail = [part.removeprefix("local-dir:").removeprefix("hf-hub:") for part in given if isinstance(part, str)]
    parts = [Path(part).resolve().name if Path(part).exists() else part for part in detail]
    if parts and model.startswith(SCORERS):
        parts.insert(0, model)
    adapter = model_args.get("peft")
    named = "/".join(parts) or model
    return f"{named}+{Path(adapter).name if Path(adapter).exists() else adapter}" if isinstance(adapter, str) else named


def read_value(text: str) -> object:
    """A value of ``k=v``: numbers, true, false and none are read as such.

    >>> [read_value(text) for text in ("1e-4", "5", "True", "none", "cosine")]
    [0.0001, 5, True, None, 'cosine']
    """
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


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


RENAMED = {
    "simple_match": "methods overfit",
    "oracle": "methods oracle",
    "ttm_controls": "methods placebo,shuffle",
    "ttm_holdout": "holdout",
    "ttm_also": "also",
}
"""Earlier name of an option -> what is written now."""


def with_ttm(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which the short form ``ttm`` is a name in ``methods``, so that a run is written down in one way.

    >>> with_ttm({"ttm": True, "methods": "tent,ttm"})
    {'methods': ['ttm', 'tent']}
    """
    options, asked = dict(settings), settings.get("methods") or ()
    ttm = options.pop("ttm", None)
    ttm = read_value(ttm) if isinstance(ttm, str) else ttm
    if not isinstance(ttm, bool | None):
        raise UsageError(f"'ttm' must be true or false, got {ttm!r:.80}")
    if isinstance(asked, Mapping) or not isinstance(asked, Iterable):
        return options  # which is refused with the other options
    names = list(split_names(asked))
    for old in (*(name for name in names if name == "simple_match"), *(name for name in options if name in RENAMED)):
        raise UsageError(f"'{old}' is now written: {RENAMED[old]}")
    if ttm:
        names = ["ttm", *names]
    if names:
        options["methods"] = list(dict.fromkeys(names)) if all(isinstance(name, str) for name in names) else names
    return options
