"""Digests of packages, tensors and JSON values; tensor files with a checksum."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttmbench._util.file_io import Unreadable, parse_json

if TYPE_CHECKING:
    import torch

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
_KNOWN: dict[str, tuple[tuple[object, ...], str]] = {}  # package -> its files as they were, and their digest


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


def digests_of_object(value: object) -> Digests:
    """As `digests_of_modules`, for the classes of a model; None if one of its `METHODS` was replaced in the object."""
    digests = digests_of_modules(modules_of(value))
    if METHODS & set(getattr(value, "__dict__", ())):
        digests[type(value).__module__.partition(".")[0]] = None
    return digests


def modules_of(value: Any) -> list[str]:
    """The modules that define an object: of a function or module, or of all classes of an instance."""
    while isinstance(value, functools.partial) or hasattr(value, "__wrapped__"):
        value = value.func if isinstance(value, functools.partial) else value.__wrapped__
    if inspect.ismodule(value):
        return [value.__name__]
    if inspect.isroutine(value) or isinstance(value, type):
        return [getattr(value, "__module__", None) or "(unknown)"]
    return [kind.__module__ for kind in type(value).__mro__]


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
    if package == OWN and OWN in _KNOWN:
        return _KNOWN[OWN][1]
    files = {package: root} if root.is_file() else {}
    try:
        for parent, folders, names in os.walk(root, followlinks=package == OWN):
            folders[:] = sorted(folder for folder in folders if folder != "__pycache__" and not folder.startswith("."))
            place = (Path(package.replace(".", "/")) / Path(parent).relative_to(root)).as_posix()
            endings = CODE[:1] if package == OWN else (*CODE, *SETTINGS)
            files |= {f"{place}/{name}": Path(parent) / name for name in sorted(names) if name.endswith(endings)}
        stats = [(name, str(path), path.stat()) for name, path in files.items()]
        state = tuple((name, path, stat.st_mtime_ns, stat.st_size) for name, path, stat in stats)
        if not files or (package in _KNOWN and _KNOWN[package][0] == state):
            return _KNOWN[package][1] if files else None
        digest = hashlib.sha256()
        for name in sorted(files):
            digest.update(f"{name}:{hashlib.sha256(files[name].read_bytes()).hexdigest()}\n".encode())
    except OSError:
        return None
    _KNOWN[package] = (state, digest.hexdigest())
    return digest.hexdigest()


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
        about, seal = parse_json(stated[_ABOUT]), stated[_SEAL]
    except (SafetensorError, Unreadable, KeyError) as error:
        raise Unreadable(" ".join(str(error).split())[:120]) from None
    if not isinstance(about, dict) or seal != json_digest([stated[_ABOUT], tensors_digest(tensors)]):
        raise Unreadable("its digest does not fit its content")
    return tensors, about
