"""A recount of the answer on memory from trainings.csv alone, which shares no code with the package, its documents and benchmarks.

    python fit_recount.py CLONE

It reads outputs/main/fit-h200/trainings.csv, and compares the README there and docs/answers/does-not-fit.md with it.
"""

import csv
import math
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from scipy.stats import t as student

root = Path(sys.argv[1]).resolve()
folder = root / "outputs/main/fit-h200"
page = (root / "docs/answers/does-not-fit.md").read_text()
readme = (folder / "README.md").read_text()
bad = compared = 0
SETTINGS = {  # what an arm may change, as bf16 AMP has it
    "precision": "amp_bf16", "execution": "eager", "moments": "as_weights", "rounding": "nearest", "clip": 1.0, "loss_chunks": 1.0,
    "checkpointing": 0.0, "memory_budget": 0.0, "offload": 0.0, "micro_batches": 1.0, "optimizer_in_backward": 0.0, "adapters": 0.0,
}
CALLED = {
    ("precision", "tf32"): "TF32 instead", ("precision", "bf16_true"): "bf16 weights", ("execution", "compile"): "compiled",
    ("moments", "bf16"): "bf16 moments", ("moments", "8bit"): "8-bit moments", ("rounding", "stochastic"): "", ("clip", 0.0): "",
    ("loss_chunks", 8.0): "loss in 8 parts", ("checkpointing", 1.0): "every block again", ("checkpointing", 2.0): "every second block again",
    ("memory_budget", 0.6): "memory budget 0.6", ("memory_budget", 0.3): "memory budget 0.3", ("offload", 1.0): "offload",
    ("micro_batches", 2.0): "2 micro-batches", ("optimizer_in_backward", 1.0): "optimizer in backward", ("adapters", 16.0): "LoRA",
}


def check(what, mine, theirs):
    global bad, compared
    compared += 1
    if mine != theirs:
        bad += 1
        print(f"DIFFERS {what}: recounted {mine!r}, written {theirs!r}")


def number(text):
    text = {"True": "1", "False": "0"}.get(text, text)
    try:
        return float(text)
    except ValueError:
        return text


def signed(value, form):
    return f"{value:{form}}".replace("-", "−").replace("−0.0", "+0.0") if form.endswith("f") else re.sub("^−0%", "+0%", f"{value:{form}}".replace("-", "−"))


rows = []
with (folder / "trainings.csv").open() as file:
    for row in csv.DictReader(file):
        if row["status"] != "ok" or row["explains"] == "True" or float(row["memory_limit_gib"]):
            continue
        arm = tuple(number(row[name]) if row.get(name) else usual for name, usual in SETTINGS.items())
        size = tuple(row.get(name) or "" for name in ("layers", "width", "context"))
        kind = (row["notebook"], row["model"], size, row["batch_size"], row["dataset_used"])
        rows.append({**row, "arm": arm, "kind": kind, "steps": row["max_steps"]})
PLAIN = tuple(SETTINGS.values())
kinds = list(dict.fromkeys(row["kind"] for row in rows))
kinds = [kind for kind in kinds if any(row["kind"] == kind and row["arm"] == PLAIN for row in rows)]


def study_of(row):
    found = re.search(r"['\"]name['\"]: ['\"]([\w-]+)", row["study"] or "")
    return found[1] if found else row["study"]


def gib(row):
    return (float(row["peak_allocated_mib"]) - float(row["data_on_device_mib"] or 0)) / 1024


def named(arm):
    words = [CALLED.get((name, value), f"{name} {value}") for (name, usual), value in zip(SETTINGS.items(), arm) if value != usual]
    return " + ".join(filter(None, words)) or "bf16 AMP"


def pairing(row):
    return row["seed"], row["repeat"], row["gpu_uuid"]


