"""Files: limits on external data, strict and bounded readers, atomic writes, locks, digests, and safe names.

Readers refuse a key that is given twice, NaN in JSON, and half surrogates in a text. Messages of `Unreadable` are one
line that follows the file's name.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import importlib.util
import inspect
import io
import json
import math
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import yaml

from ttmbench.errors import DataError, UsageError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    import torch
    from filelock import BaseFileLock


_DEVICES = re.compile("CON|PRN|AUX|NUL|(COM|LPT)[1-9]", re.IGNORECASE)  # of Windows, which are no names of files
_LONGEST_NAME = 100  # characters; files and folders have 255 bytes at most
_TEXT = "tag:yaml.org,2002:str"
_NUMBER = re.compile(r"[-+]?[.\d][\w.:+-]*")  # 1:59:59:... is one number to YAML 1.1
POINTER = b"version https://git-lfs.github.com/spec/"
IS_POINTER = "is a Git LFS pointer instead of the file; run `git lfs pull` in its repository"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
VARIABLE = "TTMBENCH_LIMITS"
LIMITS: dict[str, int] = {
    "yaml_bytes": 1_000_000,  # of a task file or of --config
    "yaml_number": 400,  # characters of a number: reading one takes the square of its length
    "yaml_depth": 50,  # mappings and lists inside one another
    "text_bytes": 2_000_000_000,  # of a JSON, JSON lines or CSV file
    "line_bytes": 32 << 20,  # of a line of JSON lines
    "array_bytes": 16_000_000_000,  # of an npz or safetensors file, unpacked
    "array_ratio": 1_000,  # bytes unpacked for each byte packed, beyond array_free
    "array_free": 256_000_000,  # bytes that need no such ratio: equal scores pack well
    "array_members": 10_000,  # arrays in one file
    "download_bytes": 256 << 30,  # of a file whose size neither its server nor its task file states
    "archive_files": 1_000_000,  # files in an archive
    "archive_bytes": 256 << 30,  # of all files of an archive together
    "archive_ratio": 100,  # bytes unpacked for each byte packed, beyond archive_free
    "archive_free": 64 << 20,  # bytes that need no such ratio
    "image_pixels": 89_000_000,  # width times height; at most 178,000,000, where Pillow refuses
    "image_bytes": 500_000_000,  # of one encoded image
    "image_aspect": 100,  # longer side by shorter side: models scale the shorter one up
    "video_frames": 1_000_000,  # of a video
    "jpeg_scans": 100,  # passes over a JPEG's pixels; encoders write about ten
    "remote_files": 100_000,  # below an address such as s3://bucket/results
    "remote_bytes": 100_000_000_000,  # fetched from there for one command
    "rendered_groups": 100_000,  # drawn for one task
    "caption_characters": 100_000,  # of a caption, an id or an image name
}
"""Every limit on external data; ``TTMBENCH_LIMITS=text_bytes=5e9,image_pixels=1e8`` changes some for a process."""


def limit(name: str) -> int:
    """A limit of `LIMITS` as it holds now; UsageError if the environment variable cannot be read."""
    most = LIMITS[name]
    for part in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        key, _, value = part.partition("=")
        try:
            number = int(float(value))
        except (ValueError, OverflowError):
            raise UsageError(f"{VARIABLE}: '{part}' is not limit=number") from None
        if key not in LIMITS or number < 1:
            raise UsageError(f"{VARIABLE}: '{part}' names no limit above 0; known: {', '.join(LIMITS)}")
        if key == name:
            most = number
    return most


def raised_by(name: str) -> str:
    """How a message says what to do about a limit."""
    return f"{VARIABLE}={name}=N raises the limit"


class Unreadable(ValueError):
    """A file cannot be read; the message does not name it."""


def read_text(path: Traversable, most: str = "text_bytes") -> str:
    """A file's UTF-8 text without a byte-order mark; Unreadable if it exceeds the limit ``most`` or is not UTF-8."""
    try:
        if isinstance(path, Path) and path.exists() and not (path.is_file() or path.is_dir()):
            raise Unreadable("is not a regular file")
        with path.open("rb") as file:
            content = file.read(limit(most) + 1)
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        raise error if isinstance(error, Unreadable) else _not_read(error) from None
    if len(content) > limit(most):
        raise Unreadable(f"is too large: at most {limit(most)} bytes are read; {raised_by(most)}")
    if content.startswith(POINTER):
        raise Unreadable(IS_POINTER)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(error, 1) from None


