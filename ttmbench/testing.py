"""The contracts of adapters and test-time methods as tests, for this package and for third parties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from PIL import Image

from ttmbench._util.file_io import json_digest
from ttmbench._util.third_party import error_with_place
from ttmbench.errors import TtmbenchError
from ttmbench.methods.contract import BrokenMethodError, outcomes
from ttmbench.methods.training import TOLERANCE, gradient, restore, snapshot
from ttmbench.model import Batch as _Batch
from ttmbench.model import ChoiceModel, ChoiceQuestion, DualEncoder, Model, PairScorer, as_model
from ttmbench.plugins.registry import build_registry, load_target
from ttmbench.scoring.batches import BatchSizer as _BatchSizer
from ttmbench.scoring.dual_encoder import encode, score_features
from ttmbench.scoring.inputs import Inputs as _Inputs
from ttmbench.scoring.inputs import Prepared as _Prepared
from ttmbench.scoring.inputs import concatenate, prepare, row_each, take
from ttmbench.scoring.pairs import pair_table
from ttmbench.types import Group, ImageRef, MethodPart, MethodSpec

CAPTIONS = ("a red circle", "a blue square and a green circle on the left", "two dogs", "a photo of a yellow star")


class ContractError(AssertionError):
    """An adapter or a method violates its contract; the message names the check and the difference."""


def check_adapter(adapter: object, *, image_size: tuple[int, int] = (64, 48)) -> list[str]:
    """Checks that a model satisfies its contract, on images of a given size; returns the names of the checks.

    Its class has a base class of `ttmbench.model`, or ``score_pairs`` alone. Scores have the right shape and are fp32.
    Neither batch size, nor order of inputs, nor preparing images once changes a score by more than 1e-4. The
    fingerprint is stable. For trainable models, the loss is finite, training changes the scores, and the state can be
    restored. Raises a ContractError for the first check that fails.
    """
    made: list[str] = []

    def check(name: str, holds: bool, otherwise: str) -> None:
        if not holds:
            raise ContractError(f"{type(adapter).__name__}: {name}: {otherwise}")
        made.append(name)

    try:
        _check_model(as_model(adapter), image_size, check)
    except ContractError:
        raise
    except Exception as error:
        what = str(error) if isinstance(error, TtmbenchError) else error_with_place(error)
        raise ContractError(f"{type(adapter).__name__}: after '{made[-1] if made else 'no check'}': {what}") from error
    return made


def _check_model(model: Model, image_size: tuple[int, int], check: _Check) -> None:
    check("states a fingerprint", bool(model.fingerprint()), "it has no fingerprint(), or an empty one")
    first, second = (json_digest(model.fingerprint(), allow_nan=False) for _ in range(2))
    check("fingerprint is stable", first == second, "two calls differ")
    check("states a device", isinstance(model.device, torch.device), f"device is no torch.device but {model.device!r}")
    notes = model.notes()
    check("notes are texts", isinstance(notes, list) and all(isinstance(n, str) for n in notes), f"got {notes!r:.80}")
    rng, shape = np.random.RandomState(0), (image_size[1], image_size[0], 3)
    images = [Image.fromarray(rng.randint(0, 256, shape, dtype=np.uint8)) for _ in CAPTIONS]
    if isinstance(model, ChoiceModel):
        _check_choice_model(model, images, check)
    if isinstance(model, PairScorer):
        _check_pair_scorer(model, images, check)
        if model.prepares:
            prepared = _check_prepared(model, images, check)
            if model.trainable and not isinstance(model, DualEncoder):
                _check_pair_loss(model, prepared, check)
    if isinstance(model, DualEncoder):
        prepared = _check_dual_encoder(model, images, check)
        if model.trainable:
            n = np.arange(len(CAPTIONS))
            loss = model.matching_loss(take(prepared.images, n), take(prepared.captions, n))
            check("loss is a finite scalar", loss.ndim == 0 and bool(torch.isfinite(loss)), f"got {loss}")
            batch = take(prepared.images, n), take(prepared.captions, np.roll(n, 1)), None
            _check_training(model, batch, lambda: _all_scores(model, prepared, len(n)), check)


def check_method(
    method: MethodSpec | MethodPart | str,
    *,
    settings: Mapping[str, object] | None = None,
    adapter: DualEncoder | None = None,
) -> list[str]:
    """Checks that a test-time method satisfies its contract, on small random tasks; returns the names of the checks.

    Its settings can be read. Scores have the task's shape, are finite, and are the same for the same seed. No label is
    used: permuted captions give permuted scores, and no image is correct for a constant scorer. Only the parameters of
    ``task.train`` change. A run that is stopped after a turn and resumed ends with the scores of an uninterrupted run.
    Episodic methods score a group alone bit-identically to the same group after others; methods declared independent of
    the order of groups give the same scores in any order. Groups of other shapes are scored, or rejected with a
    one-line error. A part of TTM is checked over three iterations: same seed, permuted captions, resumed run.

    Args:
        method: its specification, a registered name, or a part of TTM.
        settings: settings of the method; few views or steps make the check faster.
        adapter: a model that can be trained; the built-in one by default.

    Raises:
        ContractError: for the first check that fails.
    """
    spec = build_registry(quiet=True).methods[method] if isinstance(method, str) else method
    if adapter is None:
        adapter = load_target("ttmbench.model_adapters.hf:load")(pretrained="tiny_clip", device="cpu")
    made = []
    try:
        for name, holds, otherwise in outcomes(spec, adapter, settings or {}):
            if not holds:
                raise ContractError(f"{spec.name}: {name}: {otherwise}")
            made.append(name)
        return made
    except BrokenMethodError as error:
        raise ContractError(f"{spec.name}: {error.check}: {error.why}") from error


_Check = Callable[[str, bool, str], None]


def _check_choice_model(adapter: ChoiceModel, images: list[Image.Image], check: _Check) -> None:
    questions = [ChoiceQuestion(f"Is this (A) {caption} or (B) a chair?", [images[0]]) for caption in CAPTIONS]
    questions.append(ChoiceQuestion("Is the first or the second image brighter?", images[:2]))
    together = list(adapter.answer(questions))
    check("one answer a question", len(together) == len(questions), f"{len(together)} to {len(questions)}")
    check("answers are texts", all(answer is None or isinstance(answer, str) for answer in together), f"got {together}")
    alone = [answer for question in questions for answer in adapter.answer([question])]
    check("the number of questions changes no answer", together == alone, f"{together} became {alone}")


def _check_pair_scorer(adapter: PairScorer, images: list[Image.Image], check: _Check) -> None:
    together = np.asarray(adapter.score_pairs(images, list(CAPTIONS)))
    check("one score a pair", together.shape == (len(CAPTIONS),), f"shape is {together.shape}")
    check("pair scores are float32", together.dtype == np.float32, f"dtype is {together.dtype}")
    check("pair scores are finite", bool(np.isfinite(together).all()), f"got {together}")
    alone = np.concatenate([np.asarray(adapter.score_pairs([p], [c])) for p, c in zip(images, CAPTIONS, strict=True)])
    check("batch size changes no pair score", _close(together, alone), _difference(together, alone))
    backwards = np.asarray(adapter.score_pairs(images[::-1], list(CAPTIONS[::-1])))[::-1]
    check("order changes no pair score", _close(together, backwards), _difference(together, backwards))


def _check_prepared(adapter: PairScorer, images: list[Image.Image], check: _Check) -> _Prepared:
    prepared = _prepared(adapter, images)
    scores = _all_pairs(adapter, prepared, len(CAPTIONS) ** 2)
    direct = np.asarray(adapter.score_pairs(images, list(CAPTIONS)))
    check("preparing changes no pair score", _close(np.diag(scores), direct), _difference(np.diag(scores), direct))
    single = _all_pairs(adapter, prepared, 1)
    check("pairs: batch size changes no prepared score", _close(scores, single), _difference(scores, single))
    backwards = _all_pairs(adapter, _prepared(adapter, images[::-1], CAPTIONS[::-1]), 3)[::-1, ::-1]
    check("pairs: order of inputs changes no score", _close(scores, backwards), _difference(scores, backwards))
    return prepared


def _check_pair_loss(adapter: PairScorer, prepared: _Prepared, check: _Check) -> None:
    n = np.arange(len(CAPTIONS))
    matched = n % 2 == 0
    loss = adapter.pair_loss(take(prepared.images, n), take(prepared.captions, n), matched)
    check("pairs: loss is a finite scalar", loss.ndim == 0 and bool(torch.isfinite(loss)), f"got {loss}")
    whole = np.array(float(loss.detach()))
    if float(adapter.pair_loss(take(prepared.images, n), take(prepared.captions, n), matched).detach()) == whole:
        # Without dropout. The loss has to be a mean, because a batch may be trained on in parts.
        parts = [
            adapter.pair_loss(take(prepared.images, i), take(prepared.captions, i), matched[i]) for i in n[:, None]
        ]
        mean = np.array(np.mean([float(part.detach()) for part in parts]))
        check("pairs: loss is the mean over pairs", _close(whole, mean), _difference(whole, mean))
    pairs = take(prepared.images, n), take(prepared.captions, n), matched
    _check_training(adapter, pairs, lambda: _all_pairs(adapter, prepared, len(n) ** 2), check, "pairs: ")


def _check_dual_encoder(adapter: DualEncoder, images: list[Image.Image], check: _Check) -> _Prepared:
    n, prepared = len(CAPTIONS), _prepared(adapter, images)
    sides = adapter.encode_images(prepared.images), adapter.encode_captions(prepared.captions)
    for features in sides:
        dtype = getattr(features, "dtype", type(features).__name__)
        check("features are float32", dtype == torch.float32, f"got {dtype}")
    raw = adapter.logits(sides[0][1:], sides[1])
    shape = tuple(getattr(raw, "shape", ()))
    check("logits are [images, captions]", shape == (n - 1, n), f"{n - 1} images and {n} captions give {shape}")
    check("logits are float32", raw.dtype == torch.float32, f"dtype is {raw.dtype}")
    scores = _all_scores(adapter, prepared, n)
    check("logits are finite", bool(np.isfinite(scores).all()), f"got {scores}")
    single = _all_scores(adapter, prepared, 1)
    check("batch size changes no score", _close(scores, single), _difference(scores, single))
    apart = replace(prepared, images=concatenate([adapter.prepare_images([image]) for image in images]))
    one_by_one = score_features(adapter, encode(adapter, apart, n), False).groups[0]
    check("preparing one by one changes no score", _close(scores, one_by_one), _difference(scores, one_by_one))
    backwards = _all_scores(adapter, _prepared(adapter, images[::-1], CAPTIONS[::-1]), n)[::-1, ::-1]
    check("order of inputs changes no score", _close(scores, backwards), _difference(scores, backwards))
    return prepared


def _check_training(
    adapter: Model,
    batch: tuple[_Batch, _Batch, np.ndarray | None],
    score: Callable[[], np.ndarray],
    check: _Check,
    what: str = "",
) -> None:
    before, scores = snapshot(adapter), score()
    optimizer = torch.optim.AdamW(list(adapter.parameters()), lr=1e-2)
    for _ in range(2):
        gradient(adapter, *batch, optimizer, _BatchSizer())
        optimizer.step()
    trained = score()
    check(
        f"{what}training changes the scores", not _close(scores, trained), "they stay the same; is parameters() empty?"
    )
    restore(adapter, before)
    after = score()
    check(f"{what}the state comes back after training", _close(scores, after), _difference(scores, after))


def _prepared(
    adapter: DualEncoder | PairScorer, pil_images: list[Image.Image], captions: tuple[str, ...] = CAPTIONS
) -> _Prepared:
    row_each(adapter.prepare_images, pil_images, "images")  # together, while a small task may prepare them one by one
    images = tuple(ImageRef(str(index), pil_image.copy) for index, pil_image in enumerate(pil_images))
    return prepare(adapter, _Inputs([Group("0", images, captions)]), batch_size=len(pil_images))


def _all_scores(adapter: DualEncoder, prepared: _Prepared, batch_size: int) -> np.ndarray:
    pairs = score_features(adapter, encode(adapter, prepared, batch_size), True).all_pairs
    assert pairs is not None, "all pairs were asked for"
    return pairs


def _all_pairs(adapter: PairScorer, prepared: _Prepared, batch_size: int) -> np.ndarray:
    return pair_table(adapter, prepared, batch_size, all_pairs=True).every


def _close(left: np.ndarray, right: np.ndarray) -> bool:
    return left.shape == right.shape and bool(np.allclose(left, right, rtol=0, atol=TOLERANCE))


def _difference(left: np.ndarray, right: np.ndarray) -> str:
    if left.shape != right.shape:
        return f"shapes {left.shape} and {right.shape}"
    return f"scores differ by up to {np.abs(left - right).max():.3g} (allowed: {TOLERANCE:g})"
