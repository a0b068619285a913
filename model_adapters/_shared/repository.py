"""A repository of the hub, or a folder that holds the same: which files it has, and those that are wanted.

One question lists a repository at one commit; only files that were chosen from the list are fetched. Where the hub
does not answer, or is not to be asked, the copy in the hub's cache is listed instead.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ttmbench._util.hub import patiently
from ttmbench._util.text import Unreadable, read_json
from ttmbench.errors import DataError
from ttmbench.model_adapters._shared.hub import gated, is_unreachable, not_cached, out_of_reach, quiet_hub

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
                folder = patiently(
                    lambda: snapshot_download(self.name, revision=self.revision, allow_patterns=patterns)
                )
        except Exception as error:
            raise out_of_reach(self.name, self.revision, error) from error
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
            raise not_cached(name, revision)
        return cached
    try:
        with quiet_hub():
            info = patiently(lambda: HfApi().model_info(name, revision=revision))
    except Exception as error:
        cached = _cached(name, revision) if is_unreachable(error) or gated(name, error) else None
        if cached is None:
            raise out_of_reach(name, revision, error) from error
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
