"""A repository of the Hub, or a folder that holds the same: its list of files, and those of them that are needed.

The list is that of one commit. Where the Hub does not answer, or may not be asked, the copy in its cache is listed.
Of weights in pickles, tensors, plain values and float64 numbers are read, settings skipped, everything else refused.
"""

from __future__ import annotations

import glob
import re
import shlex
import struct
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import torch
from safetensors.torch import load_file

from ttmbench._util import hub
from ttmbench._util.console import one_line
from ttmbench._util.file_io import Unreadable, check_no_pointer, read_json
from ttmbench.errors import DataError

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


_PLAIN = (3, "<", None, None, None, -1, -1, 0)  # numpy's state of float64: byte order, and no fields


class _Float64:
    """Stands for ``numpy.dtype`` in a pickle, and takes float64 alone."""

    def __init__(self, code: object, align: object = False, copy: object = False) -> None:
        if code != "f8":
            raise ValueError(f"it holds a number of numpy's type {code!r:.40}, and only float64 is read")

    def __setstate__(self, state: object) -> None:
        if state != _PLAIN:
            raise ValueError(f"it holds a float64 with the unknown settings {state!r:.80}")


def _number(kind: object, content: object) -> float:
    """Stands for numpy's ``scalar`` in a pickle."""
    if type(kind) is not _Float64 or type(content) is not bytes or len(content) != 8:
        raise ValueError("it holds a number of numpy that is not a float64 of 8 bytes")
    return float(struct.unpack("<d", content)[0])


class _Settings:
    """Stands for ``argparse.Namespace`` in a pickle, the settings of a training, and keeps nothing of it."""

    def __setstate__(self, state: object) -> None:
        pass


_STAND_INS: list[Callable[..., object] | tuple[Callable[..., object], str]] = [
    (_Float64, "numpy.dtype"),
    (_number, "numpy._core.multiarray.scalar"),
    (_number, "numpy.core.multiarray.scalar"),  # its name in numpy 1
    (_Settings, "argparse.Namespace"),
]


def read_weights(path: Path) -> object:
    """The tensors of a file of weights, of a pickle also plain values and float64 numbers.

    An ``argparse.Namespace`` is left empty.

    Raises:
        DataError: it holds anything else, or is damaged.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals(_STAND_INS):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:
        raise DataError(f"{path} cannot be read: {why_refused(error)}") from error


def why_refused(error: Exception) -> str:
    """Why ``torch.load(weights_only=True)`` refused a file, without its advice to read it all the same."""
    text = str(error)
    if "TorchScript" in text:
        return "it is a program (TorchScript), and only tensors are read"
    asked = re.search(r"GLOBAL (\S+)", text)
    if asked is not None:
        return (
            f"it holds more than tensors ({one_line(asked[1], 80)}), and reading that could run a program; save "
            "the tensors alone, by torch.save({'state_dict': model.state_dict()}, FILE)"
        )
    cause = text.rpartition("WeightsUnpickler error: ")[2].partition("\n")[0]
    return f"it is damaged, or holds more than tensors ({type(error).__name__}: {one_line(cause, 240)})"


# Beside the weights: configuration, tokenizer, processor and chat template, as the libraries look for them.
_ENDINGS = {".json", ".txt", ".model", ".jinja", ".tiktoken", ".bpe", ".vocab", ".spm"}
_FOLDERS = {"qformer_tokenizer", "additional_chat_templates"}


@dataclass(frozen=True)
class Repository:
    """Files by name, at one commit.

    Attributes:
        name: Hub id or folder, as the user gave it.
        revision: commit, tag or branch as the user gave it; None for the newest.
        commit: of the revision; None for a folder of the user's own.
        files: names with forward slashes, below the repository's root.
        folder: contains them, if they need not be fetched.
    """

    name: str
    revision: str | None
    commit: str | None
    files: frozenset[str] = field(repr=False)
    folder: Path | None

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of the user's own, and not a copy from the Hub."""
        return self.commit is None

    def get(self, names: Iterable[str]) -> Path:
        """The folder that holds these files of the list, which are fetched if need be.

        Raises:
            DataError: a file is unavailable, or a pointer of Git LFS.
        """
        if self.folder is not None:
            for name in names:
                check_no_pointer(self.folder / name)
            return self.folder
        from huggingface_hub import snapshot_download

        patterns = sorted(glob.escape(name) for name in names)
        try:
            with quiet_hub(fetches=True):
                folder = hub.patiently(
                    lambda: snapshot_download(self.name, revision=self.revision, allow_patterns=patterns)
                )
        except Exception as error:
            raise _out_of_reach(self.name, self.revision, error) from error
        if Path(folder).name != self.commit:
            raise DataError(f"{self.name} was changed on the Hub while it was fetched; run the command again")
        return Path(folder)

    def lacking(self, names: Sequence[str]) -> DataError:
        """The error to raise for missing files."""
        listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        if self.is_folder:
            advice = "copy it again"
        elif self.folder is not None:
            advice = "`ttmbench download --model NAME` with a network completes it"
        else:
            advice = "another revision of it may be complete (--model_args revision=...)"
        return DataError(f"{self.name} is incomplete: missing {listed}; {advice}")


