"""A recount of the answer on bf16 weights and of the predictor's score from the CSVs, without the package and its benchmarks.

    python weights_recount.py CLONE

Reads outputs/checks/weights-pilot-h200.zip, outputs/main/weights-h200/{trainings,cells}.csv and docs/answers/bf16-weights.md.
"""

import csv
import io
import math
import re
import statistics
import sys
import zipfile
from collections import defaultdict
from pathlib import Path

from scipy.stats import t as student

root = Path(sys.argv[1]).resolve()
bad = 0


def check(what, mine, theirs, close=1e-6):
    global bad
    equal = mine == theirs
    if isinstance(mine, float) and isinstance(theirs, float):
        equal = math.isclose(mine, theirs, rel_tol=close, abs_tol=1e-9) or (math.isnan(mine) and math.isnan(theirs))
    if not equal:
        bad += 1
        print(f"DIFFERS {what}: recounted {mine}, written {theirs}")
    return equal


def read(text):
    return [row for row in csv.DictReader(io.StringIO(text)) if row["status"] in ("ok", "diverged")]


def value(row):
    """The metric, upwards; None where it diverged."""
    if row["status"] == "diverged" or not row["metric"]:
        return None
    return float(row["metric"]) * (1 if row["metric_better"] == "higher" else -1)


with zipfile.ZipFile(root / "outputs/checks/weights-pilot-h200.zip") as archive:
    pilot = read(archive.read("trainings.csv").decode())
folder = root / "outputs/main/weights-h200"
counted = read((folder / "trainings.csv").read_text())
cells = list(csv.DictReader(io.StringIO((folder / "cells.csv").read_text())))

# 1. The pilot's margin and rates
margin, rates, start = {}, {}, {}
for notebook in ("transformer", "cifar_resnet"):
    ends = defaultdict(list)
    for row in pilot:
        if row["notebook"] == notebook and row["precision"] == "tf32" and value(row) is not None:
            ends[float(row["lr"])].append(value(row))
    if not ends:
        continue
    means = {rate: statistics.fmean(found) for rate, found in ends.items()}
    start[notebook] = statistics.fmean(mean for rate, mean in means.items() if rate < 1e-9)
    gains = {rate: mean - start[notebook] for rate, mean in means.items() if rate >= 1e-9}
    best = max(gains.values())
    margin[notebook] = best / 3
    good = sorted(rate for rate, gain in gains.items() if gain >= best / 2)
    rates[notebook] = [good[round(place * (len(good) - 1) / 3)] for place in range(4)]
    print(f"{notebook}: start {start[notebook]:.4f}, best gain {best:.4f}, margin {margin[notebook]:.4f}, rates {rates[notebook]}")

# 2. Cells
recipe_of = lambda row: (row["precision"], row["moments"], row["rounding"])
base = ("tf32", "as_weights", "nearest")
found = defaultdict(dict)
kept = defaultdict(list)
for row in counted:
    notebook, rate = row["notebook"], float(row["lr"])
    if notebook not in rates or rate not in rates[notebook] or not row["identity"] or row["max_steps"] not in ("0", "0.0"):
        continue
    quality = value(row)
    quality = start[notebook] if quality is None else quality
    key = (notebook, rate, recipe_of(row))
    place = (row["identity"], int(float(row["seed"])))
    if place in found[key]:
        bad += 1
        print("DIFFERS: two trainings of", key, place)
    found[key][place] = quality
    if row["kept_update_fraction"]:
        kept[key].append(float(row["kept_update_fraction"]))
mine = {}
for (notebook, rate, recipe), own in found.items():
    if recipe == base:
        continue
    other = found[notebook, rate, base]
    pairs = [(other[place] - own[place]) / margin[notebook] for place in own if place in other]
    mean = statistics.fmean(pairs)
    half = student.ppf(0.95, len(pairs) - 1) * statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else math.nan
    low, high = mean - half, mean + half
    outcome = "worse" if low > 1 else "not worse" if high < 1 else "undecided"
    share = statistics.fmean(kept[notebook, rate, recipe]) if kept[notebook, rate, recipe] else math.nan
    mine[notebook, rate, recipe] = (share, mean, low, high, len(pairs), outcome)
