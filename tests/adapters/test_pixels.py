"""Pixels normalised in parts are those normalised at once, and patches multiplied are those of the convolution."""

from __future__ import annotations

import json

import pytest
import torch
from support import tiny_models

from ttmbench.cli import main
from ttmbench.model_adapters._shared.contrastive import normalised, pixel_scale


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("images", [0, 1, 5])
def test_pixels_are_normalised_as_stated(images, form):
    generator = torch.Generator().manual_seed(0)
    given = torch.randint(0, 256, (images, 3, 6, 4), dtype=torch.uint8, generator=generator).to(memory_format=form)
    means, stds = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
    found = normalised(given, pixel_scale(1 / 255, means, stds, torch.device("cpu")))
    mean, std = (torch.tensor(one)[:, None, None] for one in (means, stds))
    assert found.dtype == torch.float32 and found.stride() == given.stride()
    assert torch.equal(found, given.float() * (1 / 255 / std) - mean / std)


@pytest.mark.parametrize("name", ["blip-itm", "flava-itc", "clip", "siglip"])
def test_images_of_another_size_end_in_an_error(tmp_path, capsys, name):
    model, make = name if "-" in name else "hf", name.partition("-")[0]
    written = tiny_models.MODELS[make](tmp_path / "model")
    (file,) = [path for path in written.iterdir() if path.name.endswith("processor_config.json")]
    settings = json.loads(file.read_text())
    settings |= {key: dict.fromkeys(settings[key], 48) for key in ("size", "crop_size") if settings.get(key)}
    file.write_text(json.dumps(settings))
    run = ["--model", model, "--model_args", f"pretrained={tmp_path / 'model'}", "--tasks", "shapes_color"]
    assert main([*run, "--device", "cpu"]) == 1
    assert "size" in capsys.readouterr().err.splitlines()[-1]
