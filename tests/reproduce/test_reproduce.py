"""Published tables against runs: the shipped data, the rule, what is compared with what, and the command."""

from __future__ import annotations

import copy
import csv
import json
import re
import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from support.documents import raw_run

import ttmbench
from ttmbench.cli import main
from ttmbench.cli.parser import parse
from ttmbench.data.task_file import find_task
from ttmbench.errors import UsageError
from ttmbench.plugins.registry import build_registry
from ttmbench.reproduce.compared import compare as compare_typed
from ttmbench.reproduce.compared import plan, select
from ttmbench.reproduce.tables import (
    Rule,
    TaskEntry,
    agrees,
    load_table,
    published_beside_runs,
    published_tables,
    shipped_tables,
    tolerance,
)
from ttmbench.results.document import ResultsDocument
from ttmbench.results.numbers import Number

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "results" / "reference" / "first.json"
SHARED = ROOT.parent / "shared" / "published" / "published.csv"
LATER = ("mteb_", "vl_compo_family", "spec_notebook", "fsc_clip", "negbench_mcq", "winoground_clip_baseline")
"""Tables that were not typed with the others."""
TTM_TABLES = tuple(f"ttm_table{number}" for number in (1, 2, 6, 7, 8))
HEAD = "source,table,task,model,method,metric,percent,std_percent\n"
COUNTS = HEAD.replace("std_percent", "correct,of")
TINY = {"track": "zero_shot", "model": "tiny-clip"}


@pytest.fixture
def reference():
    return json.loads(REFERENCE.read_text(encoding="utf-8"))


def numbers_of_first():
    """What the table ``builtin`` has of the run of a single task, which has no overfitting step."""
    table = select(load_table("builtin"), ["tiny-clip"], ["shapes_color"])
    return replace(table, numbers=[one for one in table.numbers if one.method != "overfit"])


def as_run(document, **changes):
    return [(Path("x.json"), {**document, **changes})]


def compare(table, documents, registry):
    return compare_typed(
        table, [(path, ResultsDocument.model_validate(document)) for path, document in documents], registry
    )


def write_table(folder, rows, **spec):
    """A table of a user's own: its YAML, with a CSV of these rows beside it."""
    known = {"paper": "P", "source": "S", "where": "T", "shows": "x", "numbers": "own.csv"}
    (folder / "own.yaml").write_text(yaml.safe_dump({**known, **spec}))
    (folder / "own.csv").write_text(HEAD + "".join(f"S,T,{row}\n" for row in rows))
    return str(folder / "own.yaml")


def on_two_tasks(reference):
    """The reference with all it has of shapes_color again as shapes_place."""
    document = copy.deepcopy(reference)
    for value in document.values():
        if isinstance(value, dict) and "shapes_color" in value:
            value["shapes_place"] = copy.deepcopy(value["shapes_color"])
    return document


# The shipped data


def test_every_published_number_ships_once():
    tables = [load_table(name) for name in shipped_tables()]
    papers = [table for table in tables if not table.spec.own and table.spec.source != "mteb"]
    assert sum(len(table.numbers) for table in papers) == 1795 and len(papers) == 38
    text = (ROOT / "docs" / "published.md").read_text(encoding="utf-8")
    assert "1,795 numbers of 38 tables" in text
    listed = text.partition("| tables | source |")[2].partition("\n\n")[0]
    named = tuple(name.removesuffix("*") for name in re.findall(r"`([a-z_]+\*?)`", listed))
    assert all(table.name.startswith(named) for table in tables)
    for table in tables:
        keys = [(one.task, one.model, one.method, one.metric) for one in table.numbers]
        assert len(set(keys)) == len(keys), table.name
        assert {one.model for one in table.numbers} == set(table.spec.models), table.name


def test_the_numbers_are_those_that_were_typed_from_the_papers():
    if not SHARED.is_file():
        pytest.skip("the typed numbers are not at hand")
    columns = ("task", "model", "method", "metric", "percent", "std_percent", "ci95_low", "ci95_high")
    typed, more, shipped = [], [], []
    for rows, paths in (
        (typed, [SHARED]),
        (more, [SHARED.with_name("published-2.csv")]),
        (shipped, [table.csv for table in published_tables("all") if not table.name.startswith(LATER)]),
    ):
        for path in paths:
            with path.open(encoding="utf-8") as file:
                rows += [tuple(row[column] for column in columns) for row in csv.DictReader(file)]
    left = Counter(shipped) - Counter(typed)
    assert not Counter(typed) - Counter(shipped) and left.total() == len(shipped) - len(typed)
    assert not left - Counter(more), "a number that nobody typed"


