"""Weights in pickles: tensors are read, numbers of numpy are skipped, and everything else is refused."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
import torch
from support.checkpoints import rename_global

from ttmbench.errors import DataError
from ttmbench.model_adapters._shared.pretrained import read_weights


class Reduced:
    """Is pickled as a call, and what is set on its result."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


SCALAR, F8 = np._core.multiarray.scalar, np.dtype("f8")
NUMBERS = {
    "a float64": np.float64(1e-6),
    "an int64": np.int64(1),
    "a record": np.array([(1, 2.0)], dtype="i4,f8")[0],
    # The first two end the process in numpy 2.0, with all of numpy's own functions allowed; the third takes 2 GB.
    "an object without content": Reduced(SCALAR, (Reduced(np.dtype, ("O",)),)),
    "a string without content": Reduced(SCALAR, (Reduced(np.dtype, ("T",)),)),
    "a large record": Reduced(SCALAR, (Reduced(np.dtype, ("V2000000000",)),)),
    "a number of 4 bytes": Reduced(SCALAR, (F8, b"1234")),
    "a dtype with other flags": Reduced(np.dtype, ("f8", False, True), (3, "<", None, None, None, -1, -1, 63)),
}


@pytest.mark.parametrize("numpy_1", [False, True], ids=["numpy 2", "numpy 1"])
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_numbers_of_numpy_are_skipped_whatever_they_hold(tmp_path, numpy_1, zipped):
    path = tmp_path / "epoch_1.pt"
    torch.save({**NUMBERS, "state_dict": {"w": torch.arange(3.0)}}, path, _use_new_zipfile_serialization=zipped)
    if numpy_1:
        rename_global(path, "numpy._core.multiarray", "numpy.core.multiarray")
    found = read_weights(path)
    assert torch.equal(found["state_dict"]["w"], torch.arange(3.0))
    assert {type(found[name]).__name__ for name in NUMBERS} == {"_Skipped"}


HOSTILE = {
    "a program": lambda trace: Reduced(os.system, (f"touch {trace}",)),
    "a file": lambda trace: Reduced(open, (str(trace), "w")),
    "an array": lambda _: np.arange(3.0),
    "an array of objects": lambda _: np.array([{}, []], dtype=object),
    "a dtype's class": lambda _: Reduced(type(F8), ()),
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