written = {}
for row in cells:
    number = lambda name: float(row[name]) if row[name] else math.nan
    written[row["notebook"], float(row["lr"]), recipe_of(row)] = (
        number("kept"), number("difference"), number("low90"), number("high90"), int(row["seeds"]), row["outcome"])
    check(f"margin of {row['notebook']}", margin[row["notebook"]], number("margin"))
check("cells", sorted(map(str, mine)), sorted(map(str, written)))
for key in mine.keys() & written.keys():
    for name, a, b in zip(("kept", "difference", "low90", "high90", "seeds", "outcome"), mine[key], written[key]):
        check(f"{name} of {key}", a, b)
print(f"{len(mine)} cells recounted")

# 3. The predictor
nearest = {key: cell for key, cell in mine.items() if key[2][0] == "bf16_true" and key[2][2] == "nearest"}
decided = {key: cell for key, cell in nearest.items() if cell[5] != "undecided" and not math.isnan(cell[0])}
held = sorted({key[1] for key in mine if key[0] == "transformer"})[2]
fitted = {key: cell for key, cell in decided.items() if key[0] == "transformer" and key[1] != held}
tested = {key: cell for key, cell in decided.items() if key not in fitted}


def best_bound(by):
    values = sorted({by(key, cell) for key, cell in fitted.items()})
    bounds = [-math.inf, *((a + b) / 2 for a, b in zip(values, values[1:])), math.inf]
    right = [sum((by(key, cell) < bound) == (cell[5] == "worse") for key, cell in fitted.items()) for bound in bounds]
    best = [bound for bound, count in zip(bounds, right) if count == max(right)]
    return best[len(best) // 2]


def right_of(by):
    bound = best_bound(by)
    return sum((by(key, cell) < bound) == (cell[5] == "worse") for key, cell in tested.items())


score = None
if len({cell[5] for cell in fitted.values()}) == 2:
    by_share, by_rate = (lambda key, cell: cell[0]), (lambda key, cell: math.log(key[1]))
    bound = best_bound(by_share)
    worse = sum(cell[5] == "worse" for cell in tested.values())
    score = dict(decided=len(tested), worse=worse, kept=right_of(by_share), rate=right_of(by_rate), bound=bound)
    verdict = "inconclusive"
    if len(tested) >= 8 and 0 < worse < len(tested):
        holds = score["kept"] >= len(tested) - 1 and score["kept"] > max(worse, score["rate"])
        verdict = "holds" if holds else "fails"
    print("score", score, verdict)
    said = {"holds": "So it holds.", "fails": "So it fails by the plan.",
            "inconclusive": "That is inconclusive"}
else:
    print("the fitted cells end alike, so there is no score")

# 4. The page
page_path = root / "docs/answers/bf16-weights.md"
if page_path.exists():
    page = page_path.read_text()
    numbers = dict(re.findall(r"<!--(\w+)-->(.*?)<!--/-->", page))
    block = re.search(r"<!-- score -->\n(.*?)\n<!-- /score -->", page, re.DOTALL)[1]
    if score:
        wanted = (f"A bound of {score['bound']:.0%}", f"right in {score['kept']} of {score['decided']} other cells",
                  f"*Always worse* is right in {score['worse']}, a bound on the rate in {score['rate']}", said[verdict])
        for words in wanted:
            check(f"score says {words!r}", words in block, True)
    r1, r2, r3, _ = rates["transformer"]
    unit = margin["transformer"]
    plain = ("bf16_true", "as_weights", "nearest")

    def span(values, form="{:.3f}"):
        low, high = form.format(min(values)), form.format(max(values))
        return low if low == high else f"{low.rstrip('%')} to {high}"

    def own(recipe, notebook="transformer"):
        return {rate: cell for (name, rate, what), cell in mine.items() if (name, what) == (notebook, recipe)}

    of = own(plain)
    wanted = {"low": f"{of[r2][1] * unit:.3f}", "low_kept": f"{of[r2][0]:.0%}", "lowest": f"{of[r1][1] * unit:.3f}", "best_kept": f"{of[r3][0]:.0%}"}
    wanted |= {f"best{end}": f"{of[r3][place] * unit:.3f}" for place, end in ((1, ""), (2, "_from"), (3, "_to"))}
    wanted["random"] = f"{max(own(('bf16_true', one, 'stochastic'))[r3][3] for one in ('fp32', 'as_weights')) * unit:.3f}"
    both = (own(("bf16_true", "as_weights", "kahan"))[r1], own(("bf16_true", "fp32", "fp32_copy"))[r1])
    wanted["copy"] = span([cell[1] * unit for cell in both])
    wanted["small"] = f"{max(cell[3] for cell in own(('amp_bf16', '8bit', 'nearest')).values()) * unit:.3f}"
    wanted |= {"margin_gpt": f"{unit:.3f}", "margin_vit": f"{100 * margin['cifar_resnet']:.1f}"}
    wanted["n"] = span([cell[4] for key, cell in mine.items() if key[0] == "transformer"], "{:.0f}")
    vit, unit = own(plain, "cifar_resnet"), margin["cifar_resnet"]
    for name, rate in (("vit_low", 5e-5), ("vit_second", 2e-4), ("vit_best", 5e-4)):
        wanted |= {f"{name}{end}": f"{100 * vit[rate][place] * unit:.1f}" for place, end in ((1, ""), (2, "_from"), (3, "_to"))}
        wanted[f"{name}_kept"] = f"{vit[rate][0]:.0%}"
    wanted["vit_n"] = span([cell[4] for cell in vit.values()], "{:.0f}")
    for name, number in numbers.items():
        check(f"page {name}", wanted.get(name), number)
    names = {"bf16 AMP": ("amp_bf16", "as_weights", "nearest"), "fp16 AMP": ("amp_fp16", "as_weights", "nearest"),
             "bf16 AMP, 8-bit moments": ("amp_bf16", "8bit", "nearest"), "**bf16 weights**": plain,
             "fp32 moments": ("bf16_true", "fp32", "nearest"), "stochastic": ("bf16_true", "as_weights", "stochastic"),
             "stochastic, fp32 moments": ("bf16_true", "fp32", "stochastic"),
             "Kahan's sums": ("bf16_true", "as_weights", "kahan"), "fp32 copy": ("bf16_true", "fp32", "fp32_copy")}
    times = defaultdict(dict)
    for row in counted:
        if row["max_steps"] in ("100", "100.0") and row["status"] == "ok":
            times[row["execution"], recipe_of(row)][row["repeat"], row["gpu_uuid"], row["identity"]] = float(row["seconds"])
    table = dict(line.strip("|").split("|", 1) for line in re.search(r"<!-- recipes -->\n(.*?)\n<!-- /recipes -->", page, re.DOTALL)[1].splitlines())
    count = 0
    for name, recipe in names.items():
        _, gpt, vit, fast = table[name].split("|")
        for notebook, said_there in (("transformer", gpt), ("cifar_resnet", vit)):
            outcomes = [cell[5] for key, cell in mine.items() if key[0] == notebook and key[2] == recipe]
            least = outcomes.count("worse")
            most = least + outcomes.count("undecided")
            words = f"{least}{f'–{most}' if most > least else ''} of {len(outcomes)}" if outcomes else "-"
            count += check(f"table {name} {notebook}", words, said_there)
        way = "eager" if recipe[1] == "8bit" else "cuda_graph"
        own, other = times[way, recipe], times[way, base]
        logs = [math.log(other[place] / own[place]) for place in own if place in other]
        if len(logs) > 1:
            mean = statistics.fmean(logs)
            half = student.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
            words = f"{math.exp(mean):.2f}" + (f" ({math.exp(mean - half):.2f}–{math.exp(mean + half):.2f})" if len(logs) > 2 else "")
            count += check(f"table {name} time", words, re.sub(r"^~|\*|†| eager$", "", fast))
        elif fast != "-":
            check(f"table {name} time", "-", fast)
    print(f"{count} entries of the table and {len(numbers)} numbers of the page looked at")
print("all equal" if not bad else f"{bad} differ")
sys.exit(bool(bad))
