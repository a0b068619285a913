"""The site's page of each benchmark, made from its task files, ``tasks/_benchmarks.yaml`` and the published tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from page_parts import table

from ttmbench.data.benchmarks import Benchmark, benchmarks
from ttmbench.data.task_chance import chance_of
from ttmbench.data.task_file import TaskSpec, all_tasks
from ttmbench.plugins.registry import Registry, build_registry, metric_for
from ttmbench.reproduce.tables import PublishedRow, published_rows

FACTS = {
    "groups": "number of groups",
    "format": "file format",
    "pairs": "which captions are correct",
    "aggregation": "how published numbers are aggregated",
}
KNOWN = {
    "file": "checked in the real files",
    "scores": "confirmed with published scores",
    "stated": "as stated by the authors",
    "inferred": "inferred, not confirmed",
    "unknown": "unknown",
}
STATUS = {"file": "checked", "scores": "checked", "stated": "documented", "inferred": "inferred", "unknown": "unknown"}
ORDER = list(dict.fromkeys(STATUS.values()))
MANY_TASKS = 3


def unique(values: Sequence[str]) -> list[str]:
    """The values that are not empty, each once."""
    return list(dict.fromkeys(value for value in values if value))


@cache
def registry() -> Registry:
    """What ships."""
    return build_registry()


@cache
def specs() -> Mapping[str, TaskSpec]:
    """Every shipped task by name."""
    return {name: file.spec for name, file in all_tasks(registry()).items()}


@cache
def published() -> list[PublishedRow]:
    """Every published number."""
    return published_rows(registry())


def tasks_of(benchmark: Benchmark) -> list[TaskSpec]:
    """Its tasks, those of ``run`` first."""
    own = [spec for name, spec in specs().items() if benchmark.has(name)]
    chosen = benchmark.run.split(",")
    return sorted(own, key=lambda spec: not ({spec.task, *spec.tag} & set(chosen)))


def chances(spec: TaskSpec) -> dict[str, str]:
    """Metric -> its chance in percent."""
    found = {}
    for name in spec.metrics:
        metric = registry().metrics[name]
        value = chance_of(metric if spec.kind != "groups" else metric_for(metric, spec.shape), spec)
        found[name] = "-" if value is None else "< 0.01" if 0 < value < 0.0001 else f"{100 * value:.2f}"
    return found


def shape(spec: TaskSpec) -> str:
    """The shape of a task's groups, or what it is instead."""
    return f"{spec.extent} {spec.kind}" if spec.kind != "groups" else f"{spec.extent}{', global' * spec.is_global}"


def sources(source: Mapping) -> Iterator[Mapping]:
    """The places of a task's data, in the order in which they are tried."""
    for part in source.get("of", [source]):
        yield from sources(part) if "of" in part else [part]


def hub_link(source: Mapping) -> str:
    """A dataset of the Hub and its commit."""
    kind = "" if source.get("repo_type") == "model" else "datasets/"
    commit = f"commit `{source['revision'][:7]}`" if source.get("revision") else "commit not pinned"
    return f"[{source['path']}](https://huggingface.co/{kind}{source['path']}), {commit}"


def page(benchmark: Benchmark) -> str:
    """Its page as Markdown."""
    own = tasks_of(benchmark)
    parts = [f"# {benchmark.title}", "", f"{benchmark.about} [Paper]({own[0].reference})."]
    if own[0].source["kind"] == "rendered":
        parts = [*parts[:2], f"{benchmark.about} [How they are made](../builtin.md)."]
    parts += ["", *commands(benchmark, own), *facts(own), "## Tasks", "", *task_table(own)]
    parts += ["## Chance", "", "Expected value of each [metric](../metrics.md) for random scores, in percent.", ""]
    parts += chance_table(own)
    if benchmark.notes:
        parts += ["## Notes", "", *(f"- {note}" for note in benchmark.notes), ""]
    parts += [*problems(own), *data(own), *numbers(benchmark)]
    for citation in unique([spec.citation for spec in own]):
        parts += ["## Citation", "", "```bibtex", citation.strip(), "```", ""]
    return "\n".join(parts)


