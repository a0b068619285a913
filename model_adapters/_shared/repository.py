"""A repository of the hub, or a folder that holds the same: which files it has, and those that are wanted.

One question lists a repository at one commit; only files that were chosen from the list are fetched. Where the hub
does not answer, or is not to be asked, the copy in the hub's cache is listed instead.
"""

from __future__ import annotations

import glob
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ttmbench._util import hub
from ttmbench._util.text import Unreadable, read_json
from ttmbench.errors import DataError
from ttmbench.model_adapters._shared.pickled_weights import why_refused
from ttmbench.model_adapters._shared.requirements import what_to_install

# Beside the weights: configuration, tokenizer, processor and chat template, as the libraries look for them.
_ENDINGS = {".json", ".txt", ".model", ".jinja", ".tiktoken", ".bpe", ".vocab", ".spm"}
_FOLDERS = {"qformer_tokenizer", "additional_chat_templates"}
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Repository:
    """Files by name, at one commit.

    Attributes:
        name: hub id or folder, as it was asked for.
        revision: commit, tag or branch that was asked for; None for the newest.
        commit: what that is; None for a folder, which has none.
        files: names with forward slashes, below the repository's root.
        folder: where they lie, if they need not be fetched.
    """

    name: str
    revision: str | None
    commit: str | None
    files: frozenset[str] = field(repr=False)
    folder: Path | None

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder of the user's own, and no copy of something on the hub."""
        return self.commit is None

    def get(self, names: Iterable[str]) -> Path:
        """The folder that holds these files of the list, fetched if need be.

        Raises:
            DataError: a file is out of reach, or damaged on the way.
        """
        if self.folder is not None:
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
            raise DataError(f"{self.name} was changed on the hub while it was fetched; run the command again")
        return Path(folder)

    def lacking(self, names: Sequence[str]) -> DataError:
        """The error to raise for files that should be there and are not."""
        listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        if self.is_folder:
            mend = "copy it again"
        elif self.folder is not None:
            mend = "`ttmbench download --model NAME` with a network completes it"
        else:
            mend = "another revision of it may be whole (--model_args revision=...)"
        return DataError(f"{self.name} is there only in part: it lacks {listed}; {mend}")


def find_repository(name: str, revision: str | None = None, *, offline: bool = False) -> Repository:
    """Lists a repository or a folder; nothing is fetched.

    Args:
        name: hub id, or a folder, which comes first.
        revision: commit, tag or branch on the hub; a folder has none.
        offline: list what is in the hub's cache only.

    Returns:
        The repository.

    Raises:
        DataError: it is neither a folder nor on the hub nor in its cache, its terms are not accepted, or it has no such
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
        raise DataError(f"{name} is no folder here, and no name of a repository of the hub either") from None
    if offline:
        cached = _cached(name, revision)
        if cached is None:
            raise _not_cached(name, revision)
        return cached
    try:
        with quiet_hub():
            info = hub.patiently(lambda: HfApi().model_info(name, revision=revision))
    except Exception as error:
        cached = _cached(name, revision) if _is_unreachable(error) or _gated(name, error) else None
        if cached is None:
            raise _out_of_reach(name, revision, error) from error
        return cached
    files = frozenset(one.rfilename for one in info.siblings or ())
    return Repository(name, revision, info.sha, files, None)


def is_small(name: str) -> bool:
    """Whether a file belongs to what libraries read beside the weights.

    >>> [name for name in ("tokenizer.json", "model.safetensors", "onnx/config.json", "README.md") if is_small(name)]
    ['tokenizer.json']
    """
    path = PurePosixPath(name)
    return path.suffix in _ENDINGS and (len(path.parts) == 1 or path.parts[0] in _FOLDERS)


def read_json_file(path: Path) -> Any:
    """What a JSON file of a repository holds, read strictly and bounded; DataError if it is none."""
    try:
        return read_json(path)
    except Unreadable as error:
        raise DataError(f"{path} {error}") from None


def _cached(name: str, revision: str | None) -> Repository | None:
    """The copy in the hub's cache, whole or in part."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    root = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")
    commit = _commit_of(root, revision or "main")
    folder = None if commit is None else root / "snapshots" / commit
    if folder is None or not folder.is_dir():
        return None
    return Repository(name, revision, commit, _files_in(folder), folder)


