"""What a table takes before it is run: hours by counted operations, downloads, terms to accept."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import SiglipConfig, SiglipModel

from ttmbench.cli import main
from ttmbench.evaluator import cards
from ttmbench.reproduce.estimate import _TOWERS, operations


@pytest.fixture
def shown(capsys, monkeypatch, tmp_path):
    """The lines of a dry run on a card; None for a machine without one."""
    monkeypatch.setenv("TTMBENCH_DATA", str(tmp_path / "data"))

    def lines(card, *words):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: card is not None)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: card)
        assert main(["reproduce", "ttm_table1", "--runs", str(tmp_path / "runs"), "--dry_run", *words]) == 0
        return capsys.readouterr().out.splitlines()

    return lines


@pytest.mark.parametrize("model", ["siglip-b16", "siglip-l16"])
def test_operations_are_those_that_torch_counts(model):
    (width, layers, patches), text = _TOWERS[model]
    tower = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    tower["num_attention_heads"] = width // 64
    vision = {**tower, "image_size": 16 * round(patches**0.5), "patch_size": 16}
    words = {**tower, "vocab_size": 32000, "max_position_embeddings": text[2], "projection_size": width}
    with torch.device("meta"):
        siglip = SiglipModel(SiglipConfig(text_config=words, vision_config=vision))
        pixels, ids = torch.zeros(2, 3, vision["image_size"], vision["image_size"]), torch.zeros(2, text[2], dtype=int)
    with FlopCounterMode(display=False) as counter:
        siglip(pixel_values=pixels, input_ids=ids)
    counted = counter.get_total_flops()
    ours = 2 * (operations((width, layers, patches)) + operations(text))
    assert 0.97 * counted < ours <= counted, "embeddings and the pooling head are left out"


def test_hours_follow_from_seeds_epochs_and_the_card(shown):
    lines = shown("NVIDIA H100 80GB HBM3", "--models", "siglip-b16", "--tasks", "winoground", "--dtype", "tf32")
    image, caption = map(operations, _TOWERS["siglip-b16"])
    score = 400 * 2 * (image + caption)
    total = score + 4 * 10 * (30 * 3 * score + score)
    hours = total / cards.rate("NVIDIA H100 80GB HBM3", "tf32") / 3600
    assert f"#   winoground: at most {hours:.2g} hours; data of unknown size to download (800 im" in "\n".join(lines)
    assert "# siglip-b16: weights 810.0 MB to download" in lines
    assert f"# in all: at most {hours:.2g} hours for 1 of 1 cells on NVIDIA H100 80GB HBM3" in "\n".join(lines)
    assert "# terms to accept first: https://huggingface.co/datasets/facebook/winoground" in lines
    assert "NVIDIA's data sheets, not measured" in lines[-1]


@pytest.mark.parametrize(
    ("card", "words", "why"),
    [
        (None, (), "no GPU is here"),
        ("a card of 2031", (), "no rate of a card of 2031 in fp32 is known"),
        ("Tesla T4", ("--dtype", "bf16"), "no rate of Tesla T4 in bf16 is known"),
    ],
)
def test_what_is_not_known_is_said_to_be_unknown(shown, card, words, why):
    lines = shown(card, "--models", "clip-b16,gpt-4.1", *words)
    assert sum(f"hours unknown ({why})" in line for line in lines) == 3
    assert sum("the operations of this model are not counted" in line for line in lines) == 3
    assert "# gpt-4.1: no weights" in lines and any(line.startswith("# in all: hours unknown") for line in lines)


def test_the_commands_come_first_and_the_rest_is_a_comment_of_the_shell(shown, tmp_path):
    lines = shown(None)
    commands = [line for line in lines if shlex.split(line, comments=True)]
    assert commands == lines[: len(commands)] and all(line.startswith("ttmbench run") for line in commands)


@pytest.mark.parametrize("card", ["H100 80GB HBM3", "A100-SXM4-80GB", "L4"])
def test_the_page_has_the_hours_of_table_1(shown, card):
    page = (Path(__file__).resolve().parents[2] / "docs" / "reproduce.md").read_text()
    (row,) = (line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| bf16 |"))
    stated = dict(zip(("H100", "A100", "L4"), row[1:], strict=True))[card[:4].rstrip("-")]
    lines = shown(f"NVIDIA {card}", "--models", "clip-b16,siglip-b16,siglip-l16", "--dtype", "bf16")
    hours = next(line for line in lines if line.startswith("# in all")).split()[5]
    assert float(stated) == pytest.approx(float(hours), abs=0.05)


def test_what_is_here_is_said(tmp_path, capsys):
    words = ["builtin", "--models", "tiny-clip", "--tasks", "shapes_color", "--runs", str(tmp_path), "--dry_run"]
    assert main(["reproduce", *words]) == 0
    printed = capsys.readouterr().out
    assert (
        "# tiny-clip: weights 983.9 kB here" in printed
        and "; data here" in printed
        and "terms to accept" not in printed
    )
