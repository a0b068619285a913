"""What a submission states beside its document: where the weights are, who answers questions, and the licence.

``<document>.submission.yaml`` lies beside ``<document>.json``; `ttmbench submit` writes it, `ttmbench validate` checks
it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ttmbench._util.files import file_digest
from ttmbench._util.text import Unreadable, read_yaml
from ttmbench._util.third_party_errors import describe
from ttmbench.errors import UsageError
from ttmbench.reproduce.submission.findings import Findings
from ttmbench.reproduce.submission.recorded import LONGEST_TEXT, check_texts
from ttmbench.results.document import ResultsDocument, mapping

ENDING = ".submission.yaml"
LICENSE = "CC0-1.0"
SHIPPED = "ttmbench"
_ADDRESS = re.compile(r"https?://[^\s/]+\.?[^\s]*")
_HUB = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}")


def _place_of_weights(value: str) -> str:
    if value != SHIPPED and not _ADDRESS.fullmatch(value) and not _HUB.fullmatch(value):
        raise ValueError(f"must be an address (https://...), a repository of the Hub as ID@COMMIT, or {SHIPPED}")
    return value


def _address(value: str) -> str:
    if not _ADDRESS.fullmatch(value):
        raise ValueError("must be an address (https://...)")
    return value


ShortText = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]


class SubmissionMetadata(BaseModel):
    """The content of the file.

    Attributes:
        document: name of the results document beside it.
        sha256: of the document.
        model: as results call it.
        weights: an address, ``ID@COMMIT`` of the Hub, or ``ttmbench`` for models included in it.
        trained_on: image collections of the training, ``[]`` for none; None if unknown.
        contact: whom to ask, as the submitter wants to be named.
        note: what readers should know.
        left_out: names of files that are too large for the repository.
        files: address at which these are.
        license: of the numbers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    document: ShortText
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    model: ShortText
    weights: Annotated[ShortText, AfterValidator(_place_of_weights)]
    trained_on: list[ShortText] | None = None
    contact: ShortText | None = None
    note: ShortText | None = None
    left_out: list[ShortText] = Field(default_factory=list)
    files: Annotated[ShortText, AfterValidator(_address)] | None = None
    license: Literal["CC0-1.0"]


def metadata_path(document: Path) -> Path:
    """The file beside a results document."""
    return document.with_name(document.stem + ENDING)


def weights_of(document: ResultsDocument, ships: bool) -> str | None:
    """Where others get the weights, by what the document states; None where it does not say."""
    source = mapping(document.model_info.get("source"))
    if ships:
        return SHIPPED
    name, commit = source.get("name"), source.get("commit")
    return f"{name}@{commit}" if name and commit else None


def make_metadata(path: Path, document: ResultsDocument, weights: str, **more: object) -> SubmissionMetadata:
    """The metadata of a document; UsageError if an entry is not as it should be."""
    stated = {
        **{"document": path.name, "sha256": file_digest(path), "model": document.model_name, "weights": weights},
        **{"trained_on": document.model_info.get("trained_on"), "license": LICENSE, **more},
    }
    try:
        return SubmissionMetadata.model_validate(stated)
    except ValidationError as error:
        raise UsageError(f"the metadata of {path.name} are not complete: {describe(error)}") from None


def left_out_of(path: Path) -> frozenset[str]:
    """The files of a document that lie elsewhere, by its metadata; none where these cannot be read."""
    try:
        return frozenset(SubmissionMetadata.model_validate(read_yaml(metadata_path(path))).left_out)
    except (Unreadable, ValidationError):
        return frozenset()


def check_metadata(path: Path, document: ResultsDocument, findings: Findings, is_required: bool = False) -> None:
    """Refuses metadata that are not those of the document, and with ``is_required`` their absence."""
    file = metadata_path(path)
    if not file.exists():
        if is_required:
            findings.refuse(file.name, "there is no such file; `ttmbench submit` writes it")
        return
    try:
        content = read_yaml(file) if not file.is_symlink() else None
        stated = SubmissionMetadata.model_validate(content)
    except Unreadable as error:
        findings.refuse(file.name, str(error))
        return
    except ValidationError as error:
        findings.refuse(file.name, f"is not as `ttmbench submit` writes it: {describe(error)}")
        return
    if isinstance(content, Mapping):
        check_texts({file.name: content}, findings)
    by = "the document has"
    findings.same(f"{file.name}.document", stated.document, path.name, by)
    findings.same(f"{file.name}.sha256", stated.sha256, file_digest(path), by)
    findings.same(f"{file.name}.model", stated.model, document.model_name, by)
    findings.same(f"{file.name}.trained_on", stated.trained_on, document.model_info.get("trained_on"), by)
    unknown = [name for name in stated.left_out if name not in document.artifacts]
    if unknown or (stated.left_out and stated.files is None):
        what = f"{unknown[0]} is not a file of the document" if unknown else "'files' must say where they are"
        findings.refuse(f"{file.name}.left_out", what)