def test_tables_name_models_and_tasks_that_are_here(registry):
    for name in shipped_tables():
        table = load_table(name)
        spec = table.spec
        for entry in spec.models.values():
            assert entry.model is None or registry.adapters[entry.model].name == entry.model
        for task, entry in spec.tasks.items():
            if entry.parts:
                assert set(entry.parts) <= set(spec.tasks), (name, task)
                continue
            if entry.why:
                assert task not in registry.task_files, (name, task)
                continue
            here = find_task(registry, task).spec
            assert entry.version == here.version, (name, task)
            assert here.group.n_groups in (entry.groups, None), (name, task)
            metrics = set()
            for one in table.numbers:
                if task in (one.task, *spec.tasks.get(one.task, TaskEntry()).parts):
                    known = {**spec.metrics, **spec.tasks[one.task].metrics}
                    metric, _, mean = known.get(one.metric, one.metric).partition("/")
                    metrics |= {metric} & set(registry.metrics)
                    assert not mean or mean in here.means, (name, one.task)
            assert metrics and metrics <= set(here.metrics), (name, task)
        for one in table.numbers if name in TTM_TABLES else ():
            if one.method == "ttm":
                assert spec.models[one.model].model in find_task(registry, one.task).spec.ttm, one
                assert one.seed_std is not None and one.n_seeds == 4
                assert spec.settings == {"ttm_preset": "paper"}


def test_raw_numbers_of_papers_are_whole_counts_of_groups_or_images(registry):
    """A number that no count of groups gives was typed wrongly, or is of other data."""
    for name in (*TTM_TABLES, "colorswap_table2", *LATER[1:]):
        table = load_table(name)
        for one in table.numbers:
            groups = table.spec.tasks[one.task].groups
            if one.column in ("raw", "SimpleMatch") and one.seed_std is None and groups and "macro" not in one.metric:
                of_queries = one.metric in ("global_assignment_accuracy", "text_accuracy", "image_accuracy")
                units = groups * (find_task(registry, one.task).spec.shape.images if of_queries else 1)
                nearest = round(one.value * units) / units
                assert abs(nearest - one.value) <= 10.0**-table.spec.decimals / 100 / 2 + 1e-9, (name, one)


# The rule


def measured(value, std=None, seeds=1) -> Number:
    return Number("t", "m", "none", value, seed_std=std, seeds=tuple(range(seeds)))


def test_the_rule_by_hand():
    group, digit = 1 / 200, 1e-4
    raw, one_run = measured(0.125), measured(0.8)
    assert tolerance(raw, raw, group, digit, Rule()) == pytest.approx(0.00505)
    assert tolerance(raw, raw, group, digit, Rule(groups=0)) == pytest.approx(0.00005)
    # Two standard deviations of 1 % over four seeds each: t(6) at 99.5 % is 3.7074.
    spread = measured(0.8, 0.01, 4)
    assert tolerance(spread, spread, group, digit, Rule()) == pytest.approx(3.7074 * 0.01 / 2**0.5 + 5e-5, rel=1e-4)
    # One seed has the paper's spread: t(3) at 99.5 % is 5.8409.
    expected = pytest.approx(5.8409 * 0.01 * 1.25**0.5 + 5e-5, rel=1e-4)
    assert tolerance(spread, one_run, group, digit, Rule()) == expected
    # A published number without spread is one run with ours.
    assert tolerance(raw, spread, group, digit, Rule()) == tolerance(spread, one_run, group, digit, Rule())
    # Printed as 0.00, nothing but a group may differ.
    for off, wanted in ((0, True), (1, True), (-1, True), (2, False), (-2, False)):
        published, ours = measured(0.1025), measured((41 + off) / 400)
        assert agrees(published.value, ours.value, tolerance(published, ours, 1 / 400, digit, Rule())) is wanted
    still = measured(0.9903, 0.0, 4)
    assert tolerance(still, measured(0.98, 0.05, 4), 1 / 103, digit, Rule()) == pytest.approx(1 / 103 + 5e-5)


def test_a_noisy_run_does_not_agree_by_its_noise():
    published = measured(0.725, 0.0064, 4)
    allowed = [tolerance(published, measured(0.6, std, 4), 1 / 400, 1e-4, Rule()) for std in (0.0064, 0.02, 0.1, 0.4)]
    assert allowed[0] < allowed[1] == allowed[2] == allowed[3] < 0.06


# Which runs are compared


def test_the_reference_run_reproduces_itself(reference, registry):
    rows = compare(numbers_of_first(), as_run(reference), registry)
    assert {row.verdict for row in rows} == {"agrees"} and len(rows) == 10
    by_key = {row.key: row for row in rows}
    stored = reference["results"]["shapes_color"]
    ours = by_key["group_match,ttm"].ours.number
    assert (ours.value, ours.seed_std) == (stored["group_match,ttm"], stored["group_match_seed_std,ttm"])
    assert ours.n_seeds == 4
    assert by_key["group_match,none"].number.column == "SimpleMatch"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"n-samples": {"shapes_color": {"original": 200, "effective": 8}}}, "8 groups, not 200"),
        ({"n-samples": {"shapes_color": {"original": 300, "effective": 300}}}, "300 groups, not 200"),
        ({"versions": {"shapes_color": 2}}, "task version 2, not 1"),
        ({"task_hashes": {"shapes_color": "other"}}, "other images or captions"),
        ({"config": {"model": "tiny-clip", "task_args": {"seed": 3}}}, "another source (seed=3)"),
    ],
)
def test_other_data_never_agree(reference, registry, change, why):
    rows = compare(numbers_of_first(), as_run(reference, **change), registry)
    assert {row.verdict for row in rows} == {"not comparable"} and {row.why for row in rows} == {why}
    newer = as_run(reference, **change, date=reference["date"] + 9)
    both = compare(numbers_of_first(), [*newer, *as_run(reference)], registry)
    assert {row.verdict for row in both} == {"agrees"}, "a comparable run goes before a newer one that is not"


