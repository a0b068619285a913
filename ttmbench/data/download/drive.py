"""Google Drive: its addresses, and the page that asks for confirmation before a large file."""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

from ttmbench.errors import OutOfReachError

HOSTS = ("drive.google.com", "drive.usercontent.google.com", "docs.google.com")
_FORM = "download-form"
_ERRORS = ("uc-error-caption", "uc-error-subcaption")


def is_drive(url: str) -> bool:
    """Whether an address is on Google Drive.

    >>> is_drive("https://drive.google.com/uc?id=x"), is_drive("https://drive.google.com.example.org/")
    (True, False)
    """
    return urlsplit(url).netloc in HOSTS


def direct(url: str) -> str:
    """The address of the file itself or of the page that asks.

    >>> direct("https://drive.google.com/uc?id=x")
    'https://drive.google.com/uc?id=x&export=download'
    >>> direct("https://drive.google.com/file/d/x/view?usp=sharing")
    'https://drive.google.com/uc?id=x&export=download'
    """
    parts = urlsplit(url)
    words = parts.path.split("/")
    query = dict(parse_qsl(parts.query))
    if words[1:3] == ["file", "d"] and len(words) > 3:
        query = {"id": words[3]}
    if "id" not in query:
        return url
    return urlunsplit((parts.scheme, parts.netloc, "/uc", urlencode({**query, "export": "download"}), ""))


def confirmed(page: str, url: str) -> str:
    """The address behind the form of a page that ``url`` gave in place of the file.

    Raises:
        OutOfReachError: there is no such form; the page's own words say why.
    """
    parser = _Page()
    parser.feed(page)
    parser.close()
    if parser.action is None:
        words = " ".join(" ".join(parser.words).split())
        raise OutOfReachError(
            f"{url} gave a page in place of the file ({words[:200] or 'it may ask for a login'}); open the address in "
            "a browser, or try again later"
        )
    target = urlsplit(urljoin(url, parser.action))
    if target.scheme not in ("http", "https") or target.netloc not in HOSTS:
        raise OutOfReachError(f"{url} gave a page that leads to {target.netloc or 'nowhere'}, which is not Drive's")
    query = {**dict(parse_qsl(target.query)), **parser.fields}
    return urlunsplit(target._replace(query=urlencode(query)))


class _Page(HTMLParser):
    """The form of Drive's page: its address and hidden fields; else the words of the error."""

    def __init__(self) -> None:
        super().__init__()
        self.action: str | None = None
        self.fields: dict[str, str] = {}
        self.words: list[str] = []
        self._inside = ""  # "form" or "p", the form or the error that is being read

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "form" and values.get("id") == _FORM:
            self.action, self._inside = values.get("action", ""), tag
        elif tag == "input" and self._inside == "form" and values.get("type") == "hidden" and values.get("name"):
            self.fields[values["name"]] = values.get("value", "")
        elif tag == "p" and values.get("class") in _ERRORS:
            self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "p":
            self.words.append(data)
