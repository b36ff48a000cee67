"""The scripts of benchmarks/ in their tiny forms on the CPU, and the arithmetic of their tables."""

import itertools
import json
import math
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from statistics import fmean

import attention_error
import equal_runs
import made_up_records as made_up
import numpy as np
import peers
import pytest
import run_seconds
import seeds_needed
import simulate
from conftest import ENVIRONMENT, ROOT
from made_up_runs import timed

from mixed_precision_study.judge.equivalence import EQUIVALENT, quality_difference
from mixed_precision_study.store.reading import read_records
from mixed_precision_study.store.record import new_record, write_record


def test_ratios_of_contenders_pair_one_round_on_one_gpu():
    cell, _, theirs, ours = peers.CELLS[0]
    speeds = [
        ("0", "a", 100, 110),
        ("1", "a", 100, 121),
        ("0", "b", 50, 55),
        ("2", "b", 60, None),
        ("3", "a", None, 999),
        ("3", "b", 1, None),
    ]  # of two GPUs, so no pair
    rows = []
    for number, gpu, one, other in speeds:
        for contender, speed in ((theirs, one), (ours, other)):
            rows += (
                [{"round": number, "contender": contender, "speed": str(speed), "gpu": gpu}]
                if speed
                else []
            )
    (row,) = peers.peers_of(rows)
    logs = [math.log(1.1), math.log(1.21), math.log(1.1)]
    # Student's 97.5% quantile of two degrees of freedom
    half = 4.303 * np.std(logs, ddof=1) / math.sqrt(3)
    assert (row["cell"], row["peer"], row["n"]) == (cell, theirs, 3)
    assert [float(row[name]) for name in ("theirs", "ours")] == [100, 110]
    expected = [math.exp(fmean(logs) + shift) for shift in (0, -half, half)]
    assert [float(row[name]) for name in ("ratio", "low", "high")] == pytest.approx(
        expected, rel=1e-3
    )


def test_rounds_alternate_and_go_on_after_a_failure(tmp_path, monkeypatch, capsys):
    order, together = [], []

    def measure(contenders, options):
        together.append(len(contenders))
        for one in contenders:
            order.append(one)
            yield one, None if one == failing else 8.0 if one.startswith("timm") else 10.0

    monkeypatch.setattr(peers, "measure", measure)
    words = [
        str(tmp_path),
        "--timm",
        str(tmp_path),
        "--tiny",
        "--rounds",
        "0",
        "1",
        "--abreast",
        "3",
    ]
    monkeypatch.setattr(sys, "argv", ["peers.py", *words])
    cells = [cell for cell in peers.CELLS if cell[2].startswith("timm")]
    contenders = list(dict.fromkeys(contender for cell in cells for contender in cell[2:]))
    failing = contenders[0]
    peers.main()
    assert order == contenders + contenders[::-1] and together == [2, 2, 3, 1]
    order, failing = [], None
    peers.main()
    assert order == [contenders[0]] * 2
    assert [(row["ratio"], row["n"]) for row in peers.rows_in(tmp_path / "peers.csv")] == [
        ("1.25", "2")
    ] * len(cells)


@pytest.mark.parametrize("scatter", simulate.SCATTERS, ids=lambda scatter: scatter.name)
def test_intervals_cover_and_equal_precisions_seldom_differ(scatter):
    """Of 200 draws the share of covering intervals scatters by 1.5%."""
    cell = simulate.simulate(scatter, 3, 2, 200)
    assert cell.coverage > 0.9 and max(cell.false, cell.wrongly_same) < 0.1
    assert (cell.half_width < 0.03) == (scatter.processes < 0.01)
    assert simulate.simulate(scatter, 5, 2, 100).half_width < 0.7 * cell.half_width
    bad = cell._replace(coverage=0.9, false=0.07, wrongly_same=0.07, half_width=0.04)
    assert len(simulate.problems_of(bad)) == (4 if scatter.processes < 0.01 else 3)


@pytest.mark.parametrize("machines, by_chance", [(4, 0.125), (6, 0.031)])
def test_machines_that_agree_by_chance_tell_no_side(machines, by_chance):
    """Four have a range, which never tells a side, and six have an interval, which errs in 5%."""
    over = simulate.over_machines(simulate.SCATTERS[2], machines, 200)
    assert over.one_side == pytest.approx(by_chance, abs=0.06)
    assert over.told == 0 if machines == 4 else 0 < over.told < 0.1


