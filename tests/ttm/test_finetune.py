"""Where the inputs of training lie."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from ttmbench.scoring.inputs import Prepared, Rows
from ttmbench.ttm.finetune import images_on_device

ROWS = Rows(np.arange(2)[:, None], np.arange(2)[:, None])


def prepared(images, enlarged=None):
    return Prepared(images, {"input_ids": torch.zeros(2, 3, dtype=torch.long)}, ROWS, enlarged)


def test_images_go_to_the_device_once_as_bytes_and_captions_stay():
    adapter = SimpleNamespace(device=torch.device("meta"))
    pixels = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    moved = images_on_device(adapter, prepared({"pixel_values": pixels}, enlarged=pixels))
    assert moved.images["pixel_values"].device.type == "meta"
    assert moved.images["pixel_values"].dtype == torch.uint8
    assert moved.enlarged.device.type == "meta"
    assert moved.captions["input_ids"].device.type == "cpu"


def test_what_is_no_bytes_or_a_list_stays_where_it_is():
    adapter = SimpleNamespace(device=torch.device("meta"))
    pixels = torch.zeros(2, 3, 4, 4)
    assert images_on_device(adapter, prepared(pixels)).images is pixels
    rows = [pixels.byte()[0], pixels.byte()[1]]
    assert images_on_device(adapter, prepared(rows)).images is rows


def test_on_a_processor_nothing_moves():
    given = prepared(torch.zeros(2, 3, 4, 4, dtype=torch.uint8))
    assert images_on_device(SimpleNamespace(device=torch.device("cpu")), given) is given
    assert images_on_device(object(), given) is given
