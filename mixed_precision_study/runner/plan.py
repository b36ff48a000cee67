"""What a batch is asked to do: studies, the notebooks' own parameters, the runs they make, the devices there are."""

import ast
import contextlib
import functools
import io
import itertools
import json
import math
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import yaml

from notebook_code import code_cells, hash_of

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "notebooks"))
from record import run_id_of  # noqa: E402

PRECISION_NAMES = ("fp32", "tf32", "amp_fp16", "amp_bf16", "o2_fp16", "o3_fp16")
NEEDED = ("dataset", "model", "precisions", "batch_size", "seed", "data_dir", "output_dir")
PATHS = ("data_dir", "csv_path")  # given with -p they are relative to the folder the user stands in
ENTRY_KEYS = {"notebook": str, "parameters": dict, "sweep": dict, "cpu": dict, "minutes": (int, float)}
TYPE_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)  # of what JSON and Python hold
LONGEST_NAME = 200  # letters of a run's name: files hold 255 bytes of it, the ending and a number included
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class Mistake(Exception):
    """A request that cannot be met; the message is one sentence that says what is possible."""


class Device(NamedTuple):
    """A GPU, or a share of the CPU; `visible` is what CUDA_VISIBLE_DEVICES becomes for its runs."""

    index: int
    label: str
    visible: str = ""
    name: str = "CPU"


class Run(NamedTuple):
    """One notebook with one set of parameters and one precision, and where its results go."""

    run_id: str
    notebook: Path
    precision: str
    parameters: dict  # all of them, exactly as the notebook gets them
    folder: Path
    minutes: float  # rough, on one H200

    @property
    def record_path(self):
        return self.folder / f"{self.run_id}.json"

    @property
    def log_path(self):
        return self.folder / "logs" / f"{self.run_id}.log"

    @property
    def code_hash(self):
        return code_hash(self.notebook, self.notebook.stat().st_mtime_ns)


def place(path):
    """Return `path` relative to this file's folder where it lies below, so that no record names a machine's folder."""
    path = Path(path).resolve()
    return (path.relative_to(ROOT) if path.is_relative_to(ROOT) else path).as_posix()