def time_of(own, base):
    """(times as long as the base, low, high, processes) of the trainings of one number of steps."""
    beside = {pairing(row): float(row["seconds"]) for row in base}
    pairs = [(row, float(row["seconds"]) / beside[pairing(row)]) for row in own if pairing(row) in beside]
    if not pairs:
        mean = lambda side: statistics.fmean(math.log(float(row["seconds"])) for row in side)
        return math.exp(mean(own) - mean(base)), None, None, 0
    logs = [math.log(ratio) for _, ratio in pairs]
    hosts = defaultdict(list)
    for (row, _), log in zip(pairs, logs):
        hosts[row["host_id"] or row["gpu_uuid"]].append(log)
    if len(hosts) >= 3:  # eager times belong to a machine; fewer than five have no interval
        means = [statistics.fmean(one) for one in hosts.values()]
        middle = statistics.median(math.exp(one) for one in means)
        if len(hosts) < 5:
            return middle, None, None, len(logs)
        logs = means
        middle = math.log(middle)
    else:
        middle = statistics.fmean(logs)
    low = high = None
    if len(logs) >= 3:
        half = student.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
        mean = statistics.fmean(logs)
        low, high = math.exp(mean - half), math.exp(mean + half)
    return (middle if len(hosts) >= 3 else math.exp(middle)), low, high, len(pairs)


table = {}
for kind in kinds:
    own = [row for row in rows if row["kind"] == kind]
    plain = max(gib(row) for row in own if row["arm"] == PLAIN)
    for arm in dict.fromkeys(row["arm"] for row in own):
        runs = [row for row in own if row["arm"] == arm]
        times = []
        for steps in dict.fromkeys(row["steps"] for row in runs):
            mine = [row for row in runs if row["steps"] == steps]
            base = [row for row in own if row["steps"] == steps and row["arm"] == PLAIN]
            if mine and base:
                times.append((*time_of(mine, base), float(steps)))
        best = max(times, key=lambda one: (one[3], one[4])) if times else (math.nan, None, None, 0)
        peak = max(map(gib, runs))
        table[kind, named(arm)] = {"gib": peak, "less": plain - peak, "more": best[0] - 1, "low": best[1], "high": best[2], "n": best[3],
                                   "arm": arm, "runs": runs, "studies": {study_of(row) for row in runs}}
asked = [kind for kind in kinds if any("fit" in one["studies"] for (own, _), one in table.items() if own == kind)]
held = [kind for kind in kinds if any("fit-held-out" in one["studies"] for (own, _), one in table.items() if own == kind)]
print(f"{len(rows)} trainings, {len(table)} arms of {len(kinds)} models, of which the page shows {len(asked)}")


def short(kind):
    return f"GPT, context {float(kind[2][2]):,.0f}" if kind[0] == "transformer" else "ViT-Base/16"


def cell(one):
    if math.isnan(one["more"]):
        return f"{signed(-one['less'], '+.1f')}, -"
    time = signed(one["more"], "+.0%")
    if one["low"] is None:
        return f"{signed(-one['less'], '+.1f')}, {time}"
    ends = ("–" if one["low"] >= 1 else " to ").join(f"{100 * (end - 1):.0f}".replace("-", "−") for end in (one["low"], one["high"]))
    return f"{signed(-one['less'], '+.1f')}, {time} ({ends})"


def lines_of(text, block):
    return re.search(rf"<!-- {block} -->\n(.*?)\n<!-- /{block} -->", text, re.DOTALL)[1].splitlines()


# 1. The table of single remedies
head, _, *body = ([part.strip() for part in line.strip("|").split("|")] for line in lines_of(page, "remedies"))
body = [[*row[0].split(" ", 1), *row[1:]] for row in body]
MARKS = {"offload": "=", "every block again": "=", "every second block again": "=", "loss in 8 parts": "≈", "2 micro-batches": "≈", "compiled": "≈"}
check("marks", [MARKS.get(row[1], "≠") for row in body], [row[0] for row in body])
body = [row[1:] for row in body]
check("columns", sorted(map(short, asked)), sorted(head[1:]))
single = {name for (kind, name) in table if kind in asked and " + " not in name and name != "bf16 AMP"}
check("rows", sorted(single), sorted(row[0] for row in body))
by_name = {short(kind): kind for kind in asked}
for name, *cells in body:
    for column, written in zip(head[1:], cells):
        one = table.get((by_name[column], name))
        check(f"{name}, {column}", cell(one) if one else "-", written)

