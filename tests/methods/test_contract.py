"""`check_method` passes what keeps the contract, and names what a method does wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from support.rewrites import FILE
from support.training_tasks import load

from ttmbench.errors import UsageError
from ttmbench.methods.losses import entropy
from ttmbench.methods.settings import arguments
from ttmbench.plugins.method_functions import METHODS
from ttmbench.testing import ContractError, check_method
from ttmbench.types import MethodSpec

FEWER = {"views": 5, "steps": 1, "rounds": 1, "wrappers": ("{}", "a photo of {}"), "rewrites": FILE}
SHIPPED = [one for one in METHODS if not one.needs_model]
TRAINS = {"needs": ("gradients",), "reset": "never", "scope": "stream", "order_dependent": True}


@pytest.fixture(scope="module")
def adapter(tiny_hf_clip):
    return load(tiny_hf_clip)  # which knows the words of every method


@pytest.fixture
def check(adapter):
    """Checks a function as a method."""

    def checked(function: Any, given: dict[str, Any] | None = None, **more: Any) -> list[str]:
        module = ModuleType("made_methods")
        module.method = function  # type: ignore[attr-defined]
        sys.modules["made_methods"] = module
        before = {name: tensor.clone() for name, tensor in adapter.state_dict().items()}
        try:
            return check_method(MethodSpec("made", "made_methods:method", **more), settings=given, adapter=adapter)
        finally:
            after = adapter.state_dict()
            assert all(torch.equal(before[name], after[name]) for name in before), "the model is as it was"
            assert all(parameter.requires_grad for parameter in adapter.parameters())

    yield checked
    adapter.model.get_submodule("visual_projection")._forward_hooks.clear()
    sys.modules.pop("made_methods", None)


@pytest.mark.parametrize(
    "spec",  # c_tpt is tpt with other settings
    [pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.name == "c_tpt" else []) for one in SHIPPED],
)
def test_what_ships_keeps_the_contract(spec, adapter):
    known = [one.name for one in arguments(spec)]
    made = check_method(spec, settings={k: v for k, v in FEWER.items() if k in known}, adapter=adapter)
    assert "a constant scorer has no image right" in made
    assert spec.trains == ("a resumed run ends with the scores of an uninterrupted one" in made)


@pytest.mark.parametrize(
    "name",
    ["ttm", *(pytest.param(one, marks=pytest.mark.slow) for one in ("selftrain", "overfit", "placebo", "shuffle"))],
)
def test_a_registered_name_will_do(name):
    with pytest.raises(UsageError, match=f"unknown method '{name}x'"):
        check_method(f"{name}x")
    assert check_method(name)[-1] == "a stopped run is resumed with equal bits"


def test_what_is_wrong_with_a_method_of_ttms_task(check):
    def raises(task):
        yield from ()
        raise KeyError("x")

    def refuses(task):
        raise UsageError("no")

    wrong = {
        (lambda task: 3): "yields steps: it returns int",
        (lambda task: iter([3])): "yields what task.train returns: it yields 3",
        raises: "runs: KeyError: 'x'",
        refuses: "it can be run: no",
    }
    for method, why in wrong.items():
        with pytest.raises(ContractError, match=why):
            check(method, needs=("gradients",), reset="never", scope="task", takes_ttm_args=True)


# Methods of scores and features


def halved(task, *, by: float = 2.0):
    return task.scores / by


def by_number(task):
    """Captions are numbered as the task has them: the first number is the first image's caption."""
    order = task.caption_rows.argsort(dim=1)
    bonus = torch.zeros_like(task.scores)
    return bonus.scatter(2, order[:, None, : task.scores.shape[1]].transpose(1, 2), 1.0) + task.scores


def of_ties(task):
    ties = (task.scores == task.scores[:, :1, :1]).flatten(1).all(dim=1)
    return task.scores + ties[:, None, None] * torch.eye(*task.scores.shape[1:])


def centred(task):
    return task.scores - task.scores.mean()


def refusing(task):
    raise UsageError("groups of 17 only")


def test_functions_that_keep_the_contract(check):
    assert len(check(halved)) == len(check(halved, {"by": 3})) > 7
    assert check(centred, scope="task")


