"""Settings of a method are read from its signature, checked, and described."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, Field

from ttmbench.errors import UsageError
from ttmbench.methods.settings import arguments, checked_settings
from ttmbench.types import MethodSpec

if TYPE_CHECKING:
    from ttmbench.methods.features import ScoreTask as OnlyForTypeCheckers


def _even(value: int) -> int:
    if value % 2:
        raise ValueError("a number of views is even here")
    return value


def method(
    task: OnlyForTypeCheckers,
    *,
    lr: Annotated[float, Field(gt=0, le=1)] = 1e-3,
    direction: Literal["i2t", "t2i", "both"] = "both",
    filter: Literal["eta", "sar"] | None = None,
    views: Annotated[int, AfterValidator(_even)] = 64,
    train: Annotated[str, Field(description="a set of parameters")] = "norm_images",
    betas: tuple[float, float] = (0.9, 0.999),
    flip: bool = False,
) -> OnlyForTypeCheckers:
    return task


def spec_of(function: Callable[..., Any] = method, **more: Any) -> MethodSpec:
    module = ModuleType("made_methods")
    module.function = function  # type: ignore[attr-defined]
    sys.modules["made_methods"] = module
    return MethodSpec("made", "made_methods:function", **more)


@pytest.fixture(autouse=True)
def _unmade():
    yield
    sys.modules.pop("made_methods", None)


def test_defaults_are_filled_in_and_given_values_read():
    defaults = checked_settings(spec_of(), {})
    assert defaults == {
        **{"lr": 1e-3, "direction": "both", "filter": None, "views": 64, "train": "norm_images"},
        **{"betas": (0.9, 0.999), "flip": False},
    }
    given = {"lr": "1e-2", "views": 8, "filter": "sar", "flip": "true", "betas": [0.5, 0.9]}
    read = {"lr": 0.01, "views": 8, "filter": "sar", "flip": True, "betas": (0.5, 0.9)}
    assert checked_settings(spec_of(), given) == {**defaults, **read}


def test_settings_of_the_specification_stand_in_for_those_of_the_function():
    spec = spec_of(settings={"lr": 1e-4, "filter": "eta"}, sources={"lr": "arXiv:2006.10726, section 4"})
    assert checked_settings(spec, {"filter": None})["filter"] is None
    assert checked_settings(spec, {})["lr"] == 1e-4 and checked_settings(spec, {"lr": 0.5})["lr"] == 0.5
    assert next((one.name, one.default, one.source) for one in arguments(spec)) == (
        "lr",
        1e-4,
        "arXiv:2006.10726, section 4",
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"rate": 1},
            "--method_args made.rate: unknown argument; known: lr, direction, filter, views, train, betas, flip",
        ),
        ({"lr": 0}, "--method_args made.lr: must be a number > 0 and <= 1, got 0"),
        ({"lr": "fast"}, "--method_args made.lr: must be a number > 0 and <= 1, got 'fast'"),
        ({"lr": float("nan")}, "--method_args made.lr: must be a number > 0 and <= 1, got nan"),
        ({"direction": "up"}, "--method_args made.direction: must be i2t or t2i or both, got 'up'"),
        (
            {"filter": "x" * 200},
            f"--method_args made.filter: must be eta or sar or none, got {repr('x' * 200)[:77]}...",
        ),
        ({"views": 3}, "--method_args made.views: a number of views is even here, got 3"),
        ({"betas": [0.9]}, "--method_args made.betas: must be a list of a number, got [0.9]"),
    ],
)
def test_a_wrong_value_is_one_line(given, says):
    with pytest.raises(UsageError) as caught:
        checked_settings(spec_of(), given)
    assert str(caught.value) == says


def _without_annotation(task, *, lr=1e-3):
    return task


def _with_anything(task: object, **more: float) -> object:
    return task


def _with_a_tensor(task: object, *, weights: ModuleType) -> object:
    return task


def _unreadable(task: object, *, lr: Nowhere = 1) -> object:  # type: ignore[name-defined]  # noqa: F821
    return task


def _wrong_default(task: object, *, lr: Annotated[float, Field(gt=0)] = -1.0) -> object:
    return task


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_without_annotation, "made_methods:function: 'lr=0.001' is not a setting that can be read; a method takes"),
        (_with_anything, "made_methods:function: '**more: 'float'' is not a setting that can be read; a method takes"),
        (_with_a_tensor, "setting 'weights': pydantic cannot check values of <class 'module'>; use numbers, texts"),
        (_unreadable, "the annotations of its settings cannot be read: name 'Nowhere' is not defined"),
        (_wrong_default, "method 'made': the default of 'lr': must be a number > 0, got -1.0"),
        (lambda: None, "made_methods:function must be a function that takes a task and its settings"),
        (7, "made_methods:function must be a function that takes a task and its settings"),
    ],
)
def test_a_signature_that_cannot_be_read_is_one_line(function, says):
    with pytest.raises(UsageError) as caught:
        checked_settings(spec_of(function), {"weights": 1} if function is _with_a_tensor else {})
    assert says in str(caught.value) and "\n" not in str(caught.value)


def _with_a_requirement(task: object, *, path: str) -> object:
    return task


def test_a_setting_without_default_is_required():
    with pytest.raises(UsageError) as caught:
        checked_settings(spec_of(_with_a_requirement), {})
    assert str(caught.value) == "method 'made' needs --method_args made.path=VALUE: a text"
    assert checked_settings(spec_of(_with_a_requirement, settings={"path": "x"}), {}) == {"path": "x"}
