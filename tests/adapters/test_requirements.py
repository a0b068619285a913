"""The packages that we require, and the command that an error about a missing one becomes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from ttmbench.model_adapters._shared.pretrained import what_to_install

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_dependency_has_a_lower_bound_alone():
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    needs = [need for needs in lists for need in needs if not need.startswith("ttmbench[")]
    assert [need for need in needs if not re.fullmatch(r"[\w.-]+>=[\d.]+", need)] == []


def missing(module: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {module!r}", name=module)


@pytest.mark.parametrize(
    ("error", "command"),
    [
        (missing("peft"), "pip install 'ttmbench[lora]'"),
        (missing("openai"), "pip install 'ttmbench[api]'"),
        (
            ImportError("Package `num2words` is required. Install: `pip install num2words`"),
            "pip install 'ttmbench[smolvlm]'",
        ),
        (ImportError("packages not found: einops, timm. Run `pip install einops timm`"), "pip install einops timm"),
        (ImportError("You can install them: `pip install transformers[audio]`."), "pip install 'transformers[audio]'"),
        (OSError("openai/clip does not appear to have a file named model.safetensors"), None),
        (ImportError("cannot import name 'AutoModelForImageTextToText' from 'transformers'"), None),
        (missing("configuration_of_some_repository"), None),
        (ValueError("pip install"), None),
    ],
    ids=str,
)
def test_an_error_about_a_missing_package_becomes_a_command(error, command):
    assert what_to_install(error) == command


def test_what_transformers_says_of_a_missing_package_becomes_a_command(monkeypatch):
    from transformers.utils import import_utils

    message = import_utils.BACKENDS_MAPPING["av"][1]
    monkeypatch.setitem(import_utils.BACKENDS_MAPPING, "av", (lambda: False, message))
    with pytest.raises(ImportError) as caught:
        import_utils.requires_backends("SomeProcessor", "av")
    assert what_to_install(caught.value) == "pip install 'ttmbench[video]'"