def _not_read(error: Exception) -> Unreadable:
    return Unreadable(f"cannot be read ({getattr(error, 'strerror', None) or error})")


def _not_utf8(error: UnicodeDecodeError, first_line: int) -> Unreadable:
    """Names line, from ``first_line`` on, and character of the byte that is not UTF-8."""
    before, byte = error.object[: error.start], f"{error.object[error.start]:#04x}"
    line = before.count(b"\n") + first_line
    character = len(before[before.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
    position = f"line {line}, character {character}"
    return Unreadable(f"is not UTF-8 text: {position} is byte {byte}; save the file as UTF-8")


def check_no_pointer(path: Path) -> None:
    """DataError for a file that Git LFS did not fetch."""
    if path.is_file():
        with suppress(OSError), path.open("rb") as file:  # its reader reports the error
            if file.read(len(POINTER)) == POINTER:
                raise DataError(f"{path} {IS_POINTER}")


def parse_json(text: str, finite: bool = True) -> Any:
    """A JSON value, read strictly; unless ``finite``, the caller checks for NaN, infinity and numbers beyond floats.

    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
        ...
    ttmbench._util.file_io.Unreadable: is not JSON (key 'a' is given twice)
    """
    try:
        # json.loads makes a decoder each time, which costs as much as a line of samples.
        value = (_FINITE if finite else _ANY).decode(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise Unreadable("is not JSON (a text holds half a surrogate pair)") from None
    except RecursionError:
        raise Unreadable("is not JSON (it nests too deeply)") from None
    except ValueError as error:
        raise Unreadable(f"is not JSON ({' '.join(str(error).split())[:200]})") from None
    return value


def read_json(path: Path) -> Any:
    """A file's JSON value, read by `parse_json`."""
    return parse_json(read_text(path))


def read_json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the line numbers, from 1, and objects of a file of JSON lines (``.gz``: packed); empty lines are skipped.

    Only a line feed ends a line, since JSON strings may contain U+2028. Numbers may be NaN or infinite. DataError for
    anything else.
    """
    longest, most = limit("line_bytes"), limit("text_bytes")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(longest + 1), b""), start=1):
                if len(line) > longest:
                    raise Unreadable(f"line {number} is longer than {longest} bytes; {raised_by('line_bytes')}")
                if file.tell() > most:  # unpacked
                    raise Unreadable(f"is too large: at most {most} bytes are read; {raised_by('text_bytes')}")
                if number == 1 and line.startswith(POINTER):
                    raise Unreadable(IS_POINTER)
                try:
                    if not (text := line.decode("utf-8").lstrip("\ufeff\x1e")).strip():
                        continue
                    value = parse_json(text, finite=False)
                except UnicodeDecodeError as error:
                    raise _not_utf8(error, number) from None
                except Unreadable as error:
                    raise Unreadable(f"line {number} {error}") from None
                if not isinstance(value, dict):
                    raise Unreadable(f"line {number} is not a JSON object")
                yield number, value
    except (Unreadable, OSError, ValueError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: {error if isinstance(error, Unreadable) else _not_read(error)}") from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        seen: set[str] = set()
        doubled = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {doubled!r:.80} is given twice")
    return unique


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is not a finite number")
    return value


_FINITE = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_finite, parse_float=_finite)
_ANY = json.JSONDecoder(object_pairs_hook=_unique)


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # several times as fast where PyYAML has libyaml


def read_yaml(path: Traversable, what: str = "") -> Any:
    """A file's YAML value; UsageError also for a tag of an object, an alias, a doubled key and deep nesting.

    Its message begins with ``what``, such as an option, and the path.
    """
    try:
        text = read_text(path, "yaml_bytes")
        try:
            _check_events(text, _LOADER)  # before any value is made
        except yaml.MarkedYAMLError:
            _check_events(text, yaml.SafeLoader)  # libyaml names a place behind the end; PyYAML itself shows the line
            raise
        value = yaml.load(text, _LOADER)
        json.dumps(value, ensure_ascii=False, default=str, skipkeys=True).encode("utf-8")
        return value
    except Unreadable as error:
        why = str(error)
    except UnicodeEncodeError:
        why = "is not valid YAML: a text holds half a surrogate pair"
    except RecursionError:
        why = "is not valid YAML: it nests too deeply"
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError) as error:
        why = f"is not valid YAML: {' '.join(str(error).split())[:400]}"
    raise UsageError(f"{what}{path}: {why}")


def _check_events(text: str, loader: type[yaml.SafeLoader]) -> None:
    above: list[tuple[set[str], Iterator[bool]]] = []  # of each open collection: its keys, and if the next node is one
    longest, deepest = limit("yaml_number"), limit("yaml_depth")
    for event in yaml.parse(text, loader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed; a task file can include another one")
        if isinstance(event, yaml.CollectionEndEvent):
            above.pop()
            continue
        value = event.value if isinstance(event, yaml.ScalarEvent) else ""
        if above and isinstance(event, yaml.NodeEvent):
            keys, is_key = above[-1]
            if next(is_key):
                if value in keys:
                    raise yaml.YAMLError(f"key '{value}' is given twice (in line {line})")
                keys.add(value)
        if isinstance(event, yaml.ScalarEvent) and len(value) > longest:
            is_text = event.implicit[1] or event.tag == _TEXT  # in quotes
            if not is_text and (event.tag or _NUMBER.fullmatch(value)):
                problem = f"line {line} has a number of {len(value)} characters; write a text in quotes"
                raise yaml.YAMLError(f"{problem}; {raised_by('yaml_number')}")
        if isinstance(event, yaml.CollectionStartEvent):
            above.append((set(), cycle((isinstance(event, yaml.MappingStartEvent), False))))
            if len(above) > deepest:
                raise yaml.YAMLError(f"it nests more than {deepest} deep; {raised_by('yaml_depth')}")


def file_digest(*paths: Path) -> str:
    """sha256 of a file, or of several one after the other, hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def write_atomically(path: Path, write: Callable[[Path], object], to_disk: bool = True) -> None:
    """Lets ``write`` fill a temporary file beside ``path``, then renames it; UsageError if that fails.

    Without ``to_disk`` a power cut may leave half a file: for files whose reader checks them.
    """
    # Files of tempfile are readable by their owner only; the name is unique among all machines.
    temporary = path.with_name(f".{path.name}.{token_hex(6)}.tmp")
    try:
        write(temporary)
        if to_disk:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text atomically, creating its folder; UsageError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be written to: {error.strerror or error}") from None
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline="\n"))


def write_lines(lines: Iterable[Mapping[str, object]], path: Path, packed: bool = False) -> None:
    """Writes JSON lines, ``packed`` by gzip into the same bytes each time."""
    import jsonlines

    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode  # json.dumps would make one for each line
    with path.open("wb") as plain, gzip.GzipFile("", "wb", 6, plain, 0) if packed else plain as file:
        with io.TextIOWrapper(file, "utf-8", newline="\n") as text:
            jsonlines.Writer(text, dumps=encode).write_all(lines)


def take_lock(path: Path, timeout: float = 0.0) -> BaseFileLock:
    """Takes an exclusive lock, creating its folder, which the holder may remove; filelock.Timeout, or OSError."""
    import filelock

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path)
    lock.acquire(timeout=timeout)
    return lock