@pytest.mark.parametrize("scatter, margin", [(0.002, 0.002), (0.02, 0.02), (0.012, 0.02)])
def test_the_needed_seeds_find_equal_precisions_equivalent(scatter, margin):
    draw = random.Random(0)
    one = {"metric_name": "accuracy", "metric_better": "higher", "metric_margin": margin}
    one["metric_margin_is_share"] = False
    base = dict.fromkeys(range(seeds_needed.seeds_needed(scatter, margin)), 0.5)
    studies = [{seed: 0.5 + draw.gauss(0, scatter) for seed in base} for _ in range(1000)]
    found = [quality_difference(own, base, one)["outcome"] for own in studies].count(EQUIVALENT)
    assert seeds_needed.POWER - 0.06 < found / 1000 < seeds_needed.POWER + 0.1
    assert [seeds_needed.seeds_needed(*case) for case in ((0.0, 0.02), (1.0, 0.002))] == [5, None]


@pytest.mark.parametrize("script", ["seeds_needed.py", "equal_runs.py", "run_seconds.py"])
def test_a_folder_without_such_records_gets_one_sentence(tmp_path, script):
    command = [sys.executable, ROOT / "benchmarks" / script, tmp_path / "none"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2) and done.stdout == "" and done.stderr.count("\n") == 1


def test_the_tables_say_what_a_pilot_and_equal_runs_need(tmp_path):
    for seed, (precision, shift) in itertools.product(
        range(4), (("fp32", 0.0), ("amp_bf16", 0.001))
    ):
        values = {"parameters": {"seed": seed}, "shift": shift * (-1) ** seed}
        write_record(made_up.make("cifar_resnet", precision, **values), tmp_path / "pilot")
    for number in range(8):
        parameters = {"repeat": number, "execution": "eager"}
        one = made_up.make("cifar_resnet", "amp_bf16", seconds=[6.0] * 3, parameters=parameters)
        write_record(one, tmp_path / "equal")
    (row,) = seeds_needed.needs_of(read_records(tmp_path / "pilot")[0])
    assert (row.model, row.precision, row.metric, row.seeds) == (
        "resnet18, eager",
        "amp_bf16",
        "accuracy",
        4,
    )
    assert row.scatter == pytest.approx(0.001 * 2 / math.sqrt(3))
    cells = (
        equal_runs.table(read_records(tmp_path / "equal")[0])
        .splitlines()[-1]
        .strip("| ")
        .split(" | ")
    )
    assert cells[0] == "resnet18 on cifar10, batch 128, eager, amp_bf16"
    assert cells[1:] == ["8", "6.00 (6.00 to 6.00)", "0.0%", "0.0%, which cannot err, of 16"]


def equal(count=24, scatter=0.1, drift=0.0, seed=0, seconds=10.0, **fields):
    """Return equal runs in their order.

    Their times scatter by a share, and grow by `drift` from first to last.
    """
    draw = np.random.default_rng(seed).normal(0, scatter, count)
    runs = []
    for number in range(count):
        factor = math.exp(draw[number] + drift * number / count)
        facts = {
            "order_in_comparison": number,
            "started_at": f"2026-01-01T00:{number:02}:00+00:00",
            **fields,
        }
        parameters = {"purpose": "aa", "repeat": number}
        runs.append(timed(np.full((3, 10), seconds * factor / 10), "amp_bf16", parameters, **facts))
    return runs


@pytest.mark.parametrize("drift", [0.0, 0.4])
def test_equal_runs_differ_about_as_often_as_promised(drift, monkeypatch):
    """A hundred splits of one set of 24 show the true rate within 3%, so those of eight sets do
    within 1%.
    """
    monkeypatch.setattr(equal_runs, "MOST_SPLITS", 100)
    rates = [
        equal_runs.false_positive_rate(equal(drift=drift, seed=seed))["rate"] for seed in range(8)
    ]
    assert 0.02 < fmean(rates) < 0.08, rates


