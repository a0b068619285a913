"""What every variant of TTM works on: a model, a task's prepared inputs, and how to score them."""

from __future__ import annotations

from dataclasses import dataclass

from ttmbench.protocols import DualEncoder
from ttmbench.scoring.batch_size import BatchSizer
from ttmbench.scoring.blocks import BlockStore
from ttmbench.scoring.capabilities import Trained
from ttmbench.scoring.dual_encoder import encode, score_all_pairs, score_groups
from ttmbench.scoring.inputs import Prepared
from ttmbench.scoring.prepared_pairs import score_in_memory
from ttmbench.types import Scores


@dataclass(frozen=True)
class PreparedTask:
    """A model, a task's prepared inputs and how to score them: what every variant of TTM works on."""

    adapter: Trained
    prepared: Prepared
    batch_size: int | BatchSizer
    is_global: bool
    all_pairs: bool

    def score(self, blocks: BlockStore | None = None) -> Scores:
        """One scoring pass, serving metrics and matching alike; finished blocks are kept if it is said where."""
        if not isinstance(self.adapter, DualEncoder):
            table = score_in_memory(self.adapter, self.prepared, self.batch_size, self.all_pairs, blocks)
            return table.scores(self.all_pairs)
        features = encode(self.adapter, self.prepared, self.batch_size, blocks)
        rows = self.prepared.rows
        pairs = score_all_pairs(self.adapter, features, rows) if self.all_pairs else None
        return Scores(score_groups(self.adapter, features, rows), pairs)
