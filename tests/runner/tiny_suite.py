"""A tiny notebook that writes real records or ends in every other way, and the command line to start it."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import yaml

from mixed_precision_study.runner import cli

ROOT = Path(__file__).resolve().parents[2]
WORKER = "PYTEST_XDIST_WORKER"
DEAD = psutil.STATUS_ZOMBIE
PARAMETERS = """
dataset = "auto"  # "auto" or a name
model = "tiny"
precisions = ["fp32", "amp_bf16"]
batch_size = 4  # samples
lr = 0.1
loss_scale = "dynamic"
channels_last: bool = False
seed = 0
csv_path = ""
mode = "ok"
data_dir = "data"
output_dir = "outputs/tiny"
"""
START = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
from mixed_precision_study.errors import UserError
from mixed_precision_study.record import RunRecord, run_id_of, write_record

names = "dataset model precisions batch_size lr loss_scale channels_last seed csv_path mode data_dir output_dir"
parameters = {name: globals()[name] for name in names.split()}
print("study", os.environ["MIXED_PRECISION_STUDY"])
"""
ACT = """
if mode == "fail":
    raise ValueError("\\x1b[31mno such\\nlayer\\x1b[0m")
if mode == "stop":
    raise UserError("model is 'x'; possible are tiny and small.")
if mode == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "kill_papermill":
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
if mode == "freeze":
    os.kill(os.getpid(), signal.SIGSTOP)
if mode == "kill_actor":
    import psutil
    psutil.Process().parents()[1].kill()
    time.sleep(600)
if mode == "poison":
    raise RuntimeError("CUDA error: an illegal instruction was encountered")
if mode == "lost" and os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-0":
    raise RuntimeError("CUDA error: unspecified launch failure")
if mode == "wait":
    Path(data_dir, f"begun-{seed}-{precisions[0]}").touch()
    while not (Path(data_dir, "go").exists() or Path(data_dir, f"go-{seed}").exists()):
        time.sleep(0.05)
if mode == "stall":
    Path(os.environ["MIXED_PRECISION_PROGRESS"]).write_text("fp32, epoch 2/2, step 30/40")
    time.sleep(600)
if mode == "train":
    from mixed_precision_study.progress import progress
    with progress(40, f"{precisions[0]}, epoch 2/2", seconds=0.1) as bar:
        for _ in range(30):
            bar.advance()
        Path(data_dir, f"begun-{seed}-{precisions[0]}").touch()
        while not Path(data_dir, "go").exists():
            time.sleep(0.05)
if mode in ("fill", "nearly") and not Path(data_dir, "mended").exists():
    with open(Path(output_dir, "filler"), "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        finally:
            if mode == "nearly":  # the record of a failure has room again
                file.truncate(file.tell() - 16384)
if mode in ("nan", "memory"):
    import torch
    from mixed_precision_study.errors import Diverged
    from mixed_precision_study.experiment import guarded
    record = RunRecord(run_id_of("tiny", parameters, precisions[0]), "tiny", precisions[0], parameters)
    with guarded(record, output_dir, torch.device("cpu")):
        if mode == "memory":
            torch.zeros(2**50)
        record.train_loss.append((torch.zeros(()) / 0).item())
        raise Diverged("the training loss is not finite after 1 steps")
if mode == "download":
    from mixed_precision_study.data import wikitext
    wikitext.WIKITEXT_URL = Path(data_dir).resolve().as_uri() + "/"
    wikitext.download_wikitext(Path(data_dir, "wikitext-2"))
if mode == "hang":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    time.sleep(600)
if mode == "flaky" and not Path(data_dir, "mended").exists():
    raise ValueError("not mended yet")
"""
WRITE = """
for precision in precisions if mode not in ("silent", "nan", "memory") else ():
    record = RunRecord(run_id_of("tiny", parameters, precision), "tiny", precision, parameters, status="ok")
    record.epoch_seconds, record.samples_per_second, record.peak_allocated_mib = [2.0, 2.5, 9.0], 1234.0, 56.7
    record.metric_name, record.metric_better, record.chance_metric = "accuracy", "higher", 0.1
    record.metric = [0.2, 0.9]
    if mode == "flat" and precision != "fp32":
        record.metric = [0.1, 0.1]
    record.gpu_uuid = os.environ["CUDA_VISIBLE_DEVICES"] or None
    record.explanation_seconds = 0.1
    write_record(record, output_dir)
"""
AFTER = 'if mode == "late":\n    raise RuntimeError("the chart broke")'
ON_CPU = ("--gpus", "none")


def write_notebook(path, *sources):
    """Write a notebook whose first cell is tagged `parameters`."""
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in sources]
    cells[0].metadata["tags"] = ["parameters"]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), path)


def entry(mode="ok", **values):
    """Return an entry of a study: one run of the tiny notebook on the CPU."""
    return {"notebook": "tiny", "cpu": {"precisions": ["fp32"], "mode": mode, **values}}


def write_suite(folder, studies):
    """Write the tiny notebook, and beside it the studies as {name: list of entries}; return the folder."""
    (folder / "studies.yaml").write_text(yaml.safe_dump({name: {"runs": runs} for name, runs in studies.items()}))
    write_notebook(folder / "tiny.ipynb", PARAMETERS, START, ACT, WRITE, AFTER)
    return folder


def command(folder, *words):
    """Return run_all.py with these words, on the CPU, as a person types it."""
    options = ["--studies", folder / "studies.yaml", *ON_CPU]
    return [sys.executable, str(ROOT / "run_all.py"), *map(str, [*options, *words])]


def call(folder, *words, **options):
    """Run the command line in a process of its own and return what became of it."""
    return subprocess.run(command(folder, *words), capture_output=True, text=True, timeout=240, **options)


def main(folder, *words):
    """Run the command line within this process, where a test can replace parts of it; return the exit status."""
    return cli.main(["--studies", str(folder / "studies.yaml"), *map(str, words)])


def as_other_user(code, *words):
    """Run Python as a user who owns nothing here, and return what it said. Only root can.

    The rights are dropped within the process, for that user may not be allowed to start this Python.
    """
    drop = "import fcntl, os, shutil, socket, sys\nos.setgroups([])\nos.setgid(65534)\nos.setuid(65534)\n"
    words = [sys.executable, "-I", "-c", drop + code, *map(str, words)]
    done = subprocess.run(words, cwd="/", capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_records(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*-*.json")) if path.is_file()]


def records_of(folder):
    """Return {mode: record}."""
    return {record["mode"]: record for record in read_records(folder)}


def wait_for(condition, seconds=60):
    """Wait until the condition holds and return what it returned."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def begun(folder):
    """Return the marks of the runs that have begun to wait for the file `go` in their data folder."""
    return list(folder.glob("begun-*"))


def survivors(study):
    """Return the live processes that the tests of this process started for a study; others test beside it."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            same_worker = environment.get(WORKER) == os.environ.get(WORKER)
            if environment.get("MIXED_PRECISION_STUDY") == study and same_worker and process.status() != DEAD:
                found.append(process)
        except psutil.Error:
            continue
    return found
