"""The command that installs a package which a library reports as missing, each in its own words."""

from __future__ import annotations

import re
import shlex

# Module, or title in a message -> what pip installs; modules that are not named here are parts of other packages.
_PACKAGES = {
    **{name: name for name in ("einops", "pillow", "sentencepiece", "tiktoken", "timm", "torch", "torchvision")},
    **{"cv2": "opencv-python", "opencv": "opencv-python", "google": "protobuf", "google.protobuf": "protobuf"},
    **{"open_clip": "open_clip_torch", "pil": "pillow", "pytorch": "torch", "sklearn": "scikit-learn"},
    **{"yaml": "PyYAML", "accelerate": "ttmbench[large]", "av": "ttmbench[video]", "pyav": "ttmbench[video]"},
    **{"bitsandbytes": "ttmbench[quantized]", "num2words": "ttmbench[smolvlm]", "openai": "ttmbench[api]"},
    "peft": "ttmbench[lora]",
}
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_SAID = re.compile(
    rf"requires (?:the )?`?({_NAME})`? (?:library,? but it was not found|>= [\d.]+, but \S+ was not found|to be inst)"
    rf"|Missing optional dependencies: ({_NAME}(?:, {_NAME})*)|Package `({_NAME})` is required"
    rf"|pip install ((?:(?:-U|--upgrade|{_NAME}(?:\[[a-z0-9,_-]+\])?)(?: |(?=[`.,;'\n]|$)))+)"
)
# transformers' message for a SentencePiece file where one of the first two is missing: it then takes it for another.
_READS_AS_TIKTOKEN = "required to read a `tiktoken` file"
_SENTENCEPIECE = ("sentencepiece", "protobuf", "tiktoken")


def what_to_install(error: BaseException | None) -> str | None:
    """The command that installs a missing package; None if an error and its causes are about something else.

    >>> what_to_install(ModuleNotFoundError("No module named 'peft'", name="peft"))
    "pip install 'ttmbench[lora]'"
    >>> what_to_install(OSError("no such file")) is None
    True
    """
    while error is not None:
        names = [_PACKAGES.get(name.lower(), name) for name in _missing(error)]
        if names:
            return shlex.join(["pip", "install", *dict.fromkeys(names)])
        error = error.__cause__
    return None


def _missing(error: BaseException) -> list[str]:
    """Names or titles of missing packages in one error, and the words of a command that it suggests."""
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return [error.name] if error.name in _PACKAGES else []
    detail = str(error)
    if _READS_AS_TIKTOKEN in detail:
        return list(_SENTENCEPIECE)
    said = [match[match.lastindex or 0] for match in _SAID.finditer(detail)]
    return [name for words in said for name in re.split(r", ?| ", words) if name]
