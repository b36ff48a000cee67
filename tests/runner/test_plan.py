"""The order of the runs of a comparison, what each is made for, and that an interrupted study goes on as planned."""

import itertools
import json
import os
import stat
from pathlib import Path

import pytest
from conftest import EXPERIMENTS, NOTEBOOKS, ROOT
from mixed_precision_study.runner.process import child_environment
from mixed_precision_study.runner.scheduler import unfinished
from tiny_suite import PARAMETERS, START, WRITE, call, read_records, write_notebook, write_suite

from mixed_precision_study.errors import UserError
from mixed_precision_study.record import RunRecord, comparison_key, run_id_of, write_record
from mixed_precision_study.runner import process
from mixed_precision_study.runner.plan import Run, in_order, plan
from mixed_precision_study.runner.status import row, short_name
from mixed_precision_study.runner.studies import load_studies, parse_overrides

STUDIES = load_studies(NOTEBOOKS / "studies.yaml")
REPEATED = ("reference", "ladder")


def planned(study, *pairs, folder=ROOT / "outputs", on_gpu=True):
    """Return the comparisons of a study of studies.yaml with these -p options."""
    return plan(STUDIES[study], NOTEBOOKS, folder, parse_overrides(pairs), on_gpu)[0]


def purposes(runs):
    return [run.parameters["purpose"] for run in runs]


def write_run(run, **fields):
    record = RunRecord(run.run_id, run.notebook.stem, run.precision, run.parameters, status="ok", **fields)
    write_record(record, run.folder)


@pytest.mark.parametrize(
    ("study", "pairs", "processes", "modes"), [("reference", [], 3, 8), ("quick", [("repeats", "5")], 5, 4)]
)
def test_several_processes_are_timed_alone_and_one_more_explains_after_all_of_them(study, pairs, processes, modes):
    for runs in planned(study, *pairs):
        assert purposes(runs) == ["time"] * modes * processes + ["explain"] * modes
        assert [run.order for run in runs] == list(range(len(runs)))
        explaining = runs[modes * processes :]
        assert {run.precision for run in explaining} == {"fp32", "tf32", "amp_fp16", "amp_bf16"}
        assert len({run.run_id for run in runs}) == len(runs)
        for run in runs:
            assert run.run_id == run_id_of(run.notebook.stem, run.parameters, run.precision)


@pytest.mark.parametrize("pairs", [[], [("repeats", "2")]])
def test_one_or_two_processes_do_both(pairs):
    for runs in planned("quick", *pairs):
        assert set(purposes(runs)) == {"all"}
        for run in runs:  # under the name that it has always had
            older = {name: value for name, value in run.parameters.items() if name != "purpose"}
            assert run.run_id == run_id_of(run.notebook.stem, older, run.precision)


def test_a_purpose_that_is_given_is_kept():
    for runs in planned("aa"):
        assert purposes(runs) == ["aa"] * 24
        assert len({run.precision for run in runs}) == 1
    for runs in planned("reference", ("purpose", "time")):
        assert purposes(runs) == ["time"] * 24


@pytest.mark.parametrize("study", REPEATED)
def test_no_run_begins_two_repetitions_one_after_the_other(study):
    for runs in planned(study):
        timed = [run for run in runs if run.parameters["purpose"] == "time"]
        assert [run.parameters["repeat"] for run in timed] == sorted(run.parameters["repeat"] for run in timed)
        repeats = itertools.groupby(timed, lambda run: run.parameters["repeat"])
        firsts = [next(block) for _, block in repeats]
        kinds = [{**first.parameters, "repeat": None, "precisions": first.precision} for first in firsts]
        assert len(firsts) == 3
        assert kinds[0] != kinds[1] != kinds[2]


def test_the_steps_of_a_ladder_are_mixed_and_go_to_one_device():
    comparisons = planned("ladder")
    assert {runs[0].notebook.stem for runs in comparisons} == set(EXPERIMENTS)
    assert len(comparisons) == 3
    for runs in comparisons:
        blocks = [[run for run in runs if run.parameters["repeat"] == number] for number in range(3)]
        kinds = [{(run.precision, run.parameters["execution"]) for run in block} for block in blocks]
        assert kinds[0] == kinds[1] == kinds[2]
        assert len(kinds[0]) >= 5


def test_the_order_does_not_depend_on_what_is_finished_or_on_the_folder(tmp_path):
    runs = planned("quick", ("repeats", "3"), folder=tmp_path)[0]
    for run in runs[::2]:
        write_run(run, epoch_seconds=[1.0], explanation_seconds=1.0)
    again = planned("quick", ("repeats", "3"), folder=tmp_path)[0]
    assert again == runs
    assert unfinished(again) == runs[1::2]
    longer = planned("quick", ("repeats", "5"), folder=tmp_path / "other")
    (longer,) = [other for other in longer if other[0].notebook == runs[0].notebook]
    assert [run.run_id for run in longer[:12]] == [run.run_id for run in runs[:12]]


