"""Devices and folders as people type them."""

from __future__ import annotations

import json
import sys

import pytest

import ttmbench
from ttmbench._util.places import read_device
from ttmbench.cli import main
from ttmbench.errors import UsageError

BASE = ["--model", "tiny-clip", "--tasks", "shapes_color", "--limit", "2", "--bootstrap_iters", "0"]
UNDERSTOOD = {
    "CPU": "cpu",
    " cpu ": "cpu",
    "cpu:0": "cpu",
    "Auto": "auto",
    "GPU": "mps" if sys.platform == "darwin" else "cuda",
    "cuda0": "cuda:0",
    "gpu1": "mps" if sys.platform == "darwin" else "cuda:1",
    "CUDA:1": "cuda:1",
    "cuda:": "cuda",
    "1": "cuda:1",
    "mps:0": "mps",
    "xpu:2": "xpu:2",
}
ANSWERED = {
    "cuda:O": "cuda:O is no device; did you mean cuda:0?",
    "cude": "cude is no device; did you mean cuda?",
    "cpu:3": "cpu:3 is no device; did you mean cpu?",
    "apple": "apple is no device; known: auto, cpu, cuda, cuda:1, mps",
    "": " is no device; known: auto, cpu, cuda, cuda:1, mps",
    "0,1": "0,1 names several devices, and a run uses one: run a command for each",
    "cuda:0,cuda:1": "cuda:0,cuda:1 names several devices",
}


@pytest.mark.parametrize("typed", [one for one in UNDERSTOOD if "gpu1" != one or sys.platform != "darwin"])
def test_a_device_that_can_only_mean_one_thing_is_understood(typed):
    assert read_device(typed) == UNDERSTOOD[typed]


@pytest.mark.parametrize("typed", ANSWERED)
def test_another_is_answered_in_one_line(typed, capsys):
    assert main([*BASE, "--device", typed]) == 2
    err = capsys.readouterr().err
    assert ANSWERED[typed] in err and err.count("\n") == 1, err


def test_the_results_have_the_name_that_torch_has(tmp_path, capsys):
    assert main([*BASE, "--device", "CPU", "-o", str(tmp_path / "r.json")]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["config"]["device"] == "cpu"


@pytest.mark.parametrize("device", ["cuda:9", "mps"])
def test_a_device_that_is_not_here_is_one_line(device, capsys):
    import torch

    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("it is here")
    assert main([*BASE, "--device", device]) == 2
    err = capsys.readouterr().err
    assert f"device {device} was asked for, but" in err and err.count("\n") == 1


@pytest.mark.parametrize("address", ["s3://bucket/x", "gs://bucket/x", "hdfs://host/x", "https://host/x.json"])
@pytest.mark.parametrize("option", ["--output_path", "--data_dir", "--use_cache", "--save_adapted", "--include_path"])
def test_an_address_is_no_folder(option, address, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*BASE, option, address]) == 2
    err = capsys.readouterr().err
    assert f"{address} is an address, and only files and folders of this machine" in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command", ["report s3://b/x", "leaderboard s3://b/x", "score s3://b/x.npz --task shapes_color"]
)
def test_other_commands_take_no_address_either(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    assert "is an address, and only files and folders" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_python_takes_none_and_numbers_are_devices(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="output_path s3://b is an address, and only files and folders"):
        ttmbench.simple_evaluate("tiny-clip", "shapes_color", output_path="s3://b", limit=2)
    with pytest.raises(UsageError, match="output_path file:///tmp/x is an address; give the path without file://"):
        ttmbench.simple_evaluate("tiny-clip", "shapes_color", output_path="file:///tmp/x", limit=2)
    with pytest.raises(UsageError, match="device cuda:99 was asked for, but"):
        ttmbench.simple_evaluate("tiny-clip", "shapes_color", device=99, limit=2)  # type: ignore[arg-type]