def test_a_change_from_block_to_block_is_no_difference(monkeypatch):
    monkeypatch.setattr(equal_runs, "MOST_SPLITS", 1000)
    rates = []
    for factors in ([1 + n // 4 for n in range(18)], [1 + n % 2 / 2 for n in range(18)]):
        runs = [equal(1, 1e-5, seconds=10.0 * factor)[0] for factor in factors]
        found = equal_runs.false_positive_rate(runs)
        assert found["processes"] == 16  # two do not fill a block
        rates.append(found["rate"])
    assert rates[0] == 0 and rates[1] > 0.02
    assert equal_runs.false_positive_rate(runs[:7]) is None
    short = equal_runs.false_positive_rate(equal(count=8, seconds=0.01))
    assert (short["rate"], short["splits"], short["error"]) == (None, 0, None)


def test_the_error_of_a_rate_is_that_of_leaving_out_a_block():
    """Where all that is called different rests on one block, the rate is no better known than
    that.
    """
    runs = equal()
    odd = {id(run) for run in runs[4:8]}
    found = equal_runs.false_positive_rate(
        runs, lambda pairs: any(id(own) in odd for own, _ in pairs)
    )
    assert (found["rate"], found["error"]) == pytest.approx((2 / 3, 2 / 3), abs=0.05)


def test_equal_runs_are_one_run_on_one_gpu_in_their_order():
    first, elsewhere, other_code = equal(3), equal(2, gpu_uuid="GPU-2"), equal(2, code_hash="abc")
    groups = equal_runs.equal_runs(
        [*reversed(first), *elsewhere, *other_code, *equal(1, status="failed")]
    )
    assert sorted(map(len, groups)) == [2, 2, 3]
    assert first in groups


OF_A_RUN = {
    "dataset": "cifar10",
    "model": "resnet18",
    "execution": "eager",
    "batch_size": 128,
    "seed": 0,
}


def rows_of(folder, seconds, *lines):
    """Return {name of a row: {column: value}} of the table of a folder whose runs took
    `seconds`.
    """
    (folder / "logs").mkdir()
    (folder / "logs/batch.json").write_text(json.dumps({"run_seconds": seconds}))
    (folder / "logs/batch.log").write_text("\n".join(lines))
    return {row["run"]: row for row in run_seconds.medians(run_seconds.rows_of(folder))}


def write_training(folder, run_id, precision="fp32", parameters=(), **fields):
    facts = {"status": "ok", "epoch_seconds": [4.0], **fields, "run_id": run_id}
    write_record(
        new_record("cifar_resnet", {**OF_A_RUN, **dict(parameters)}, precision, facts), folder
    )


def test_the_parts_of_a_run_add_up_to_the_whole(tmp_path):
    parts = {
        f"startup_{part}_seconds": 1.0
        for part in ("import", "preflight", "data", "model", "warmup")
    }
    # The search is within the warm-up, so it counts once.
    write_training(
        tmp_path,
        "a-run",
        **parts,
        epoch_seconds=[2.0, 2.5],
        search_seconds=0.5,
        evaluation_seconds=1.5,
    )
    began = datetime(2026, 5, 1, 12, 0, 0, 500_000).astimezone()
    first_cell = (began + timedelta(seconds=1.5)).astimezone(UTC)
    times = {"start_time": first_cell.isoformat(), "duration": 15.0}
    (tmp_path / "a-run.ipynb").write_text(json.dumps({"metadata": {"papermill": times}}))
    lines = [
        "2026-05-01 11:00:00,000  gpu0  a-run  begins",
        "2026-05-01 12:00:00,500  gpu0  a-run  begins",
    ]
    cells = rows_of(tmp_path, {"a-run": 20.0}, *lines)["cifar_resnet resnet18 eager fp32"]
    known = {
        "whole": 20,
        "training": 4.5,
        "evaluation": 1.5,
        "start": 1.5,
        "end": 3.5,
        "search": 0.5,
        "explanation": None,
    }
    assert {name: cells[name] for name in known} == known
    assert cells["rest"] == pytest.approx(15 - 5 - 4.5 - 1.5)
    assert run_seconds.table_of([cells]).splitlines()[2].endswith("| 4.0 | 0.5 | - |")


def test_attention_in_16_bits_errs_as_its_format_rounds():
    rows = {(row["kernel"], row["format"]): row for row in attention_error.rows_of([64], "cpu")}
    assert set(rows) == set(itertools.product(attention_error.KERNELS, attention_error.FORMATS))
    assert "viable" in rows["cudnn", "bf16"]["reason"]
    assert rows["math", "fp32"]["chosen"] == "FLASH_ATTENTION"  # PyTorch's own of the CPU
    for part in attention_error.PARTS:
        fp32, bf16, fp16 = (float(rows["math", name][part]) for name in ("fp32", "bf16", "fp16"))
        assert fp32 < 2**-20 and 2**-11 < bf16 < 2**-7
        assert bf16 == pytest.approx(8 * fp16, rel=0.3)  # three bits of mantissa
