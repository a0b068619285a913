"""README, documents, help and messages use the words of the field, and none of the phrases below."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

# Phrase that a reader of the field has to translate -> what to write.
PHRASES = {
    r"(?<![Tt]here )\b(is|are) no (?!longer|more|less|other|such|way|wider)[a-z]": "is not a ..., must be a ...",
    r"\btold apart\b|\btells? \w+ apart\b": "distinguished, matched",
    r"\bleft out\b": "skipped, excluded, omitted",
    r"\bmend(ed|s)?\b": "fixed",
    r"\bskyline\b": "upper bound",
    r"\bsurest\b": "most confident",
    r"\bgone on (from|with)\b|\bgo on (from|with)\b": "resumed",
    r"\bthere twice\b": "duplicate",
    r"\bno finite numbers?\b": "NaN or infinite",
    r"\bheld beside\b": "compared with",
    r"\bfrom elsewhere\b": "untrusted, from other hosts",
    r"\btheir kin\b": "dual encoders",
    r"\bstored features of its own\b": "precomputed embeddings",
    r"\bwhat nothing uses longest\b": "least recently used",
    r"\ball over the place\b": "of high variance",
    r"\bin four words\b": "key terms",
    r"\bwho asks\b": "you",
    r"\bof one's own\b": "your own, separate",
    r"\bright ones\b|\bwrong ones\b": "correct, incorrect",
    r"\btrue caption\b": "correct caption",
}
# As above, for docstrings and messages of the package and the model adapters.
CODE_PHRASES = PHRASES | {
    r"\bas it came\b|\bas the model is now\b": "the original model, the current model",
    r"\bstay(s|ed)? (as (it is|they are)|what)\b": "is not changed",
    r"\banew\b": "again, newly created",
    r"\bnear names\b": "similar names",
    r"\bleft over\b": "remaining",
    r"\bthat ships?\b": "built-in, included",
    r"\bleave [^\";,]{1,40} out\b": "omit ...",
    r"\bwhich of them is where\b|\bis where\b": "row of each ...",
    r"\btakes? \w+ off\b": "remove, subtract",
    r"\bwhatever another's\b": "of third-party code",
    r"\bnothing to register here\b": "cannot be registered here",
}
PATTERN = re.compile("|".join(f"(?:{phrase})" for phrase in PHRASES))
CODE_PATTERN = re.compile("|".join(f"(?:{phrase})" for phrase in CODE_PHRASES))
CODE = re.compile(r"^ *(```|~~~).*?^ *\1 *$|`[^`\n]*`", flags=re.MULTILINE | re.DOTALL)


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every string of a Python file, docstrings too; values in an f-string are {}."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values),
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.lineno, node.value


@pytest.fixture(scope="module")
def root(pytestconfig) -> Path:
    return pytestconfig.rootpath


def test_documents_have_none_of_the_phrases(root):
    files = [root / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY", "results/README")]
    files += [path for path in (root / "docs").rglob("*.md") if "adr" not in path.parts]
    files += (root / "ttmbench" / "report" / "html").glob("*.html")
    found = [
        f"{path.relative_to(root)}: {match[0]}"
        for path in files
        for match in PATTERN.finditer(CODE.sub("", path.read_text(encoding="utf-8")))
    ]
    assert len(files) > 50 and not found


def test_docstrings_help_and_messages_have_none_of_the_phrases(root):
    files = [path for folder in ("ttmbench", "model_adapters") for path in (root / folder).rglob("*.py")]
    found = [
        f"{path.relative_to(root)}:{line}: {match[0]}"
        for path in files
        for line, text in strings(path)
        for match in CODE_PATTERN.finditer(" ".join(text.split()))
    ]
    assert len(files) > 300 and not found


@pytest.mark.parametrize("phrase", ["the file is no table", "rows are told apart", "is left out", "TTM's true caption"])
def test_the_phrases_are_found(phrase):
    assert PATTERN.search(phrase)


def test_phrases_of_code_are_found_in_docstrings_and_messages(tmp_path):
    file = tmp_path / "module.py"
    file.write_text('"""Scores of the model\n    as it came."""\nerror = f"{name} needs no GPU; leave {name} out"\n')
    found = [match[0] for _, text in strings(file) for match in CODE_PATTERN.finditer(" ".join(text.split()))]
    assert sorted(found) == ["as it came", "leave {} out"]
