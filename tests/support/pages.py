"""What a browser would make of an HTML page, without one."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """The text, tables by id, data blocks, ids and links of a page that loads nothing and has no handlers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = self._inside = ""
        self.executed = 0  # scripts
        self.tables: dict[str, list[list[str]]] = {}
        self.blocks: dict[str, str] = {}
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def rows(self, table: str) -> list[dict[str, str]]:
        """The cells of a table by the heads of their columns."""
        heads, *rows = self.tables[f"{table}-table"]
        return [dict(zip(heads, row, strict=True)) for row in rows]

    def handle_starttag(self, tag, attrs):
        about = {name: value or "" for name, value in attrs}
        places = [about[name] for name in ("src", "href", "data", "poster", "srcset") if tag != "a" and name in about]
        assert all(place.startswith(("#", "data:")) for place in places), "it loads nothing"
        assert not [name for name in about if name.startswith("on") or name == "style"], (tag, about)
        self.ids.add(about.get("id", ""))
        if tag == "a":
            self.links.append(about["href"])
        elif tag == "script":
            self._inside, self._block = tag, about.get("id", "")
            self.executed += "type" not in about
        elif tag == "table":
            self._rows = self.tables.setdefault(about.get("id", ""), [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._inside = "cell"
            self._rows[-1].append("")
        self.handle_endtag("")

    def handle_endtag(self, tag):
        if self._inside == "cell":
            self._rows[-1][-1] = " ".join(self._rows[-1][-1].split()) + " " * (tag not in ("td", "th"))
        if tag in ("script", "td", "th"):
            self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.blocks[self._block] = self.blocks.get(self._block, "") + data
            return
        self.text += data
        if self._inside == "cell":
            self._rows[-1][-1] += data