# 2. What did nothing
written = {}
for line in lines_of(page, "nothing"):
    if found := re.match(r"- \*\*(.*?)\*\*: (.*?) \((\d+%) (\w+)\)\.", line):
        written[found[1]] = (sorted(found[2].split(", ")), found[4], found[3])
mine = {}
for kind in asked:
    idle = sorted(name for (own, name), one in table.items()
                  if own == kind and " + " not in name and name not in ("bf16 AMP", "TF32 instead") and one["less"] / (one["gib"] + one["less"]) < 0.03)
    explained = [row for row in table[kind, "bf16 AMP"]["runs"] if row["ledger_activations_mib"]]
    if idle and explained:
        parts = {"weights": "parameters", "gradients": "gradients", "moments": "optimizer", "activations": "activations"}
        sizes = {word: float(explained[-1][f"ledger_{part}_mib"] or 0) for word, part in parts.items()}
        most = max(sizes, key=sizes.get)
        mine[short(kind)] = (idle, most, f"{sizes[most] / 1024 / gib(explained[-1]):.0%}")
check("what did nothing", mine, written)

# 3. The frontier in the folder's README
shown = [tuple(part.strip() for part in line.strip("|").split("|")) for line in lines_of(readme, "frontier")[2:]]
expected = []
for kind in kinds:
    own = {name: one for (other, name), one in table.items() if other == kind}
    free = {name: one for name, one in own.items() if "LoRA" not in name and not math.isnan(one["more"])}
    best = [name for name, one in free.items()
            if not any(other != name and two["gib"] <= one["gib"] and two["more"] <= one["more"] for other, two in free.items())]
    for name in ["bf16 AMP", *sorted(best, key=lambda name: -own[name]["gib"])]:
        runs = own[name]["runs"]
        sizes = [own[name]["gib"], max(float(row["peak_reserved_mib"]) for row in runs) / 1024, max(float(row["device_used_mib"] or 0) for row in runs) / 1024]
        expected.append((f"{sizes[0]:.2f}, {sizes[1]:.1f}, {sizes[2]:.1f}", cell({**own[name], "less": 0}).split(", ", 1)[1] if own[name]["more"] else "+0%", name))
check("the frontier", sorted(expected), sorted(row[1:] for row in shown))

# 4. Numbers in sentences
quoted = {name: text for name, text in re.findall(r"<!--(\w+)-->(.*?)<!--/-->", page)}
in_readme = {name: text for name, text in re.findall(r"<!--(\w+)-->(.*?)<!--/-->", readme)}
gpt = next(kind for kind in asked if short(kind) == "GPT, context 1,024")
arm = re.search(r"first = .*?arm == '([^']+)'", page)[1]
values = tuple(number({"true": "1", "false": "0"}.get(value, value)) for value in arm.split(", "))
first = next(one for (kind, _), one in table.items() if kind == gpt and one["arm"] == values)
own = {name: one for (kind, name), one in table.items() if kind == gpt and "LoRA" not in name}
is_less = " less time" in page.split("\n")[2]
as_word = (lambda ratio: f"{1 - ratio:.0%}") if is_less else (lambda ratio: f"{ratio - 1:.0%}")
expect = {"before": f"{own['bf16 AMP']['gib']:.1f}", "after": f"{first['gib']:.1f}", "takes": as_word(1 + first["more"]),
          }
if first["low"] is None:
    expect["n"] = "no one two three four five six".split()[first["n"]]
if first["low"] is not None:
    expect |= {"n": ("no one two three four five six".split())[first["n"]]}
    expect |= {"low": as_word(first["low"]), "high": as_word(first["high"])} if not is_less else {"low": as_word(first["high"]), "high": as_word(first["low"])}
    if not is_less:
        expect |= {"low": as_word(first["high"]), "high": as_word(first["low"])}
    if is_less:
        expect |= {"low": as_word(first["high"]), "high": as_word(first["low"])}