def _commit_of(root: Path, revision: str) -> str | None:
    if _COMMIT.fullmatch(revision):
        return revision
    named = root / "refs" / revision
    if ".." in Path(revision).parts or not named.is_file():
        return None
    commit = named.read_text(encoding="utf-8").strip()
    return commit if _COMMIT.fullmatch(commit) else None


def _files_in(folder: Path) -> frozenset[str]:
    """Files of a folder and of the folders in it: nothing that a model needs lies deeper."""
    found = (file for pattern in ("*", "*/*") for file in folder.glob(pattern))
    return frozenset(file.relative_to(folder).as_posix() for file in found if file.is_file())


@contextmanager
def quiet_hub(*, offline: bool = False, fetches: bool = False) -> Iterator[None]:
    """As `ttmbench._util.hub.quiet_hub`, and keeps ``transformers`` quiet too; arguments are the same."""
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


def described(error: Exception) -> str:
    """Kind and text of an error in one line."""
    return f"{type(error).__name__}: {hub.one_line(error, 240)}"


def _is_unreachable(error: Exception) -> bool:
    """Whether the hub gave no answer, or one that says that it cannot answer now."""
    status = hub.status_of(error)
    return status is None or status in hub.PASSING


def _gated(repo: str, error: Exception) -> str | None:
    """What to do if the hub's answer is that terms have to be accepted; None if it is another one."""
    return hub.accept_terms(repo, f"https://huggingface.co/{repo}") if hub.trouble(error) == "gated" else None


def _why_out_of_reach(error: Exception) -> str:
    """Why something is not to be had from the hub, in a few words."""
    status = hub.status_of(error)
    match hub.trouble(error):
        case "unknown":
            return "it has no such repository, or a private one: HF_TOKEN names an account"
        case "token":
            return hub.UNKNOWN_TOKEN
    if status in hub.PASSING:
        return f"it answered {status}, and again after {hub.TRIES} tries"
    if status is not None:
        return hub.one_line(error, 240)
    return "it is not in the cache and the hub cannot be reached"


def _not_cached(name: str, revision: str | None) -> DataError:
    """The error to raise offline for a model that has not been fetched."""
    from huggingface_hub import constants

    at = f" at revision {revision}" if revision else ""
    return DataError(
        f"model {name} is neither a folder here nor in {constants.HF_HUB_CACHE}{at}; run once with a network and "
        "without --offline, or `ttmbench download --model NAME`; the built-in model 'tiny-clip' needs no hub"
    )


def _out_of_reach(name: str, revision: str | None, error: Exception) -> DataError:
    """The error to raise for a model that cannot be had: terms, a name that is none, a revision, or no network."""
    if hub.trouble(error) == "unknown revision":
        return DataError(f"{name} has no revision {revision} on the hub; --model_args revision=main takes its newest")
    return DataError(
        _gated(name, error)
        or f"model {name} is neither a folder here nor to be had from the hub ({_why_out_of_reach(error)}); "
        "the built-in model 'tiny-clip' needs no hub"
    )


def not_loaded(name: str, error: Exception) -> DataError:
    """The error to raise for files that are here and cannot be loaded."""
    what = f"the model in folder {name}" if Path(name).is_dir() else f"model {name}"
    command = what_to_install(error)
    if command is not None:
        return DataError(f"{what} needs packages that are not installed: `{command}`")
    why = why_refused(error) if "weights_only" in str(error) else described(error)
    return DataError(f"{what} cannot be loaded ({why})")