def test_the_newest_comparable_run_counts(reference, registry):
    numbers = {"shapes_color": dict.fromkeys(reference["results"]["shapes_color"], 0.0)}
    older = as_run(reference, results=numbers, date=reference["date"] - 9)
    newer = as_run(reference, results=numbers, date=reference["date"] + 9)
    table = numbers_of_first()
    assert {row.verdict for row in compare(table, [*older, *as_run(reference)], registry)} == {"agrees"}
    assert {row.verdict for row in compare(table, [*as_run(reference), *newer], registry)} == {"differs"}


def test_of_a_task_of_unknown_size_the_whole_is_what_a_run_without_a_limit_finds(reference, registry):
    table, part = numbers_of_first(), {**reference}
    part["n-samples"] = {"shapes_color": {"original": 8, "effective": 8}}
    part |= {"configs": {"shapes_color": {}}, "config": {**reference["config"], "limit": 8}}
    sizeless = replace(table, spec=table.spec.model_copy(update={"tasks": {}}))
    (why,) = {row.why for row in compare(sizeless, [(Path("part.json"), part)], registry)}
    assert why == "8 groups, not all"


def test_a_model_is_known_by_what_loads_it(reference, registry):
    table = numbers_of_first()

    def missing(config):
        rows = compare(table, as_run(reference, config=config, model_name="x"), registry)
        return {row.verdict for row in rows} == {"missing"}

    assert not missing({"model": "tiny-clip", "model_args": {}})
    assert not missing({"model": "tiny-clip-seed1", "model_args": {"pretrained": "tiny_clip"}})
    assert missing({"model": "tiny-clip-seed1"})
    assert missing({"model": "tiny-clip", "model_args": {"pretrained": "tiny_clip_seed1"}})
    assert missing({"model": "not-registered"}) and missing({})
    no_answer = {"concurrency": 4, "max_cost": 5, "cache": "x"}
    assert not missing({"model": "tiny-clip", "model_args": no_answer})
    assert missing({"model": "tiny-clip", "model_args": {"score_as": "probability"}})
    hub_id = {"model": "hf", "model_args": dict(registry.adapters["clip-b32"].model_args)}
    document = {**reference, "config": hub_id}
    for key in (key for key, value in reference.items() if isinstance(value, dict) and "shapes_color" in value):
        document[key] = {"winoground": reference[key]["shapes_color"]}
    document["n-samples"] = {"winoground": {"original": 400, "effective": 400}}
    rows = compare(load_table("winoground_main"), as_run(document), registry)
    assert [row.ours is not None for row in rows] == [True] * 3 + [False] * 6, "clip-b32 by its hub id"


def test_settings_that_are_not_the_papers_are_said(reference, registry, tmp_path):
    table = numbers_of_first()
    document = json.loads(json.dumps(reference))
    document["methods"]["shapes_color"]["ttm"] |= {"seeds": [0], "notes": ["no learning rate is known for it"]}
    document["config"] |= {"ttm_args": {"lr": 0.1}, "ttm_preset": "paper", "dtype": "bf16"}
    row = next(row for row in compare(table, as_run(document), registry) if row.key == "group_match,ttm")
    assert row.ours.notes == (
        "computed in bf16",
        "TTM's preset was paper, not auto",
        "TTM's settings were changed (lr=0.1)",
        "no learning rate is known for it",
        "1 of 4 seeds",
    )


def test_a_mean_over_tasks_and_numbers_of_stored_answers(reference, registry, tmp_path):
    models = {"m": TINY, "stored": {"track": "forced_choice", "why": "gone", "names": ["answers"]}}
    rows = ["both,m,raw,text_score,40.3,", "shapes_color,stored,raw,text_score,9,"]
    tasks = {"both": {"mean_of": ["shapes_color", "shapes_place"]}}
    table = load_table(write_table(tmp_path, rows, decimals=1, tasks=tasks, models=models))
    document = on_two_tasks(reference)
    document["results"]["shapes_place"]["text_score,none"] = 0.5
    mean, stored = compare(table, as_run(document), registry)
    assert (mean.verdict, mean.tasks) == ("agrees", ("shapes_color", "shapes_place"))
    assert mean.ours.number.value == pytest.approx((0.305 + 0.5) / 2)
    assert (stored.verdict, stored.why) == ("cannot be run", "gone")
    del document["results"]["shapes_place"]
    assert compare(table, as_run(document), registry)[0].verdict == "missing", "half of a mean is none"
    answers = {**reference, "model_name": "answers", "results": {"shapes_color": {"text_score,choice": 0.09}}}
    assert compare(table, as_run(answers), registry)[1].verdict == "cannot be run", "a run with a model has a model"
    of_answers = {**reference["datasets"]["shapes_color"], "source": {"kind": "stored_scores"}}
    answers["datasets"] = {"shapes_color": of_answers}
    for name, verdict in (("answers", "agrees"), ("STO_red", "agrees"), ("answer-s", "cannot be run")):
        assert compare(table, as_run(answers, model_name=name), registry)[1].verdict == verdict, name


