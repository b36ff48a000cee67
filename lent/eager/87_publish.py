"""Adds new records of the study eager to outputs/more/eager-h200 of a clone, and makes its pages and sentences follow.

    python lent/87_publish.py CLONE ZIP_OR_FOLDER... [--minutes M] [--beside "what else ran on the host"] [--skip-tests]

Nothing is committed. A sentence whose old form is not found in a page is named at the end (NOT REPLACED) with its new form.
Sentences are chosen by what came out; every number in them is filled in by docs/tables.py from the CSV files.
"""

import argparse
import collections
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

FOREIGN = r"(?<![\w.])/(home|root|tmp|opt|usr|work|mnt)/\w+"
PLANNED = 4  # machines
FOLDER = "outputs/more/eager-h200"
ROWS = [  # key, name in the table, condition, of which steps an epoch has today
    ("resnet50", "ResNet-50, batch 256", "model == 'resnet50'"),
    ("resnet1024", "ResNet-18, batch 1,024", "model == 'resnet18' and batch_size == 1024"),
    ("wide", "WideResNet-28-10", "model == 'wide_resnet28_10' and max_steps == {wide} and channels_last == False"),
    ("widelast", "with channels_last", "model == 'wide_resnet28_10' and max_steps == {wide} and channels_last == True"),
    ("eff128", "EfficientNet-B0, batch 128", "model == 'tf_efficientnet_b0' and batch_size == 128"),
    ("gpt", "GPT, 124 million", "model == 'transformer'"),
    ("resnet", "ResNet-18, batch 128", "model == 'resnet18' and batch_size == 128 and fused == False"),
    ("resnetfused", "with a fused optimizer", "model == 'resnet18' and batch_size == 128 and fused == True and channels_last == False"),
    ("resnetlast", "and channels_last", "model == 'resnet18' and batch_size == 128 and fused == True and channels_last == True"),
    ("eff", "EfficientNet-B0, batch 32", "model == 'tf_efficientnet_b0' and batch_size == 32 and fused == False"),
    ("efffused", "with a fused optimizer", "model == 'tf_efficientnet_b0' and batch_size == 32 and fused == True and channels_last == False"),
    ("efflast", "and channels_last", "model == 'tf_efficientnet_b0' and batch_size == 32 and fused == True and channels_last == True"),
]
WAYS = {(False, False): "as it is", (True, False): "with a fused optimizer", (True, True): "in channels_last with a fused optimizer"}
NAMES = {"tf32": "TF32", "amp_fp16": "fp16 AMP", "amp_bf16": "bf16 AMP"}
TITLES = {"resnet18": "ResNet-18", "tf_efficientnet_b0": "EfficientNet-B0"}