beside = [float(row["device_used_mib"]) / 1024 - gib(row) for row in rows if row["steps"] in ("20", "20.0") and row["device_used_mib"]]
expect["beside"] = f"{min(beside):.1f} to {max(beside):.1f}" if f"{min(beside):.1f}" != f"{max(beside):.1f}" else f"{min(beside):.1f}"
for word, name in (("budget", "compiled + memory budget 0.6"), ("both", "compiled + loss in 8 parts"), ("all", "compiled + loss in 8 parts + every block again")):
    if name in own:
        expect[word] = f"{own[name]['gib']:.1f}"
        if word == "budget":
            check("the budget is the faster one", True, own[name]["more"] < 0 and own[name]["gib"] < first["gib"])
vit = {name: one for (kind, name), one in table.items() if short(kind) == "ViT-Base/16"}
for word, name in (("vit", "bf16 AMP"), ("vit_again", "compiled + every block again")):
    expect[word] = f"{vit[name]['gib']:.1f}"
for name, text in quoted.items():
    check(f"number {name} of the page", expect.get(name), text)
for name, text in in_readme.items():
    check(f"number {name} of the README", expect.get(name), text)
# 5. Budgets, the two rules that need no prediction, and the prediction by docs/contributors/plans.md
def measured_like(kind):
    """The arms of the GPT of `fit` whose context is nearest to that of another model."""
    others = [own for own in asked if own[0] == "transformer"]
    near = min(others, key=lambda own: abs(math.log(float(own[2][2]) / float(kind[2][2]))))
    found = {}
    for row in sorted(rows, key=lambda row: (row["started_at"], row["run_id"]), reverse=True):
        if row["kind"] == near and study_of(row) == "fit" and row["ledger_activations_mib"]:
            found.setdefault(row["arm"], row)
    return found


def value(row, name):
    return float(row[name] or 0)


def guess_of(name, one):
    wanted = one["runs"][0]
    like = measured_like(wanted["kind"])
    row = like.get(one["arm"])
    if row is None:
        return None

    def size(row):
        layers, width, context = (value(row, key) for key in ("layers", "width", "context"))
        words, tokens = value(row, "vocabulary"), value(row, "batch_size") * value(row, "context")
        return {"weights": 12 * layers * width**2 + (words + context) * width, "blocks": tokens * width * layers, "inner": tokens * width, "logits": tokens * words}

    grown = {key: size(wanted)[key] / size(row)[key] for key in size(row)}
    place = list(SETTINGS).index("loss_chunks")
    logits = kept_logits = 0.0
    for arm, whole in like.items():
        in_parts = like.get(arm[:place] + (8.0,) + arm[place + 1:])
        alike = arm[1] == one["arm"][1] and arm[place] == 1 and value(whole, "checkpointing") == 0
        if in_parts and alike:
            logits = max(0, (value(whole, "ledger_activations_mib") - value(in_parts, "ledger_activations_mib")) * 8 / 7)
            kept_logits = max(0, value(whole, "saved_activations_mib") - value(in_parts, "saved_activations_mib"))
    states = sum(value(row, f"ledger_{part}_mib") for part in ("parameters", "optimizer", "masters"))
    gradients, weights = value(row, "ledger_gradients_mib"), value(row, "ledger_parameters_mib")
    chunks, parts = value(row, "loss_chunks"), value(row, "micro_batches")
    ended = parts == 1 and gradients > weights / 2
    room = gradients if ended else value(row, "ledger_activations_mib")
    of_logits = min(logits / chunks / parts, room)
    blocks = max(0, min(value(row, "saved_activations_mib") - (kept_logits / parts if chunks == 1 else 0), room - of_logits))
    inner = value(row, "ledger_activations_mib") - (0 if ended else of_logits + blocks)
    start = blocks * grown["blocks"] + of_logits * grown["logits"] + (0 if ended else gradients) * grown["weights"]
    end = max(0 if ended else gradients, 0 if number(row["optimizer_in_backward"]) else weights) * grown["weights"]
    peak = states * grown["weights"] + inner * grown["inner"] + max(start, end) + value(row, "ledger_data_mib")
    return peak, value(row, "step_ms_median")


