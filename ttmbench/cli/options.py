"""Every option of every command: argparse, nothing heavy, errors in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

from ttmbench import __version__
from ttmbench.cli import COMMANDS
from ttmbench.plaintext import one_line
from ttmbench.secrets import redact

EXAMPLES = """\
examples:
  ttmbench --model tiny-clip --tasks shapes_color --ttm
  ttmbench run --model siglip-b16 --tasks winoground --ttm --ttm_preset paper --output_path results
  ttmbench score clip.jsonl --task winoground
  ttmbench ls tasks

Options may be written with dashes or underscores. Without a command, `run` is meant.
exit codes: 0 done, 1 a task failed, 2 usage or configuration, 3 an assertion or a reproduction does not hold,
4 data or weights out of reach, 130 interrupted
"""


_DATA_DIR = "where data files lie (default: TTMBENCH_DATA, else a cache)"
_USE_CACHE = "where raw scores are kept for later runs (default: TTMBENCH_CACHE, else a cache)"


class _Parser(argparse.ArgumentParser):
    """argparse with errors of one line and a near name for a misspelt option."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Knows all of its own options: what is left over is an error here, where near names are known."""
        parsed, left = super().parse_known_args(args, namespace)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return parsed, left

    def error(self, message: str) -> NoReturn:
        """Prints one line and exits 2."""
        if message.startswith("unrecognized arguments:"):
            words = message.removeprefix("unrecognized arguments:").split()
            known = [option for action in self._actions for option in action.option_strings]
            near = get_close_matches(words[0], known, n=1)
            message = f"unknown option {words[0]}" + (f"; did you mean {near[0]}?" if near else "")
        print(one_line(redact([f"{self.prog}: {message} (see {self.prog} --help)"])), file=sys.stderr)
        raise SystemExit(2)


