"""Runs that share a process: each has a record of its own, and what a process did not come to is made by the next."""

import json
import os
import re
import signal
import subprocess

import pytest
import yaml
from mixed_precision_study.runner.scheduler import companions_of, with_companions
from tiny_suite import PARAMETERS, START, call, command, entry, read_records, wait_for, write_notebook

from mixed_precision_study.errors import UserError
from mixed_precision_study.runner import process, ray_cluster
from mixed_precision_study.runner.plan import Run
from mixed_precision_study.runner.studies import load_studies

SEEDS = """
if mode == "apple" and "amp_bf16" in precisions:
    os.kill(os.getpid(), signal.SIGKILL)
for own in (seed, *more_seeds):
    if mode == "dies" and own == 2 and not Path(data_dir, "mended").exists():
        Path(data_dir, "mended").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "hang" and own == 2:
        time.sleep(600)
    given = {**parameters, "seed": own}
    for precision in precisions:
        record = RunRecord(run_id_of("tiny", given, precision), "tiny", precision, given, status="ok")
        record.epoch_seconds = [2.0]
        record.process_id = str(os.getpid())
        write_record(record, output_dir)
"""
STUDIES = {
    "together": {"one_process_for": "seeds", "runs": [entry("ok", precisions=["fp32", "amp_bf16"])]},
    "precisions": {"one_process_for": "precisions", "runs": [entry("ok", precisions=["fp32", "amp_bf16"])]},
    "apple": {"one_process_for": "precisions", "runs": [entry("apple", precisions=["amp_bf16", "fp32"])]},
    "dies": {"one_process_for": "seeds", "runs": [entry("dies")]},
    "hang": {"one_process_for": "seeds", "runs": [entry("hang")]},
    "alone": {"runs": [entry("ok")]},
}


@pytest.fixture
def suite(tmp_path):
    """A notebook that trains `more_seeds`, and studies of four seeds. On a CPU nothing is swept: they are entries."""
    studies = {
        name: {**study, "runs": [with_seed(one, seed) for one in study["runs"] for seed in range(4)]}
        for name, study in STUDIES.items()
    }
    (tmp_path / "studies.yaml").write_text(yaml.safe_dump(studies))
    write_notebook(tmp_path / "tiny.ipynb", f"{PARAMETERS}\nmore_seeds = []", START, SEEDS)
    return tmp_path


def with_seed(one, seed):
    return {**one, "cpu": {**one["cpu"], "seed": seed}}


def processes_of(records):
    """Return {process: seeds that it trained}."""
    found = {}
    for record in sorted(records, key=lambda record: record["seed"]):
        found.setdefault((record["precision"], record["process_id"]), []).append(record["seed"])
    return sorted(found.values())


def test_one_process_trains_all_seeds_of_a_precision_and_each_run_counts(suite):
    done = call(suite, "together", "--output-dir", suite / "out")
    assert done.returncode == 0, done.stdout
    records = read_records(suite / "out")
    assert processes_of(records) == [[0, 1, 2, 3], [0, 1, 2, 3]]
    lines = done.stdout.splitlines()
    assert sum(line.endswith("begins") for line in lines) == 2
    assert sum("  ok  " in line and line.startswith("[") for line in lines) == 8
    assert any(line.startswith("[8/8]") for line in lines)
    seconds = json.loads((suite / "out" / "logs" / "batch.json").read_text())["run_seconds"]
    assert seconds.keys() == {record["run_id"] for record in records}
    again = call(suite, "together", "--output-dir", suite / "out")
    assert "8 finished already" in again.stdout and "begins" not in again.stdout


def test_seeds_that_a_process_did_not_come_to_are_trained_by_the_next(suite):
    done = call(suite, "dies", "--output-dir", suite / "out", "-p", "data_dir", suite)
    assert done.returncode == 0, done.stdout
    records = read_records(suite / "out")
    assert {record["status"] for record in records} == {"ok"}
    seeds = processes_of(records)
    assert sorted(seed for some in seeds for seed in some) == [0, 1, 2, 3]
    assert len(seeds) == 2  # the seeds before the one that died stay as they are


