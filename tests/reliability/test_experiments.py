"""Small doses of experiments that docs/reliability.md shows in full, with seeds drawn anew each time."""

from __future__ import annotations

import secrets

import cuts
import flips


def test_no_flipped_bit_of_a_checkpoint_is_read():
    seed = secrets.randbelow(2**31)
    found = flips.flip(300, seed)
    assert found == {"header": 300, "header_accepted": 0, "tensors": 30, "tensors_accepted": 0}, f"seed {seed}"


def test_no_cut_download_is_called_whole():
    seed = secrets.randbelow(2**31)
    found = cuts.fetch_all(60, seed)
    assert found["wrong"] == 0 and found["fetched"] > 30, f"seed {seed}: {found}"
