"""Blocks of pair scores: their borders."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.small_models import MemoryBlocks

from ttmbench.scoring.batches import BatchSizer, load, save, spans


@given(st.integers(1, 700), st.integers(1, 90), st.integers(1, 300), st.data())
def test_spans_cover_every_row_once_and_never_split_a_block(rows, block, batch_size, data):
    found = spans(rows, block, batch_size)
    assert [row for span in found for row in range(span.start, span.stop)] == list(range(rows))
    memory, values = MemoryBlocks(), np.arange(rows, dtype=np.float32)
    for span in found:
        assert span.start % block == 0 and (span.stop % block == 0 or span.stop == rows)
        batches = list(BatchSizer(batch_size).map_batches(span.start, span.stop, lambda rows: rows))
        assert [row for batch in batches for row in range(rows)[batch]] == list(range(span.start, span.stop))
        assert all(batch.stop - batch.start <= batch_size for batch in batches)
        assert load(memory, span) is None
        save(memory, span, values[span.start : span.stop])
        assert np.array_equal(load(memory, span), values[span.start : span.stop])
    assert sorted(memory) == list(range(-(-rows // block)))
    gone = data.draw(st.sampled_from(sorted(memory)))
    del memory[gone]
    missing = [span for span in found if load(memory, span) is None]
    assert len(missing) == 1 and missing[0].start <= gone * block < missing[0].stop


def test_a_block_of_another_length_is_not_used():
    memory, (span,) = MemoryBlocks(), spans(5, 8, 2)
    memory.put(0, np.zeros(4, dtype=np.float32))
    assert load(memory, span) is None and load(None, span) is None
    save(None, span, np.zeros(5, dtype=np.float32))