def test_a_kind_of_vl_checklist_is_its_mean_over_sources(registry):
    table = select(load_table("vl_compo_vl_checklist"), ["clip-b32"], ["vl_checklist_relation_action"])
    (published,) = (one.value for one in table.numbers)

    def verdict(of_rows, mean):
        numbers = ({"text_score": of_rows}, ("over_sources", {"text_score,none": mean}))
        document = raw_run("clip-b32", {"vl_checklist_relation_action": (3000, *numbers)})
        return [row.verdict for row in compare(table, as_run(document), registry)]

    assert verdict(0.1, published) == ["agrees"] and verdict(published, 0.1) == ["differs"]


def test_svo_probes_agrees_only_on_as_many_rows(registry):
    table = select(load_table("vl_compo_svo_probes"), ["clip-b32"], ["svo_probes_subj_neg"])
    other = select(load_table("fine_grained_svo_probes"), ["clip-b32"], ["svo_probes_all_micro"])

    def verdict(here, value, rows=5000, *, counted=True, task="svo_probes_subj_neg", table=table):
        document = raw_run("clip-b32", {task: (rows, {"image_score": value})})
        document["n-samples"][task]["effective"] = here
        if counted:
            document["datasets"][task] |= {"coverage": {"rows": rows, "here": here, "missing": []}}
        (row,) = compare(table, as_run(document), registry)
        return row.verdict, row.why

    assert verdict(3728, 0.840665) == ("agrees", "") and verdict(3728, 0.85) == ("differs", "")
    assert verdict(3700, 0.840665) == ("not comparable", "3700 groups, not 3728")
    assert verdict(3728, 0.840665, counted=False) == ("not comparable", "3728 of 5000 groups"), "--limit 3728"
    whole = {"task": "svo_probes", "table": other}
    assert verdict(36841, 0.816, 36841, **whole) == ("agrees", "")
    assert verdict(22162, 0.816, 36841, **whole) == ("not comparable", "22162 groups, not 36841")


# What is missing is run


def test_a_number_over_the_groups_of_several_tasks_counts_each_as_often_as_it_has_groups(reference, registry, tmp_path):
    pool = {"pool_of": ["shapes_color", "shapes_place"]}
    path = write_table(
        tmp_path,
        ["all,m,raw,accuracy,30.0,", "other,m,raw,accuracy,30.0,"],
        decimals=1,
        metrics={"accuracy": "text_score"},
        tasks={"all": pool, "other": {"pool_of": [*pool["pool_of"]], "metrics": {"accuracy": "group_score"}}},
        models={"m": TINY},
    )
    document = on_two_tasks(reference)
    document["results"]["shapes_color"] |= {"text_score,none": 0.2, "group_score,none": 0.1}
    document["results"]["shapes_place"] |= {"text_score,none": 0.6, "group_score,none": 0.1}
    document["n-samples"]["shapes_place"] = {"original": 600, "effective": 600}
    row, other = compare(load_table(path), as_run(document), registry)
    assert row.ours.number.value == pytest.approx((200 * 0.2 + 600 * 0.6) / 800)
    assert row.ours.group == pytest.approx(1 / 800) and row.key == "text_score,none"
    assert other.ours.number.value == pytest.approx(0.1) and other.key == "group_score,none"


def test_a_mean_is_never_over_two_checkpoints(reference, registry):
    """Each task's newest run is of another checkpoint; only the older ones are of one."""
    table = select(load_table("builtin"), ["tiny-clip"], ["shapes_color"])
    (number,) = [one for one in table.numbers if one.column == "raw" and one.metric == "text_score"]
    entry = TaskEntry(mean_of=["shapes_color", "shapes_place"])
    table = replace(table, numbers=[number], spec=table.spec.model_copy(update={"tasks": {"shapes_color": entry}}))

    def run(task, value, weights, date):
        document = json.loads(json.dumps(reference).replace("shapes_color", task))
        document["results"][task]["text_score,none"] = value
        document["model_info"]["fingerprint"]["weights_sha256"] = weights
        return Path(f"{task}_{weights}.json"), {**document, "date": date}

    documents = [run("shapes_color", 0.2, "one", 1), run("shapes_place", 0.4, "one", 2)]
    documents += [run("shapes_color", 0.9, "two", 3)]
    (row,) = compare(table, documents, registry)
    assert row.ours.number.value == pytest.approx(0.3) and "two" not in row.ours.file