def load_studies(path):
    """Return {name: study} of a studies file; raise Mistake where its form is wrong."""
    try:
        studies = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Mistake(f"{path} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise Mistake(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
    form = "the form is explained at the head of notebooks/studies.yaml"
    if not isinstance(studies, dict) or not studies:
        raise Mistake(f"{path} must map names to studies; {form}.")
    for name, study in studies.items():
        entries = study.get("runs") if isinstance(study, dict) else None
        if not PLAIN_NAME.fullmatch(str(name)) or not isinstance(entries, list) or not entries:
            raise Mistake(f"study {name} in {path} needs a plain name and a list of entries under `runs`; {form}.")
        for number, entry in enumerate(entries, 1):
            where = f"entry {number} of study {name} in {path}"
            if not isinstance(entry, dict) or not PLAIN_NAME.fullmatch(str(entry.get("notebook", ""))):
                raise Mistake(f"{where} must name its `notebook`; {form}.")
            for key, value in entry.items():
                wrong = not isinstance(value, ENTRY_KEYS.get(key, ()))
                if wrong or (key == "minutes" and not 0 <= value < math.inf):
                    raise Mistake(f"{where} has an unknown key or a wrong kind of value at `{key}`; {form}.")
            if any("repeat" in entry.get(part, ()) for part in ("parameters", "sweep", "cpu")):
                raise Mistake(f"{where} must give `repeats`, not `repeat`, which run_all.py sets; {form}.")
            for key, values in entry.get("sweep", {}).items():
                if key == "precisions" or not isinstance(values, list) or not values:
                    raise Mistake(f"{where} must sweep `{key}` over a list of values (not `precisions`); {form}.")
    return {str(name): study for name, study in studies.items()}


def notebook_defaults(path):
    """Return {name: default} of the notebook's cell tagged `parameters`.

    It is read here because papermill.inspect_notebook cuts a text at its first '#' and takes two seconds to import.
    """
    try:
        tagged = [cell.source for cell in code_cells(path) if cell.sets_parameters]
        if not tagged:
            raise ValueError("there is no such cell")
        nodes = ast.parse(tagged[0]).body
        pairs = [(n.targets[0] if isinstance(n, ast.Assign) else n.target, n.value) for n in nodes]
        defaults = {target.id: ast.literal_eval(value) for target, value in pairs}
    except FileNotFoundError:
        there = ", ".join(sorted(p.stem for p in path.parent.glob("*.ipynb"))) or "none"
        raise Mistake(f"there is no notebook {path.stem} beside the studies file; there are: {there}.") from None
    except (OSError, SyntaxError, *MALFORMED) as error:
        wanted = "must be a notebook with a cell tagged `parameters` that assigns plain literals"
        raise Mistake(f"notebook {path.stem} {wanted} ({' '.join(str(error).split())}).") from None
    missing = [name for name in NEEDED if name not in defaults]
    if missing:
        raise Mistake(f"notebook {path.stem} lacks the parameters {', '.join(missing)} that every experiment has.")
    return defaults


@functools.cache
def code_hash(path, changed):
    """Return a short hash of a notebook's code, the shared cells included; records that differ in it do not mix.

    The cell tagged `parameters` is left out: its values are part of a run's name already. `changed` is when the file
    was last written: a notebook that is edited while a batch runs has another hash from then on.
    """
    return hash_of(path.read_text(encoding="utf-8"))


def shortened(value):
    """Return a value as text, of one that would fill the screen its beginning."""
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def expanded(text, option):
    """Return the whole path of what the user gave; raise Mistake where parameters and records cannot name it."""
    try:
        text.encode()
        path = Path(text).expanduser()
    except UnicodeEncodeError:
        raise Mistake(f"{option} {text!a} is not UTF-8; choose another {option}.") from None
    except RuntimeError:
        raise Mistake(f"{option} {text}: there is no such home folder; write the whole path.") from None
    try:
        return path.resolve()
    except RuntimeError:  # OSError from Python 3.13 on, where something is written there
        raise Mistake(f"{option} {text} is a link that leads back to itself; choose another {option}.") from None


def parse_overrides(pairs):
    """Return {name: (text, value)} of the -p options, each value read as a YAML literal."""
    overrides = {}
    for name, text in pairs:
        if name == "output_dir":
            raise Mistake("output_dir cannot be set with -p; use --output-dir DIR.")
        if name == "repeat":
            raise Mistake("repeat cannot be set with -p, for run_all.py numbers the repetitions; use -p repeats N.")
        if name == "data_dir" and not text:
            raise Mistake("data_dir is empty; give a folder, or leave -p data_dir out.")
        text = place(expanded(text, f"-p {name}")) if name in PATHS and text else text
        try:
            overrides[name] = (text, text if name in PATHS else yaml.safe_load(text))
        except (ValueError, RecursionError, yaml.YAMLError):
            raise Mistake(f"-p {name} {shortened(text)} is not readable; quote the value as in YAML.") from None
    return overrides


def fitted(name, value, default, notebook):
    """Return `value` in the type of the notebook's `default`, so that both compute the same run id."""
    if name == "precisions":
        names = [word.strip() for word in value.split(",")] if isinstance(value, str) else value
        if not names:
            raise Mistake(f"precisions is empty; possible are {', '.join(PRECISION_NAMES)}.")
        unknown = [str(word) for word in names if word not in PRECISION_NAMES] if isinstance(names, list) else [value]
        if unknown:
            words = ", ".join(map(str, unknown))
            raise Mistake(f"unknown precision {words}; possible are {', '.join(PRECISION_NAMES)}.")
        return list(dict.fromkeys(names))
    most = 2**32 if name == "seed" else 2**63
    if type(value) is int and abs(value) >= most and not isinstance(default, float):
        raise Mistake(f"{name} is {shortened(value)}; it must be below {most}.")
    scale = name == "loss_scale"  # "dynamic" or a number
    if name == "batch_size" and value == "max":
        return value
    if (isinstance(default, float) and type(value) in (int, str)) or (scale and isinstance(value, str)):
        with suppress(ValueError, OverflowError):
            value = float(value)  # YAML reads 1e-3 as text
    if default is None or type(value) is type(default) or (scale and type(value) in (int, float)):
        return value
    wanted = '"dynamic" or a number' if scale else TYPE_WORDS.get(type(default), type(default).__name__)
    raise Mistake(f"parameter {name} of notebook {notebook} must be {wanted}, not {value!r}.")


def merged_parameters(notebook, defaults, given, overrides):
    """Return the notebook's parameters with `given` and then the -p `overrides` in place of its defaults."""
    unknown = [name for name in (*given, *overrides) if name not in defaults]
    if unknown:
        known = ", ".join(sorted(defaults))
        raise Mistake(f"notebook {notebook} has no parameter {', '.join(map(str, unknown))}; it has {known}.")
    parameters = {**defaults, **given}
    for name, (text, value) in overrides.items():
        # Where the notebook wants text, a number or a date is text too.
        plain = isinstance(defaults[name], str) and not isinstance(value, str | list | dict) and name != "loss_scale"
        parameters[name] = text if plain else value
    return {name: fitted(name, value, defaults[name], notebook) for name, value in parameters.items()}


def combinations_of(sweep):
    """Return [{name: value}]: every combination of the swept values, one empty one where nothing is swept."""
    return [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]


def passes_of(parameters):
    """Return what each pass over the precisions sets: one run of each precision per repetition, and its number.

    Within a kernel a notebook changes the order from one repetition to the next by itself. Here each precision has a
    kernel of its own, so that the runs must alternate. A notebook without the parameter `repeat` repeats by itself.
    """
    if not {"repeats", "repeat"} <= set(parameters):
        return [{}]
    if parameters["repeats"] > 1000:
        raise Mistake(f"repeats is {parameters['repeats']}; it can be 1000 at most.")
    count = parameters["repeats"]  # one below 1 is passed on: the notebook's own check refuses it with a sentence
    return [{"repeats": min(count, 1), "repeat": number} for number in range(max(count, 1))]


def weight(parameters):
    """Return how many trainings the parameters ask for."""
    return len(parameters["precisions"]) * max(parameters.get("repeats", 1), 1)


def plan(study, notebooks, folder, overrides, on_gpu):
    """Return (comparisons, left out): lists of runs equal in all but precision and repetition, and what needs a GPU.

    The comparison that takes longest comes first. In each the repetitions alternate: a b c, c b a, a b c.
    """
    comparisons, left_out = {}, []
    for entry in study["runs"]:
        name, path = entry["notebook"], notebooks / f"{entry['notebook']}.ipynb"
        defaults = notebook_defaults(path)
        if not on_gpu and "cpu" not in entry:
            left_out.append(name)
            continue
        given, sweep = (entry.get("parameters", {}), entry.get("sweep", {})) if on_gpu else (entry["cpu"], {})
        own = [merged_parameters(name, defaults, {**given, **values}, {}) for values in combinations_of(sweep)]
        minutes = entry.get("minutes", 1) / sum(map(weight, own))  # they are for the entry without the overrides
        sweep = {key: values for key, values in sweep.items() if key not in overrides}
        for combination in combinations_of(sweep):
            parameters = merged_parameters(name, defaults, {**given, **combination}, overrides)
            passes = passes_of(parameters)
            # Two entries, or two values of a swept `repeats`, may ask for the same run, or for runs to be compared.
            runs = comparisons.setdefault(run_id_of(name, {**parameters, **passes[0]}, "any"), {})
            for number, values in enumerate(passes):
                for precision in parameters["precisions"][:: -1 if number % 2 else 1]:
                    one = {**parameters, **values, "precisions": [precision], "output_dir": place(folder)}
                    run_id = run_id_of(name, one, precision)
                    if len(run_id) > LONGEST_NAME:
                        raise Mistake(f"run {shortened(run_id)} has too long a name for its files; use shorter values.")
                    runs.setdefault(run_id, Run(run_id, path, precision, one, folder, minutes * weight(one)))
    comparisons = [list(runs.values()) for runs in comparisons.values()]
    return sorted(comparisons, key=lambda runs: -sum(run.minutes for run in runs)), left_out


@functools.cache
def notebook_choices(path):
    """Return {keyword: value} that a notebook gives to its check_parameters, or None where that is not known."""
    for cell in code_cells(path):
        calls = []
        with suppress(SyntaxError):  # a cell with a magic is no plain Python
            calls = [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)]
        for call in calls:
            if getattr(call.func, "id", None) == "check_parameters":
                with suppress(*MALFORMED):  # choices that only the notebook can tell, such as list(MODELS)
                    return {"choices": {}} | {k.arg: ast.literal_eval(k.value) for k in call.keywords}
    return None