def run(*words, cwd, check=True):
    print("$", *words, flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(list(map(str, words)), cwd=cwd, check=check, env=environment).returncode


def contents(place):
    if place.suffix == ".zip":
        with zipfile.ZipFile(place) as archive:
            for name in archive.namelist():
                if name.endswith(".json"):
                    yield f"{place.name}/{name}", archive.read(name)
    else:
        for path in sorted([place] if place.is_file() else place.rglob("*.json")):
            if path.suffix == ".json":
                yield str(path), path.read_bytes()


def add(places, folder, known):
    """Write the clean records into the folder; of one id on another machine each counts, in a folder of its card."""
    added, refused = [], []
    for place in places:
        for name, content in contents(place):
            try:
                record = json.loads(content)
                if record["run"]["study"]["name"] != "eager":
                    continue
            except (ValueError, KeyError, TypeError):
                continue
            if record["run"]["status"] not in ("ok", "oom", "diverged", "unsupported"):
                refused.append(f"{record['run']['status']}: {name}: {record['run']['reason']}")
                continue
            settings = record["settings"]
            settings["output_dir"], settings["data_dir"] = "outputs/eager", "data"
            text = json.dumps(record, indent=2)
            if found := re.search(FOREIGN, text):
                sys.exit(f"{name} names a folder of a machine: {text[found.start() - 80:found.end() + 40]}")
            commit = record["run"]["commit"] or ""
            if not commit or commit.endswith("-dirty"):
                print(f"CAUTION: {name} is of commit {commit or 'unknown'}; the page says so by itself, and the plan does not ask for more")
            run_id, card = record["run"]["run_id"], record["machine"]["gpu_uuid"]
            if known.get(run_id) == card:
                refused.append(f"there already: {run_id}")
                continue
            path = folder / f"{run_id}.json" if run_id not in known else folder / card[:8] / f"{run_id}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            known.setdefault(run_id, card)
            added.append(record)
    return added, refused


def all_records(folder):
    with zipfile.ZipFile(folder / "records.zip") as archive:
        return [*json.loads(archive.read("records.json")).values()]


def word(number):
    words = "no one two three four five six seven eight nine ten eleven twelve".split()
    return words[number] if number < len(words) else str(number)


def machine_of(record):
    one = record["machine"]
    return one["host_id"], one["host_cpu"], one["host_cores"]


def sentences(clone, figures):
    """Return what came out: codes and numbers of the plan, from the CSV files."""
    import pandas as pd

    outputs = (clone / "outputs").resolve()
    cells = figures.eager_cells(outputs)
    decided = cells.dropna(subset="pays")
    rule, always = int((decided.busy == decided.pays).sum()), int(decided.pays.sum())
    best = figures.best_steps(outputs)
    arms = {}
    for model, rows in best.groupby("model"):
        found = collections.Counter(zip(rows.precision, rows.fused.astype(str) == "True", rows.channels_last.astype(str) == "True"))
        arms[model] = found
    trainings = pd.read_csv(clone / FOLDER / "trainings.csv", low_memory=False)
    return {
        "machines": int(cells.hosts.max()),
        "cells": cells,
        "rule": rule,
        "always": always,
        "decided": len(decided),
        "arms": arms,
        "same_best": all(len(found) == 1 for found in arms.values()),
        "trainings": trainings,
    }


def best_words(found):
    """Return the best without a graph as a clause, or None where machines or models disagree."""
    arms = {next(iter(one)) for one in found["arms"].values()}
    if not found["same_best"] or len(arms) != 1:
        return None
    precision, fused, last = arms.pop()
    return f"{NAMES[precision]} {WAYS[fused, last]}"


def readme(found):
    """Return the page of the folder."""
    count, n = found["machines"], word(found["machines"])
    rows = [(key, name, condition.format(wide=found["wide"])) for key, name, condition in ROWS]
    better = found["rule"] > found["always"]
    lead = (
        f"No verdict yet, with <!--study_machines-->{n}<!--/--> machines." if count < PLANNED
        else "Where TF32 keeps the GPU busy, and seldom elsewhere." if better
        else "The busy share of TF32's step does not tell when."
    )
    lines = [
        "# When does AMP pay in eager mode? (H200)",
        "",
        f"**{lead} Where TF32 filled <!--study_share-->80%<!--/--> of a step or more, fp16 AMP paid in <!--study_busy_pays-->0<!--/--> of "
        "<!--study_busy_cells-->0<!--/--> models and ways, and did not in <!--study_busy_not-->0<!--/-->. It was <!--study_busy-->0<!--/--> times as fast as TF32. "
        "Elsewhere it paid in <!--study_waiting_pays-->0<!--/--> of <!--study_waiting_cells-->0<!--/-->, and did not in <!--study_waiting_not-->0<!--/--> "
        "(<!--study_waiting-->0<!--/-->).**",
        "",
        f"*Pays* means more than 1.05 times as fast on all <!--study_machines-->{n}<!--/--> machines, and *not* slower on all, as "
        "[the plan](../../../docs/contributors/plans.md) says. The machines agree so in <!--study_decided-->0<!--/--> models and ways. Of these the rule "
        "of the busy share is right in <!--study_rule-->0<!--/-->. The rule that AMP always pays is right in <!--study_always-->0<!--/-->.",
        "",
        "<picture>",
        '  <source media="(max-width:600px)" srcset="picture-narrow.svg">',
        '  <img alt="How many times as fast fp16 and bf16 AMP train as TF32 in eager mode, as dots: five models on H200s" src="picture.svg">',
        "</picture>",
        "",
        "|AMP over TF32|TF32 busy|fp16|bf16|",
        "|---|---|---|---|",
    ]
    numbers = ["<!-- numbers"]
    for key, name, condition in rows:
        cell = {}
        numbers.append(f"{key}_t = trainings where precision == 'tf32' and {condition}")
        numbers.append(f"{key}_busy: 100 - 100 * idle of {key}_t as .0f")
        for short, precision in (("16", "amp_fp16"), ("b", "amp_bf16")):
            numbers.append(f"{key}_{short} = ratios where precision == '{precision}' and base == 'tf32' and {condition}")
            numbers.append(f"{key}{short}: ratio of {key}_{short} as .2f")
            several = found["hosts"].get((key, precision), 1) > 1
            if several:
                numbers.append(f"{key}{short}_low: lowest of {key}_{short} as .2f")
                numbers.append(f"{key}{short}_high: highest of {key}_{short} as .2f")
            ends = f" [<!--{key}{short}_low-->0<!--/-->–<!--{key}{short}_high-->0<!--/-->]" if several else ""
            tilde = "~" if several and found["hosts"][key, precision] < 6 else ""
            cell[short] = f"{tilde}<!--{key}{short}-->0<!--/-->{ends}"
        lines.append(f"|{name}|<!--{key}_busy-->0<!--/-->%|{cell['16']}|{cell['b']}|")
    chance = f"{100 * 2.0 ** (1 - count):.3g}"
    lines += ["", (
        f"[ ] is the range of machines around their median. By chance {n} machines agree on a side of 1 in {chance}% of equal pairs, so ~ "
        "stays before a range. The plan's rule alone tells a side here."
    ) if count > 2 else "", ""]
    if clause := best_words(found):
        lines += [
            f"**The shortest step without a graph** is {clause}, on every machine. ResNet-18 at batch 128 takes <!--best_resnet_ms-->0<!--/--> ms, and EfficientNet-B0 at batch 32 "
            "<!--best_efficientnet_ms-->0<!--/--> ms. That is <!--best_resnet-->0<!--/--> and <!--best_efficientnet-->0<!--/--> times as fast as TF32 as it is. In TF32 the fused "
            "optimizer alone gains <!--fused_resnet-->0<!--/--> and <!--fused_efficientnet-->0<!--/--> times, and channels_last after it <!--eager_layout_resnet-->0<!--/--> and "
            "<!--eager_layout_efficientnet-->0<!--/-->.", "",
        ]
    else:
        told = "; ".join(
            f"{TITLES[model]}: " + ", ".join(f"{NAMES[p]} {WAYS[f, c]} on {word(k)}" for (p, f, c), k in one.most_common())
            for model, one in found["arms"].items()
        )
        lines += [f"**The shortest step without a graph** is inconclusive, because machines or models differ ({told}).", ""]
    lines += ["[Report](summary.ipynb), [all ratios](ratios.csv), [all trainings](trainings.csv), [machines, limits and what lacks](notes.md).", "", *numbers, "-->", ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def notes(found, records, minutes, beside):
    """Return notes.md."""
    n = found["machines"]
    by = collections.defaultdict(list)
    for record in records:
        by[machine_of(record), record["settings"]["seed"]].append(record)
    def values(own, section, name):
        return ", ".join(sorted({str(one[section][name]) for one in own}))
    lines = [
        "# `eager` on H200s", "",
        f"The study `eager` on {word(n)} machines: trainings in eager mode, in TF32, fp16 and bf16 AMP, one process per comparison on each machine. "
        "[The plan](../../../docs/contributors/plans.md) was committed before it.",
        f"NVIDIA H200s ({values(records, 'machine', 'device_total_mib').partition('.')[0]} MiB, driver {values(records, 'machine', 'driver_version')}) of virtual machines of one kind, "
        f"{values(records, 'machine', 'host_cpu')}, PyTorch {values(records, 'machine', 'torch_version').partition('+')[0]}, CUDA {values(records, 'machine', 'cuda_version')}. "
        "The data are made up, so no metric says anything of quality.", "",
        "| seed | trainings | commit | cores, PyTorch's threads | cards | the machine did besides |", "|---|---|---|---|---|---|",
    ]
    first = "another card trained [quick](../../main/quick-h200/README.md)"
    for (_, seed), own in sorted(by.items(), key=lambda item: item[0][1]):
        cards = len({one["machine"]["gpu_uuid"] for one in own})
        commits = ", ".join(sorted({(one["run"]["commit"] or "unknown")[:8] for one in own}))
        what = first if seed == 0 else (beside or ("its other cards trained the rest of the study" if cards > 1 else "nothing"))
        lines.append(f"| {seed} | {len(own)} | {commits} | {values(own, 'machine', 'host_cores')}, {values(own, 'machine', 'host_threads')} | {cards} | {what} |")
    usual = collections.Counter((one["settings"]["seed"]) for one in records)
    brief = collections.defaultdict(list)
    for one in records:
        if 0 < (seconds := sum(one["measured"]["time"]["epoch_seconds"])) < 2:
            brief[one["run"]["model_title"], one["settings"]["batch_size"], one["settings"]["seed"]].append(seconds)
    short = [
        f"{title} at batch {batch} with seed {seed}, {word(len(own))} training{'s' if len(own) > 1 else ''} ({min(own):.1f} to {max(own):.1f} s)"
        for (title, batch, seed), own in brief.items()
    ]
    unseen = [one["run"]["run_id"] for one in records if one["run"]["status"] == "ok" and one["measured"]["kernels"]["gpu_busy_fraction"] is None]
    lines += [""]
    if n < PLANNED:
        lines.append(f"- **n is {word(n)} machines of four.** A range takes three, an interval five.")
    lacking = {seed: 36 - count for seed, count in usual.items() if count < 36}
    if lacking:
        lines.append("- **Trainings that lack**: " + ", ".join(f"{number} of seed {seed}" for seed, number in lacking.items()) + ", because the call was ended.")
    others = collections.Counter(one["run"]["status"] for one in records if one["run"]["status"] != "ok")
    if others:
        lines.append("- **Not trained**: " + ", ".join(f"{number} {status}" for status, number in others.items()) + ".")
    if short:
        lines.append("- **Too short to be judged** (under 2 s): " + "; ".join(short) + ". WideResNet-28-10 has 30 steps an epoch on the first machine and 100 on the others, so these are two comparisons.")
    if unseen:
        lines.append(f"- **{word(len(unseen)).capitalize()} profiles lack**, so these trainings have no busy share.")
    cells = found["cells"]
    wrong = cells[(cells.busy != cells.pays) & cells.pays.notna()]
    for one in wrong.itertuples():
        lines.append(f"- **The rule errs** for {one.title}: TF32 kept the GPU busy for {1 - one.idle:.0%} of a step, and fp16 AMP was {one.lowest:.2f} to {one.highest:.2f} times as fast.")
    for one in cells[cells.pays.isna()].itertuples():
        lines.append(f"- Inconclusive: {one.title}, {one.lowest:.2f} to {one.highest:.2f} times, TF32 busy for {1 - one.idle:.0%}.")
    codes = {(one["run"]["notebook"], one["run"]["code_hash"]) for one in records}
    if len(codes) > len({name for name, _ in codes}):
        lines.append("- The code that measures changed between the first machine and the others: notebooks got parameters for remedies and files of weights, all off here. Older records lack them, and trained so, so all are one comparison.")
    if minutes:
        lines.append(f"- The new machines took {minutes} GPU minutes, their start included.")
    return "\n".join(lines) + "\n"


def replace(clone, found, missing):
    """Change the sentences of other pages; what is not found is named."""
    n, count = word(found["machines"]), found["machines"]
    clause = best_words(found)
    better = found["rule"] > found["always"]
    changes = [
        ("outputs/README.md", "[eager, H200, one machine of four](more/eager-h200/README.md)",
         f"[eager, H200, {n} machine{'s' if count > 1 else ''}{'' if count >= PLANNED else ' of four'}](more/eager-h200/README.md)"),
        ("docs/answers/is-amp-worth-it-in-eager-mode.md", "gained <!--gpt-->2.1<!--/--> times (one run, H200).",
         f"gained <!--gpt-->0<!--/--> times (<!--gpt_n-->{n}<!--/--> H200s)." if found["hosts"].get(("gpt", "amp_fp16"), 1) > 1 else None),
        ("docs/answers/is-amp-worth-it-in-eager-mode.md", "\ngpt: ratio of gpt_124m as .1f\n",
         "\ngpt: ratio of gpt_124m as .1f\ngpt_n: hosts of gpt_124m as word\n"),
        ("docs/answers/is-amp-worth-it-in-eager-mode.md",
         " Our three models, idle or busy, were <!--eager_all-->0.6 to 1.4<!--/--> times as fast over all machines.",
         (f" On [{n} H200s](../../outputs/more/eager-h200/README.md) the rule of <!--study_share-->80%<!--/--> is right in <!--study_rule-->0<!--/--> of "
          "<!--study_decided-->0<!--/--> cells, *always AMP* in <!--study_always-->0<!--/-->.") if count >= PLANNED else None),
        ("docs/answers/is-amp-worth-it-in-eager-mode.md",
         "For images try channels_last before AMP: EfficientNet in TF32 became <!--line_layout-->1.7<!--/--> times as fast by that line (H200, two runs).",
         (f"Without a graph {clause} is best on [{n} H200s](../../outputs/more/eager-h200/README.md). It is <!--best_resnet-->0<!--/--> times as fast as plain TF32 for ResNet-18, "
          "<!--best_efficientnet-->0<!--/--> for EfficientNet.") if clause and count >= PLANNED else None),
        ("docs/results.md", "On a busy GPU [most image models gain](answers/is-amp-worth-it-in-eager-mode.md).",
         ("[If TF32 fills the GPU](answers/is-amp-worth-it-in-eager-mode.md), AMP mostly pays." if better else None) if count >= PLANNED else None),
        ("docs/results.md", "; part may be its fused optimizer and scaler on the GPU.",
         " (an eager fused optimizer alone <!--fused_resnet-->0<!--/-->, ResNet-18)." if count >= PLANNED else None),
        ("docs/why-not-faster.md", "Take a larger batch, or [a CUDA graph]",
         (f"Take a larger batch, {clause}, or [a CUDA graph]" if clause else None) if count >= PLANNED else None),
        ("README.md", "\n\n**Memory:** as compiled CUDA graphs",
         (f" Best without a graph: {clause.replace(' in channels_last with a', ', channels_last,').replace(' with a', ',')} (ResNet-18, EfficientNet; H200)." + "\n\n**Memory:** as compiled CUDA graphs") if clause and count >= PLANNED else None),
        ("CHANGELOG.md", "and `eager` as far as it has run.", f"and `eager` on {n} machines."),
        ("CONTRIBUTING.md", "\n\n## Add an experiment", f"\n- `eager-h200` has the trainings of more machines, {n} in all, so its ratios have a range.\n\n## Add an experiment"),
    ]
    for name, old, new in changes:
        path = clone / name
        text = path.read_text()
        if new is None:
            print(f"kept: {name}: {old.strip()[:90]}")
        elif text.count(old) == 1:
            path.write_text(text.replace(old, new))
        elif new.strip() in text:
            print(f"there already: {name}: {new.strip()[:90]}")
        else:
            missing.append((name, old, new))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clone", type=Path)
    parser.add_argument("places", type=Path, nargs="*")
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--beside", default="")
    parser.add_argument("--skip-tests", action="store_true")
    args = parser.parse_args()
    clone = args.clone.resolve()
    folder = clone / FOLDER
    old = all_records(folder)
    added, refused = add(args.places, folder, {one["run"]["run_id"]: one["machine"]["gpu_uuid"] for one in old})
    records = old + added
    machines = len({machine_of(one) for one in records})
    print(f"{len(added)} records added, {len(refused)} left out", *refused, sep="\n  ")
    for seed, number in sorted(collections.Counter(one["settings"]["seed"] for one in records).items()):
        print(f"  seed {seed}: {number} of 36 trainings, machines {len({machine_of(one) for one in records if one['settings']['seed'] == seed})}")
    count = f"{word(machines).capitalize()} machine{'s' if machines > 1 else ''} and one process a model on each"
    (folder / "study.yaml").write_text(
        "name: eager\ndescription: >-\n  When AMP pays in eager mode, on a busy GPU, and what layout and optimizer add without a graph.\n"
        f"  {count}{', so ratios are ranges of machines' if machines > 2 else ', so no ratio has an interval'}.\n"
    )
    python = sys.executable
    run(python, "docs/outputs.py", FOLDER, cwd=clone)
    sys.path[:0] = [str(clone / "docs"), str(clone)]
    os.chdir(clone)
    import figures
    import pandas as pd

    found = sentences(clone, figures)
    ratios = pd.read_csv(folder / "ratios.csv", low_memory=False)
    steps = found["trainings"].query("model == 'wide_resnet28_10'").max_steps
    found["wide"] = int(steps.max())
    settings = found["trainings"].drop_duplicates("comparison").set_index("comparison")
    table = ratios.join(settings[settings.columns.difference(ratios.columns)], on="comparison")
    found["hosts"] = {}
    for key, _, condition in ROWS:
        for precision in ("amp_fp16", "amp_bf16"):
            rows = table.query(f"precision == '{precision}' and base == 'tf32' and " + condition.format(wide=found["wide"]))
            if len(rows) != 1:
                print(f"CAUTION: {key} {precision}: {len(rows)} rows of ratios")
            found["hosts"][key, precision] = int(rows.hosts.max()) if len(rows) else 0
    print(found["cells"][["title", "hosts", "idle", "lowest", "ratio", "highest", "seconds", "busy", "pays"]].to_string())
    print({name: found[name] for name in ("machines", "rule", "always", "decided", "arms", "same_best")}, "best:", best_words(found))
    (folder / "README.md").write_text(readme(found))
    (folder / "notes.md").write_text(notes(found, all_records(folder), args.minutes, args.beside))
    missing = []
    replace(clone, found, missing)
    run(python, "docs/tables.py", cwd=clone)
    run(python, "docs/figures.py", cwd=clone)
    run(python, "tests/golden/figures.py", "--write", "tests/golden/figures", "eager-h200", cwd=clone)
    run("git", "status", "--short", cwd=clone)
    for name, was, now in missing:
        print(f"NOT REPLACED in {name}:\n  {was!r}\n  {now!r}")
    text = (clone / "README.md").read_text()
    import tables

    shown = re.sub(r"(?s)```.*?```|\]\([^)]*\)", "", tables.BADGES.sub("", text))
    print(f"README: {len(shown.split())} of 450 words; outputs: {sum(p.stat().st_size for p in (clone / 'outputs').rglob('*') if p.is_file()):,} of 20,000,000 bytes")
    if not args.skip_tests:
        run(python, "-m", "pytest", "-q", "-n", "0", "-m", "", "tests/test_docs.py", "tests/test_docs_tables.py", "tests/test_outputs.py", "tests/test_reference.py",
            "tests/test_golden_figures.py", "-k", "eager or docs or readme or page or number or stale or folder or report or record or machine or answer or finding", cwd=clone, check=False)


main()