@pytest.mark.parametrize(
    ("function", "more", "says"),
    [
        (
            lambda task: task.scores + torch.eye(*task.scores.shape[1:]),
            {},
            r"captions in another order give the scores in that order \(seed 1\): it uses positions",
        ),
        (by_number, {"needs": ("features",)}, r"another order .* \(seed 1\): it uses positions or numbers of captions"),
        (of_ties, {}, "a constant scorer has no image right: its group score rises from 0 to 100%"),
        (
            lambda task: task.scores - 1e-4 * torch.arange(task.scores.shape[2]),
            {},
            "a constant scorer has no image right: its individual match rises from 0 to 50%",
        ),
        (
            lambda task: task.scores + torch.rand_like(task.scores),
            {},
            "the same seed gives the same scores: scores differ by up to",
        ),
        (centred, {}, "a group alone has the scores that it has among others: group 0 differs from itself after"),
        (
            lambda task: task.scores + torch.linspace(0, 1, len(task.scores))[:, None, None],
            {"scope": "task"},
            "the order of the groups changes no score: say order_dependent=True",
        ),
        (
            lambda task: task.scores.mul_(2),
            {},
            "the task is not changed in place: its scores or features were written to",
        ),
        (lambda task: task.scores.log(), {}, r"scores are finite and of every group: NaN or infinite in groups \["),
        (
            lambda task: task.scores[:1],
            {},
            r"scores have the shape of the task: shape is \[1, 2, 2\] in place of \[4, 2, 2\]",
        ),
        (refusing, {}, "is defined for 2x2 groups: groups of 17 only"),
    ],
)
def test_functions_that_break_it(function, more, says, check):
    with pytest.raises(ContractError, match=f"^made: .*({says})"):
        check(function, **more)


# Methods that train


def tented(task, *, lr: float = 1e-2, images: int = 4) -> Iterator[Any]:
    optimizer = task.optimizer(torch.optim.Adam(task.train("norm_images"), lr=lr))
    for batch in task.stream(images=images):
        scores = batch.logits()
        loss = entropy(scores, "both")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield batch.step(scores, loss)


def tented_after(task, *, lr: float = 1e-2, images: int = 4) -> Iterator[Any]:
    """As `tented`, and a group is scored by the model that its batch has trained."""
    optimizer = task.optimizer(torch.optim.Adam(task.train("norm_images"), lr=lr))
    for batch in task.stream(images=images):
        loss = entropy(batch.logits(), "both")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            yield batch.step(batch.logits(), loss)


def own_optimizer(task, *, lr: float = 1e-2) -> Iterator[Any]:
    """Its optimizer is unknown to the task, so its moments are lost in a resumed run."""
    optimizer = torch.optim.Adam(task.train("norm_images"), lr=lr)
    for batch in task.stream(images=2):
        scores = batch.logits()
        optimizer.zero_grad()
        entropy(scores, "both").backward()
        optimizer.step()
        yield batch.step(scores)


def local_state(task) -> Iterator[Any]:
    mean = torch.zeros(())
    for batch in task.stream(images=2):
        mean = 0.9 * mean + 0.1 * task.scores[batch.groups].mean()
        yield batch.step(task.scores[batch.groups] - mean)


def kept_state(task) -> Iterator[Any]:
    for batch in task.stream(images=2):
        mean = task.state.get("mean", torch.zeros(()))
        task.state["mean"] = 0.9 * mean + 0.1 * task.scores[batch.groups].mean()
        yield batch.step(task.scores[batch.groups] - task.state["mean"])


def behind_the_back(task) -> Iterator[Any]:
    task.train("norm_images")
    for batch in task.stream(images=4):
        with torch.no_grad():
            next(p for name, p in task.adapter.model.named_parameters() if "projection" in name).mul_(1.5)
        yield batch.step(batch.logits())


def hooked(task) -> Iterator[Any]:
    layer = task.adapter.model.get_submodule("visual_projection")
    if not layer._forward_hooks:
        layer.register_forward_hook(lambda module, given, found: found + 0.1)
    for batch in task.stream(images=4):
        yield batch.step(task.scores[batch.groups])


def low_rank(task, *, lr: float = 1e-2) -> Iterator[Any]:
    optimizer = task.optimizer(torch.optim.SGD(task.train("lora:2"), lr=lr))
    for batch in task.stream(images=4):
        loss = entropy(batch.logits(), "both")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            scores = batch.logits()
        yield batch.step(scores, loss)


def test_training_that_keeps_the_contract(check):
    assert check(low_rank, **TRAINS)
    assert check(tented, **TRAINS) and check(kept_state, **TRAINS)
    assert check(tented, {"images": 2}, **{**TRAINS, "reset": "group", "scope": "group"})


@pytest.mark.parametrize(
    ("function", "more", "says"),
    [
        (own_optimizer, {}, "a resumed run ends with the scores of an uninterrupted one: stopped after turn 1 of 4"),
        (local_state, {}, "a resumed run ends .*: keep what changes from turn to turn in task.state"),
        (behind_the_back, {}, r"only parameters of task\.train are changed: .*projection.* changed \(1 in all\)"),
        (hooked, {}, "nothing stays in the model: it encodes otherwise than before: a hook, or dropout"),
        (halved, {}, "a method with gradients yields steps: it returns Tensor"),
        (
            tented_after,
            {"reset": "group", "scope": "group"},
            "a group alone has the scores that it has among others: group",
        ),
    ],
)
def test_training_that_breaks_it(function, more, says, check):
    with pytest.raises(ContractError, match=f"^made: .*({says})"):
        check(function, **{**TRAINS, **more})


def test_a_generator_says_that_it_needs_gradients(check):
    with pytest.raises(ContractError, match="returns generator; a method that yields steps has 'gradients' in its nee"):
        check(tented)