score = " ".join(lines_of(page, "score"))
if held:
    arms = {}
    for (kind, name), one in table.items():
        if kind == held[0] and "LoRA" not in name:
            arms[name] = (max(float(row["peak_allocated_mib"]) for row in one["runs"]), statistics.fmean(float(row["step_ms_median"]) for row in one["runs"]))
    peaks = sorted({peak for peak, _ in arms.values() if peak <= arms["bf16 AMP"][0]})
    budgets = [(low + high) / 2 for low, high in zip(peaks, peaks[1:])]
    right = lambda name: sum(arms[name][0] <= budget and arms[name][1] <= 1.05 * min(step for peak, step in arms.values() if peak <= budget) for budget in budgets) if name in arms else 0
    choice = []
    guesses = {name: guess_of(name, table[held[0], name]) for name in arms}
    for budget in budgets:
        fits = [(step, name) for name, found in guesses.items() if found for peak, step in [found] if peak <= 0.97 * budget]
        best = min(fits)[1] if fits else None
        shortest = min(step for peak, step in arms.values() if peak <= budget)
        choice.append("missing" if best is None else "too large" if arms[best][0] > budget else "right" if arms[best][1] <= 1.05 * shortest else "slow")
    found = re.search(r"Of (?P<n>\d+) budgets of a held-out GPT's peak it is right in (\d+) and too large in (\d+)\. \*Every block again\* is right in (\d+), \*8-bit moments\* in (\d+)\.", score)
    found = [None, found[2], found[1], *found.groups()[2:]]
    check("budgets", len(budgets), int(found[2]))
    check("always every block again", right("every block again"), int(found[4]))
    check("always 8-bit moments", right("8-bit moments"), int(found[5]))
    print("cautious", right("compiled + loss in 8 parts + every block again"))
    verdict = int(found[1]) > max(int(found[4]), int(found[5])) and int(found[3]) <= 1
    check("verdict", True, verdict)
    check("the prediction's right ones", choice.count("right"), int(found[1]))
    check("the prediction's too large ones", choice.count("too large"), int(found[3]))
else:
    check("no score", True, "inconclusive" in score)

# 6. Quality
quality = " ".join(lines_of(page, "quality"))
seeds = defaultdict(dict)
for row in rows:
    if study_of(row) == "fit-quality" and row["metric"]:
        seeds[row["arm"]][row["seed"]] = float(row["metric"])
compiled = tuple("compile" if name == "execution" else usual for name, usual in SETTINGS.items())
compiled = next((arm for arm in seeds if arm[1:] == compiled[1:]), None)
if compiled and len(seeds) > 1:
    ends, good = [], 0
    for arm, own in seeds.items():
        if arm == compiled:
            continue
        logs = [math.log(own[seed] / seeds[compiled][seed]) for seed in own if seed in seeds[compiled]]
        half = student.ppf(0.95, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
        low, high = (math.exp(statistics.fmean(logs) + side * half) - 1 for side in (-1, 1))
        ends += [low, high]
        good += high < 0.01  # a lower number of bits is the better one
    found = re.search(r"(\d+) of (\d+) remedies \((\d+) seeds, 90%: (\S+) to (\S+)\)", quality)
    check("quality", (min(map(len, seeds.values())), good, len(seeds) - 1, f"{min(ends):+.2%}".replace("-", "−"), f"{max(ends):+.2%}".replace("-", "−")),
          (int(found[3]), int(found[1]), int(found[2]), found[4], found[5]))
else:
    check("no quality", True, "inconclusive" in quality)
print(f"{compared} comparisons, {bad} differ")
sys.exit(bool(bad))