def check_values(comparisons):
    """Raise Mistake at the first value that a notebook would refuse, so that a batch does not start with it.

    The notebooks' own check is asked, in a process of its own, because it loads PyTorch: that takes seconds, and must
    not hold memory of a GPU that is about to be measured.
    """
    asked = [(run.notebook.stem, run.parameters, notebook_choices(run.notebook)) for run, *_ in comparisons]
    asked = [item for item in asked if item[2] is not None]
    code = "import json, sys, planning; print(json.dumps(planning.first_refusal(json.load(sys.stdin))))"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    options = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True, "check": False}
    done = subprocess.run([sys.executable, "-c", code], input=json.dumps(asked), **options) if asked else None
    # Where the check itself cannot run, each notebook still checks for itself.
    if done and done.returncode == 0 and (refusal := json.loads(done.stdout)):
        raise Mistake(refusal)


def check_csv(comparisons):
    """Raise Mistake at the first csv_path that is no file on this machine."""
    for path in filter(None, (run.parameters.get("csv_path") for run, *_ in comparisons)):
        if not os.path.isfile(ROOT / path):
            raise Mistake(f"csv_path {path} is no file here; give the CSV that names your images.")


def first_refusal(asked):
    """Return the sentence with which the first of [(notebook, parameters, keywords)] is refused, or None."""
    with contextlib.redirect_stdout(io.StringIO()):  # the environment check speaks when it is loaded
        from harness import check_parameters
        from instruments import Stop
    for notebook, parameters, keywords in asked:
        try:
            check_parameters(parameters, **keywords)
        except Stop as stop:
            return f"notebook {notebook}: {stop}"
    return None


