"""Reads npz, npy and safetensors files: plain numbers only, and their size is checked before they are unpacked."""

from __future__ import annotations

import io
import math
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ttmbench._util.file_io import limit, parse_json, raised_by
from ttmbench.errors import DataError

NUMBERS = "fiu"
EXACT = 2**53  # whole numbers beyond this have no float of their own
NPY = b"\x93NUMPY"  # how an npy file begins
LARGEST = 1e30  # no logit or feature is larger, and sums of such numbers would leave the range of floats


@dataclass(frozen=True)
class Arrays:
    """The arrays of a file by name, with integers that float64 represents exactly, and ttmbench's metadata."""

    arrays: dict[str, np.ndarray]
    about: dict[str, Any] = field(default_factory=dict)


def read_arrays(path: Path) -> Arrays:
    """Every array of an npz, npy or safetensors file, recognised by its content; that of an npy is ``array``.

    DataError if it cannot be read, is damaged or too large, or holds something else than numbers.
    """
    kind = "safetensors"
    try:
        if not path.is_file():
            raise DataError(f"{path}: cannot be read ({'is not a regular file' if path.exists() else 'No such file'})")
        head, size = refuse_pickle(path), path.stat().st_size
        kind = "npz" if head[:2] == b"PK" else "npy" if head.startswith(NPY) else kind
        if kind != "npz" and size > limit("array_bytes"):
            raise DataError(f"{path}: {size} bytes are more than {limit('array_bytes')}; {raised_by('array_bytes')}")
        if kind == "npy":
            contents = Arrays({"array": read_npy(path.read_bytes())})
        else:
            contents = _read_npz(path) if kind == "npz" else _read_safetensors(path)
    except DataError:
        raise
    except Exception as error:  # numpy, zipfile and safetensors raise many kinds for damaged files
        detail = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{path}: is not a readable {kind} file of numbers ({detail})") from None
    return Arrays({name: plain_numbers(path, name, one) for name, one in contents.arrays.items()}, contents.about)


def refuse_pickle(path: Path) -> bytes:
    """The first bytes of a file; DataError for one of ``torch.save`` or ``pickle.dump``, with how to convert it."""
    with path.open("rb") as file:
        head = file.read(9)
    pickled = head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5") and head[8:] != b"{"  # of safetensors
    if head[:2] == b"PK":
        with suppress(zipfile.BadZipFile, NotImplementedError), zipfile.ZipFile(path) as archive:
            pickled = any(name.endswith("data.pkl") for name in archive.namelist())
    if pickled:
        raise DataError(
            f"{path}: is a PyTorch or pickle file, which is not read because it can run code; npy, npz, safetensors "
            f"and JSON lines are. Convert it: numpy.save('{path.stem}.npy', torch.load('{path.name}', "
            "weights_only=True).numpy())"
        )
    return head


def _read_npz(path: Path) -> Arrays:
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        names = [entry.filename.removesuffix(".npy") for entry in entries]
        _check_names(path, names)
        packed = path.stat().st_size
        most = min(limit("array_bytes"), max(limit("array_free"), limit("array_ratio") * packed))
        total = sum(entry.file_size for entry in entries)
        if total > most:
            raise DataError(
                f"{path}: {packed} bytes say that they unpack to {total}, more than {most}; {raised_by('array_bytes')}"
            )
        return Arrays({name: read_npy(archive.read(entry)) for name, entry in zip(names, entries, strict=True)})


def read_npy(content: bytes) -> np.ndarray:
    """An array whose header fits its content exactly, which is checked before memory for it is taken."""
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"format {version[0]}.{version[1]} is for arrays with named fields")
    read_header = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
    shape, by_columns, dtype = read_header(stream)
    count, left = math.prod(shape), len(content) - stream.tell()
    if dtype.hasobject or dtype.names is not None or dtype.itemsize < 1:
        raise ValueError(f"an array of {dtype}, which are not numbers")
    if min(shape, default=0) < 0 or count * dtype.itemsize != left:
        raise ValueError(f"a header promises {count} numbers of {dtype.itemsize} bytes, {left} bytes follow")
    return np.frombuffer(content, dtype, count, stream.tell()).reshape(shape, order="F" if by_columns else "C").copy()


def _read_safetensors(path: Path) -> Arrays:
    from safetensors import safe_open

    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            raise ValueError(f"its header should have {length} bytes, the file has {size}")
        header = parse_json(file.read(length).decode("utf-8"))
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    _check_names(path, [name for name in header if name != "__metadata__"])
    with safe_open(path, framework="numpy") as file:
        about = parse_json((file.metadata() or {}).get("ttmbench", "{}"))
        arrays = {name: file.get_tensor(name) for name in list(file.keys())}
    return Arrays(arrays, about if isinstance(about, dict) else {})


def _check_names(path: Path, names: list[str]) -> None:
    if len(names) > limit("array_members"):
        raise DataError(f"{path}: {len(names)} arrays are too many; {raised_by('array_members')}")
    if len(set(names)) < len(names):
        raise DataError(f"{path}: two arrays have one name")


def plain_numbers(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    """Numbers in this machine's byte order; integers that floats cannot represent are refused."""
    if array.dtype.kind not in NUMBERS or array.dtype.itemsize > 8:
        raise DataError(f"{path}: array {name!r:.80} holds {array.dtype}, not numbers of at most 8 bytes")
    if array.dtype.kind in "iu" and array.size and max(int(array.max()), -int(array.min())) > EXACT:
        raise DataError(f"{path}: array {name!r:.80} holds integers beyond 2^53, which are not exact as floats")
    return array.astype(array.dtype.newbyteorder("="), copy=False)
