"""Run a part of a study in many processes at once, each into a folder of its own, until a deadline.

    python weights_run.py STUDY/NOTEBOOK --work DIR --seconds S [--most N] [--split HOW] ...

Every run_all.py gets a studies file with a part of the study. It is ended as soon as it draws its
report, because records are all that is wanted. What has not finished at the deadline is ended.
"""

import argparse
import copy
import itertools
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import yaml

ROOT = Path.cwd()


def parts_of(study, notebook, split):
    """Return [(label, study)], each of which is one entry with one rate, one process of all ways,
    or with `recipe` one a way.
    """
    found = []
    for number, entry in enumerate(e for e in study["runs"] if e["notebook"] == notebook):
        sweep = entry.get("sweep", {})
        for values in itertools.product(*sweep.values()):
            one = copy.deepcopy(entry)
            one.pop("sweep", None)
            one["parameters"] = {**one["parameters"], **dict(zip(sweep, values))}
            names = "-".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
            ways = one.get("ways", [{}])
            groups = [ways]
            if split != "rate":
                groups = [[way] for way in (ways if split == "way" else separate(ways))]
            for place, group in enumerate(groups):
                part = copy.deepcopy(one)
                if group != [{}]:
                    part["ways"] = copy.deepcopy(group)
                label = f"{number}-{names or 'all'}-{place}"
                found.append((label, {**study, "runs": [part]}))
    return found


def weight_of(study):
    """How many trainings a part has, of which 16-bit and 8-bit optimizers take longer."""
    total = 0
    for way in study["runs"][0].get("ways", [{}]):
        slower = 1 + (way.get("rounding", "nearest") != "nearest") + 2 * (way.get("moments") == "8bit")
        values = way.values()
        total += slower * math.prod(len(value) for value in values if isinstance(value, list))
    return total


def separate(ways):
    """One way for each recipe: lists of precisions, moments and rounding apart, seeds together."""
    for way in ways:
        lists = {}
        for name, value in way.items():
            if name != "seed" and isinstance(value, list):
                lists[name] = [[one] for one in value] if name == "precisions" else value
        for values in itertools.product(*lists.values()):
            yield {**way, **dict(zip(lists, values))}


def on_cpu(study):
    """A dry run: each training as an entry of its own, because smoke tests know no ways."""
    runs = []
    for entry in study["runs"]:
        for way in entry.get("ways", [{}]):
            lists = {name: value if isinstance(value, list) else [value] for name, value in way.items()}
            for values in itertools.product(*lists.values()):
                one = dict(zip(lists, values))
                if "precisions" in one:
                    one["precisions"] = [one["precisions"]]
                cpu = {**entry["parameters"], **one, "execution": "eager"}
                runs.append({"notebook": entry["notebook"], "cpu": cpu, "parameters": cpu})
    return {**study, "runs": runs}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--most", type=int, default=10)
    parser.add_argument("--split", choices=["rate", "way", "recipe", "none"], default="rate")
    parser.add_argument("--only", default="", help="labels that hold this text alone")
    parser.add_argument("--drop", default="-none", help="labels that end so are left out, as -3")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=YAML")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--share", default="0/1", metavar="K/N", help="every N-th rate from K on")
    parser.add_argument("--lr", default="", help="rates in place of the study's, with commas")
    args = parser.parse_args()
    began = time.monotonic()
    name, _, notebook = args.what.partition("/")
    study = yaml.safe_load((ROOT / "notebooks/studies.yaml").read_text())[name]
    if args.lr:
        for entry in study["runs"]:
            if entry["notebook"] == notebook and "sweep" in entry:
                entry["sweep"]["lr"] = [float(word) for word in args.lr.split(",")]
    first, every = map(int, args.share.split("/"))
    for entry in study["runs"]:
        if "lr" in entry.get("sweep", {}):
            entry["sweep"]["lr"] = entry["sweep"]["lr"][first::every]
    entries = [entry for entry in study["runs"] if entry["notebook"] == notebook]
    if args.split == "none":
        parts = [(str(n), {**study, "runs": [entry]}) for n, entry in enumerate(entries)]
    else:
        parts = parts_of(study, notebook, args.split)
    parts = [(label, part) for label, part in parts if args.only in label and not label.endswith(args.drop)]
    if args.cpu:
        parts = [(label, on_cpu(part)) for label, part in parts]
    parts.sort(key=lambda part: -weight_of(part[1]))  # the longest first, so that they end together
    args.work.mkdir(parents=True, exist_ok=True)
    waiting, running, codes, idle, bad = list(parts), {}, {}, {}, 0
    while waiting or running:
        left = args.seconds - (time.monotonic() - began)
        if left <= 0:
            break
        while waiting and len(running) < args.most and left > 15:
            label, part = waiting.pop(0)
            folder = args.work / label
            file = args.work / f"{label}.yaml"
            file.write_text(yaml.safe_dump({name: part}, sort_keys=False))
            command = [sys.executable, "run_all.py", name, "--studies", str(file)]
            command += ["--output-dir", str(folder)]
            for pair in args.set:
                command += ["-p", *pair.split("=", 1)]
            if args.cpu:
                command += ["--gpus", "none", "--jobs", "1"]
            log = (args.work / f"{label}.log").open("wb")
            running[label] = (subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT), folder)
            time.sleep(0.5)
        if waiting and not running:
            break
        time.sleep(0.5)
        for label, (process, folder) in list(running.items()):
            if process.poll() is None and has_made_all(process, folder, args.split, idle):
                end(process)
            if process.poll() is not None:
                codes[label] = process.returncode
                del running[label]
                count = len([*folder.glob("*.json")])
                failed = [one for one in folder.glob("*.json") if '"status": "failed"' in one.read_text()]
                bad += len(failed) == count
                if bad > 2 and bad == len(codes):
                    print("  the first ones failed, so nothing else is begun")
                    waiting.clear()
                print(f"  {label}: {count} records after {time.monotonic() - began:.0f} s", flush=True)
    for process, _ in running.values():
        process.send_signal(signal.SIGTERM)
    until = time.monotonic() + 12
    for label, (process, folder) in running.items():
        try:
            process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
        print(f"  {label}: ended by the deadline with {len([*folder.glob('*.json')])} records")
    for label, _ in waiting:
        print(f"  {label}: not begun")
    print(f"{args.what}: {time.monotonic() - began:.0f} s", flush=True)


def has_made_all(process, folder, split, idle):
    """Whether it draws its report, or, of one run alone, whether its notebook has ended, since it
    would wait then until the GPU's memory is free, which others use, too.
    """
    if (folder / "logs" / "summary.log").exists():
        return True
    if split == "none" or not [*folder.glob("*.json")]:
        return False
    try:
        has_children = bool(psutil.Process(process.pid).children())
    except psutil.Error:
        return False
    idle[process.pid] = 0 if has_children else idle.get(process.pid, 0) + 1
    return idle[process.pid] > 3


def end(process):
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(12)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
