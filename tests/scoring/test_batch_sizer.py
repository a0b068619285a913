"""Memory that runs out: fewer rows at a time, the same numbers, and the same gradient over the same batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ttmbench
from ttmbench._util.third_party import is_out_of_memory
from ttmbench.errors import TtmbenchError
from ttmbench.model_adapters import hf
from ttmbench.scoring.batches import BatchSizer
from ttmbench.scoring.inputs import n_rows

QUICK = {"limit": 6, "device": "cpu", "bootstrap_iters": 20}


pytestmark = pytest.mark.usefixtures("few_objects")


def out_of_memory() -> RuntimeError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (out_of_memory(), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: tried 8 bytes"), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("Unable to find a valid cuDNN algorithm to run convolution"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_out_of_memory(error, expected):
    assert is_out_of_memory(error) is expected


def test_rows_are_halved_said_and_stay_halved(capsys):
    memory, seen = BatchSizer(8), []

    def work(rows: slice) -> int:
        if rows.stop - rows.start > 3:
            raise out_of_memory()
        seen.append((rows.start, rows.stop))
        return rows.stop - rows.start

    assert list(memory.map_batches(0, 5, work)) == [2, 2, 1] and memory.rows == 2
    assert seen == [(0, 2), (2, 4), (4, 5)], "every row once, in order"
    assert list(memory.map_batches(5, 7, work)) == [2]
    (told,) = capsys.readouterr().err.splitlines()
    assert "--batch_size 2" in told


def test_one_row_that_does_not_fit_is_an_error():
    def work(rows: slice) -> None:
        raise out_of_memory()

    with pytest.raises(TtmbenchError, match="too small for a single input"):
        list(BatchSizer(4).map_batches(0, 4, work))


def test_auto_begins_large_on_accelerators_only():
    assert BatchSizer.for_run("auto", torch.device("cuda")).rows == 1024
    assert BatchSizer.for_run("auto", torch.device("cpu")).rows == 64
    assert BatchSizer.for_run(7, torch.device("cuda")).rows == 7


def test_a_run_that_runs_out_of_memory_ends_with_the_same_numbers(monkeypatch, capsys):
    settings = {"ttm": {"iterations": 2, "epochs": 1}, **QUICK}
    expected = ttmbench.simple_evaluate("tiny-clip", "shapes_color,shapes_spatial", **settings)
    tried: list[int] = []
    real = hf.TransformersModel._tower

    def features(self, tower, inputs):
        """The towers run out of memory beyond five rows."""
        tried.append(n_rows(inputs))
        if tried[-1] > 5:
            raise out_of_memory()
        return real(self, tower, inputs)

    monkeypatch.setattr(hf.TransformersModel, "_tower", features)
    found = ttmbench.simple_evaluate("tiny-clip", "shapes_color,shapes_spatial", **settings)
    assert max(tried) > 5
    told = [line for line in capsys.readouterr().err.splitlines() if "out of memory" in line]
    assert len(told) == len(set(told)) <= 8, "each step down is said once in a run"
    assert found.results == expected.results
    for task, by_filter in expected.scores.items():
        for name, per_seed in by_filter.items():
            # Sums in another order, carried through training: up to 1.4e-3 was seen, on scores that reach 17.
            assert np.abs(per_seed[0].groups - found.scores[task][name][0].groups).max() < 5e-3, (task, name)
