"""Weights in pickles: tensors, plain values and float64 numbers are read, settings skipped, everything else refused.

Checkpoints of training hold learning rates as numpy's float64. Numpy's own functions are not allowed for them: they
would build more than numbers, and `scalar` of an object type ends the process in numpy 2.0.
"""

from __future__ import annotations

import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch

from ttmbench._util.console import one_line
from ttmbench.errors import DataError

_PLAIN = (3, "<", None, None, None, -1, -1, 0)  # numpy's state of float64: byte order, and no fields


class _Float64:
    """Stands for ``numpy.dtype`` in a pickle, and takes float64 alone."""

    def __init__(self, code: object, align: object = False, copy: object = False) -> None:
        if code != "f8":
            raise ValueError(f"it holds a number of numpy's type {code!r:.40}, and only float64 is read")

    def __setstate__(self, state: object) -> None:
        if state != _PLAIN:
            raise ValueError(f"it holds a float64 with the unknown settings {state!r:.80}")


def _number(kind: object, content: object) -> float:
    """Stands for numpy's ``scalar`` in a pickle."""
    if type(kind) is not _Float64 or type(content) is not bytes or len(content) != 8:
        raise ValueError("it holds a number of numpy that is not a float64 of 8 bytes")
    return float(struct.unpack("<d", content)[0])


class _Settings:
    """Stands for ``argparse.Namespace`` in a pickle, the settings of a training, and keeps nothing of it."""

    def __setstate__(self, state: object) -> None:
        pass


_STAND_INS: list[Callable[..., object] | tuple[Callable[..., object], str]] = [
    (_Float64, "numpy.dtype"),
    (_number, "numpy._core.multiarray.scalar"),
    (_number, "numpy.core.multiarray.scalar"),  # its name in numpy 1
    (_Settings, "argparse.Namespace"),
]


def read_pickle(path: Path) -> object:
    """The tensors, plain values and float64 numbers in a file of weights; an ``argparse.Namespace`` is left empty.

    Raises:
        DataError: it holds anything else, or is damaged.
    """
    try:
        with torch.serialization.safe_globals(_STAND_INS):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:
        raise DataError(f"{path} cannot be read: {why_refused(error)}") from error


def why_refused(error: Exception) -> str:
    """Why ``torch.load(weights_only=True)`` refused a file, without its advice to read it all the same."""
    text = str(error)
    if "TorchScript" in text:
        return "it is a program (TorchScript), and only tensors are read"
    asked = re.search(r"GLOBAL (\S+)", text)
    if asked is not None:
        return (
            f"it holds more than tensors ({one_line(asked[1], 80)}), and reading that could run a program; save "
            "the tensors alone, by torch.save({'state_dict': model.state_dict()}, FILE)"
        )
    cause = text.rpartition("WeightsUnpickler error: ")[2].partition("\n")[0]
    return f"it is damaged, or holds more than tensors ({type(error).__name__}: {one_line(cause, 240)})"