def test_the_plan_loads_a_model_once_and_its_commands_parse(registry):
    table = load_table("ttm_table1")
    rows = compare(table, [], registry)
    runs = list(plan(table, rows, registry, {"output_path": "out dir", "offline": True, "include_path": ["a", "b"]}))
    assert [run.model for run in runs] == ["gpt-4.1", "clip-b16", "siglip-b16", "siglip-l16"]
    assert [run.paid for run in runs] == [True, False, False, False]
    assert "--model gpt-4.1 --model_args score_as=probability" in runs[0].commands[-1], "P(yes), as the paper has it"
    assert "--tasks winoground,colorswap " in runs[3].commands[-1]
    for run in runs:
        options = parse(shlex.split(run.commands[-1])[1:])
        assert options.output_path == "out dir" and options.offline and options.include_path == ["a", "b"]
        assert options.on_error == "continue"
        assert (options.methods, options.ttm_preset) == ((None, None) if run.paid else ("ttm", "paper"))
    (choice,) = (run for run in plan(*_missing("colorswap_table2", registry), {}) if run.model == "choice")
    assert "--model_args pretrained=llava-hf/llava-1.5-13b-hf,side_by_side=true" in choice.commands[0]
    # The loss of a caption counts the token that ends it (arXiv:2306.01879), and Table 4 has a single noise image.
    commands = [run.commands[0] for run in plan(*_missing("visualgptscore_table4", registry), {})]
    assert ["alpha=0," in commands[0], "alpha=1," in commands[1]] == [True, True], commands
    assert all("noise_images=1,end_token=true" in command for command in commands)


def _missing(name, registry):
    table = load_table(name)
    return table, compare(table, [], registry), registry


@pytest.fixture
def own_table(folder_task, tmp_path):
    """A table of a user's own: a task of six groups, the built-in model raw and adapted, from a run of its own."""
    folder = folder_task("mine")
    settings = {"iterations": 1, "epochs": 1}
    more = {"ttm": settings, "seeds": [0, 1], "device": "cpu", "bootstrap_iters": 0}
    numbers = ttmbench.simple_evaluate("tiny-clip", "mine", include_path=[str(folder)], **more).results["mine"]
    rows = [
        f"mine,theirs,{method},group_match,{100 * numbers[f'group_match,{key}']:.2f},{std}"
        for method, key, std in (("simple_match", "none", ""), ("ttm", "ttm", 1.0))
    ]
    path = write_table(
        tmp_path,
        [*rows, "mine,nobody's,raw,group_score,50,"],
        paper="[P]",
        runs=2,
        settings={"ttm_args": settings},
        tasks={"mine": {"groups": 6, "version": 1}},
        models={"theirs": TINY, "nobody's": {"track": "zero_shot", "why": "people"}},
    )
    return [path, "--runs", str(tmp_path / "runs"), "--include_path", str(folder)]


