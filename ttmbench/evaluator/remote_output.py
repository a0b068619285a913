"""Results at an address: a local folder that is sent after every task, as object stores lack locks and renames."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from ttmbench._util.console import warn
from ttmbench._util.files import safe_name
from ttmbench._util.text import Unreadable, read_json
from ttmbench.config import RunConfig
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.evaluator.resume import RunDirectory, open_output
from ttmbench.evaluator.run_key import RunKey
from ttmbench.results.files import RunFiles

if TYPE_CHECKING:
    from ttmbench._util.remote import RemoteFolder


class UnsentError(TtmbenchError):
    """The run is over, and its results could not be written to their address; a local copy is kept (exit 1)."""


@contextmanager
def open_remote_output(config: RunConfig, key: RunKey, started: datetime) -> Iterator[RunDirectory]:
    """As `open_output`, for an address; UsageError also if it cannot be read or written."""
    address = config.output_path
    assert address is not None, "the run has an output path"
    from ttmbench._util.remote import RemoteFolder, folder_and_name  # fsspec is imported for addresses alone

    is_file = address.partition("?")[0].rstrip("/").endswith(".json")
    folder, name = folder_and_name(address, "--output_path") if is_file else (address, "")
    remote, model = RemoteFolder(folder, "--output_path"), "" if is_file else safe_name(config.model_name)
    try:
        _fetch_earlier(remote, name, model, key.sha256)
    except TtmbenchError as error:
        raise UsageError(f"--output_path: {error}") from None
    was_sent, output = False, None

    def publish(files: RunFiles) -> None:
        """Sends what was written; only the first time must succeed."""
        nonlocal was_sent
        assert output is not None, "files are written in it"
        try:
            remote.send()
        except TtmbenchError as error:
            if not was_sent:
                raise UsageError(f"--output_path: {error}") from None
            remote.keep_copy()
            output.unsent = UnsentError(f"{error}; the results are saved in {remote.home}: copy them to the address")
            warn(f"{error}; what is done is saved in {remote.home}, and the run continues")
        else:
            was_sent, output.unsent = True, None

    local = config.model_copy(update={"output_path": str(remote.copy / name)})
    try:
        with open_output(local, key, started) as output:
            output.address, output.publish = remote.named(model), publish
            yield output
    finally:
        if output is None or output.unsent is None:
            remote.remove_copy()


def _fetch_earlier(remote: RemoteFolder, name: str, model: str, key: str) -> None:
    """Fetches the documents that this run may resume, with the files that they name."""
    from ttmbench.results.remote import fetch_artifacts

    earlier = [file for file in remote.files(model) if file.startswith(f"{model}/results_")] if model else [name]
    for document in (file for file in earlier if file.endswith(".json") and remote.fetch(file, "text_bytes")):
        try:
            content = read_json(remote.copy / document)
        except Unreadable:
            continue
        if name or (isinstance(content, dict) and content.get("run_key") == key):
            fetch_artifacts(remote, document)
