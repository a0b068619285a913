"""Restores a model after it was adapted and checks that it did: every seed starts from the same model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from ttmbench.errors import TtmbenchError
from ttmbench.protocols import PairTrainable, Trainable
from ttmbench.scoring.inputs import subset
from ttmbench.scoring.prepare import PreparedTask
from ttmbench.ttm.finetune import restore, snapshot

TOLERANCE = 1e-4  # logits; what `check_adapter` allows for the same
GROUPS = 16  # in the batch that is scored before and after


class Original:
    """A model as it came to the test-time stage: its weights, and its scores of one batch.

    Args:
        stage: model and prepared inputs. The batch is its first groups, at most `GROUPS`.
    """

    def __init__(self, stage: PreparedTask) -> None:
        self._adapter, self._weights = stage.adapter, snapshot(stage.adapter)
        first = np.arange(min(GROUPS, len(stage.prepared.rows.images)))
        self._batch = replace(stage, prepared=subset(stage.prepared, first), is_global=False, all_pairs=False)
        self._scores: np.ndarray | None = None

    @contextmanager
    def adapted(self) -> Iterator[None]:
        """Whatever is trained inside, the model leaves as it came.

        Raises:
            TtmbenchError: it does not: the batch has other scores than before.
        """
        if self._scores is None:
            self._scores = self._batch.score().groups
        try:
            yield
        except Exception:
            self._restore(self._scores)
            raise
        except BaseException:  # interrupted: no time for the check, and nothing more is scored
            restore(self._adapter, self._weights)
            raise
        else:
            self._restore(self._scores)

    def _restore(self, before: np.ndarray) -> None:
        restore(self._adapter, self._weights)
        after = self._batch.score().groups
        if np.array_equal(before, after):
            return
        # Some models round in another way each time they are asked: by how much shows in a second look at the same.
        noise = _distance(after, self._batch.score().groups)
        difference = _distance(before, after)
        if not difference <= max(TOLERANCE, 2 * noise):
            raise TtmbenchError(
                f"model adapter {type(self._adapter).__name__} does not give the same scores after its weights were "
                f"restored: a batch of {len(before)} groups differs by up to {difference:.3g}. Its load_state_dict "
                "must load every tensor that its state_dict returns, and scores must depend on nothing else that "
                "training changes; ttmbench.testing.check_adapter tests this"
            )


@contextmanager
def restored(stage: PreparedTask) -> Iterator[None]:
    """Whatever is trained inside, the model leaves as it came; TtmbenchError if it does not."""
    with Original(stage).adapted():
        yield


def resume_weights(adapter: Trainable | PairTrainable, state: Mapping[str, torch.Tensor]) -> None:
    """Loads the weights that a stopped run kept.

    Raises:
        TtmbenchError: the model does not have them afterwards.
    """
    restore(adapter, state)
    loaded = adapter.state_dict()
    for name, tensor in state.items():
        if name not in loaded or not torch.equal(loaded[name].cpu(), tensor.cpu()):
            raise TtmbenchError(
                f"model adapter {type(adapter).__name__} did not load the weights of a stopped run: '{name}' differs "
                "from what was saved. Its load_state_dict must load every tensor that its state_dict returns; "
                "ttmbench.testing.check_adapter tests this"
            )


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    """Largest absolute difference; NaN if a score is NaN."""
    return float(np.abs(one.astype(np.float64) - other).max())
