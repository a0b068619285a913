"""``--deterministic``: the same bits from process to process, and nothing left behind in this one."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support import processes

import ttmbench
from ttmbench._util.machine import WORKSPACE
from ttmbench.cli import main
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.scoring.batches import BatchSizer

SHORT = {"iterations": 2, "epochs": 1, "lr": 1e-3}
QUICK = {"limit": 6, "device": "cpu", "bootstrap_iters": 0, "deterministic": True}


def state() -> list:
    """Everything that the option switches, as anyone can see it."""
    backends = torch.backends
    found = [
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        *(backends.cudnn.deterministic, backends.cudnn.benchmark, backends.cudnn.allow_tf32),
        torch.get_float32_matmul_precision(),
        *(
            getattr(backend, "fp32_precision", None)
            for backend in (backends.cuda.matmul, getattr(backends.mkldnn, "matmul", None))
        ),
        *(getattr(getattr(backends.cudnn, of, None), "fp32_precision", None) for of in ("conv", "rnn")),
        torch.get_num_threads(),
        os.environ.get(WORKSPACE),
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
    ]
    return found


@pytest.mark.parametrize("cold", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_give_the_same_bits_whatever_their_environment(tmp_path, cold):
    """Of other threads, hash seeds, generators and orders: this process, of long ago, and one that has just begun.

    ``cold``: the one has other variables from its start on.
    """

    def run(name: str, tasks: str, **variables: str) -> Path:
        options = "--limit 6 --ttm --ttm_args iterations=2,epochs=1,lr=1e-3 --device cpu --bootstrap_iters 0"
        words = [*options.split(), "--save_scores", "--deterministic", "--model", "tiny-clip", "--tasks", tasks]
        words += ["--save_adapted", str(tmp_path / f"{name}_adapted"), "-o", str(tmp_path / name / "x.json")]
        if variables:
            given = ["-m", "ttmbench", *words]
            done = processes.run(given, capture_output=True, text=True, env={**os.environ, **variables})
            assert done.returncode == 0, done.stderr[-2000:]
        else:
            torch.set_num_threads(3)
            torch.manual_seed(7), random.seed(7), np.random.seed(7)
            try:
                assert main(words) == 0
            finally:
                torch.set_num_threads(1)
        return tmp_path / name

    one = run("one", "shapes_color,shapes_replace", OMP_NUM_THREADS="1")  # and a hash seed drawn at random
    more = {"OMP_NUM_THREADS": "3", "PYTHONHASHSEED": "2"} if cold else {}
    other = run("other", "shapes_replace,shapes_color", **more)
    names = sorted(path.name for path in one.glob("*.safetensors"))
    assert len(names) == 2 and names == sorted(path.name for path in other.glob("*.safetensors"))
    for name in names:
        arrays, others = load_file(one / name), load_file(other / name)
        assert set(arrays) == set(others) and any("ttm" in key for key in arrays)
        for key, values in arrays.items():
            assert values.dtype == np.float32 and values.tobytes() == others[key].tobytes(), (name, key)
    weights = sorted((tmp_path / "one_adapted").rglob("*.safetensors"))
    assert len(weights) == 2
    for path in weights:
        twin = tmp_path / "other_adapted" / path.relative_to(tmp_path / "one_adapted")
        assert path.read_bytes() == twin.read_bytes(), path.name


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9")
def test_a_precision_that_was_set_for_a_backend_comes_back(tmp_path):
    """Torch then refuses to name one precision for all; a run and the cache's keys work all the same."""
    code = (
        "import torch, ttmbench\n"
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'\n"
        f"common = dict(limit=4, device='cpu', bootstrap_iters=0, use_cache={str(tmp_path / 's')!r})\n"
        "for on in (False, True):\n"
        "    ttmbench.simple_evaluate('tiny-clip', 'shapes_color', deterministic=on, **common)\n"
        "assert torch.backends.cuda.matmul.fp32_precision == 'tf32'\n"
    )
    done = processes.run(["-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_run_from_python_says_so_in_its_document_and_leaves_nothing_behind():
    torch.set_num_threads(2)
    try:
        before = state()
        first = ttmbench.simple_evaluate("tiny-clip", "shapes_color", ttm=SHORT, **QUICK)
        assert state() == before
    finally:
        torch.set_num_threads(1)
    assert first["config"]["deterministic"] is True and first["hardware"]["torch_threads"] == 1
    assert first["hardware"]["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert sys.platform != "linux" or first["hardware"]["peak_memory_bytes"] > 10**8


def test_kept_scores_are_taken_only_where_they_have_the_same_bits(tmp_path):
    def hit(**settings) -> bool:
        common = {"limit": 4, "device": "cpu", "bootstrap_iters": 0, "use_cache": str(tmp_path / "store")}
        result = ttmbench.simple_evaluate("tiny-clip", "shapes_color", **common, **settings)
        return "from_store" in result["datasets"]["shapes_color"]

    assert [hit(), hit(batch_size=3)] == [False, True]
    assert [hit(deterministic=True), hit(deterministic=True), hit(deterministic=True, batch_size=3)] == [
        *(False, True, False)
    ]
    assert hit(batch_size=5), "and a usual run takes what it took before"


class NoWay:
    """A pair scorer whose score needs something that torch refuses."""

    def __init__(self, message: str) -> None:
        self.message = message

    def score_pairs(self, images, captions):
        raise RuntimeError(self.message)


NO = "does not have a deterministic implementation, but you set 'torch.use_"
CUBLAS = (
    "Deterministic behavior was enabled with either `torch.use_deterministic_algorithms(True)` or "
    "`at::Context::setDeterministicAlgorithms(true)`, but this operation is not deterministic because it uses CuBLAS"
)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (f"put_ with accumulate=False {NO}", "use --device cpu, or omit it"),
        (f"{CUBLAS} ... such as CUBLAS_WORKSPACE_CONFIG=:4096:8", "CUBLAS_WORKSPACE_CONFIG=:4096:8"),
    ],
)
def test_what_cannot_be_deterministic_is_named(message, told):
    with pytest.raises(TtmbenchError, match=told):
        ttmbench.simple_evaluate(NoWay(message), "shapes_color", **QUICK)


def test_the_batch_size_is_fixed():
    with pytest.raises(UsageError, match="batch_size must be a number for deterministic"):
        ttmbench.simple_evaluate("tiny-clip", "shapes_color", batch_size="auto", **QUICK)

    def full(rows: slice) -> None:
        raise MemoryError

    rows = BatchSizer.for_run(8, object(), fixed=True)
    with pytest.raises(TtmbenchError, match="use --batch_size 4"):
        list(rows.map_batches(0, 9, full))
    with pytest.raises(TtmbenchError, match="no gradient in other parts"):
        rows.smaller_training_parts(6)
    assert rows.rows == 8 and rows.training is None