def installed_gpus():
    """Return the GPUs that NVML, or else nvidia-smi, finds on this machine."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        found = [(pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        # nvidia-ml-py3 7.352.0 answers in bytes.
        found = [[word.decode() if isinstance(word, bytes) else word for word in words] for words in found]
        return [Device(i, f"gpu{i}", uuid, name) for i, (uuid, name) in enumerate(found)]
    except Exception:  # no binding, no driver, or one that does not answer: each binding raises its own class
        command = ["nvidia-smi", "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[word.strip() for word in line.split(",", 2)] for line in text.splitlines() if line.count(",") >= 2]
    return [Device(int(index), f"gpu{index}", uuid, name) for index, uuid, name in rows if index.isdigit()]


def visible_gpus():
    """Return the installed GPUs, or those that an existing CUDA_VISIBLE_DEVICES leaves, in its order."""
    gpus, setting = installed_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is None or not gpus:
        return gpus
    chosen = []
    for word in (word.strip() for word in setting.split(",")):
        found = [gpu for gpu in gpus if word == str(gpu.index) or (word[:4] == "GPU-" and gpu.visible.startswith(word))]
        if word.startswith("MIG-"):  # a slice of a GPU, which the lists above do not know
            found = [Device(len(chosen), f"mig{len(chosen)}", word, "MIG slice")]
        if not found:
            break  # CUDA, too, ignores the rest of the list
        chosen += [gpu for gpu in found if gpu not in chosen]
    return chosen


def choose_devices(gpus, jobs):
    """Return the devices for `--gpus` and `--jobs`: GPUs, or `jobs` shares of the CPU where there is none."""
    there = {} if gpus == "none" else {str(gpu.index): gpu for gpu in visible_gpus()}
    wanted = list(there) if gpus in ("all", "none") else [word.strip() for word in gpus.split(",")]
    unknown = [word for word in wanted if word not in there]
    if unknown:
        known = f"the GPUs here are {', '.join(there)}" if there else "none was found (--gpus none runs on the CPU)"
        raise Mistake(f"--gpus {gpus}: there is no GPU {', '.join(unknown)}; {known}.")
    if not wanted:
        return [Device(i, f"cpu{i}") for i in range(jobs or 1)]
    if jobs:
        raise Mistake("--jobs is for the CPU (--gpus none); a GPU takes one run at a time, so that times compare.")
    devices = [there[word] for word in dict.fromkeys(wanted)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(device.visible for device in devices)}
    check = [sys.executable, "-c", "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 3)"]
    if subprocess.run(check, env=environment, capture_output=True, check=False).returncode:
        raise Mistake("PyTorch cannot use the GPU here: install its CUDA build, or run on the CPU with --gpus none.")
    return devices