def test_what_is_missing_is_run_and_then_agrees(own_table, tmp_path, capsys):
    assert main(["reproduce", *own_table]) == 2 and "does not exist" in capsys.readouterr().err
    assert main(["reproduce", *own_table, "--dry_run"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("ttmbench run --model tiny-clip --tasks mine --ttm_preset auto --seeds 0,1 --ttm_args")
    assert not (tmp_path / "runs").exists()
    out = tmp_path / "rep.json"
    assert main(["reproduce", *own_table, "--run", "--device", "cpu", "-o", str(out)]) == 0, capsys.readouterr()
    text = capsys.readouterr().out
    assert "[P], S, T: percent" in text and "agrees 2, cannot be run 1" in text
    assert "cannot be run: people (mine nobody's)" in text
    document = json.loads(out.read_text())
    assert document["reproduced"] and document["counts"]["agrees"] == 2
    row = document["rows"][1]
    assert (row["key"], row["verdict"], row["ours"]["number"]["seeds"]) == ("group_match,ttm", "agrees", [0, 1])
    assert row["number"]["value"] == pytest.approx(row["ours"]["number"]["value"], abs=1e-4)
    assert main(["reproduce", *own_table, "--dry_run"]) == 0
    assert capsys.readouterr().out == "nothing is missing\n"
    (stored,) = (tmp_path / "runs").rglob("results_*.json")
    assert json.loads(stored.read_text())["command"].startswith("ttmbench run --model tiny-clip")


def test_what_fails_is_listed_and_the_rest_goes_on(own_table, tmp_path, capsys):
    spec = yaml.safe_load((tmp_path / "own.yaml").read_text())
    absent = {"track": "zero_shot", "model": "clip-b32", "model_args": {"pretrained": "./no-such-folder"}}
    spec["models"] = {"absent": absent, **spec["models"]}
    spec["models"]["dear"] = {"track": "zero_shot", "model": "gpt-4.1", "paid": True}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(spec))
    with (tmp_path / "own.csv").open("a") as file:
        file.write("S,T,mine,absent,raw,group_match,50,\nS,T,winoground,theirs,raw,group_match,50,\n")
        file.write("S,T,mine,dear,raw,group_match,50,\n")
    assert main(["reproduce", *own_table, *"--run --offline --device cpu --data_dir".split(), str(tmp_path)]) == 3
    out, err = capsys.readouterr()
    assert "failed: ttmbench run --model clip-b32" in out and "failed: ttmbench run --model tiny-clip" in out
    assert "failed: gpt-4.1: not run because its server is paid; --models gpt-4.1 runs it" in out
    assert "agrees 2, missing 3, cannot be run 1" in out and "3 of 6 numbers: missing" in err
    assert main(["reproduce", *own_table, "--allow_missing"]) == 0
    assert main(["reproduce", *own_table, "--models", "theirs", "--tasks", "mine"]) == 0


# The command


def test_the_tables_are_listed_and_shown(capsys):
    assert main(["reproduce"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in shipped_tables()) and "arXiv:2510.07632, Table 1" in out
    assert out.index("ttm_table2") < out.index("ttm_table6")
    assert main(["reproduce", "colorswap_table6"]) == 0
    out = capsys.readouterr().out
    assert "colorswap_random_foils" in out and "blip-itm on colorswap_random\n" in out and "99.67" in out


def test_the_builtin_table_and_its_exit_codes(tmp_path, capsys, reference):
    (tmp_path / "first.json").write_text(json.dumps(reference))
    (tmp_path / "half.json").write_text(json.dumps(reference)[:500])
    part = ["--models", "tiny-clip", "--tasks", "shapes_color"]
    assert main(["reproduce", "builtin", *part, "--runs", str(tmp_path), "--allow_missing"]) == 0
    out, err = capsys.readouterr()
    assert "15 numbers: agrees 10, missing 5" in out and "half.json: is not JSON" in err
    assert main(["reproduce", "builtin", *part, "--runs", str(tmp_path)]) == 3
    capsys.readouterr()
    reference["results"]["shapes_color"]["group_score,none"] = 0.9
    (tmp_path / "first.json").write_text(json.dumps(reference))
    assert main(["reproduce", "builtin", *part, "--runs", str(tmp_path), "--allow_missing"]) == 3
    assert "1 of 15 numbers: differs" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["reproduce", "builtin", "--runs", str(tmp_path / "empty"), "--allow_missing"]) == 3
    assert "no number agrees" in capsys.readouterr().err, "nothing compared is nothing reproduced"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ttm_tabel1"], "did you mean 'ttm_table1'"),
        (["builtin", "--run"], "--run needs --runs DIR"),
        (["builtin", "--runs", "no_such_folder"], "no_such_folder does not exist"),
        (["builtin", "--runs", __file__], "is a file"),
        (["builtin", "--models", "clip"], "builtin has no 'clip'; it has tiny-clip"),
        (["ttm_table1", "--tasks", "mmvp_vlm", "--models", "siglip-l16"], "no number of these models on these tasks"),
        (["nowhere.yaml"], "nowhere.yaml: cannot be read"),
    ],
)
def test_wrong_usage_says_what_is_right(words, message, capsys):
    assert main(["reproduce", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "numbers", "message"),
    [
        ({"numbers": "../own.csv"}, "", "not a file of the same folder"),
        ({"numbers": "absent.csv"}, "", r"absent\.csv: cannot be read"),
        ({"models": {"m": {"track": "zero_shot"}}}, "", "either 'model', its registered name, or 'why'"),
        ({"tasks": {"t": {"mean_of": ["a"], "pool_of": ["b"]}}}, "", "either a 'mean_of' tasks, or 'pool_of'"),
        ({"tasks": {"t": {"why": "x", "groups": 5}}}, "", "must have no other keys"),
        ({"models": {"m": {**TINY, "finetuned": {"tasks": ["t"]}}}}, "", "the track supervised, got zero_shot"),
        (
            {"models": {"m": {"track": "forced_choice", "why": "x"}}},
            HEAD + "s,t,k,m,ttm,x,1,\n",
            "the method 'raw', got",
        ),
        ({}, "a,b\n1,2\n", "no column 'source'"),
        ({"include": "own.csv"}, "[1\n", r"own\.csv: is not valid YAML"),
        ({}, HEAD + "s,t,k,m,guess,x,1,\n", "line 2: unknown method 'guess'"),
        ({}, HEAD + "s,t,k,m,raw,x,1,\ns,t,k,n,raw,x,1,\n", "line 3: model 'n' is not in the table's 'models'"),
        *(({}, f"{COUNTS}s,t,k,m,raw,x,,{counts}\n", "line 2: correct") for counts in ("5,4", "-1,4", "1,0", "x,4")),
        ({"include": "../_all.yaml"}, "", r"'include' is '\.\./_all\.yaml', which is not a file of the same folder"),
        ({}, HEAD + "s,t,k,m,raw,x,101,\n", "line 2: percent and std_percent must be from 0 to 100, .*'101'"),
    ],
)
def test_wrong_tables_are_told_by_file_and_place(tmp_path, change, numbers, message):
    path = write_table(tmp_path, [], **{"models": {"m": {"track": "zero_shot", "why": "x"}}, **change})
    (tmp_path / "own.csv").write_text(numbers)
    with pytest.raises(UsageError, match=message):
        load_table(path)


