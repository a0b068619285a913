"""Score corrections against the authors' repositories; each test is skipped without a clone that a variable names.

``NNN_REPOSITORY``: multimodal-interpretability/nnn at cea80de5. ``QB_NORM_REPOSITORY``: ioanacroi/qb-norm at 76d4d907.
"""

from __future__ import annotations

import importlib
import os

import numpy as np
import pytest
import torch
from support.method_tasks import BIAS, SCALE, feature_task

from ttmbench.methods.dis import dis
from ttmbench.methods.dn import dn
from ttmbench.methods.nnn import nnn


def original(monkeypatch, variable, module):
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"{variable} names no clone")
    monkeypatch.syspath_prepend(folder)
    return importlib.import_module(module)


def in_place(found):
    """Values of the best items and their positions, both [queries, items] -> values in the order of items."""
    values, positions = found
    return np.take_along_axis(values, positions.argsort(axis=1), axis=1)


@pytest.mark.parametrize("k", [3, 12])
def test_nnn(monkeypatch, k):
    retriever = original(monkeypatch, "NNN_REPOSITORY", "nnn.nnn_retriever").NNNRetriever(8)
    task = feature_task(6, 2, 3)
    sides = {
        "i2t": (task.all_images, task.captions, task.images),
        "t2i": (task.all_captions, task.images, task.captions),
    }
    for direction, (references, items, queries) in sides.items():
        scores = nnn(task, k=k, direction=direction, references="task")
        for group in range(6):
            means = torch.from_numpy(retriever.compute_alignment_means(items[group], references, k, 128))
            found = in_place(retriever.retrieve(items[group], queries[group], len(items[group]), 0.75, means, 128))
            own = scores[group] if direction == "i2t" else scores[group].mT
            np.testing.assert_allclose(own, SCALE * found + BIAS, atol=1e-5)


@pytest.mark.parametrize("strength", [0.25, 0.5])
def test_dn(monkeypatch, strength):
    library = original(monkeypatch, "NNN_REPOSITORY", "nnn")
    task = feature_task(6, 2, 3)
    scores, all_images, all_captions = (
        dn(task, strength=strength, references="task"),
        task.all_images.numpy(),
        task.all_captions.numpy(),
    )
    for group in range(6):
        ranker = library.DNRanker(
            library.NNNRetriever(8),
            task.captions[group].numpy(),
            all_images,
            alternate_ks=1,
            alternate_weight=0,
            retrieval_dev_embeds=all_captions,
            query_dev_embeds=all_images,
            dn_lambda=strength,
        )
        found = in_place(ranker.search(task.images[group].numpy(), 3))
        np.testing.assert_allclose(scores[group], SCALE * found + BIAS, atol=1e-5)


@pytest.mark.parametrize("beta", [20.0, 5.0])
def test_dis(monkeypatch, beta):
    library = original(monkeypatch, "QB_NORM_REPOSITORY", "dynamic_inverted_softmax")
    task = feature_task(6, 2, 3)
    scores = dis(task, beta=beta, direction="i2t", references="task")
    for group in range(6):
        captions = task.captions[group].double().numpy()
        bank = task.all_images.double().numpy() @ captions.T
        own = task.images[group].double().numpy() @ captions.T
        # k as large as the bank's rows: every caption is retrieved by some of its images, so all rows are normalised.
        found = library.qb_norm(bank.copy(), own.copy(), {"k": 3, "beta": beta})
        np.testing.assert_allclose(scores[group], SCALE / beta * np.log(found) + BIAS, atol=1e-5)
