"""The contracts of a test-time method and of a part of TTM, on small tasks; for `ttmbench.testing.check_method`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from PIL import Image

from ttmbench._util.third_party import error_with_place
from ttmbench.config import TTMConfig
from ttmbench.errors import AssertionNotMet, TtmbenchError, UsageError
from ttmbench.methods.audit import compare_selections
from ttmbench.methods.features import FeatureTask, ScoreTask
from ttmbench.methods.model_task import ModelTask, Parts
from ttmbench.methods.parameters import remove_low_rank
from ttmbench.methods.parts import cross_entropy, load_part
from ttmbench.methods.settings import arguments, checked_settings, load_parts
from ttmbench.methods.task import Clusters, MethodStep, TrainingTask
from ttmbench.methods.training import Iteration, TrainingState, restored
from ttmbench.methods.ttm import DEFAULT_PARTS, ttm
from ttmbench.metrics import group_match, group_score, individual_match
from ttmbench.model import DualEncoder
from ttmbench.plugins.registry import build_registry, load_target
from ttmbench.schedules import SCHEDULES
from ttmbench.scoring.dual_encoder import PreparedTask
from ttmbench.scoring.inputs import Prepared, Rows
from ttmbench.types import MethodPart, MethodSpec

_Inputs = tuple[Prepared, list[str], torch.Tensor, torch.Tensor]  # dimensions: caption texts; features
Outcome = tuple[str, bool, str]
"""Name of a check, whether it holds, and a description of the failure."""

GROUPS = 4
OTHER_SHAPES = ((1, 4), (2, 3), (3, 3), (3, 2))  # images, captions
TOLERANCE = 1e-3  # logits; tolerance for sums in a different order, after training
_TEXTS = [f"a {color} {shape}" for color, shape in product(("red", "green", "blue"), ("circle", "square", "star"))]
CAPTION_TEXTS = [*_TEXTS, *(f"{text} on the left" for text in _TEXTS)]


class BrokenMethodError(Exception):
    """A method that cannot be run: the check that fails, and the reason."""

    def __init__(self, check: str, why: str) -> None:
        super().__init__(check, why)
        self.check, self.why = check, why


def outcomes(spec: MethodSpec | MethodPart, adapter: DualEncoder, settings: Mapping[str, object]) -> Iterator[Outcome]:
    """Yields the outcome of every check of a method, or of a part of TTM in it, with a model.

    BrokenMethodError if no further check is possible.
    """
    if isinstance(spec, MethodPart):
        with _as_broken():
            parts = replace(DEFAULT_PARTS, **{spec.kind: load_part(spec, settings)})
        if spec.kind == "pseudo_labels":
            parts = replace(parts, loss=cross_entropy)  # works with soft and hard labels
        yield from _outcomes_of_iterations(spec, ttm, adapter, CONFIG, parts)
        return
    try:
        for argument in arguments(spec):
            _ = argument.allowed
        checked = checked_settings(spec, settings, CONFIG)
        parts = load_parts(build_registry(), checked) if isinstance(checked, TTMConfig) else DEFAULT_PARTS
    except UsageError as error:
        raise BrokenMethodError("settings can be read", str(error)) from error
    if isinstance(checked, TTMConfig):
        yield from _outcomes_of_iterations(spec, load_target(spec.target), adapter, checked, parts)
        return
    trial = Trial(spec, adapter, checked)
    yield "settings can be read", True, ""
    first = trial.scores()
    turns = trial.turns
    yield "scores have the shape of the task, are finite, and are of every group", True, ""
    yield "nothing stays in the model", trial.is_restored(), "it encodes otherwise than before: a hook, or dropout"
    again = trial.scores()
    yield "the same seed gives the same scores", torch.equal(first, again), _difference(first, again)
    yield from _labels(trial, first)
    yield from _independence(trial, first)
    if spec.trains:
        yield from _resumes(trial, first, turns)
    for shape in OTHER_SHAPES:
        trial.scores(shape, may_refuse=True)
    yield "groups of another shape are scored, or refused in one line", True, ""


def _labels(trial: Trial, first: torch.Tensor) -> Iterator[Outcome]:
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        order = torch.stack([torch.randperm(2, generator=generator) for _ in range(GROUPS)])
        order[0] = torch.tensor([1, 0])
        there = order[:, None].expand(-1, 2, -1)
        turned, expected = trial.scores(order=order), first.gather(2, there)
        yield (
            f"captions in another order give the scores in that order (seed {seed})",
            _close(turned, expected),
            f"it uses positions or numbers of captions, which may be the labels; {_difference(turned, expected)}",
        )
    constant = trial.scores(constant=True)
    rates = {"group score": group_score, "group match": group_match, "individual match": individual_match}
    values = {name: float(metric(constant.numpy()).mean()) for name, metric in rates.items()}
    name, rate = max(values.items(), key=lambda item: item[1])
    yield "a constant scorer has no image right", rate == 0, f"its {name} rises from 0 to {rate:.0%}"


def _independence(trial: Trial, first: torch.Tensor) -> Iterator[Outcome]:
    spec = trial.spec
    if spec.reset == "group" or (not spec.trains and spec.scope in ("row", "group")):
        for group in range(GROUPS):
            alone, together = trial.scores(only=[group])[0], first[group]
            same = torch.equal(alone, together) if spec.trains else _close(alone, together)
            why = f"group {group} differs from itself after the groups before it; {_difference(alone, together)}"
            yield "a group alone has the scores that it has among others", same, why
    if not spec.trains and not spec.order_dependent:
        backwards = list(range(GROUPS))[::-1]
        turned, expected = trial.scores(only=backwards), first[backwards]
        why = f"say order_dependent=True, or leave the order of groups alone; {_difference(turned, expected)}"
        yield "the order of the groups changes no score", _close(turned, expected), why


def _resumes(trial: Trial, first: torch.Tensor, turns: int) -> Iterator[Outcome]:
    for turn in sorted({1, turns // 2, turns - 1} - {0, turns}):
        resumed = trial.scores(stop_after=turn)
        why = (
            f"stopped after turn {turn} of {turns} it ends with other scores: keep what changes from turn to turn in "
            f"task.state, and train with task.train and task.optimizer; {_difference(resumed, first)}"
        )
        yield "a resumed run ends with the scores of an uninterrupted one", torch.equal(resumed, first), why


@dataclass
class Trial:
    """Runs a method on small tasks of random images, each time from the same model."""

    spec: MethodSpec
    adapter: DualEncoder
    settings: Mapping[str, object]
    turns: int = 0  # of the last run; 0 for a method that does not train
    _inputs: dict[tuple[tuple[int, int], bool], _Inputs] = field(default_factory=dict)

    def scores(
        self,
        shape: tuple[int, int] = (2, 2),
        *,
        order: torch.Tensor | None = None,
        only: Sequence[int] | None = None,
        constant: bool = False,
        stop_after: int | None = None,
        may_refuse: bool = False,
    ) -> torch.Tensor:
        """The method's scores [groups, images, captions] of a small task, of groups of ``shape`` (images, captions).

        ``order`` is that of the captions in each group, ``only`` positions of the groups; ``constant`` gives every pair
        the same score; after the turn ``stop_after`` the run is stopped and resumed. BrokenMethodError if the method
        fails or does not return scores of the task; none where it may refuse the task and does.
        """
        before = {name: tensor.clone() for name, tensor in self.adapter.state_dict().items()}
        trainable = [(parameter, parameter.requires_grad) for parameter in self.adapter.parameters()]
        task = self._task(shape, order, only, constant)
        inputs = [tensor.clone() for tensor in _tensors(task)]
        try:
            if not self.spec.trains:
                with torch.no_grad():
                    scores = _checked(self._called(task), task.scores.shape)
            else:
                scores = self._trained(task, lambda state: self._task(shape, order, only, constant, state), stop_after)
            self._check_untouched(task, inputs, before)
        except UsageError as error:
            if may_refuse and "\n" not in str(error):
                return torch.empty(0)
            name = "groups of another shape are refused in one line" if may_refuse else "is defined for 2x2 groups"
            raise BrokenMethodError(name, str(error)) from error
        except BrokenMethodError:
            raise
        except Exception as error:
            raise BrokenMethodError("runs", error_with_place(error)) from error
        finally:
            remove_low_rank(self.adapter)
            self.adapter.load_state_dict(before)
            for parameter, flag in trainable:
                parameter.requires_grad_(flag)
        return scores

    def is_restored(self) -> bool:
        """Whether the model encodes an image and a caption as before the runs."""
        _, _, images, captions = self._inputs[(2, 2), False]
        with torch.no_grad():
            image = self.adapter.encode_images(self.adapter.prepare_images(random_images(1)))
            caption = self.adapter.encode_captions(self.adapter.prepare_captions(CAPTION_TEXTS[:1]))
        return torch.equal(image, images[:1]) and torch.equal(caption, captions[:1])

    def _called(self, task: ScoreTask) -> Any:
        return load_target(self.spec.target)(task, **self.settings)

    def _trained(
        self, task: ScoreTask, resumed: Callable[[TrainingState], ScoreTask], stop_after: int | None
    ) -> torch.Tensor:
        """The scores after the last turn; with ``stop_after``, after a stopped and a resumed run."""
        assert isinstance(task, TrainingTask), "a method that trains"
        original = {name: tensor.clone() for name, tensor in self.adapter.state_dict().items()}
        scores = torch.full_like(task.scores, torch.nan)
        steps = self._called(task)
        if not isinstance(steps, Iterator):
            raise BrokenMethodError("a method with gradients yields steps", f"it returns {type(steps).__name__}")
        self.turns = 0
        for step in steps:
            self.turns += 1
            _put(step, scores)
            if self.turns == stop_after:
                _check_state(task.state)
                state = task.snapshot()
                steps.close()  # type: ignore[attr-defined]
                self.adapter.load_state_dict(original)
                for step_after in self._called(resumed(state)):
                    _put(step_after, scores)
                break
        return _checked(scores, task.scores.shape)

    def _check_untouched(
        self, task: ScoreTask, inputs: Sequence[torch.Tensor], before: Mapping[str, torch.Tensor]
    ) -> None:
        if not all(map(torch.equal, inputs, _tensors(task))):
            raise BrokenMethodError("the task is not changed in place", "its scores or features were written to")
        trained = set(task.trained) if isinstance(task, TrainingTask) else set()
        after = self.adapter.state_dict()
        changed = [name for name in before if name not in trained and not torch.equal(before[name], after[name])]
        if changed:
            why = f"{changed[0]} changed ({len(changed)} in all): the model is restored by what task.train gave"
            raise BrokenMethodError("only parameters of task.train are changed", why)

    def _task(
        self,
        shape: tuple[int, int],
        order: torch.Tensor | None,
        only: Sequence[int] | None,
        constant: bool,
        resume: TrainingState | None = None,
    ) -> ScoreTask:
        """The task object for the method, without inputs that its specification does not list in ``needs``."""
        key = (shape, order is not None)
        if key not in self._inputs:
            self._inputs[key] = self._encoded(shape, renumbered=order is not None)
        prepared, texts, *features_of = self._inputs[key]
        images, captions = (features.clone() for features in features_of)
        image_rows, caption_rows = (torch.from_numpy(rows) for rows in (prepared.rows.images, prepared.rows.captions))
        if order is not None:
            caption_rows = caption_rows.gather(1, order)
        if only is not None:
            image_rows, caption_rows = image_rows[list(only)], caption_rows[list(only)]
        # the same score for every pair, with gradients of 0
        model = (lambda some, others: 0 * (some @ others.T) + 3) if constant else self.adapter.logits
        with torch.no_grad():
            pairs = [model(images[i], captions[j]) for i, j in zip(image_rows, caption_rows, strict=True)]
        scores = torch.stack(pairs).float()
        if not self.spec.takes_features:
            return ScoreTask(scores, 0)
        features = FeatureTask(
            scores,
            0,
            model=model,
            images=images,
            captions=captions,
            image_rows=image_rows,
            caption_rows=caption_rows,
            views=partial(_views, images) if "views" in self.spec.needs else None,
        )
        if not self.spec.trains:
            return features
        resets = self.spec.reset in ("group", "batch")
        return _SmallTask(
            features,
            0,
            adapter=self.adapter,
            prepared=prepared,
            resets=resets,
            resume=resume,
            texts=texts if "caption_texts" in self.spec.needs else (),
        )

    def _encoded(self, shape: tuple[int, int], renumbered: bool) -> _Inputs:
        """Inputs and features; each image and caption is encoded alone, so that equal inputs have identical features.

        ``renumbered`` permutes the row numbers of distinct captions, so that they carry no label.
        """
        m, n = shape
        numbers = np.random.default_rng(1).permutation(GROUPS * n) if renumbered else np.arange(GROUPS * n)
        texts = [CAPTION_TEXTS[row] for row in numbers]
        inputs = self.adapter.prepare_images(random_images(GROUPS * m)), self.adapter.prepare_captions(texts)
        rows = Rows(np.arange(GROUPS * m).reshape(GROUPS, m), np.argsort(numbers).reshape(GROUPS, n))
        with torch.no_grad():
            images = [
                self.adapter.encode_images(self.adapter.prepare_images([image])) for image in random_images(GROUPS * m)
            ]
            captions = [self.adapter.encode_captions(self.adapter.prepare_captions([text])) for text in texts]
        return Prepared(*inputs, rows), texts, torch.cat(images), torch.cat(captions)


class _SmallTask(TrainingTask):
    """A training task whose batches have at most half of the groups, so that there are several turns."""

    def batches(self, images: int, clusters: Clusters = "together") -> list[torch.Tensor]:
        return super().batches(min(images, len(self.scores) * self.scores.shape[1] // 2), clusters)


def _views(features: torch.Tensor, count: int, crop_scale: float, flip: bool) -> torch.Tensor:
    """Views of each image: the plain image, and copies with noise."""
    noise = torch.randn((len(features), count, *features.shape[1:]), generator=torch.Generator().manual_seed(3))
    views = features[:, None] + (0.5 + crop_scale + flip) * noise / noise.norm(dim=-1, keepdim=True)
    views[:, 0] = features
    return views / views.norm(dim=-1, keepdim=True)


def random_images(count: int) -> list[Image.Image]:
    """Images of random pixels, identical at each call."""
    drawn = np.random.default_rng(5).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    return [Image.fromarray(pixels) for pixels in drawn]


def _tensors(task: ScoreTask) -> list[torch.Tensor]:
    if not isinstance(task, FeatureTask):
        return [task.scores]
    return [task.scores, task.all_images, task.all_captions, task.image_rows, task.caption_rows]


def _put(step: object, scores: torch.Tensor) -> None:
    """Writes the scores of a step to their groups."""
    if not isinstance(step, MethodStep):
        raise BrokenMethodError("steps are of batch.step(scores, loss)", f"it yields {type(step).__name__}")
    expected = (len(step.groups), *scores.shape[1:])
    if tuple(step.scores.shape) != expected:
        why = f"a step's scores have shape {list(step.scores.shape)} in place of {list(expected)}"
        raise BrokenMethodError("scores have the shape of the task", why)
    scores[step.groups] = step.scores.to(scores.dtype)


def _checked(scores: object, shape: torch.Size) -> torch.Tensor:
    """Validates a method's scores; BrokenMethodError unless they are a finite tensor of the task's shape."""
    if not isinstance(scores, torch.Tensor):
        why = f"it returns {type(scores).__name__}; a method that yields steps has 'gradients' in its needs"
        raise BrokenMethodError("a method without gradients returns a tensor", why)
    if scores.shape != shape:
        why = f"shape is {list(scores.shape)} in place of {list(shape)}"
        raise BrokenMethodError("scores have the shape of the task", why)
    if not scores.isfinite().all():
        bad = scores.isfinite().flatten(1).all(dim=1).logical_not().nonzero().flatten().tolist()
        raise BrokenMethodError("scores are finite and of every group", f"NaN or infinite in groups {bad}")
    return scores.detach().float()


def _check_state(state: Mapping[str, object]) -> None:
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise BrokenMethodError("task.state has tensors", f"'{name}' is of type {type(value).__name__}")


def _close(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.allclose(left, right, rtol=1e-4, atol=TOLERANCE)


def _difference(left: torch.Tensor, right: torch.Tensor) -> str:
    return f"scores differ by up to {float((left - right).abs().max()):.3g}"


PART_GROUPS = 6
CONFIG = TTMConfig(iterations=3, epochs=1, batch_groups=2, coverage=0.5, lr=1e-3)


def _outcomes_of_iterations(
    spec: MethodSpec | MethodPart,
    method: Callable[[ModelTask], Any],
    adapter: DualEncoder,
    settings: TTMConfig,
    parts: Parts,
) -> Iterator[Outcome]:
    """Yields the outcome of every check of a method that trains the whole model, alone or with a part."""
    yield "settings can be read", True, ""
    rows = np.arange(2 * PART_GROUPS).reshape(PART_GROUPS, 2)
    images = adapter.prepare_images(random_images(2 * PART_GROUPS))
    prepared = Prepared(images, adapter.prepare_captions(list(CAPTION_TEXTS[: 2 * PART_GROUPS])), Rows(rows, rows))
    stage = PreparedTask(adapter, prepared, 64, False, False)

    def run(stage: PreparedTask, resume: TrainingState | None = None) -> tuple[list[Iteration], list[TrainingState]]:
        """All iterations and the state after each; the model is restored."""
        steps, states = list[Iteration](), list[TrainingState]()
        with restored(stage), _as_broken():
            task = ModelTask(stage, stage.score(), settings, 0, SCHEDULES[0], parts, resume=resume)
            for step in _each(method(task)):
                state = task.snapshot()
                model = {name: tensor.detach().clone() for name, tensor in state.model.items()}
                teacher = {name: value.clone() for name, value in state.extra.items()}
                steps.append(step)
                states.append(replace(state, model=model, extra=teacher))
        return steps, states

    whole, states = run(stage)
    wanted = settings.iterations
    yield f"at most {wanted} iterations are run, fewer with a stopping rule", 0 < len(whole) <= wanted, f"{len(whole)}"
    again, _ = run(stage)
    yield "the same seed gives the same scores", _same(whole, again), "they differ"
    order = np.random.default_rng(4).permuted(np.broadcast_to(np.arange(2), (PART_GROUPS, 2)), axis=1)
    there = Rows(rows, np.take_along_axis(rows, order, axis=1))
    if not (isinstance(spec, MethodSpec) and "random_labels" in spec.needs):  # those are drawn by position
        turned, _ = run(replace(stage, prepared=replace(prepared, rows=there)))
        try:
            compare_selections(spec.name, 0, whole, turned, order, False)
            why = ""
        except AssertionNotMet as error:
            why = str(error)
        yield "captions in another order are selected alike", not why, why
    rest, _ = run(stage, states[0])
    yield "a stopped run is resumed with equal bits", _same(whole, [whole[0], *rest]), "its scores differ"


def _each(turns: object) -> Iterator[Iteration]:
    if not isinstance(turns, Iterator):
        raise BrokenMethodError("a method with gradients yields steps", f"it returns {type(turns).__name__}")
    for step in turns:
        if not isinstance(step, Iteration):
            raise BrokenMethodError("it yields what task.train returns", f"it yields {step!r:.60}")
        yield step


@contextmanager
def _as_broken() -> Iterator[None]:
    try:
        yield
    except BrokenMethodError:
        raise
    except TtmbenchError as error:
        raise BrokenMethodError("it can be run", str(error)) from error
    except Exception as error:
        raise BrokenMethodError("runs", error_with_place(error)) from error


def _same(left: list[Iteration], right: list[Iteration]) -> bool:
    return len(left) == len(right) and all(
        np.array_equal(a.scores.groups, b.scores.groups) for a, b in zip(left, right, strict=True)
    )