def to_json(document: Mapping[str, object]) -> str:
    """JSON as in results files; ValueError for a number that is not finite."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair is not a text that a file can hold


def safe_name(name: str) -> str:
    """A model's name as a folder name; names that differ have folders that differ.

    >>> safe_name("google/siglip-base"), safe_name("google__siglip-base"), safe_name("../nul")
    ('google__siglip-base', 'google__siglip-base-64c1363f', '__nul-a790f930')
    """
    plain = re.sub(r"[^A-Za-z0-9._+-]", "_", name.replace("/", "__")[:_LONGEST_NAME]).lstrip(".").rstrip(".") or "model"
    if _DEVICES.fullmatch(plain.partition(".")[0]):
        plain = f"_{plain}"
    if plain.replace("__", "/") == name:
        return plain
    return f"{plain}-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"


CODE = (".py", ".pyd", ".so")
SETTINGS = (".cfg", ".ini", ".j2", ".jinja", ".jinja2", ".json", ".toml", ".txt", ".yaml", ".yml")
"""Endings of other files that a package's code may read: prompts, templates, settings."""
METHODS = {
    *("score_pairs", "prepare_images", "prepare_captions", "encode_images", "encode_captions", "logits"),
    *("score_prepared", "log_priors", "matching_loss", "pair_loss", "answer"),
}
"""Methods that compute numbers; replacing one of them in an object makes the source of its class meaningless."""
OWN = "ttmbench"
_VERSIONED = {"PIL", "datasets", "numpy", "open_clip", "scipy", "torch", "transformers"}  # in `PACKAGES`