def find_repository(name: str, revision: str | None = None, *, offline: bool = False) -> Repository:
    """Lists a repository or a folder; nothing is fetched.

    Args:
        name: a folder, or else a Hub id.
        revision: commit, tag or branch on the Hub.
        offline: list the copy in the Hub's cache.

    Raises:
        DataError: it is neither a folder nor on the Hub nor in its cache, its terms are not accepted, or it has no such
            revision.
    """
    if Path(name).is_dir():
        return Repository(name, None, None, _files_in(Path(name)), Path(name))
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(name)
    except HFValidationError:
        raise DataError(f"{name} must be a folder here or the name of a repository of the Hub") from None
    if offline:
        cached = _cached(name, revision)
        if cached is None:
            raise _not_cached(name, revision)
        return cached
    try:
        with quiet_hub():
            info = hub.patiently(lambda: HfApi().model_info(name, revision=revision))
    except Exception as error:
        status = hub.status_of(error)  # None without an answer
        may_be_cached = status is None or status in hub.PASSING or hub.trouble(error) == "gated"
        cached = _cached(name, revision) if may_be_cached else None
        if cached is None:
            raise _out_of_reach(name, revision, error) from error
        return cached
    files = frozenset(file.rfilename for file in info.siblings or ())
    return Repository(name, revision, info.sha, files, None)


def is_small(name: str) -> bool:
    """Whether a file is one that libraries read beside the weights.

    >>> [name for name in ("tokenizer.json", "model.safetensors", "onnx/config.json", "README.md") if is_small(name)]
    ['tokenizer.json']
    """
    path = PurePosixPath(name)
    return path.suffix in _ENDINGS and (len(path.parts) == 1 or path.parts[0] in _FOLDERS)


def read_json_file(path: Path) -> object:
    """The content of a JSON file, read strictly and bounded; DataError if it is damaged."""
    try:
        return read_json(path)
    except Unreadable as error:
        raise DataError(f"{path} {error}") from None


def _cached(name: str, revision: str | None) -> Repository | None:
    """The copy in the Hub's cache, which may be incomplete."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=[], local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return Repository(name, revision, folder.name, _files_in(folder), folder)


def _files_in(folder: Path) -> frozenset[str]:
    """Files of a folder and of the folders in it: models need nothing below."""
    paths = (file for pattern in ("*", "*/*") for file in folder.glob(pattern))
    return frozenset(file.relative_to(folder).as_posix() for file in paths if file.is_file())


@contextmanager
def quiet_hub(*, offline: bool = False, fetches: bool = False) -> Iterator[None]:
    """`ttmbench._util.hub.quiet_hub` for ``transformers`` too."""
    from transformers.utils import logging

    with hub.quiet_hub(offline=offline, fetches=fetches):
        before = logging.get_verbosity()
        logging.set_verbosity_error()
        if not (fetches and sys.stderr.isatty()):
            logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(before)
            logging.enable_progress_bar()


_CLASS = re.compile(r"<class '(?:\w+\.)*(\w+)'>")
_LISTED = re.compile(r"\s*Model type should be one of .*", re.DOTALL)
_TAKEN = (
    "hf takes dual encoders, vqascore chat models, blind language models; `ttmbench score` reads scores of other code"
)


def described(error: Exception) -> str:
    """Kind and text of an error in one line, without the list of everything that would have been right."""
    text = _LISTED.sub("", _CLASS.sub(r"\1", str(error)))
    return f"{type(error).__name__}: {one_line(text, 240)}"


def _not_cached(name: str, revision: str | None) -> DataError:
    """The error to raise offline for a model that has not been fetched."""
    from huggingface_hub import constants

    at = f" at revision {revision}" if revision else ""
    return DataError(
        f"model {name} is neither a folder here nor in {constants.HF_HUB_CACHE}{at}; run once with a network and "
        "without --offline, or `ttmbench download --model NAME`; the built-in model 'tiny-clip' needs no Hub"
    )


def _out_of_reach(name: str, revision: str | None, error: Exception) -> DataError:
    """The error to raise for a model that is unavailable: terms, an unknown name or revision, or no network."""
    status, trouble = hub.status_of(error), hub.trouble(error)
    if trouble == "gated":
        return DataError(hub.accept_terms(name, f"https://huggingface.co/{name}"))
    if trouble == "unknown revision":
        return DataError(f"{name} has no revision {revision} on the Hub; --model_args revision=main takes its newest")
    if trouble == "unknown":
        why = "it has no such repository, or a private one: HF_TOKEN names an account"
    elif trouble == "token":
        why = hub.UNKNOWN_TOKEN
    elif status in hub.PASSING:
        why = f"it answered {status}, and again after {hub.TRIES} tries"
    else:
        why = "it is not in the cache and the Hub cannot be reached" if status is None else one_line(str(error), 240)
    return DataError(
        f"model {name} is neither a folder here nor available from the Hub ({why}); the built-in model 'tiny-clip' "
        "needs no Hub"
    )


def not_loaded(name: str, error: Exception) -> DataError:
    """The error to raise for files that are here and cannot be loaded."""
    what = f"the model in folder {name}" if Path(name).is_dir() else f"model {name}"
    command = what_to_install(error)
    if command is not None:
        return DataError(f"{what} needs packages that are not installed: `{command}`")
    why = why_refused(error) if "weights_only" in str(error) else described(error)
    instead = f"; {_TAKEN}" if "Unrecognized configuration class" in why else ""
    return DataError(f"{what} cannot be loaded ({why}){instead}")
