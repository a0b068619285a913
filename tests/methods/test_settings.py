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
    first = next(iter(arguments(spec)))
    assert (first.name, first.default, first.source) == ("lr", 1e-4, "arXiv:2006.10726, section 4")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rate": 1}, "made.rate: unknown argument"),
        ({"lr": 0}, "made.lr: must be a number > 0 and <= 1"),
        ({"lr": "fast"}, "made.lr: must be a number"),
        ({"lr": float("nan")}, "got nan"),
        ({"direction": "up"}, "must be i2t or t2i or both"),
        ({"filter": "x" * 200}, f"{repr('x' * 200)[:77]}..."),
        ({"views": 3}, "a number of views is even here"),
        ({"betas": [0.9]}, "made.betas: must be a list"),
    ],
)
def test_a_wrong_value_is_one_line(given, says):
    with pytest.raises(UsageError) as caught:
        checked_settings(spec_of(), given)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def _with_a_tensor(task: object, *, weights: ModuleType) -> object:
    return task


def _unreadable(task: object, *, lr: Nowhere = 1) -> object:  # type: ignore[name-defined]  # noqa: F821
    return task


def _wrong_default(task: object, *, lr: Annotated[float, Field(gt=0)] = -1.0) -> object:
    return task


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda task, *, lr=1e-3: task, "'lr=0.001'"),
        (_with_a_tensor, "setting 'weights'"),
        (_unreadable, "'Nowhere'"),
        (_wrong_default, "the default of 'lr'"),
        (lambda: None, "must be a function"),
        (7, "must be a function"),
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
    assert "made.path=VALUE" in str(caught.value)
    assert checked_settings(spec_of(_with_a_requirement, settings={"path": "x"}), {}) == {"path": "x"}