_ABOUT, _SEAL = "ttmbench", "sha256"

Digests = dict[str, str | None]
"""Package -> sha256 of its source; None if the source cannot be read (code typed into an interpreter or notebook)."""
_KNOWN: dict[str, str | None] = {}  # the digest of ttmbench; others may be edited while a program runs


def digests_of_modules(modules: Iterable[str]) -> Digests:
    """The source of the packages that modules belong to, by name, except the standard library and `_VERSIONED`.

    A package is the first one on a dotted path that is not a namespace package; only those are imported.
    """
    digests: Digests = {}
    for module in sorted(set(modules)):
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names or top in _VERSIONED:
            continue
        name, root = (OWN, Path(__file__).parents[1]) if top == OWN else _package_of(module)
        digests[name] = None if root is None else _digest(name, root)
    return dict(sorted(digests.items()))


def modules_of(value: Any) -> list[str]:
    """The modules that define an object: of a function or module, or of all classes of an instance.

    One that is nowhere is among them if one of its `METHODS` was replaced in the object.
    """
    while isinstance(value, functools.partial) or hasattr(value, "__wrapped__"):
        value = value.func if isinstance(value, functools.partial) else value.__wrapped__
    if inspect.ismodule(value):
        return [value.__name__]
    if inspect.isroutine(value) or isinstance(value, type):
        return [getattr(value, "__module__", None) or "(unknown)"]
    replaced = METHODS & set(getattr(value, "__dict__", ()))
    return [*(kind.__module__ for kind in type(value).__mro__), *(f"(replaced {name})" for name in sorted(replaced))]


def _package_of(module: str) -> tuple[str, Path | None]:
    """The package of a module, and its folder or file, if found."""
    if module == "__main__":
        main = sys.modules.get(module)
        spec = getattr(main, "__spec__", None)
        if spec is not None:  # python -m package.module
            return _package_of(spec.name)
        file = getattr(main, "__file__", None)
        return module, None if file is None else Path(file)
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):  # ValueError: a module that was made by hand
            spec = None
        if spec is None:
            file = getattr(sys.modules.get(name), "__file__", None)
            return name, None if file is None else Path(file)
        if spec.submodule_search_locations and spec.origin is not None:
            return name, Path(spec.origin).parent
        if not spec.submodule_search_locations:
            return name, None if not spec.has_location or spec.origin is None else Path(spec.origin)
    return module, None