def normalise(arguments: Sequence[str]) -> list[str]:
    """Adds the command `run` where none is named, and turns ``--some-option`` into ``--some_option``.

    >>> normalise(["--model", "tiny-clip", "--batch-size=8"])
    ['run', '--model', 'tiny-clip', '--batch_size=8']
    """
    words = []
    for word in arguments:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            word = "--" + name[2:].replace("-", "_") + equals + value
        words.append(word)
    if words and words[0].startswith("-") and words[0] not in ("-h", "--help", "--version"):
        words.insert(0, "run")
    return words


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog="ttmbench",
        description="How well does a vision-language model compose, and what does it gain from test-time matching?",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ttmbench {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    commands.required = True
    _run(commands.add_parser("run", help="evaluate a model on tasks, raw and matched; adapt it by TTM", **_plain()))
    _score(
        commands.add_parser(
            "score", help="every metric from stored scores or answers: no model, no dataset", **_plain()
        )
    )
    _analyze(commands.add_parser("analyze", help="the paper's figures for a model and a task", **_plain()))
    _compare(commands.add_parser("compare", help="runs compared group by group", **_plain()))
    _leaderboard(commands.add_parser("leaderboard", help="results of many runs in tables, one a track", **_plain()))
    _report(commands.add_parser("report", help="results, TTM curves and groups as one page", **_plain()))
    _export(
        commands.add_parser("export", help="results in the formats of others: lm-eval, hub, CSV, LaTeX", **_plain())
    )
    _reproduce(commands.add_parser("reproduce", help="a paper's table beside runs of your own", **_plain()))
    _ls(commands.add_parser("ls", help="list tasks, models, tags, metrics, schedules or plugins", **_plain()))
    _show(commands.add_parser("show", help="everything about one task or model", **_plain()))
    _validate(commands.add_parser("validate", help="check task files and their data", **_plain()))
    _download(
        commands.add_parser("download", help="fetch everything that tasks and models need for --offline", **_plain())
    )
    _cache(commands.add_parser("cache", help="what earlier runs kept: list, verify, prune, path", **_plain()))
    _doctor(commands.add_parser("doctor", help="what of tasks and models is on this machine", **_plain()))
    _new(commands.add_parser("new", help="start a task of your own from a small example", **_plain()))
    _schema(commands.add_parser("schema", help="print the JSON Schema of results or task files", **_plain()))
    assert set(commands.choices) == set(COMMANDS), "every command is listed"
    return parser


def _run(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what to run")
    _what(what)
    what.add_argument("--samples", metavar="FILE", help="JSON list of the group ids to use")
    ttm = parser.add_argument_group("test-time stage")
    ttm.add_argument("--ttm", action="store_true", default=None, help="adapt by test-time matching before scoring")
    _ttm_settings(ttm)
    ttm.add_argument(
        "--simple_match", action="store_true", default=None, help="also run SimpleMatch's overfitting step"
    )
    ttm.add_argument(
        "--oracle", action="store_true", default=None, help="also keep right matchings only: reads labels, a skyline"
    )
    ttm.add_argument(
        "--ttm_controls", metavar="A,B", type=_names, help="also train on placebo or shuffle(d) pseudo-labels"
    )
    ttm.add_argument("--ttm_holdout", metavar="X", type=float, help="also score this share, adapted to the others")
    ttm.add_argument(
        "--audit_labels", action="store_true", default=None, help="rerun with captions permuted; choices must not move"
    )
    how = parser.add_argument_group("how to run")
    _how(how)
    how.add_argument("--on_error", metavar="raise|continue", help="after a failed task: stop, or go on with the next")
    how.add_argument("--dry_run", action="store_true", help="check names and settings, say what would run, and stop")
    out = parser.add_argument_group("output")
    out.add_argument("--output_path", "-o", metavar="DIR|x.json", help="where results go")
    out.add_argument(
        "--overwrite",
        metavar="failed|missing|always|never",
        help="what to run again of an earlier run of the same command (default: failed, and what is missing)",
    )
    out.add_argument("--log_samples", action="store_true", default=None, help="also write one line per group")
    out.add_argument("--save_scores", action="store_true", default=None, help="also write the score arrays")
    out.add_argument("--save_adapted", metavar="DIR", help="new folder for the adapted model's weights")
    out.add_argument("--baseline", metavar="RESULT", help="another run's document, to show the differences to it")
    out.add_argument("--track", metavar="A,B", type=_names, help="tell wandb, trackio or tensorboard of the run")
    out.add_argument("--track_args", metavar="K=V,...", help="project, name, dir, ...; wandb.mode=offline for one")
    _assert(out)
    _verbosity(out)
    parser.set_defaults(execute=_lazily("ttmbench.cli.run", "run"))


def _analyze(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "analysis", metavar="ANALYSIS", help="thresholds, schedules, supervision, oracle, tau, lr, alpha"
    )
    _what(parser.add_argument_group("what to analyse"))
    ttm = parser.add_argument_group("test-time stage")
    _ttm_settings(ttm)
    ttm.add_argument("--taus", metavar="X,Y", type=_numbers, help="tau: first thresholds (default: keep 15 to 30 %%)")
    ttm.add_argument(
        "--lrs", metavar="X,Y", type=_numbers, help="lr: rates to compare (default: six around the one used)"
    )
    _how(parser.add_argument_group("how to run"))
    out = parser.add_argument_group("output")
    out.add_argument("--output_path", "-o", metavar="DIR", help="where files go (default: analysis)")
    _verbosity(out)
    parser.set_defaults(execute=_lazily("ttmbench.cli.analyze", "analyze"))


def _compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RESULTS", nargs="+", help="results documents of runs with --log_samples")
    parser.add_argument("--metrics", metavar="A,B", type=_names, default=[], help="these only")
    parser.add_argument("--filters", metavar="A,B", type=_names, help="A of the first run with B of the others")
    parser.add_argument("--allow_different", action="store_true", help="also other versions or data, by shared ids")
    parser.add_argument("--bootstrap_iters", metavar="N", type=_count, default=1000, help="resamples and permutations")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the resampling")
    parser.add_argument("--output_path", "-o", metavar="x.json|x.md", help="also write it")
    _verbosity(parser)
    parser.set_defaults(execute=_lazily("ttmbench.cli.compare", "compare"))


def _leaderboard(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="folder of results documents, searched to the bottom")
    parser.add_argument(
        "--published", metavar="FILE|TABLE", action="append", help="numbers from papers: CSV, table, or all; marked so"
    )
    parser.add_argument("--output_path", "-o", metavar="DIR", help="where the files go (default: DIR itself)")
    _verbosity(parser)
    parser.set_defaults(execute=_lazily("ttmbench.cli.leaderboard", "leaderboard"))


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "place", metavar="DIR|x.json", help="folder of results documents, searched to the bottom; or one"
    )
    parser.add_argument("--output_path", "-o", metavar="x.html", help="the page (default: report.html in DIR)")
    parser.add_argument("--title", metavar="TEXT", default="Report", help="heading of the page")
    parser.add_argument(
        "--images",
        choices=("thumbnails", "links", "none"),
        default="thumbnails",
        metavar="thumbnails|links|none",
        help="small copies where the licence allows them, links to the files, or names alone",
    )
    parser.add_argument(
        "--allow_images", metavar="A,B", type=_names, help="tasks whose pictures may be copied: you know that they may"
    )
    parser.add_argument("--max_images", metavar="N", type=_count, default=2000, help="copies a task at most")
    parser.add_argument("--figures", metavar="DIR", help="also write the charts as SVG and PNG")
    parser.add_argument("--data_dir", metavar="DIR", help="where data files lie (default: as the run had it)")
    parser.add_argument("--include_path", metavar="DIR", action="append", help="folder with more task files")
    _verbosity(parser)
    parser.set_defaults(execute=_lazily("ttmbench.cli.report", "report"))


def _export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RESULTS", nargs="+", help="results documents, or folders of them")
    parser.add_argument(
        "--to", required=True, metavar="FORMAT", help="lm-eval, model-index, evaluation-results, csv or latex"
    )
    parser.add_argument("--source_url", metavar="URL", help="where the results can be seen, for the hub's formats")
    parser.add_argument("--output_path", "-o", metavar="FILE|DIR", help="where it goes (default: the terminal)")
    _verbosity(parser)
    parser.set_defaults(execute=_lazily("ttmbench.cli.export", "export"))


def _reproduce(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="TABLE", nargs="?", help="name of a table, or a YAML file of your own")
    parser.add_argument("--list", action="store_true", help="list the tables")
    parser.add_argument("--runs", metavar="DIR", help="folder of results documents to compare with")
    parser.add_argument("--models", "-M", metavar="A,B", type=_names, help="rows of these models only")
    parser.add_argument("--tasks", "-t", metavar="A,B", type=_names, help="rows of these tasks only")
    parser.add_argument("--run", action="store_true", help="run what is missing, into the folder")
    parser.add_argument("--dry_run", action="store_true", help="print the commands of what is missing, and stop")
    parser.add_argument("--allow_missing", action="store_true", help="exit 0 if every number that is there agrees")
    parser.add_argument("--device", metavar="NAME", help="of --run: auto, cpu, cuda, cuda:1, mps")
    parser.add_argument("--batch_size", metavar="N", type=_count, help="of --run")
    parser.add_argument("--offline", action="store_true", help="of --run: use what is on this machine only")
    parser.add_argument("--data_dir", metavar="DIR", help=_DATA_DIR)
    parser.add_argument("--include_path", metavar="DIR", action="append", help="folder with more task files")
    parser.add_argument("--output_path", "-o", metavar="x.json", help="also write the comparison as JSON")
    _verbosity(parser)
    parser.set_defaults(execute=_lazily("ttmbench.cli.reproduce", "reproduce"))


def _what(group: Any) -> None:
    group.add_argument("--model", "-M", metavar="NAME", help="see `ttmbench ls models`")
    group.add_argument("--model_args", "-a", metavar="K=V,...", help="arguments of the model")
    group.add_argument("--tasks", "-t", metavar="A,B", help="names, tags, globs or YAML files, see `ttmbench ls tasks`")
    group.add_argument("--task_args", metavar="K=V,...", help="changes to the tasks' source, such as seed=3")
    group.add_argument("--include_path", metavar="DIR", action="append", help="folder with more task files")
    group.add_argument("--limit", metavar="N", type=_count, help="use the first N groups only")
    group.add_argument("--config", metavar="FILE", help="YAML file of these options; the command line wins")


def _ttm_settings(group: Any) -> None:
    group.add_argument("--ttm_args", metavar="K=V,...", help="lr, epochs, iterations, schedule, tau_start, ...")
    group.add_argument("--ttm_preset", metavar="auto|paper", help="paper: the task's preset for this model, four seeds")
    group.add_argument("--seeds", metavar="0,1,2,3", type=_seeds, help="seeds of the test-time stage (default: one)")


def _how(group: Any) -> None:
    group.add_argument(
        "--batch_size", metavar="N|auto", type=_count_or_auto, help="scored at a time; moves scores by rounding at most"
    )
    group.add_argument("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1, mps")
    group.add_argument("--dtype", metavar="fp32|bf16|fp16", help="of the model's arithmetic; scores are fp32")
    group.add_argument("--compile", action="store_true", default=None, help="run the model through torch.compile")
    group.add_argument(
        "--deterministic", action="store_true", default=None, help="the same bits every time on one machine; one thread"
    )
    group.add_argument("--seed", metavar="N", type=int, help="of the bootstrap, and the first of --seeds")
    _interval(group, default=None)
    group.add_argument("--use_cache", metavar="DIR|off", help=_USE_CACHE)
    group.add_argument("--offline", action="store_true", default=None, help="use what is on this machine only")
    group.add_argument("--data_dir", metavar="DIR", help=_DATA_DIR)
    group.add_argument("--trust_remote_code", action="store_true", default=None, help="run code that a hub model ships")


def _interval(group: Any, default: int | None) -> None:
    group.add_argument(
        "--interval",
        metavar="wilson|percentile|bca",
        choices=("wilson", "percentile", "bca"),
        default=None if default is None else "wilson",
        help="Wilson's interval (default), or a bootstrap over groups",
    )
    group.add_argument(
        "--bootstrap_iters", metavar="N", type=int, default=default, help="resamples, 0 for no intervals at all"
    )


def _score(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "scores", nargs="+", metavar="FILE", help="scores (JSONL, npz, safetensors) or answers (JSON), by content"
    )
    parser.add_argument("--task", required=True, metavar="NAME", help="whose shape and size the scores have")
    parser.add_argument("--output_path", "-o", metavar="DIR|x.json", help="where the results go")
    parser.add_argument("--logit_scale", metavar="X", type=float, default=1.0, help="factor on products of embeddings")
    parser.add_argument("--include_path", metavar="DIR", action="append", help="folder with more task files")
    parser.add_argument("--limit", metavar="N", type=_count, help="the scores are of the task's first N groups")
    _interval(parser, default=1000)
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the bootstrap")
    _assert(parser)
    _verbosity(parser)
    parser.set_defaults(execute=_lazily("ttmbench.cli.score", "score"))


def _ls(parser: argparse.ArgumentParser) -> None:
    kinds = ("tasks", "models", "tags", "metrics", "schedules", "plugins")
    parser.add_argument("kind", choices=kinds, metavar="KIND", help=", ".join(kinds))
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--include_path", metavar="DIR", action="append", help="folder with more task files")
    _verbosity(parser)
    parser.set_defaults(execute=_lazily("ttmbench.cli.listing", "ls"))


def _show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="TASK|MODEL")
    parser.add_argument("--include_path", metavar="DIR", action="append", help="folder with more task files")
    _verbosity(parser)
    parser.set_defaults(execute=_lazily("ttmbench.cli.listing", "show"))


