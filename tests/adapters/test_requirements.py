"""The packages that we require, and the command that an error about a missing one becomes."""

from __future__ import annotations

import re
import sys
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


@pytest.mark.parametrize("backend", ["sentencepiece", "protobuf", "torchvision", "timm", "av", "vision"])
def test_what_transformers_says_of_a_missing_package_becomes_a_command(backend, monkeypatch):
    from transformers.utils import import_utils

    _, message = import_utils.BACKENDS_MAPPING[backend]
    monkeypatch.setitem(import_utils.BACKENDS_MAPPING, backend, (lambda: False, message))
    with pytest.raises(ImportError) as caught:
        import_utils.requires_backends("SomeTokenizer", backend)
    expected = {"av": "'ttmbench[video]'", "vision": "pillow"}.get(backend, backend)
    assert what_to_install(caught.value) == f"pip install {expected}"


def test_what_transformers_says_of_a_sentencepiece_file_it_takes_for_tiktoken():
    """Without sentencepiece or protobuf T5's and Llama's tokenizers go on to ask for tiktoken, which would not help."""
    from transformers.convert_slow_tokenizer import TikTokenConverter

    converter = TikTokenConverter("spiece.model")
    convert = getattr(converter, "load_tiktoken_bpe", None) or converter.extract_vocab_merges_from_model
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tiktoken.load", None)
        with pytest.raises(ValueError) as caught:
            convert("spiece.model")
    assert what_to_install(caught.value) == "pip install sentencepiece protobuf tiktoken"


@pytest.mark.parametrize(
    ("error", "command"),
    [
        (missing("peft"), "pip install 'ttmbench[lora]'"),
        (missing("openai"), "pip install 'ttmbench[api]'"),
        (missing("google.protobuf"), "pip install protobuf"),
        (missing("open_clip"), "pip install open_clip_torch"),
        (missing("cv2"), "pip install opencv-python"),
        (ImportError("Package `num2words` is required to run SmolVLM processor."), "pip install 'ttmbench[smolvlm]'"),
        (
            ImportError("packages that were not found: einops, timm. Run `pip install einops timm`"),
            "pip install einops timm",
        ),
        (ValueError("m requires `torchvision` to be installed. Please install"), "pip install torchvision"),
        (ValueError("Missing optional dependencies: torchvision, Pillow. Please"), "pip install torchvision pillow"),
        (
            ImportError("You can install them with pip: `pip install transformers[audio]`."),
            "pip install 'transformers[audio]'",
        ),
        (ImportError("`pip install x --extra-index-url https://example.org/x`"), "pip install x"),
        (ImportError("Try: `pip install transformers -U`"), "pip install transformers -U"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_libraries_words(error, command):
    assert what_to_install(error) == command


@pytest.mark.parametrize(
    "error",
    [
        OSError("openai/clip does not appear to have a file named model.safetensors"),
        ImportError("cannot import name 'AutoModelForImageTextToText' from 'transformers'"),
        missing("transformers.models.tomorrow"),
        missing("configuration_of_some_repository"),
        missing("google.cloud"),
        # said of an incomplete folder too, where both are installed
        ValueError("You need to have sentencepiece or tiktoken installed to convert a slow tokenizer to a fast one."),
        ValueError("pip install"),
    ],
)
def test_an_error_about_something_else_installs_nothing(error):
    assert what_to_install(error) is None
