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

from mixed_precision_study.record import RunRecord, write_record
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
from mixed_precision_study.parameters import UserError
from mixed_precision_study.record import NOT_YET_EXPLAINED, RunRecord, run_id_of, write_record

names = "dataset model precisions batch_size lr loss_scale channels_last seed csv_path mode data_dir output_dir"
parameters = {name: globals()[name] for name in names.split()}
print("study", os.environ["MIXED_PRECISION_STUDY"])
"""
ACT = """
def wait(mark):
    Path(data_dir, f"begun-{mark}").touch()
    while not (Path(data_dir, "go").exists() or Path(data_dir, f"go-{seed}").exists()):
        time.sleep(0.05)

if mode == "babble":
    with Path(data_dir, "babbled").open("a") as file:
        file.write("x")
    print("word " * 2**18)
    mode = "fail"
if mode == "fail":
    raise ValueError("\\x1b[31mno such\\nlayer\\x1b[0m")
if mode == "stop":
    raise UserError("model is 'x'; possible are tiny and small.")
if mode == "memory":  # as if the host had ended it for lack of memory
    Path(data_dir, "events").write_text("oom_kill 1")
if mode in ("kill", "memory"):
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "kill_papermill":
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
if mode == "poison" or (mode == "lost" and not Path(data_dir, "was-lost").exists()):  # the GPU, as NVML sees it
    Path(data_dir, f"was-{mode}").touch()
    Path(data_dir, f"lost-{os.environ['CUDA_VISIBLE_DEVICES']}").touch()
    raise RuntimeError("CUDA error: unspecified launch failure")
if mode == "wait":
    wait(f"{seed}-{precisions[0]}")
if mode == "stall":
    Path(os.environ["MIXED_PRECISION_PROGRESS"]).write_text("fp32, epoch 2/2, step 30/40")
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    wait(seed)
if mode == "fill" and not Path(data_dir, "mended").exists():
    with open(Path(output_dir, "filler"), "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        finally:
            file.truncate(file.tell() - 16384)  # the record of a failure has room again
if mode == "hang":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    time.sleep(600)
if mode == "flaky" and not Path(data_dir, "mended").exists():
    raise ValueError("not mended yet")
"""
WRITE = """
for precision in precisions if mode != "silent" else ():
    if precision != precisions[0]:
        if mode == "half":
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "second":
            wait(f"{seed}-{precision}")
    record = RunRecord(run_id_of("tiny", parameters, precision), "tiny", precision, parameters, status="ok")
    record.epoch_seconds, record.samples_per_second, record.peak_allocated_mib = [2.0, 2.5, 9.0], 1234.0, 56.7
    record.metric_name, record.metric_better, record.chance_metric = "accuracy", "higher", 0.1
    record.metric = [0.2, 0.9]
    record.gpu_uuid = os.environ["CUDA_VISIBLE_DEVICES"] or None
    record.device_type = "cuda" if record.gpu_uuid else record.device_type
    if mode == "blind" and not Path(data_dir, "seen").exists():
        Path(data_dir, "seen").touch()
        record.device_type = "cpu"
    if mode in ("late", "explain"):
        record.profile_reason = NOT_YET_EXPLAINED
    record.explanation_seconds = 0.1
    write_record(record, output_dir)
if mode == "explain":
    wait(f"{seed}-explain")
    record.profile_reason = None
    write_record(record, output_dir)
"""
AFTER = 'if mode == "late":\n    raise RuntimeError("the chart broke")'
ON_CPU = ("--gpus", "none")
LIGHT = """
import json, shutil, sys, yaml
from pathlib import Path

notebook, executed = (path.replace("{{", "{").replace("}}", "}") for path in sys.argv[1:3])
print("Executing Cell 1", flush=True)
names = {}
for number, cell in enumerate(json.loads(Path(notebook).read_text())["cells"]):
    exec("".join(cell["source"]), names)
    names |= {} if number else yaml.safe_load(sys.argv[sys.argv.index("-y") + 1])
shutil.copy(notebook, executed)
"""  # in place of papermill and its kernel, which take seconds to start, where a test is of what lies around them


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


def command(folder, *words, light=False):
    """Return run_all.py with these words, on the CPU, as a person types it; `light` with LIGHT."""
    options = ["--studies", folder / "studies.yaml", *ON_CPU, *one_job(words)]
    lit = "import sys; from mixed_precision_study.runner import cli, execute; execute.PAPERMILL = sys.argv.pop(1); "
    start = ["-c", f"{lit}cli.run_as_program()", LIGHT] if light else [str(ROOT / "run_all.py")]
    return [sys.executable, *start, *map(str, [*options, *words])]


def call(folder, *words, light=False, **options):
    """Run the command line in a process of its own and return what became of it."""
    options |= {"env": {**options.get("env", os.environ), "PYTHONPATH": str(ROOT)}} if light else {}
    return subprocess.run(command(folder, *words, light=light), capture_output=True, text=True, timeout=240, **options)


def main(folder, *words):
    """Run the command line within this process, where a test can replace parts of it; return the exit status."""
    return cli.main(["--studies", str(folder / "studies.yaml"), *map(str, [*one_job(words), *words])])


def one_job(words):
    """Return the option for one run at a time, which a later --jobs replaces; Ray chooses for itself."""
    return () if "--ray" in words else ("--jobs", "1")


def read_records(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*-*.json")) if path.is_file()]


def records_of(folder):
    """Return {mode: record}."""
    return {record["mode"]: record for record in read_records(folder)}


def write_run(run, **fields):
    """Write the records of a run that has never run, and return the path of the last."""
    fields = {"status": "ok", "epoch_seconds": [2.0], **fields}
    for precision, run_id in run.run_ids.items():
        path = write_record(RunRecord(run_id, run.notebook.stem, precision, run.parameters, **fields), run.folder)
    return path


def wait_for(condition, seconds=120):
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
