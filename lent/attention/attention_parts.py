"""The GPU run of issue 89 on two H200s of one host, within one call.

    python attention_parts.py drive --seconds 560 --out $OUT [--work DIR] [--tiny]
    python attention_parts.py run KEEP.json ARGUMENTS OF run_all.py
    python attention_parts.py errors --out FILE [--contexts 64 128]

`drive` first makes what claims no time, all of it at a time: it compiles each arm once in a
throw-away folder, so that the counted processes find compiled code, and makes the trainings of
`attention-quality` and benchmarks/attention_error.py. Then each repetition is a lane: 0 and 1 on
the first GPU, 2 and 3 on the second one. A lane is run_all.py with `-p repeat K`, part after part.
Two lanes of a GPU take turns: while a process is timed the next one loads its packages, and
attention_gate.py keeps it from the GPU until its turn. It is called in the root of a clean tree.
A second call goes on where the first one ended, if the machine is still the same.
"""

import argparse
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path
from statistics import fmean

HERE, ROOT = Path(__file__).resolve().parent, Path.cwd()
FOLDERS = ROOT / "outputs"  # git ignores what is new there
ARMS = [(precision, dtype) for precision in ("tf32", "amp_bf16") for dtype in ("fp32", "bf16")]
# what makes the processes tiny, but leaves the plan as it is on GPUs
TINY = {"width": 64, "layers": 1, "vocabulary": 256, "max_steps": 2, "epochs": 1, "dataset": "wikitext-2"}
PARTS = ("warm", "quality", "errors", "core", "efficient", "more", "widths")
START = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - START:6.1f} s  {text}", flush=True)


# ---------------------------------------------------------------- one call of run_all.py


def matches(parameters: dict, wanted: dict) -> bool:
    return all(parameters.get(name) in values for name, values in wanted.items())


def run(keep: Path, arguments: list[str]) -> None:
    """run_all.py with the runs of `keep` alone, in their order, and without a report at its end.

    `keep` is JSON: {"any": [{parameter: [values]}]}; `tiny` plans for GPUs where there is none.
    """
    sys.path.insert(0, str(ROOT))
    from mixed_precision_study.runner import batch, cli

    chosen = json.loads(keep.read_text())
    planned = cli.plan

    def plan(study, notebooks, folder, overrides, on_gpu, cards=None):
        on_gpu = on_gpu or chosen["tiny"]
        extra = (cards,) if cards is not None else ()
        comparisons, left_out = planned(study, notebooks, folder, overrides, on_gpu, *extra)
        kept = []
        for want in chosen["any"]:
            for runs in comparisons:
                found = [one for one in runs if matches(wanted_of(one), want)]
                kept += [found] if found else []
        return kept, left_out

    def wanted_of(one) -> dict:
        parameters = one.parameters
        return parameters | {"first": parameters["precisions"][0]}

    cli.plan = plan
    cli.summarise = lambda *_, **__: True  # the report is drawn once, later
    batch.GRACE_SECONDS = 0
    batch.CLEAR_SECONDS = 0  # the gate waits for the memory of the process before
    sys.argv = ["run_all.py", *arguments]
    cli.run_as_program()


def errors(arguments: list[str]) -> None:
    """benchmarks/attention_error.py, once it is its turn on the GPU."""
    sys.path.insert(0, str(ROOT))
    runpy.run_path(str(HERE / "attention_gate.py"))
    script = ROOT / "benchmarks" / "attention_error.py"
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


# ---------------------------------------------------------------- the lanes