def test_the_keys_of_a_table_win_over_those_it_includes(tmp_path):
    shared = {name: {"track": "zero_shot", "why": name} for name in "mn"}
    included = {"decimals": 1, "rules": {"a": "shared", "b": "shared"}, "models": shared}
    (tmp_path / "_all.yaml").write_text(json.dumps(included))
    own = write_table(tmp_path, ["k,m,raw,x,25,"], include="_all.yaml", rules={"b": "own"})
    table = load_table(own)
    assert list(table.spec.models) == ["m"] and table.spec.rules == {"a": "shared", "b": "own"}
    assert (table.spec.decimals, table.numbers[0].value) == (1, 0.25)
    with Path(own).open("a") as file:
        file.write("paper: Q\n")
    with pytest.raises(UsageError, match=r"own\.yaml: is not valid YAML: .*'paper'"):
        load_table(own)


@pytest.mark.parametrize(
    ("table", "scored", "total"),
    [
        ("winoground_main", [("winoground", [f"winoground/{name}.jsonl"]) for name in ("clip", "human", "vinvl")], 9),
        (
            "fine_grained_retrieval",
            [
                (task, [f"retrieval_ranks/{data}_clipcap_coco_test_{side}.txt.npy" for side in ("i2t", "t2i")])
                for task, data in (("coco_retrieval", "coco"), ("flickr30k_retrieval", "flickr"))
            ],
            12,
        ),
    ],
)
def test_stored_scores_and_ranks_of_a_paper_give_its_numbers(table, scored, total, real_scores, tmp_path, capsys):
    for task, names in scored:
        files = [str(real_scores.parent / name) for name in names]
        assert main(["score", *files, "--task", task, "-o", str(tmp_path), "--bootstrap_iters", "0"]) == 0
    capsys.readouterr()
    models = ["--models", "clipcap-coco"] if total == 12 else []
    assert main(["reproduce", table, *models, "--runs", str(tmp_path)]) == 0, capsys.readouterr()
    assert f"{total} numbers: agrees {total}" in capsys.readouterr().out