def _validate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tasks", nargs="*", metavar="TASK|FILE", help="default: every task")
    parser.add_argument("--include_path", metavar="DIR", action="append", help="folder with more task files")
    parser.add_argument("--offline", action="store_true", help="use what is on this machine only")
    parser.add_argument("--data_dir", metavar="DIR", help=_DATA_DIR)
    parser.add_argument("--limit", metavar="N", type=_count, help="read the first N groups only")
    parser.add_argument("--schema_only", action="store_true", help="do not read the data")
    _verbosity(parser)
    parser.set_defaults(execute=_lazily("ttmbench.cli.validate", "validate"))


def _download(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="TASKS", help="names, tags, globs or YAML files")
    parser.add_argument("--tasks", "-t", metavar="A,B", type=_names, help="the same, separated by commas")
    parser.add_argument("--model", "-M", metavar="NAME", help="also fetch this model's weights and tokenizer")
    parser.add_argument("--model_args", "-a", metavar="K=V,...", help="arguments of the model")
    parser.add_argument("--trust_remote_code", action="store_true", help="also fetch code that the repository ships")
    parser.add_argument("--data_dir", metavar="DIR", help=_DATA_DIR)
    parser.add_argument("--include_path", metavar="DIR", action="append", help="folder with more task files")
    parser.add_argument("--alternative", metavar="N", type=_count, help="fetch from the N-th place of each task alone")
    parser.add_argument("--dry_run", action="store_true", help="list what would be fetched, with sizes, and stop")
    _verbosity(parser)
    parser.set_defaults(execute=_lazily("ttmbench.cli.download", "download"))


