"""A tiny notebook that writes real records or ends in every other way, and the command line to
start it.
"""

import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import nbformat
import psutil
import yaml

from mixed_precision_study.runner import cli
from mixed_precision_study.runner.folder import FOLDER_ENV
from mixed_precision_study.store.record import flat_record, load, new_record, write_record

ROOT = Path(__file__).resolve().parents[2]
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
ACT = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
from mixed_precision_study.parameters import UserError, planned
from mixed_precision_study.store.record import NOT_YET_EXPLAINED, new_record, write_record

parameters = planned().parameters

def wait(mark):
    Path(data_dir, f"begun-{mark}").touch()
    while not (Path(data_dir, "go").exists() or Path(data_dir, f"go-{seed}").exists()):
        time.sleep(0.05)

if mode == "fail" or (mode == "flaky" and not Path(data_dir, "mended").exists()):
    raise ValueError("\\x1b[31mno such\\nlayer\\x1b[0m")
if mode == "stop":
    raise UserError("model is 'x'; possible are tiny and small.")
if mode == "memory":  # as if the host had ended it for lack of memory
    Path(data_dir, "events").write_text("oom_kill 1\\n")
if mode in ("kill", "memory"):
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "kill_papermill":
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
if mode == "lost":  # the GPU, as NVML sees it
    Path(data_dir, f"lost-{os.environ['CUDA_VISIBLE_DEVICES']}").touch()
    raise RuntimeError("CUDA error: unspecified launch failure")
if mode == "wait":
    wait(seed)
if mode == "stall":
    Path(os.environ["MIXED_PRECISION_PROGRESS"]).write_text("fp32, epoch 2/2, step 30/40")
if mode in ("hang", "stall"):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    wait(seed)
if mode == "fill" and not Path(data_dir, "mended").exists():
    with open(Path(output_dir, "filler"), "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        finally:
            file.truncate(file.tell() - 20480)  # the record of a failure has room again
"""
WRITE = """
for precision in precisions if mode != "silent" else ():
    if precision != precisions[0]:
        if mode == "half":
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "second":
            wait(f"{seed}-{precision}")
    record = new_record("tiny", parameters, precision, {"status": "ok"})
    record.epoch_seconds, record.samples_per_second, record.peak_allocated_mib = [2.0, 2.5, 9.0], 1234.0, 56.7
    record.metric_name, record.metric_better, record.chance_metric = "accuracy", "higher", 0.1
    record.metric = [0.2, 0.9]
    record.gpu_uuid = os.environ["CUDA_VISIBLE_DEVICES"] or None
    record.device_type = "cuda" if record.gpu_uuid and mode != "blind" else "cpu"
    if mode in ("late", "explain"):
        record.profile_reason = NOT_YET_EXPLAINED
    record.explanation_seconds = 0.1
    write_record(record, output_dir)
if mode == "explain":
    wait(f"{seed}-explain")
    record.profile_reason = None
    write_record(record, output_dir)
if mode == "late":
    raise RuntimeError("the chart broke")
"""
LIGHT = """
import json, shutil, sys, yaml
from pathlib import Path

notebook, executed = (path.replace("{{", "{").replace("}}", "}") for path in sys.argv[1:3])
names = {}
for number, cell in enumerate(json.loads(Path(notebook).read_text())["cells"]):
    exec("".join(cell["source"]), names)
    names |= {} if number else yaml.safe_load(sys.argv[sys.argv.index("-y") + 1])
shutil.copy(notebook, executed)
"""  # in place of papermill and its kernel, which take seconds to start, where a test is of what lies around them


def write_notebook(path, *sources, before=None):
    """Write a notebook whose first cell, after that with the source `before`, is tagged
    `parameters`.
    """
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in sources]
    cells[0].metadata["tags"] = ["parameters"]
    cells[:0] = [nbformat.v4.new_code_cell(before)] if before else []
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), path)


def entry(mode="ok", **values):
    """Return an entry of a study: one run of the tiny notebook in fp32, on the CPU as on a GPU."""
    parameters = {"precisions": ["fp32"], "mode": mode, **values}
    return {"notebook": "tiny", "parameters": parameters, "cpu": parameters}


def write_suite(folder, studies, act=ACT):
    """Write the tiny notebook, and beside it the studies as {name: list of entries}; return the
    folder.

    The runs of a study whose name begins with "one" go to one device.
    """
    written = {
        name: {"runs": runs, "interleaved": name.startswith("one")}
        for name, runs in studies.items()
    }
    (folder / "studies.yaml").write_text(yaml.safe_dump(written))
    write_notebook(folder / "tiny.ipynb", PARAMETERS, act, WRITE)
    return folder


def command(folder, *words, light=False, root=ROOT):
    """Return run_all.py with these words, on the CPU, as a person types it; `light` with LIGHT."""
    options = ["--studies", folder / "studies.yaml", *on_cpu(words)]
    begin = (
        f"import sys; sys.path.insert(0, {str(root)!r}); from mixed_precision_study.runner "
        "import cli, execute; "
    )
    lit = [
        "-c",
        (
            f"{begin}execute.NOTEBOOK_PROCESS = ('-c', {LIGHT!r}); cli.summarise = lambda *_: True; "
            "cli.run_as_program()"
        ),
    ]
    start = lit if light else [str(root / "run_all.py")]
    return [sys.executable, *start, *map(str, [*options, *words])]


def call(folder, *words, light=False, **options):
    """Run the command line in a process of its own and return what became of it."""
    return subprocess.run(
        command(folder, *words, light=light), capture_output=True, text=True, timeout=240, **options
    )


def main(folder, *words):
    """Run the command line within this process, where a test can replace parts of it; return the
    exit status.

    No report is drawn where no notebook for it lies beside the studies, because the clone's takes
    many seconds.
    """
    drawn = patch.object(cli, "summarise", lambda *_: True)
    with nullcontext() if (folder / "summary.ipynb").exists() else drawn:
        return cli.main(
            ["--studies", str(folder / "studies.yaml"), *map(str, [*on_cpu(words), *words])]
        )


def on_cpu(words):
    """Return options for one run at a time on the CPU, which later ones replace; with Ray its
    number is not given.
    """
    return ("--gpus", "none", *(() if "--ray" in words else ("--jobs", "1")))


def read_records(folder):
    return [flat_record(load(path)) for path in sorted(folder.glob("*-*.json")) if path.is_file()]


def records_of(folder):
    """Return {mode: record}."""
    return {record["settings"]["mode"]: record for record in read_records(folder)}


def write_run(run, **fields):
    """Write the records of a run that has never run, and return the path of the last."""
    fields = {"status": "ok", "epoch_seconds": [2.0], **fields}
    for parameters, precision in run.trainings.values():
        path = write_record(
            new_record(run.notebook.stem, parameters, precision, fields), run.folder
        )
    return path


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def survivors(folder):
    """Return the live processes that were started for an output folder, or for one below it."""
    found = []
    for process in psutil.process_iter():
        try:
            place = process.environ().get(FOLDER_ENV, "")
            if (
                Path(folder) in (Path(place), *Path(place).parents)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found