def test_comparisons_have_orders_of_their_own():
    orders = {tuple(run.precision for run in runs) for runs in planned("reference")}
    assert len(orders) == 3


def test_repetitions_come_one_after_the_other_in_whatever_order_they_are_asked_for(tmp_path):
    runs = [
        Run(f"{purpose}{number}", tmp_path / "n.ipynb", "fp32", {"repeat": number, "purpose": purpose}, tmp_path, 1.0)
        for purpose, number in (("explain", 0), ("time", 2), ("time", 0), ("time", 1))
    ]
    ordered = in_order(runs, "a")
    assert [run.run_id for run in ordered] == ["time0", "time1", "time2", "explain0"]
    assert [run.order for run in ordered] == [0, 1, 2, 3]


def test_a_run_is_told_its_place_by_its_environment(tmp_path, monkeypatch):
    assert child_environment("a", tmp_path, order=0)["MIXED_PRECISION_ORDER"] == "0"
    monkeypatch.setenv("MIXED_PRECISION_ORDER", "5")  # of a study that starts another one
    assert "MIXED_PRECISION_ORDER" not in child_environment("a", tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="elsewhere the usual folder is the user's own")
def test_compiled_code_lies_where_no_other_user_can_put_any(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache" / "mixed_precision_study").mkdir(parents=True, mode=0o777)
    folder = Path(child_environment("a", tmp_path)["TORCHINDUCTOR_CACHE_DIR"])
    assert folder.parent.parent == tmp_path / "cache" and stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(UserError, match="belongs to another user"):
        child_environment("a", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")  # without a home each run keeps it in its private folder
    assert "TORCHINDUCTOR_CACHE_DIR" not in child_environment("a", tmp_path)


@pytest.mark.parametrize(
    ("devices", "given", "threads"), [(1, None, None), (2, None, "4"), (16, None, "1"), (2, "3", "3")]
)
def test_runs_at_a_time_share_the_cores(tmp_path, monkeypatch, devices, given, threads):
    monkeypatch.setattr(process.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(process, "SHARED", {})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    process.share_cores(devices)
    assert child_environment("a", tmp_path).get("OMP_NUM_THREADS") == threads


def test_what_explains_shows_no_times(tmp_path):
    run = planned("reference")[0][-1]
    assert short_name(run).endswith(" explained")
    record = {"status": "ok", "epoch_seconds": [1.5], "samples_per_second": 10.0, "peak_allocated_mib": 7.0}
    assert row(record)[1:4] == ("1.5", "10", "7")
    assert row({**record, "purpose": "explain"})[1:4] == ("", "", "7")


@pytest.mark.slow
def test_a_study_runs_in_the_planned_order_and_goes_on_in_it(tmp_path):
    """Two precisions, three timed processes and one that explains each; the first records are lost in between."""
    entry = {"notebook": "turns", "cpu": {"repeats": 3}}
    folder = write_suite(tmp_path, {"turns": [entry]})
    start = START.replace(" mode ", " mode repeats repeat purpose ")
    parameters = PARAMETERS + '\nrepeats = 1\nrepeat = 0\npurpose = "all"\n'
    write_notebook(folder / "turns.ipynb", parameters, start, WRITE.replace('"tiny"', '"turns"'))
    output = tmp_path / "out"
    (runs,), _ = plan({"runs": [entry]}, folder, output, {}, on_gpu=False)
    done = call(folder, "turns", "--output-dir", output)
    assert done.returncode == 0, done.stdout + done.stderr
    records = {record["run_id"]: record for record in read_records(output)}
    assert [records[run.run_id]["order_in_comparison"] for run in runs] == list(range(8))
    assert [records[run.run_id]["purpose"] for run in runs] == ["time"] * 6 + ["explain"] * 2
    assert len({comparison_key(record) for record in records.values()}) == 1
    places = [done.stdout.index(f"{run.run_id}  begins") for run in runs]
    assert places == sorted(places)
    for run in (runs[4], runs[1]):
        run.record_path.unlink()
    again = call(folder, "turns", "--output-dir", output)
    begun = [line.split()[1] for line in again.stdout.splitlines() if line.endswith("  begins")]
    assert begun == [runs[1].run_id, runs[4].run_id]
    assert json.loads(runs[4].record_path.read_text())["order_in_comparison"] == 4
