"""What a stopped seed goes on from: copied once, and written while an accelerator trains on."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from support.stand_in_gpu import stand_in_gpu

from ttmbench._util import file_io
from ttmbench._util.file_io import separated
from ttmbench.methods.runner import SeedRun, TaskCheckpoint
from ttmbench.methods.training import Iteration, TrainingState
from ttmbench.types import Scores

RAW = Scores(np.eye(2)[None])


def step(iteration: int) -> Iteration:
    return Iteration(
        iteration=iteration,
        threshold=0.5,
        captions=np.array([[0, 1]]),
        selected=np.array([True]),
        tie=np.array([False]),
        loss=(1.0,),
        learning_rate=1e-5,
        scores=RAW,
        seconds=1.0,
    )


def state(iteration: int, weight: torch.Tensor) -> tuple[SeedRun, TrainingState]:
    run = SeedRun(steps=[step(done) for done in range(1, iteration + 1)], turns=iteration)
    return run, TrainingState(iteration, {"weight": weight}, (), {"cpu": torch.get_rng_state()})


def test_what_lies_apart_is_not_copied():
    weight, table = torch.arange(6.0).reshape(2, 3), torch.zeros(3)
    apart = separated({"weight": weight, "tied": weight, "turned": weight.T, "table": table})
    assert apart["weight"].data_ptr() == weight.data_ptr() and apart["table"].data_ptr() == table.data_ptr()
    assert len({one.data_ptr() for one in apart.values()}) == 4
    assert torch.equal(apart["tied"], weight) and torch.equal(apart["turned"], weight.T)
    assert all(one.is_contiguous() for one in apart.values())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_accelerator_trains_on_while_its_weights_are_written(device, tmp_path, monkeypatch):
    """As they were: what is trained meanwhile is of the next iteration, whose file waits for this one's."""
    begun, go_on, writers = threading.Event(), threading.Event(), []
    save = file_io.save_sealed

    def slow(path, tensors, about):
        if "weight" in str(list(tensors)):
            writers.append(threading.current_thread())
            begun.set()
            assert device == "cpu" or go_on.wait(20)
        save(path, tensors, about)

    monkeypatch.setattr(file_io, "save_sealed", slow)
    seed = TaskCheckpoint(tmp_path, "data", "run").seed("ttm", 0, RAW)
    with stand_in_gpu():
        weight = torch.zeros(3).to(device)
        seed.keep(*state(1, weight))
        assert begun.wait(20)
        weight += 7
        behind = device == "cuda"
        assert (tmp_path / "ttm" / "seed_0.safetensors").exists() != behind, "half a file has no name"
        go_on.set()
        seed.keep(*state(2, weight))
        seed.keep(*state(3, weight + 1))
    seed.finish_writing()
    assert (threading.main_thread() in writers) != behind and len(writers) == 3
    there = TaskCheckpoint(tmp_path, "data", "run").seed("ttm", 0, RAW).read()
    assert there[1].turns == 3 and there[1].model["weight"].tolist() == [8, 8, 8]


def test_a_disk_that_fills_meanwhile_is_told_once_and_the_run_goes_on(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    task = TaskCheckpoint(tmp_path, "data", "run")
    seed = task.seed("ttm", 0, RAW)
    with stand_in_gpu():
        monkeypatch.setattr(file_io, "save_sealed", full)
        for iteration in (1, 2):
            seed.keep(*state(iteration, torch.zeros(3, device="cuda")))
        seed.keep(SeedRun(RAW, is_finished=True))
    assert capsys.readouterr().err.count("No space left on device; the run continues") == 1
    assert not list(tmp_path.rglob("*.safetensors"))