def commands(benchmark: Benchmark, own: Sequence[TaskSpec]) -> list[str]:
    """How to fetch and run it."""
    if own[0].source["kind"] == "rendered":
        return ["```bash", f"ttmbench --model tiny-clip --tasks {benchmark.run}", "```", ""]
    words = benchmark.run.replace(",", " ")
    return ["```bash", f"ttmbench download {words}", f"ttmbench --model clip-b32 --tasks {benchmark.run}", "```", ""]


def facts(own: Sequence[TaskSpec]) -> list[str]:
    """Licence, access, images, and how the facts of the data are known."""
    images = unique([spec.images_needed for spec in own])
    evidence: dict[str, list[str]] = {}
    for spec in own:
        for fact, how in spec.evidence.items():
            evidence.setdefault(fact, []).append(KNOWN[how])
    rows = [("Licence", "<br>".join(unique([spec.license for spec in own])))]
    if own[0].gated:
        rows.append(("Access", "gated: accept the terms on its page and set `HF_TOKEN` ([how](../tasks.md#the-hub))"))
    rows += [("Images", images[0])] if len(images) == 1 else []
    rows += [(FACTS[fact].capitalize(), either(how)) for fact, how in evidence.items()]
    return [table(("Fact", "Value"), rows), ""]


def either(how: Sequence[str]) -> str:
    """How a fact is known, if tasks differ in it for each of them."""
    *others, last = unique(how)
    return f"{', '.join(others)} or {last}, depending on the task" if others else last


def task_table(own: Sequence[TaskSpec]) -> list[str]:
    """A row for each task, with its images where they differ."""
    differ = len(unique([spec.images_needed for spec in own])) > 1
    head = ("Task", "Shape", "Description", *(["Images"] if differ else []), "Groups")
    rows = []
    for spec in own:
        groups = f"{spec.group.n_groups:,}" if spec.group.n_groups else "unknown"
        rows.append(
            (f"`{spec.task}`", shape(spec), spec.description, *([spec.images_needed] if differ else []), groups)
        )
    return [table(head, rows, 1), ""]


def chance_table(own: Sequence[TaskSpec]) -> list[str]:
    """The chance of each metric, a column for each shape."""
    columns: dict[str, dict[str, str]] = {}
    for spec in own:
        columns.setdefault(shape(spec), {}).update(chances(spec))
    metrics = unique([name for column in columns.values() for name in column])
    rows = [(f"`{name}`", *(column.get(name, "-") for column in columns.values())) for name in metrics]
    return [table(("Metric", *columns), rows, len(columns)), ""]


def problems(own: Sequence[TaskSpec]) -> list[str]:
    """Known errors of the data, each with its tasks."""
    found: dict[str, list[str]] = {}
    for spec in own:
        if spec.label_errors:
            found.setdefault(spec.label_errors, []).append(spec.task)
    if not found:
        return []
    lines = []
    for text, names in found.items():
        where = "" if len(names) == len(own) or len(names) > MANY_TASKS else ", ".join(f"`{name}`" for name in names)
        lines.append(f"- {where}{': ' * bool(where)}{text.strip().rstrip('.')}.")
    return ["## Known problems", "", *lines, ""]


def data(own: Sequence[TaskSpec]) -> list[str]:
    """Where the data come from: datasets of the Hub, and files of the data folder with their addresses."""
    hub, files, also, saved = [], {}, {}, set()
    for spec in own:
        for part in sources(spec.source):
            if part["kind"] in ("huggingface", "hub_files"):
                hub.append(hub_link(part))
                saved |= set(part.get("also") or ()) if part["kind"] == "huggingface" else set()
            for path, origin in (part.get("get") or {}).items():
                files.setdefault(path, origin_of(origin))
            for path, others in (part.get("also") or {}).items():
                also.setdefault(path, []).extend(others)
        files |= {
            tags.file: origin_of(tags.get.model_dump() if tags.get else {}) for tags in spec.group.tag_files.values()
        }
    if not hub and not files:
        return []
    order = "The [data folder](../tasks.md#the-data-folder) is tried first, then the Hub."
    only = "Files lie in the [data folder](../tasks.md#the-data-folder); `ttmbench download` puts them there."
    lines = ["## Data", "", order if hub and files else only if files else "The data are on the Hugging Face Hub.", ""]
    if files:
        lines += [table(("Data folder", "Origin"), [(f"`{path}`", origin) for path, origin in files.items()]), ""]
    lines += [f"- Hub: {one}" for one in unique(hub)]
    for path, others in also.items():
        names = [f"as `{other}`" for other in unique(others) if other != "."]
        names += ["directly in the data folder"] if "." in others else []
        how = " written by `save_to_disk`" if path in saved else ""
        lines.append(f"- A copy of `{path}`{how} is also found {', or '.join(names)}.")
    return [*lines, ""]