def _digest(package: str, root: Path) -> str | None:
    """sha256 over names and contents of the files of a package; None if it has none, or one cannot be read.

    Of ttmbench it is what was imported, without its task files, which are part of a run's key one by one.
    """
    if package in _KNOWN:
        return _KNOWN[package]
    files = {package: root} if root.is_file() else {}
    try:
        for parent, folders, names in os.walk(root, followlinks=package == OWN):
            folders[:] = sorted(folder for folder in folders if folder != "__pycache__" and not folder.startswith("."))
            place = (Path(package.replace(".", "/")) / Path(parent).relative_to(root)).as_posix()
            endings = CODE[:1] if package == OWN else (*CODE, *SETTINGS)
            files |= {f"{place}/{name}": Path(parent) / name for name in sorted(names) if name.endswith(endings)}
        lines = [f"{name}:{file_digest(files[name])}\n" for name in sorted(files)]
    except OSError:
        return None
    found = hashlib.sha256("".join(lines).encode()).hexdigest() if lines else None
    if package == OWN:
        _KNOWN[package] = found
    return found


def json_digest(value: object, **options: Any) -> str:
    """sha256 of a value as JSON, whatever the order of its keys; ``options`` are of ``json.dumps``."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, **options).encode()).hexdigest()


def tensors_digest(state: Mapping[str, object]) -> str:
    """sha256 over names, types, shapes and bytes of tensors by name; of other values over their ``repr``."""
    import torch

    total = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        if not isinstance(tensor, torch.Tensor):
            total.update(f"{name}={tensor!r};".encode())
            continue
        tensor = tensor.detach().cpu().contiguous()
        total.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:".encode())
        if tensor.numel():  # straight from its memory: weights are large
            total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def save_sealed(path: Path, tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> None:
    """Writes tensors, as `separated` returns them, and JSON values ``about`` them, with a digest of both."""
    from safetensors.torch import save_file

    text = json.dumps(about, sort_keys=True)
    path.touch()
    mode = path.stat().st_mode
    save_file(dict(tensors), path, metadata={_ABOUT: text, _SEAL: json_digest([text, tensors_digest(tensors)])})
    path.chmod(mode)  # which safetensors restricts to the owner


def replace_sealed(
    path: Path, tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any], to_disk: bool = True
) -> str | None:
    """Atomically replaces a file of `save_sealed`; returns the error if it cannot be written, else None."""
    from safetensors import SafetensorError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda target: save_sealed(target, tensors, about), to_disk)
    except (OSError, SafetensorError, UsageError) as error:
        return str(error) if isinstance(error, UsageError) else f"{path} cannot be written: {error}"
    return None


def separated(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors made contiguous, on the CPU, and without shared memory; copied only if needed."""
    apart: dict[str, torch.Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        here = tensor.detach().cpu().contiguous()
        memory = here.untyped_storage().data_ptr()
        apart[name] = here.clone() if memory in taken else here
        taken.add(memory)
    return apart


def load_sealed(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Reads the tensors of a file of `save_sealed` and ``about``; Unreadable if it differs from what was written."""
    from safetensors import SafetensorError, safe_open

    with path.open("rb"):  # OSError where it cannot be read
        pass
    try:
        with safe_open(path, framework="pt") as file:
            stated = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in list(file.keys())}
        about, seal = json.loads(stated[_ABOUT]), stated[_SEAL]
    except (SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise Unreadable(" ".join(str(error).split())[:120]) from None
    if not isinstance(about, dict) or seal != json_digest([stated[_ABOUT], tensors_digest(tensors)]):
        raise Unreadable("its digest does not fit its content")
    return tensors, about
