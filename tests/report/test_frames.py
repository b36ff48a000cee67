"""The tables of made-up records: what belongs together, and what a spreadsheet gets."""

import csv
import io
import itertools
import math
import statistics

import made_up_records as made_up
import pytest
from drawn_reports import failures_in, flat, parts_of, read_all, write_all

from mixed_precision_study.judge.ratios import paired_ratio
from mixed_precision_study.report import results
from mixed_precision_study.report.section import Table
from mixed_precision_study.report.tables import read_tables


def run(precision, seconds=3.0, repeat=0, seed=0, **fields):
    parameters = {"repeat": repeat, "seed": seed, **fields.pop("parameters", {})}
    times = {"seconds": [seconds] * 3, **fields}
    return made_up.make("cifar_resnet", precision, parameters=parameters, **times)


HOSTS = (2.0, 3.0, 8.0, 4.0, 2.0)  # ratios, each of two processes that scatter


def test_from_five_hosts_on_an_eager_interval_is_over_hosts():
    """With three or four they have a range, and graphs an interval, as committed pages say."""
    pairs = []
    for (host, one), part in itertools.product(enumerate(HOSTS), (1.1, 1 / 1.1)):
        where = {"host_id": f"host{host}", "gpu_uuid": f"GPU-{host}"}
        pairs.append([flat(run("tf32", 16.0 / (one * part), **where))])
        pairs[-1].append(flat(run("fp32", 16.0, **where)))
    found = paired_ratio(pairs)
    logarithms = list(map(math.log, HOSTS))
    half = math.exp(2.776445 * statistics.stdev(logarithms) / math.sqrt(5))
    middle = math.exp(statistics.fmean(logarithms))
    ends = [middle / half, middle * half]
    assert [found[name] for name in ("ratio", "low", "high")] == pytest.approx([3, *ends], rel=1e-5)
    assert (found["hosts"], found["processes"]) == (5, 10)


def test_stochastic_rounding_is_lent_baselines_that_are_equal(tmp_path):
    settings = (("nearest", 0.1), ("stochastic", 0.1), ("stochastic", 1.0))
    nearest, stochastic, other = (
        {"parameters": {"rounding": way, "lr": rate}} for way, rate in settings
    )
    runs = [run(name, 4.0, **nearest) for name in ("fp32", "tf32", "amp_bf16", "bf16_true")]
    found = read_all(
        tmp_path, *runs, run("bf16_true", 5.0, **stochastic), run("bf16_true", 8.0, **other)
    )
    ways = [(one["rounding"], one["lr"]) for one in found.comparisons.settings]
    lent, strange = (ways.index(one) for one in settings[1:])
    own = found.ratios[found.ratios.comparison == lent].set_index(["precision", "baseline"]).ratio
    assert own.to_dict() == pytest.approx(
        {("tf32", "fp32"): 1, ("bf16_true", "fp32"): 0.8, ("bf16_true", "tf32"): 0.8}
    )
    assert strange not in set(found.ratios.comparison)  # another learning rate is lent nothing
    assert len(found.trainings) == 6 + 2 and found.trainings.record.map(id).nunique() == 6


def test_a_run_that_only_explains_gives_none_of_its_times(tmp_path):
    timed = {"purpose": "time", "explained": False}
    runs = [
        run(name, time, repeat, **timed)
        for repeat in range(3)
        for name, time in (("fp32", 6.0), ("tf32", 3.0))
    ]
    explaining = run("tf32", 99.0, 3, purpose="explain")
    found = read_all(tmp_path, *runs, explaining)
    rows = found.trainings
    assert found.ratios[["ratio", "processes"]].values.tolist() == [[2.0, 3]]
    assert rows[rows.explains].timed.tolist() == [False] and rows[rows.timed].seconds.max() == 6.0
    alone = read_all(tmp_path / "alone", explaining)
    assert alone.trainings.comparison.tolist() == [-1] and failures_in(alone) == []


def test_of_machines_with_one_run_id_only_the_stuck_is_marked(tmp_path):
    for machine, metric in (("learned", [0.5, 0.9]), ("stuck", [0.1, 0.1])):
        gpu = {**made_up.H200, "gpu_uuid": machine}
        good = made_up.make("cifar_resnet", "fp32", device=gpu, metric=[0.5, 0.9])
        write_all(
            tmp_path / machine,
            good,
            made_up.make("cifar_resnet", "amp_fp16", device=gpu, metric=metric),
        )
    found = read_tables(tmp_path)
    diverged = [one for one in found.trainings.record if one["status"] == "diverged"]
    assert (len(found.trainings), len(found.comparisons), found.left_out) == (4, 1, [])
    assert [(one["gpu_uuid"], one["precision"]) for one in diverged] == [("stuck", "amp_fp16")]


def test_a_table_has_no_formula_and_eight_digits(tmp_path):
    texts = {
        "note": "=HYPERLINK(1)",
        "=1+1": "@SUM(1)",
        "-2": "+3",
        "tab": "\t=1",
        "number": -0.5,
        "plain": "a=1",
        "shares": [[0.123456789012]],
    }
    content = read_all(tmp_path, made_up.make("cifar_resnet", "fp32", parameters=texts)).csv()[
        "trainings.csv"
    ]
    rows = list(csv.reader(io.StringIO(content.decode())))
    assert not [
        cell
        for row in rows
        for cell in row
        if cell.startswith(("=", "+", "@", "\t")) or cell == "-2"
    ]
    row = dict(zip(*rows, strict=True))
    expected = {"'=1+1": "'@SUM(1)", "number": "-0.5", "plain": "a=1", "shares": "[[0.12345679]]"}
    assert {name: row[name] for name in expected} == expected


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "records.zip/one.json", "javascript:alert(1)", "gone.json"]
)
def test_what_cannot_be_linked_to_has_no_link(tmp_path, path):
    found = read_all(tmp_path, run("fp32"))
    found.trainings["path"] = path
    (table,) = parts_of(results.numbers_section(found), Table)
    assert table.links == [""]
