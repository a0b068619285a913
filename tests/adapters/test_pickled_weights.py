"""Weights in pickles: tensors and float64 numbers of numpy are read, and everything else is refused."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
import torch
from support.checkpoints import rename_global

from ttmbench.errors import DataError
from ttmbench.model_adapters._shared.pretrained import read_weights


@pytest.mark.parametrize("numpy_1", [False, True], ids=["numpy 2", "numpy 1"])
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_float64_numbers_of_numpy_are_read(tmp_path, numpy_1, zipped):
    path = tmp_path / "epoch_1.pt"
    content = {"lr": np.float64(1e-6), "loss": np.array([0.25, -3.5])[1], "state_dict": {"w": torch.arange(3.0)}}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    if numpy_1:
        rename_global(path, "numpy._core.multiarray", "numpy.core.multiarray")
    found = read_weights(path)
    assert (found["lr"], found["loss"]) == (1e-6, -3.5) and type(found["lr"]) is float
    assert torch.equal(found["state_dict"]["w"], torch.arange(3.0))


class Reduced:
    """Is pickled as a call, and what is set on its result."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


SCALAR = np._core.multiarray.scalar
F8 = np.dtype("f8")
HOSTILE = {
    "a program": lambda trace: Reduced(os.system, (f"touch {trace}",)),
    "a file": lambda trace: Reduced(open, (str(trace), "w")),
    "an array": lambda _: np.arange(3.0),
    "an array of objects": lambda _: np.array([{}, []], dtype=object),
    "a float32": lambda _: np.float32(1),
    "an int64": lambda _: np.int64(1),
    "a date": lambda _: np.datetime64("2020-01-01"),
    "text": lambda _: np.str_("abc"),
    "a record": lambda _: np.array([(1, 2.0)], dtype="i4,f8")[0],
    # The first three end the process in numpy 2.0, with all of numpy's own functions allowed; the fourth takes 2 GB.
    "an object without content": lambda _: Reduced(SCALAR, (Reduced(np.dtype, ("O",)),)),
    "a string without content": lambda _: Reduced(SCALAR, (Reduced(np.dtype, ("T",)),)),
    "an object": lambda _: Reduced(SCALAR, (Reduced(np.dtype, ("O",)), [1])),
    "a large record": lambda _: Reduced(SCALAR, (Reduced(np.dtype, ("V2000000000",)),)),
    "a number without content": lambda _: Reduced(SCALAR, (F8,)),
    "a number of 4 bytes": lambda _: Reduced(SCALAR, (F8, b"1234")),
    "a number that is text": lambda _: Reduced(SCALAR, (F8, "12345678")),
    "a number of no dtype": lambda _: Reduced(SCALAR, ("f8", b"12345678")),
    "a dtype of fields": lambda _: Reduced(np.dtype, ([("a", "f8")],)),
    "a dtype's class": lambda _: Reduced(type(F8), ()),
    "a dtype with other flags": lambda _: Reduced(
        np.dtype, ("f8", False, True), (3, "<", None, None, None, -1, -1, 63)
    ),
    "another byte order": lambda _: Reduced(
        SCALAR, (Reduced(np.dtype, ("f8", False, True), (3, ">", None, None, None, -1, -1, 0)), b"12345678")
    ),
    "a generator": lambda _: np.random.default_rng(0),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_everything_else_is_refused_and_nothing_is_run(tmp_path, what):
    trace, path = tmp_path / "trace", tmp_path / "evil.pt"
    torch.save({"visual.proj": HOSTILE[what](trace)}, path)
    with warnings.catch_warnings(), pytest.raises(DataError, match=r"evil\.pt") as caught:
        warnings.simplefilter("error")
        read_weights(path)
    assert not trace.exists()
    assert "\n" not in str(caught.value) and "weights_only` set to `False" not in str(caught.value)
