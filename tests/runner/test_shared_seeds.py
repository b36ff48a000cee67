"""Seeds that share a process: each has a record of its own, and what a process did not come to is made by the next."""

import json

import pytest
import yaml
from tiny_suite import PARAMETERS, START, call, entry, read_records, write_notebook

from mixed_precision_study.runner import process, ray_cluster
from mixed_precision_study.runner.plan import Run
from mixed_precision_study.runner.scheduler import companions_of

SEEDS = """
for own in (seed, *more_seeds):
    if mode == "dies" and own == 2 and not Path(data_dir, "mended").exists():
        Path(data_dir, "mended").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    given = {**parameters, "seed": own}
    for precision in precisions:
        record = RunRecord(run_id_of("tiny", given, precision), "tiny", precision, given, status="ok")
        record.epoch_seconds = [2.0]
        record.process_id = str(os.getpid())
        write_record(record, output_dir)
"""
STUDIES = {
    "together": {"seeds_share_a_process": True, "runs": [entry("ok", precisions=["fp32", "amp_bf16"])]},
    "dies": {"seeds_share_a_process": True, "runs": [entry("dies")]},
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


def test_without_the_key_each_seed_has_a_process_of_its_own(suite):
    assert call(suite, "alone", "--output-dir", suite / "out").returncode == 0
    assert processes_of(read_records(suite / "out")) == [[0], [1], [2], [3]]


def test_only_runs_that_differ_in_nothing_but_the_seed_share_a_process(tmp_path):
    def run(name, shares=True, **parameters):
        return Run(
            name, tmp_path / "tiny.ipynb", "fp32", {"seed": 0, "lr": 0.1, **parameters}, tmp_path, 1.0, 0, shares
        )

    others = [run("b", seed=1), run("c", seed=1, lr=0.2), run("d", seed=2)]
    assert [one.run_id for one in companions_of(run("a"), others)] == ["b", "d"]
    assert companions_of(run("a", shares=False), others) == []


def test_a_cluster_gives_each_seed_a_process_of_its_own():
    assert process.SHARES_PROCESSES
    assert not hasattr(ray_cluster.Cluster, "SHARES_PROCESSES")
