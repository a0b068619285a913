"""``ttmbench submit``: a run, checked and laid out as the leaderboard's repository takes it."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

from ttmbench._util.console import echo, warn
from ttmbench._util.files import safe_name, write_text
from ttmbench.cli.options import add_data_files
from ttmbench.errors import AssertionNotMet, DataError, UsageError
from ttmbench.results.document import ResultsDocument

MOST_BYTES = 10_000_000  # of a file in the repository
PLACE = Path("results") / "submissions"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``ttmbench submit``."""
    add = parser.add_argument
    add("result", metavar="RESULT", help="Results file, or directory with one, of a run with --save_scores")
    add("--repository", metavar="DIR", default=".", help="Checkout or directory to copy the run to")
    add("--branch", metavar="NAME", help="Create this branch in the checkout and commit the files")
    weights = "Public location of the weights (default: from the run)"
    add("--weights", dest="weights_url", metavar="URL|ID@COMMIT", help=weights)
    add("--contact", metavar="TEXT", help="Public contact for questions")
    add("--note", metavar="TEXT", help="Remark for readers")
    files = f"Location of files above {MOST_BYTES // 10**6} MB, which are not copied"
    add("--files", dest="files_url", metavar="URL", help=files)
    add("--allow_unchecked", action="store_true", help="Also submit numbers that cannot be checked here")
    add_data_files(parser)


def submit(options: argparse.Namespace) -> int:
    """Check a run, copy it with its metadata, check the copy beside earlier submissions, and say how to go on."""
    from ttmbench.cli.validate import check_results, is_shipped
    from ttmbench.plugins.registry import build_registry
    from ttmbench.reproduce.submission.metadata import LICENSE, make_metadata, weights_of
    from ttmbench.results.reader import read_document

    registry = build_registry(options.include_path or [])
    path = _document(Path(options.result))
    if check_results([path], registry, options) != 0:
        raise AssertionNotMet(f"{path} is not submitted: `ttmbench validate` has to pass first")
    document = read_document(path)
    weights = options.weights_url or weights_of(document, is_shipped(registry, document))
    if weights is None:
        raise UsageError(
            f"the weights of {document.model_name} are a folder or file of yours; say where others get them: "
            "--weights https://..."
        )
    large = sorted(name for name, about in document.artifacts.items() if about.bytes > MOST_BYTES)
    if large and options.files_url is None:
        raise UsageError(f"{', '.join(large)}: above {MOST_BYTES // 10**6} MB; put it elsewhere and give --files URL")
    more = {
        "contact": options.contact,
        "note": options.note,
        "left_out": large,
        "files": options.files_url if large else None,
    }
    metadata = make_metadata(path, document, weights, **more)
    repository = Path(options.repository)
    limited = [task for task in document.results if document.extent(task).limited]
    if limited:
        warn(f"{', '.join(limited)}: of a part of the groups, so these rows rank nowhere")
    if options.branch:
        _git(repository, "switch", "--create", options.branch)
    written = _copy(path, document, repository / PLACE / safe_name(document.model_name), metadata.model_dump(), large)
    _remark_on_captions(document)
    options.allow_unchecked |= bool(large)  # it was checked with them above
    if check_results([*written[:1]], registry, options, beside=repository / PLACE, with_metadata=True) != 0:
        raise AssertionNotMet(f"{written[0]} does not pass together with the other submissions of {repository}")
    for file in written:
        echo(str(file))
    echo(f"public as soon as it is sent, the numbers under {LICENSE}: {document.command}")
    _go_on(repository, options.branch, written, document)
    return 0


def _document(path: Path) -> Path:
    """The results document that is meant; UsageError for a folder with several, DataError for one with none."""
    from ttmbench.results.reader import walk_documents

    if not path.is_dir():
        return path
    found = [file for file, document in walk_documents(path) if isinstance(document, ResultsDocument)]
    if not found:
        raise DataError(f"{path}: has no results document")
    if len(found) > 1:
        raise UsageError(f"{path} has {len(found)} results documents; name one, such as {found[-1]}")
    return found[0]


def _copy(
    path: Path, document: ResultsDocument, folder: Path, metadata: dict[str, object], left_out: list[str]
) -> list[Path]:
    """The files as they were copied, the document first; UsageError if another one has its name."""
    import yaml

    from ttmbench.reproduce.submission.metadata import metadata_path

    target = folder / path.name
    if target.exists() and target.resolve() != path.resolve() and target.read_bytes() != path.read_bytes():
        raise UsageError(f"{target} is another document; give the run's file another name")
    folder.mkdir(parents=True, exist_ok=True)
    written = [target]
    for name in (path.name, *document.artifacts):
        source, copy = path.parent / name, folder / name
        if name in left_out or Path(name).name != name or not source.is_file() or copy.resolve() == source.resolve():
            continue
        shutil.copyfile(source, copy)
        written += [copy] if copy != target else []
    stated = {key: value for key, value in metadata.items() if value not in (None, []) or key == "trained_on"}
    write_text(metadata_path(target), yaml.safe_dump(stated, sort_keys=False, allow_unicode=True))
    return [*written, metadata_path(target)]


def _remark_on_captions(document: ResultsDocument) -> None:
    """Samples lines hold captions, which not every licence lets anybody pass on."""
    for name, about in document.artifacts.items():
        if about.kind in ("samples", "also_samples") and about.task in document.datasets:
            license_ = document.datasets[about.task].license or "no licence stated"
            warn(f"{name} holds captions of {about.task} ({license_})")


def _go_on(repository: Path, branch: str | None, files: list[Path], document: ResultsDocument) -> None:
    """Commit to the branch, or print the commands that do."""
    folder, message = files[0].parent, f"Submission: {document.model_name} on {', '.join(document.results)}"
    if branch:
        _git(repository, "add", "--", str(folder.resolve()))
        _git(repository, "commit", "--quiet", "--message", message, "--", str(folder.resolve()))
        echo(f"branch {branch}: push it and open a pull request")
        return
    echo(f"next, in a checkout: git switch -c NAME; git add {folder}; git commit; then push and open a pull request")


def _git(repository: Path, *words: str) -> None:
    """Run git in the checkout; UsageError with its own words if that fails."""
    try:
        done = subprocess.run(["git", "-C", str(repository), *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UsageError(f"--branch needs git: {error.strerror or error}") from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())[:300]
        raise UsageError(f"git {words[0]} failed in {repository}: {said}")