def test_only_the_seeds_without_a_record_are_said_to_be_run_again(suite):
    out = suite / "out"
    runner = subprocess.Popen(
        command(suite, "hang", "--output-dir", out), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wait_for(lambda: len(read_records(out)) == 2)
        os.killpg(runner.pid, signal.SIGINT)
        said, _ = runner.communicate(timeout=60)
    finally:
        runner.kill()
    (line,) = [line for line in said.splitlines() if line.startswith("stopped, and to be run again: ")]
    assert re.findall(r"-s(\d)-", line) == ["2", "3"]


def test_without_the_key_each_seed_has_a_process_of_its_own(suite):
    assert call(suite, "alone", "--output-dir", suite / "out").returncode == 0
    assert processes_of(read_records(suite / "out")) == [[0], [1], [2], [3]]


def test_one_process_trains_all_precisions_of_a_repetition(suite):
    done = call(suite, "precisions", "--output-dir", suite / "out")
    assert done.returncode == 0, done.stdout
    records = read_records(suite / "out")
    assert len(records) == 8
    for seed in range(4):
        assert len({record["process_id"] for record in records if record["seed"] == seed}) == 1
    assert len({record["process_id"] for record in records}) == 4
    assert done.stdout.count("begins") == 4


def test_a_precision_that_ends_the_shared_process_costs_no_other_its_record(suite):
    """Nobody knows which of them it was, so each gets a process of its own."""
    done = call(suite, "apple", "--output-dir", suite / "out")
    assert done.returncode == 1
    status = {(record["seed"], record["precision"]): record["status"] for record in read_records(suite / "out")}
    assert status == {
        (seed, name): "killed" if name == "amp_bf16" else "ok" for seed in range(4) for name in ("amp_bf16", "fp32")
    }
    assert done.stdout.count("each run now gets one of its own") == 4


def run_of(folder, name, shares, precision="fp32", **parameters):
    """Return a run of the tiny notebook."""
    given = {"seed": 0, "more_seeds": [], "lr": 0.1, "precisions": [precision], **parameters}
    return Run(name, folder / "tiny.ipynb", precision, given, folder, 1.0, 0, shares)


@pytest.mark.parametrize(("shares", "together"), [("seeds", ["b", "d"]), ("precisions", ["e"]), ("", [])])
def test_only_runs_that_differ_in_nothing_else_share_a_process(tmp_path, shares, together):
    others = [
        run_of(tmp_path, "b", shares, seed=1),
        run_of(tmp_path, "c", shares, seed=1, lr=0.2),
        run_of(tmp_path, "d", shares, seed=2),
        run_of(tmp_path, "e", shares, precision="tf32"),
        run_of(tmp_path, "f", shares, precision="tf32", seed=1),
    ]
    run = run_of(tmp_path, "a", shares)
    found = companions_of(run, others)
    assert [one.run_id for one in found] == together
    given = with_companions(run, found)
    assert given.run_id == "a"
    assert given.parameters["more_seeds"] == ([1, 2] if shares == "seeds" else [])
    assert given.parameters["precisions"] == (["fp32", "tf32"] if shares == "precisions" else ["fp32"])


def test_a_notebook_that_cannot_train_more_seeds_shares_none(tmp_path):
    runs = [run_of(tmp_path, name, "seeds", seed=seed) for seed, name in enumerate("ab")]
    for run in runs:
        del run.parameters["more_seeds"]
    assert companions_of(runs[0], runs[1:]) == []


@pytest.mark.parametrize("value", ["models", True])
def test_an_unknown_kind_of_sharing_is_refused_in_one_sentence(tmp_path, value):
    path = tmp_path / "studies.yaml"
    path.write_text(yaml.safe_dump({"odd": {"one_process_for": value, "runs": [entry()]}}))
    with pytest.raises(UserError, match="one_process_for` as seeds or precisions"):
        load_studies(path)


def test_a_cluster_gives_each_seed_a_process_of_its_own():
    assert process.SHARES_PROCESSES
    assert not hasattr(ray_cluster.Cluster, "SHARES_PROCESSES")
