"""Devices and folders as people type them."""

from __future__ import annotations

import pytest

import ttmbench
from ttmbench.cli import main
from ttmbench.cli.parser import parse
from ttmbench.errors import UsageError

BASE = ["--model", "tiny-clip", "--tasks", "shapes_color", "--limit", "2", "--bootstrap_iters", "0"]
UNDERSTOOD = {
    "CPU": "cpu",
    "cpu:0": "cpu",
    "GPU": "cuda",
    "gpu1": "cuda:1",
    "1": "cuda:1",
    "mps:0": "mps",
    "cuda:0,1,2,3": "cuda:0,cuda:1,cuda:2,cuda:3",
    "0, 2": "cuda:0,cuda:2",
    "CPU,cpu,": "cpu,cpu",
}
ANSWERED = {
    "cuda:O": "unknown device cuda:O; known: auto, cpu, cuda, cuda:1, mps",
    "cpu,auto": "several devices must differ and have numbers, such as cuda:0,cuda:1, got cpu,auto",
    ",": "unknown device ,; known: auto",
}


@pytest.mark.parametrize("typed", UNDERSTOOD)
def test_a_device_that_can_only_mean_one_thing_is_understood(typed):
    assert ttmbench.RunConfig(model="tiny-clip", tasks="shapes_color", device=typed).device == UNDERSTOOD[typed]


@pytest.mark.parametrize("typed", ANSWERED)
def test_another_is_answered_in_one_line(typed, capsys):
    assert main([*BASE, "--device", typed]) == 2
    err = capsys.readouterr().err
    assert ANSWERED[typed] in err and err.count("\n") == 1, err


@pytest.mark.parametrize("device", ["cuda:9", "mps", "cuda:8,cuda:9"])
def test_a_device_that_is_not_here_is_one_line(device, capsys):
    import torch

    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("it is here")
    assert main([*BASE, "--device", device]) == 2
    err = capsys.readouterr().err
    assert f"device {device.partition(',')[0]} was requested, but" in err and err.count("\n") == 1


@pytest.mark.parametrize("address", ["s3://bucket/x", "https://host/x.json"])
@pytest.mark.parametrize("option", ["--data_dir", "--use_cache", "--save_adapted", "--include_path"])
def test_an_address_is_no_folder(option, address, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*BASE, option, address]) == 2
    err = capsys.readouterr().err
    assert f"must be a local path, and {address} is an address" in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        *("report https://b/x", "leaderboard http://b/x", "run --model tiny-clip --tasks shapes_color -o https://b/x"),
        *("finetune --model tiny-clip --tasks shapes_color -o s3://b/x", "cache ls --use_cache s3://b/x"),
    ],
)
def test_pages_and_what_other_commands_write_are_no_folders_either(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    assert "is an address: give a local folder" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_page_that_is_named_and_not_read_may_be_an_address(tmp_path):
    words = ["export", str(tmp_path), "--to", "model-index", "--source_url", "https://example.org"]
    assert parse(words).source_url == "https://example.org"


def test_python_takes_none_and_numbers_are_devices(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="data_dir must be a local path, and s3://b is an address"):
        ttmbench.simple_evaluate("tiny-clip", "shapes_color", data_dir="s3://b", limit=2)
    with pytest.raises(UsageError, match="device cuda:99 was requested, but"):
        ttmbench.simple_evaluate("tiny-clip", "shapes_color", device=99, limit=2)  # type: ignore[arg-type]
