"""Where a file or folder of the data folder comes from, as task files state it."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Origin(BaseModel):
    """The entry of one path in ``get:``. An address alone may be written as a string.

    Attributes:
        url: http or https address of the file or archive.
        page: where a human gets it, if no address can be fetched without asking.
        name: what its owner calls the file, where the address does not show it.
        unpack: the address is an archive (zip, tar, tar.gz, ...) whose content becomes the path.
        member: file or folder of the archive that becomes the path; without it all of the archive, less the folders
            that hold everything.
        each: the path is a folder of images, each at this address followed by its name.
        listed: the path is a folder of images, whose addresses are in the rows (``addresses`` of the source).
        sha256: of the downloaded file, where its owner states it.
        bytes: size of the downloaded file, where its owner states it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str | None = None
    page: str | None = None
    name: str | None = None
    unpack: bool = False
    each: bool = False
    listed: bool = False
    member: str | None = None
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    bytes: int | None = Field(None, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _address(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _consistent(self) -> Origin:
        if self.listed:
            if self.model_fields_set != {"listed"}:
                raise ValueError("'listed' stands alone: the addresses are in the rows")
            return self
        if (self.url is None) == (self.page is None):
            raise ValueError("needs either 'url', which is fetched, or 'page', which a person visits")
        if self.each and (self.url is None or self.unpack or self.sha256 or self.bytes is not None):
            raise ValueError("'each' needs a 'url' that addresses of images begin with, and nothing else")
        address = urlsplit(self.url or self.page or "")
        if address.scheme not in ("http", "https") or not address.hostname or " " in (self.url or ""):
            raise ValueError("should be an http or https address; 'unpack: true' says that it is an archive")
        if self.member is not None and not self.unpack:
            raise ValueError("'member' is a part of an archive, so it needs 'unpack: true'")
        return self

    @property
    def drive_id(self) -> str | None:
        """The published id of a file of Google Drive; None for any other address.

        >>> Origin(url="https://drive.google.com/uc?id=19KG").drive_id
        '19KG'
        """
        address = urlsplit(self.url or "")
        return parse_qs(address.query).get("id", [None])[0] if address.hostname == "drive.google.com" else None

    def __str__(self) -> str:
        if self.listed:
            return "the addresses in its rows"
        drive = f"Google Drive id {self.drive_id}" if self.drive_id else None
        known = ", ".join(text for text in (self.name, drive) if text)
        each = " (each image by its name)" if self.each else ""
        return f"{self.url or self.page}{each}{' (unpacked)' if self.unpack else ''}{f' [{known}]' if known else ''}"


class PathOrMapping(BaseModel):
    """A file with options. Its path alone may be written as a string."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str

    @model_validator(mode="before")
    @classmethod
    def _path(cls, value: object) -> object:
        return {"file": value} if isinstance(value, str) else value


class TagFile(PathOrMapping):
    """A file of further tags below the data folder, and where it comes from."""

    get: Origin | None = None
