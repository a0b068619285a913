"""Results at an address: a local folder that is sent after every task, as object stores lack locks and renames."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from ttmbench._util.console import show_as, warn
from ttmbench._util.digests import json_digest
from ttmbench._util.files import safe_name
from ttmbench._util.text import Unreadable, read_json
from ttmbench.config import RunConfig
from ttmbench.errors import TtmbenchError, UsageError
from ttmbench.evaluator.resume import RunDirectory, open_output
from ttmbench.evaluator.run_key import RunKey
from ttmbench.results.files import RunFiles


class UnsentError(TtmbenchError):
    """The run is over, and its results could not be written to their address; the same command sends them (exit 1)."""


@contextmanager
def open_remote_output(config: RunConfig, key: RunKey, started: datetime) -> Iterator[RunDirectory]:
    """As `open_output`, for an address; the local folder stays until everything is done and sent.

    UsageError also if the address cannot be read or written.
    """
    from platformdirs import user_cache_path

    from ttmbench._util.remote import RemoteFolder, folder_and_name  # fsspec is imported for addresses alone

    address = str(config.output_path)
    folder, name = folder_and_name(address, "--output_path") if address.endswith(".json") else (address, "")
    remote, model = RemoteFolder(folder, "--output_path"), "" if name else safe_name(config.model_name)
    local = user_cache_path("ttmbench", appauthor=False) / "unsent" / json_digest([address, key.sha256])[:32]
    show_as(str(local), remote.url)
    was_sent = False
    try:
        names = remote.files(model)
        for file in [one for one in names if (one == name if name else one.endswith(".json"))]:
            if (local / file).exists():  # an interrupted run left it, whose own files are newer
                continue
            try:
                content = read_json(remote.fetch(file, local))
            except Unreadable:
                continue
            if isinstance(content, dict) and (name or content.get("run_key") == key.sha256):
                beside = {"/".join([*file.split("/")[:-1], artifact]) for artifact in content.get("artifacts", ())}
                for artifact in beside & set(names):
                    remote.fetch(artifact, local)
    except TtmbenchError as error:
        raise UsageError(f"--output_path: {error}") from None

    with open_output(config.model_copy(update={"output_path": str(local / name)}), key, started) as output:

        def publish(files: RunFiles) -> None:
            """Sends what was written; only the first time must succeed."""
            nonlocal was_sent
            try:
                remote.send(local)
            except TtmbenchError as error:
                if not was_sent:
                    raise UsageError(f"--output_path: {error}") from None
                output.unsent = UnsentError(f"{error}; the results are in {local}: the same command sends them")
                warn(f"{error}; what is done is in {local}, and the run continues")
            else:
                was_sent, output.unsent = True, None

        output.address, output.publish = f"{remote.url}/{model}".rstrip("/"), publish
        yield output
    if output.unsent is None and output.files.finished:
        shutil.rmtree(local, ignore_errors=True)
