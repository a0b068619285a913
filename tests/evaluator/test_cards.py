"""Which precision is faster on a card: in the notice of a run, by doctor, and nowhere where it is not known."""

from __future__ import annotations

import types

import pytest
import torch
from support.stand_in_gpu import stand_in_gpu

import ttmbench
from ttmbench.cli import main
from ttmbench.evaluator import cards

H100 = "NVIDIA H100 80GB HBM3"
SMALL = {"limit": 4, "bootstrap_iters": 0, "use_cache": "off"}


def notice(capsys, name, **options) -> str:
    with stand_in_gpu(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_name", lambda *_: name)
        ttmbench.simple_evaluate("tiny-clip", "shapes_color", device="cuda", **SMALL, **options)
    return " ".join(capsys.readouterr().err.split())


def test_a_run_in_float32_on_a_known_card_names_the_faster_option(capsys):
    words = notice(capsys, H100)
    assert f"--dtype bf16 is about 8 and tf32 about 5 times as fast as fp32 on {H100}, by NVIDIA's data sheets" in words
    assert "not measured" in words


def test_a_run_that_is_fast_already_or_on_an_unknown_card_names_none(capsys):
    assert "times as fast" not in notice(capsys, H100, dtype="bf16")
    assert "times as fast" not in notice(capsys, H100, deterministic=True)
    assert "times as fast" not in notice(capsys, "a card of 2031")
    done = ttmbench.simple_evaluate("tiny-clip", "shapes_color", device="cpu", **SMALL)
    assert "times as fast" not in capsys.readouterr().err
    assert done["hardware"]["matmul_precision"] == torch.get_float32_matmul_precision()


def test_doctor_names_it_too(capsys, monkeypatch):
    about = types.SimpleNamespace(name="Tesla T4", total_memory=16 << 30)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: about)
    assert main(["doctor", "tiny-clip"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "--dtype fp16 is about 4 times as fast as fp32 on Tesla T4 to score (it cannot train)" in printed
    assert "--dtype bf16" not in printed and printed.count("times as fast") == 1


def test_every_card_has_a_rate_below_its_peak():
    for name, peaks in cards._PEAKS.items():
        card = name.replace(r"\b", "").partition("|")[0]
        rates = {dtype: cards.rate(card, dtype) for dtype in peaks}
        assert all(0 < rate < peaks[dtype] * 1e12 for dtype, rate in rates.items() if rate), name
        assert cards.rate(card, "fp32") == peaks["fp32"] * 1e12 * cards.ASSUMED["fp32"], "no other pattern takes it"


def test_tf32_that_the_environment_forces_is_in_the_document(monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        done = ttmbench.simple_evaluate("tiny-clip", "shapes_color", device="cpu", **SMALL)
    finally:
        torch.set_float32_matmul_precision(before)
    assert done["hardware"]["matmul_precision"] == "high" and done["hardware"]["NVIDIA_TF32_OVERRIDE"] == "0"