class Drive:
    def __init__(self, arguments: argparse.Namespace):
        self.tiny = arguments.tiny
        self.out, self.work = arguments.out.resolve(), arguments.work.resolve()
        self.until = START + arguments.seconds
        self.warm_seconds = arguments.warm
        self.running: set[subprocess.Popen] = set()
        self.over = threading.Event()
        self.only = set(arguments.only.split(","))
        if unknown := self.only - {*PARTS}:
            sys.exit(f"--only {', '.join(unknown)}: the parts are {', '.join(PARTS)}")
        self.gpus, self.lanes = arguments.gpus, arguments.lanes
        for folder in (self.out, self.work / "logs", self.work / "keep"):
            folder.mkdir(parents=True, exist_ok=True)
        startup = self.work / "ipython" / "profile_default" / "startup"
        startup.mkdir(parents=True, exist_ok=True)
        shutil.copy(HERE / "attention_gate.py", startup / "00-gate.py")
        cores = sorted(os.sched_getaffinity(0))
        half = max(1, len(cores) // 2) if self.gpus == 2 else len(cores)
        self.cores = [cores[:half], cores[half:] or cores]

    def environment(self, gpu: int, alone: bool) -> dict:
        found = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": str(gpu),
            "IPYTHONDIR": str(self.work / "ipython"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.work / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "4",
            "ATTENTION_CORES": ",".join(map(str, self.cores[gpu])),
        }
        if alone:  # without a turn; many run at a time
            found["OMP_NUM_THREADS"] = "4"
            found.pop("ATTENTION_TURN", None)
        else:
            found["ATTENTION_TURN"] = str(self.work / f"turn{gpu}")
        return found

    def call(self, name: str, gpu: int, words: list[str], alone=False) -> int | None:
        """Run this script with these words; its output is a log. None: no time was left."""
        if self.over.is_set():
            return None
        command = [sys.executable, str(HERE / "attention_parts.py"), *words]
        began = time.monotonic()
        with (self.work / "logs" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment(gpu, alone),
                start_new_session=True,
            )
            self.running.add(process)
            status = process.wait()
            self.running.discard(process)
        say(f"gpu{gpu} {name}: exit {status} after {time.monotonic() - began:.0f} s")
        return status

    def part(
        self,
        name: str,
        gpu: int,
        study: str,
        folder: str,
        keep: list[dict],
        repeat: int | None = None,
        given: dict | None = None,
        **how: bool,
    ) -> int | None:
        """Make the runs of a study that fit `keep` into FOLDERS/folder."""
        file = self.work / "keep" / f"{name}.json"
        file.write_text(json.dumps({"any": keep, "tiny": self.tiny}))
        words = ["run", str(file), study, "--output-dir", str(FOLDERS / folder)]
        words += ["--timeout", "9" if self.tiny else "3"]  # a run that hangs must not cost the call
        options = dict(given or {})
        if self.tiny:
            options |= TINY | {"execution": "eager"} | (given or {})
            if study == "attention-quality":
                options["context"] = 64
            words += ["--gpus", "none", "--jobs", "1"]
        if repeat is not None:
            options["repeat"] = repeat
        for one, value in options.items():
            words += ["-p", one, str(value)]
        return self.call(name, gpu, words, **how)

    # -- what is run

    def untimed(self) -> None:
        """Make all that claims no time, all of it at a time: compile each arm once in a folder that
        does not count, the trainings of quality, and the errors of the kernels.
        """
        calls = []
        if "warm" in self.only and not (self.work / "warm").exists():
            calls += self.to_warm()
        if "quality" in self.only:
            calls += self.to_train()
        if "errors" in self.only:
            calls.append((self.errors, (self.gpus - 1,), {}))
        threads = [threading.Thread(target=one, args=words, kwargs=how, daemon=True)
                   for one, words, how in calls]
        for thread in threads:
            thread.start()
        until = min(time.monotonic() + self.warm_seconds, self.until)
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        if any(one.is_alive() for one in threads):
            say("some of what claims no time takes too long and is ended")
            self.end_all()
            for thread in threads:
                thread.join(5)
        (self.work / "warm").touch()

    def to_warm(self) -> list[tuple]:
        arms = [(context, *arm, "auto") for context in (8192, 1024, 128) for arm in ARMS]
        arms += [(context, "amp_bf16", "bf16", "efficient") for context in (8192, 1024)]
        steps = {"max_steps": 3}
        if self.tiny:
            arms = arms[4:5]
        calls = []
        for number, (context, precision, dtype, kernel) in enumerate(arms):
            keep = {"context": [context], "first": [precision]}
            keep |= {"attention_dtype": [dtype], "attention": [kernel]}
            name = f"warm-{context}-{precision}-{dtype}-{kernel}"
            place = (name, number % self.gpus, "attention", f"attention-warm/{name}", [keep], 3, steps)
            calls.append((self.part, place, {"alone": True}))
        return calls

    def to_train(self) -> list[tuple]:
        calls = []
        for seed in range(1 if self.tiny else 8):
            for dtype in ("fp32", "bf16"):  # both of a seed on one GPU
                name = f"quality-{seed}-{dtype}"
                keep = [{"seed": [seed], "attention_dtype": [dtype]}]
                place = (name, seed % self.gpus, "attention-quality", f"attention-{name}", keep)
                calls.append((self.part, place, {"alone": True}))
        return calls

    def lane(self, repeat: int) -> None:
        """Make all of a repetition."""
        gpu = repeat // 2 % self.gpus
        folder = f"attention-lane{repeat}"
        for context in (8192, 1024, 128) if "core" in self.only else ():
            keep = [{"context": [context], "attention": ["auto"]}]
            if self.tiny and context < 8192:
                keep[0] |= {"attention_dtype": ["bf16"], "first": ["amp_bf16"]}
            self.part(f"core-{context}-{repeat}", gpu, "attention", folder, keep, repeat)
        if "efficient" in self.only:
            keep = [{"context": [context], "attention": ["efficient"]} for context in (8192, 1024)]
            self.part(f"efficient-{repeat}", gpu, "attention", folder, keep, repeat)
        if repeat < 2 and "more" in self.only:
            self.more(repeat)
        if repeat > 1 and "widths" in self.only:
            for one in (repeat - 2, *((2,) if repeat == 2 else ())):
                self.widths(one, gpu)

    def has_failed_so_far(self) -> bool:
        """Whether there are records and none of them is one of a training that ended well."""
        read = [json.loads(path.read_text()) for path in FOLDERS.glob("attention-*/**/*.json")]
        found = [one["run"] for one in read if "run" in one]
        for one in found:
            if one["status"] == "failed":
                say(f"failed: {one['reason']}")
        return bool(found) and all(one["status"] == "failed" for one in found)

    def errors(self, gpu: int) -> None:
        file = self.work / "attention_errors.csv"
        if not file.exists():
            words = ["errors", "--out", f"{file}.part"]
            words += ["--contexts", "64", "128"] if self.tiny else []
            if self.call("errors", gpu, words, alone=True) == 0:
                Path(f"{file}.part").rename(file)

    def more(self, lane: int) -> None:
        """Single processes, on the GPU of the first repetition, which holds their bases."""
        usual = {"execution": [self.compiled]}
        first = [
            # these are bases; where lane 0 has them they are finished
            usual | {"context": [1024, 8192], "first": ["tf32"], "attention": ["auto"]},
            usual | {"context": [1024, 8192], "first": ["amp_bf16"], "attention": ["auto"]},
            usual | {"context": [1024, 8192], "first": ["amp_fp16"]},
            usual | {"context": [1024, 8192], "attention": ["cudnn", "flash", "efficient"]},
            usual | {"context": [1024], "attention": ["math"]},
        ]
        second = [{"context": [4096]}, {"context": [16384]}, {"context": [1024], "execution": ["eager"]}]
        keep = second if lane else first
        if self.tiny:
            keep = second[:1] if lane else [first[1], first[4]]
        self.part(f"more-{lane}", 0, "attention-more", f"attention-lane{lane}", keep)

    def widths(self, repeat: int, gpu: int) -> None:
        """Widths of the study crossover, where time is left."""
        keep = [
            {"width": [width], "context": [1024], "max_steps": [steps], "first": [one]}
            for width, steps in ((1024, 85), (4096, 20))
            for one in ("tf32", "amp_bf16", "fp8")
        ]
        self.part(f"widths-{repeat}", gpu, "crossover", f"attention-widths{repeat}", keep, repeat)

    @property
    def compiled(self) -> str:
        return "eager" if self.tiny else "compile_cuda_graph"

    def end_all(self) -> None:
        for sign in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            for process in list(self.running):
                if process.poll() is None:
                    process.send_signal(sign)
            until = time.monotonic() + 3
            while self.running and time.monotonic() < until:
                time.sleep(0.1)

    def all(self) -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        say(f"cores {[len(one) for one in self.cores]}, work in {self.work}")
        try:
            self.untimed()
        except KeyboardInterrupt:
            self.over.set()
        if self.has_failed_so_far():
            say("no training of the first ones ended well, so nothing else is begun")
            self.lanes = []
        threads = [
            threading.Thread(target=self.lane, args=(one,), daemon=True) for one in self.lanes
        ]
        for thread in threads:
            thread.start()
        try:
            while any(one.is_alive() for one in threads) and time.monotonic() < self.until:
                time.sleep(0.2)
        except KeyboardInterrupt:
            say("interrupted")
        if any(one.is_alive() for one in threads):
            say("the time is over; what is finished counts")
        for sign in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sign, signal.SIG_IGN)  # what is finished is to come back
        self.over.set()
        self.end_all()
        self.bring_back()

    # -- what comes back

    def bring_back(self) -> None:
        groups = {
            "attention-records.zip": "attention-lane*",
            "attention-quality-records.zip": "attention-quality-*",
            "crossover-records.zip": "attention-widths*",
        }
        for name, pattern in groups.items():
            files = [one for folder in FOLDERS.glob(pattern) for one in sorted(folder.glob("*.json"))]
            seen = {}
            for file in files:
                try:
                    record = json.loads(file.read_text())
                except ValueError:
                    continue
                if "run" in record:
                    kept = seen.get(file.name)
                    if kept is None or record["run"]["status"] == "ok":
                        seen[file.name] = file
            if seen:
                with zipfile.ZipFile(self.out / name, "w", zipfile.ZIP_DEFLATED) as archive:
                    for file in seen.values():
                        archive.write(file, file.name)
        with zipfile.ZipFile(self.out / "logs.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted((self.work / "logs").glob("*.log")):
                archive.write(file, f"drive/{file.name}")
            for file in sorted(FOLDERS.glob("attention-*/logs/*")):
                if file.is_file() and file.stat().st_size < 2**20:
                    archive.write(file, f"{file.parent.parent.name}/{file.name}")
            for file in sorted(FOLDERS.glob("attention-lane*/*.ipynb")):
                if "summary" not in file.name and file.stat().st_size < 2**18:
                    archive.write(file, f"{file.parent.name}/{file.name}")
        for folder in sorted(FOLDERS.glob("attention-lane*")):
            if code := sorted(folder.glob("code-*.zip")):
                shutil.copy(code[0], self.out / "code.zip")
                break
        part = self.work / "attention_errors.csv.part"
        with zipfile.ZipFile(self.out / "logs.zip", "a", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(self.work.glob("turn*.log")):
                archive.write(file, f"drive/{file.name}")
        for file in (self.work / "attention_errors.csv", part):
            if file.exists():
                shutil.copy(file, self.out / "attention_errors.csv")
                break
        text = table(self.out)
        (self.out / "table.txt").write_text(text)
        print(text, flush=True)


def table(out: Path) -> str:
    """Return a line for each arm: n, mean milliseconds of a step, attention's of it, compile."""
    rows: dict[tuple, list] = {}
    failed = []
    for path in sorted(out.glob("*-records.zip")):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                record = json.loads(archive.read(name))
                run, own = record["run"], record["settings"]
                arm = (run["precision"], own["attention_dtype"], own["attention"], own["execution"])
                place = (path.name.partition("-records")[0], own["context"], own["width"], arm)
                if run["status"] != "ok":
                    failed.append(f"{run['status']}: {place} repeat {own['repeat']}: {run['reason']}")
                    continue
                rows.setdefault(place, []).append(record)
    lines = [f"{'study':18} {'context':>7} {'width':>5}  {'arm':42} {'n':>2} {'ms/step':>8} "
             f"{'min':>8} {'max':>8} {'timed s':>7} {'compile s':>9} {'start s':>7}  kernel"]
    for (study, context, width, arm), found in sorted(rows.items(), key=str):
        times = [one["measured"]["time"] for one in found]
        steps = [one["step_ms_median"] for one in times]
        kernel = {one["measured"]["kernels"]["attention_forward"] for one in found} - {None}
        shared = sum(bool(one["measured"]["energy"]["gpu_shared"]) for one in found)
        lines.append(
            f"{study:18} {context:7} {width:5}  {', '.join(arm):42} {len(found):2} "
            f"{fmean(steps):8.3f} {min(steps):8.3f} {max(steps):8.3f} "
            f"{fmean(sum(one['epoch_seconds']) for one in times):7.1f} "
            f"{fmean(one['compile_seconds'] or 0 for one in times):9.1f} "
            f"{fmean(one['startup_seconds'] or 0 for one in times):7.1f}  "
            f"{' '.join(sorted(map(str, kernel)))}{f' SHARED {shared}' if shared else ''}"
        )
    return "\n".join([*lines, *failed])


def main() -> None:
    if cores := os.environ.get("ATTENTION_CORES"):  # half of the machine for each GPU
        os.sched_setaffinity(0, map(int, cores.split(",")))
    if sys.argv[1:2] == ["run"]:
        return run(Path(sys.argv[2]), sys.argv[3:])
    if sys.argv[1:2] == ["errors"]:
        return errors(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("what", choices=["drive", "table"])
    parser.add_argument("--seconds", type=float, default=530, help="until all is ended")
    parser.add_argument("--warm", type=float, default=120, help="seconds at most of what is not timed")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, by default all of them")
    parser.add_argument("--gpus", type=int, choices=[1, 2], default=2)
    parser.add_argument("--lanes", type=int, nargs="+", default=[0, 1, 2, 3], help="repetitions")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("/tmp/attention-work"))
    parser.add_argument("--tiny", action="store_true", help="a dry run on the CPU")
    arguments = parser.parse_args()
    if arguments.what == "table":
        return print(table(arguments.out))
    return Drive(arguments).all()


if __name__ == "__main__":
    main()