def test_text_from_files_does_nothing_to_a_terminal(tmp_path, capsys, reference):
    rows = ["shapes_color,[bold]m,raw,group_score,12.5,"]
    path = write_table(tmp_path, rows, paper="[red]P[/red] \x1b[2J", models={"[bold]m": TINY})
    reference["config"]["dtype"] = "\x1b[31mred"
    (tmp_path / "x.json").write_text(json.dumps(reference))
    assert main(["reproduce", path, "--runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and r"[red]P[/red] \x1b[2J, S, T" in out and "[bold]m" in out and r"in \x1b[31mred" in out


def test_the_leaderboard_takes_tables_by_name(tmp_path, capsys):
    found = published_beside_runs(["visualgptscore_table1a", "hard_positives_table5"]).numbers
    assert {(one.task, one.metric) for one in found} >= {
        *(("aro_vg_relation/macro_48", "text_score"), ("hard_positives_replace", "brittleness")),
        ("hard_positives_swap", "original_accuracy"),
    }
    assert main(["leaderboard", str(tmp_path), "--published", "ttm_tabel1"]) != 0
    assert "ttm_tabel1" in capsys.readouterr().err


# Finetuned models


@pytest.fixture(scope="module")
def finetuned_rows(tmp_path_factory):
    """A table of a model as it is and finetuned, and a folder in which the command has run both."""
    folder = tmp_path_factory.mktemp("finetuned")
    tuned = {"tasks": ["small"], "groups": 24, "args": {"epochs": 1, "lr": 1e-6}}
    path = write_table(
        folder,
        [f"small,{model},raw,group_score,50," for model in ("as it is", "finetuned")],
        tasks={"small": {"groups": 24, "version": 1}},
        models={"as it is": TINY, "finetuned": {"model": "tiny-clip", "track": "supervised", "finetuned": tuned}},
    )
    (folder / "tasks").mkdir()
    (folder / "tasks" / "small.yaml").write_text(
        "task: small\nversion: 1\nsource: {kind: rendered, scene: color}\ngroup: {shape: [2, 2], n_groups: 24}\n"
        "metrics: [group_score, group_match]\n"
    )
    where = ["--include_path", str(folder / "tasks"), "--runs", str(folder / "runs")]
    words = ["reproduce", path, *where, "--device", "cpu"]
    assert main([*words, "--run", "-o", str(folder / "first.json")]) == 3, "no paper printed 50"
    return folder, words


def test_a_finetuned_model_is_made_run_and_compared(finetuned_rows, capsys):
    folder, words = finetuned_rows
    rows = json.loads((folder / "first.json").read_text())["rows"]
    assert [row["verdict"] for row in rows] == ["differs", "differs"]
    ours = [json.loads(Path(row["ours"]["file"]).read_text()) for row in rows]
    assert [one["track"] for one in ours] == ["matching", "supervised"]
    assert ours[1]["model_info"]["finetuned"]["base"]["model_args"] == {}
    assert ours[1]["model_info"]["finetuned"]["hyperparameters"]["epochs"] == 1
    measured = [one["results"]["small"]["group_score,none"] for one in ours]
    assert [row["ours"]["number"]["value"] for row in rows] == measured
    assert main([*words, "--dry_run"]) == 0
    assert capsys.readouterr().out.strip() == "nothing is missing"


def test_other_finetunings_are_no_run_of_the_row(finetuned_rows):
    folder, _ = finetuned_rows
    registry = build_registry([str(folder / "tasks")])
    table = load_table(str(folder / "own.yaml"))
    rows = json.loads((folder / "first.json").read_text())["rows"]
    document = json.loads(Path(rows[1]["ours"]["file"]).read_text())
    about = document["model_info"]["finetuned"]

    def verdict(**changes):
        info = {**document["model_info"], "finetuned": {**about, **changes}}
        found = compare(table, [(Path("x.json"), {**document, "model_info": info})], registry)
        assert found[0].verdict == "missing", "the model as it is was not run"
        return found[1].verdict, found[1].why, found[1].ours.notes if found[1].ours else ()

    assert verdict() == ("differs", "", ())
    assert verdict(preset="colorswap")[0] == "missing"
    assert verdict(base={**about["base"], "model": "tiny-clip-seed1"})[0] == "missing"
    assert verdict(base={**about["base"], "model_args": {"pretrained": "mine"}})[0] == "missing"
    part = [{**about["tasks"][0], "groups": 16}]
    assert verdict(tasks=part)[:2] == ("not comparable", "finetuned on 16 groups, not 24")
    changed = {**about["hyperparameters"], "lr": 0.5}
    assert verdict(hyperparameters=changed)[2] == ("finetuning's settings were changed (lr=0.5)",)


def test_tables_of_finetuned_models_say_what_to_run(tmp_path, capsys):
    for name in ("colorswap_table3", "colorswap_table4"):
        found = {model: entry for model, entry in load_table(name).spec.models.items() if entry.finetuned is not None}
        assert {entry.model for entry in found.values()} == {"clip-b32", "blip-itc", "blip-itm"}
        assert main(["reproduce", name, "--runs", str(tmp_path), "--models", "blip-itm", "--dry_run"]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
        assert lines[-2].startswith("ttmbench finetune --model blip-itm --tasks colorswap_train --preset colorswap ")
        where = lines[-2].rpartition(" ")[2]
        assert f"ttmbench run --model blip-itm --model_args pretrained={where} --tasks " in lines[-1]


def test_a_table_may_have_test_time_methods(tmp_path, capsys, monkeypatch):
    """The plan names them with the table's settings, and a run of them is compared in their tracks."""
    lines = ["shapes_color,tiny,sinkhorn,group_score,74.0,", "shapes_color,tiny,tent,group_match,99.0,"]
    path = write_table(
        tmp_path,
        lines,
        settings={"ttm_args": {"lr": 1e-5}, "method_args": {"tent.lr": 1e-4, "zero.views": 8}, "seeds": [0]},
        tasks={"shapes_color": {"groups": 200}},
        models={"tiny": TINY},
    )
    out, runs = tmp_path / "rep.json", tmp_path / "runs"
    assert main(["reproduce", path, "--runs", str(runs), "--dry_run"]) == 0
    command = capsys.readouterr().out
    assert "--methods sinkhorn,tent" in command and "--method_args tent.lr=0.0001" in command and "zero" not in command
    assert "--ttm_preset" not in command and " --ttm " not in command
    monkeypatch.setattr("ttmbench.methods.runner.DRAWS", dict.fromkeys(("scores", "features", "views"), 4))
    words = ["run", "--model", "tiny-clip", "--tasks", "shapes_color", "--methods", "sinkhorn,tent", "--seeds", "0"]
    assert main([*words, "--method_args", "tent.lr=1e-3", "--output_path", str(runs)]) == 0
    main(["reproduce", path, "--runs", str(runs), "-o", str(out)])
    rows = {row["key"]: row for row in json.loads(out.read_text())["rows"]}
    tracks = {"group_score,sinkhorn": "matching", "group_match,tent": "test_time"}
    assert {key: row["number"]["track"] for key, row in rows.items()} == tracks
    assert rows["group_score,sinkhorn"]["ours"]["number"]["value"] is not None
    assert "settings of tent were changed (tent.lr=0.001)" in rows["group_match,tent"]["ours"]["notes"]