def origin_of(origin: Mapping | str) -> str:
    """Where a file of the data folder comes from."""
    if isinstance(origin, str):
        return origin_of({"url": origin})
    if origin.get("listed"):
        return "single addresses, listed in the annotation file"
    name, url = origin.get("name") or "", origin.get("url") or ""
    if origin.get("page"):
        return f"manual: [page]({origin['page']})" + (f", {name}" if name else "")
    shown = name or url.rstrip("/").rpartition("/")[2].partition("?")[0]
    how = ", unpacked" if origin.get("unpack") else ""
    return f"[{shown}]({url}){how}"


def numbers(benchmark: Benchmark) -> list[str]:
    """Where the published numbers of its tasks are."""
    count = sum(benchmark.has(next(iter(row.parts))) for row in published())
    shown = f"`ttmbench show {benchmark.run.split(',')[0]} --published` and the [leaderboard](../leaderboard.md)"
    return ["## Published numbers", "", f"{shown} have {count} published numbers of these tasks.", ""] if count else []


def pages() -> dict[str, str]:
    """Place on the site -> Markdown of every benchmark's page."""
    return {f"benchmarks/{one.name}.md": page(one) for one in benchmarks()}


def page_of(file: str) -> str | None:
    """The page that stands for a task file, so that links to it lead there."""
    name = file.removeprefix("tasks/").removesuffix(".yaml")
    found = next((one.name for one in benchmarks() if one.has(name)), None) if file == f"tasks/{name}.yaml" else None
    return None if found is None else f"benchmarks/{found}.md"


def overview() -> str:
    """The table of docs/tasks.md, a row for each benchmark."""
    rows = []
    for one in benchmarks():
        chosen = set(one.run.split(","))
        own = [spec for spec in tasks_of(one) if {spec.task, *spec.tag} & chosen]
        found = {text: float(text.lstrip("< ")) for spec in own if (text := main_chance(spec)) is not None}
        counts = [spec.group.n_groups for spec in own]
        known = [STATUS[how] for spec in own for how in spec.evidence.values()]
        shapes = sorted(own, key=lambda spec: tuple(map(int, spec.extent.partition(" ")[0].split("x"))))
        rows.append(
            (
                f"[{one.title}](../tasks/{own[0].task}.yaml)",
                one.tests,
                " to ".join(unique([shape(shapes[0]), shape(shapes[-1])])) if own[0].kind == "groups" else own[0].kind,
                f"{sum(counts):,}" if all(counts) else "unknown",
                " to ".join(unique([min(found, key=found.get), max(found, key=found.get)])) if found else "-",
                "; ".join(unique([short_licence(spec.license) for spec in own])) + ", gated" * own[0].gated,
                max(known, key=ORDER.index) if known else "rendered",
            )
        )
    return table(("benchmark", "tests", "shape", "groups", "chance", "licence", "status"), rows)


def main_chance(spec: TaskSpec) -> str | None:
    """The chance of the group score, else of the text score; None for other kinds of tasks."""
    known = chances(spec)
    return next((known[name] for name in ("group_score", "text_score") if known.get(name, "-") != "-"), None)


def short_licence(text: str) -> str:
    """The licence without what its page adds."""
    for mark in (" (", ";", ",", " by "):
        text = text.partition(mark)[0]
    return text