def _cache(parser: argparse.ArgumentParser) -> None:
    actions = ("ls", "verify", "prune", "path")
    parser.add_argument("action", choices=actions, metavar="ACTION", help=", ".join(actions))
    parser.add_argument("--use_cache", metavar="DIR", help="the store (default: TTMBENCH_CACHE, else a cache)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    prune = parser.add_argument_group("what prune removes (all that is given has to hold)")
    prune.add_argument("--kind", metavar="A,B", type=_names, help="scores, blocks, pixels, pictures, temporary")
    prune.add_argument("--task", metavar="GLOB", help="scores of these tasks")
    prune.add_argument("--model", metavar="GLOB", help="scores of these models")
    prune.add_argument("--older_than", metavar="DAYS", type=float, help="not used for so many days")
    prune.add_argument("--damaged", action="store_true", help="what cannot be used")
    prune.add_argument("--max_size", metavar="SIZE", help="what was used longest ago, until the rest fits (2.5GB)")
    prune.add_argument("--all", action="store_true", help="everything")
    prune.add_argument("--dry_run", action="store_true", help="remove nothing, say what would go")
    _verbosity(parser)
    parser.set_defaults(execute=_lazily("ttmbench.cli.cache", "cache"))


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", "-t", metavar="A,B", type=_names, help="exit 4 if one of these is not usable")
    parser.add_argument("--models", "-M", metavar="A,B", type=_names, help="exit 4 if one of these is not usable")
    parser.add_argument("--data_dir", metavar="DIR", help=_DATA_DIR)
    parser.add_argument("--include_path", metavar="DIR", action="append", help="folder with more task files")
    parser.add_argument("--json", action="store_true", help="print JSON")
    _verbosity(parser)
    parser.set_defaults(execute=_lazily("ttmbench.cli.doctor", "doctor"))


def _new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("task",), metavar="task", help="what to start")
    parser.add_argument("name", metavar="NAME", help="letters, digits, '_', '.' and '-'")
    parser.add_argument("--output_path", "-o", metavar="DIR", help="new folder for it (default: NAME)")
    _verbosity(parser)
    parser.set_defaults(execute=_lazily("ttmbench.cli.new", "new"))


def _schema(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="results|task|leaderboard")
    parser.set_defaults(execute=_lazily("ttmbench.cli.listing", "schema"))


def _plain() -> dict[str, Any]:
    return {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}


def _assert(parser: Any) -> None:
    parser.add_argument("--assert", dest="assertions", metavar="COND", action="append", help="task.metric,filter>=0.9")


def _verbosity(parser: Any) -> None:
    parser.add_argument(
        "--verbosity", choices=("info", "debug"), default="info", metavar="info|debug", help="debug: show tracebacks"
    )


def _lazily(module: str, function: str) -> Callable[[argparse.Namespace], int]:
    def execute(options: argparse.Namespace) -> int:
        code: int = getattr(import_module(module), function)(options)
        return code

    return execute


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text}") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def _count_or_auto(text: str) -> int | str:
    return text if text == "auto" else _count(text)


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers separated by commas, got {text}") from None


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers separated by commas, got {text}") from None
