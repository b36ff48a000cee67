"""Makes outputs/main/fit-h200 and docs/answers/does-not-fit.md in a clone from records that came back; commits nothing.

    python fit_publish.py CLONE FOLDER_OF_RECORDS [--minutes M] [--archive more/scaling-h200] [--no-golden] [--no-tests]

FOLDER_OF_RECORDS holds, at any depth, the JSON records (or zips of them) of fit, and of fit-held-out, fit-time and fit-quality where
they are there. Of several records of one training each counts, under a name of its card. The page is written anew each time: edit it after.
"""

import argparse
import collections
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

FOLDER, PAGE = "outputs/main/fit-h200", "docs/answers/does-not-fit.md"
FOREIGN = re.compile(r"(?<![\w.])/(?:home|root|tmp|opt|usr|work|mnt)/\w+")
STUDIES = ("fit", "fit-held-out", "fit-time", "fit-quality")
NO_RESULT = ("failed", "timeout", "killed")
DATE = (1980, 1, 1, 0, 0, 0)
DRAW = """import sys; sys.path[:0] = ['.', 'docs']
import does_not_fit
from pathlib import Path
from docs.sheets import sheet_of
from mixed_precision_study.report.charts import chart_style, drawing_of
with chart_style():
    found = does_not_fit.figures(Path('outputs').resolve())
drawings = [drawing_of(one, f'fit{place}', 'fit') for place, one in enumerate(found)]
for ending, columns in (('', min(3, len(drawings))), ('-narrow', 1)):
    Path(f'docs/images/fit{ending}.svg').write_text(sheet_of(drawings, columns))
"""
ASKED = "What do I switch on first when it does not fit?"
# a remedy at the begin of a sentence, and as an instruction for FIRST
SAID = {
    "compiled": ("`torch.compile`", "compile the model"),
    "loss in 8 parts": ("The loss in 8 parts", "compute the loss in parts, each by torch.utils.checkpoint"),
    "every block again": ("Every block computed again", "compute each block again in the backward pass, by torch.utils.checkpoint"),
    "every second block again": ("Every second block computed again", "compute every second block again in the backward pass, by torch.utils.checkpoint"),
    "offload": ("Offload of activations", "keep activations in the host's memory, by torch.autograd.graph.save_on_cpu"),
    "2 micro-batches": ("A batch in parts", "give the batch in parts whose gradients add up"),
    "8-bit moments": ("8-bit moments", "keep the optimizer's moments in 8 bits, by torchao.optim"),
    "bf16 moments": ("bf16 moments", "keep the optimizer's moments in bf16"),
    "bf16 weights": ("bf16 weights", "keep the weights in bf16 and round them stochastically, by torchao.optim"),
    "optimizer in backward": ("The optimizer in the backward pass", "update each weight in the backward pass, which frees its gradient at once"),
}
AIMED = {  # at what fills most of the memory
    "logits": ["loss in 8 parts", "compiled"],
    "activations": ["compiled", "every block again", "every second block again", "2 micro-batches"],
    "moments": ["8-bit moments", "bf16 moments"],
    "weights": ["bf16 weights"],
    "gradients": ["optimizer in backward"],
}


def run(*words, cwd, check=True, quiet=False):
    print("$", *(str(word)[:90] for word in words), flush=True)
    out = subprocess.DEVNULL if quiet else None
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(list(map(str, words)), cwd=cwd, check=check, stdout=out, stderr=out, env=environment).returncode


def contents(folder):
    for path in sorted(folder.rglob("*")):
        if "other_code" in str(path) or "other_data" in str(path):
            continue
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                yield from ((Path(name).name, archive.read(name)) for name in archive.namelist() if name.endswith(".json"))
        elif path.suffix == ".json":
            yield path.name, path.read_bytes()


def without_places(value):
    """Records name no folder of a machine: what is left of a path is its last part."""
    if isinstance(value, dict):
        return {name: without_places(one) for name, one in value.items()}
    if isinstance(value, list):
        return [without_places(one) for one in value]
    if isinstance(value, str):
        return re.sub(r"(?<![\w.])/(?:home|root|tmp|opt|usr|work|mnt)/[^\s'\":,)]*?([^\s/'\":,)]+)(?=[\s'\":,)]|$)", r"\1", value)
    return value


def unpack(source, folder):
    kept, left = {}, []
    for name, content in contents(source):
        record = json.loads(content)
        if "run" not in record or (record["run"].get("study") or {}).get("name") not in STUDIES:
            continue
        status = record["run"]["status"]
        if status in NO_RESULT:
            left.append(f"{status} {name}: {record['run']['reason']}")
            continue
        if record["machine"]["device_type"] != "cuda":
            left.append(f"of a CPU: {name}")
            continue
        if name in kept and kept[name]["run"]["status"] == "ok":
            if kept[name]["run"]["started_at"] == record["run"]["started_at"]:
                continue
            record["run"]["run_id"] += "-" + record["machine"]["gpu_uuid"][:12]  # another process of it
            name = record["run"]["run_id"] + ".json"
        record["settings"]["output_dir"] = f"outputs/{record['run']['study']['name']}"
        record["settings"]["data_dir"] = "data"
        kept[name] = without_places(record)
    for name, record in kept.items():
        text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
        assert not FOREIGN.search(text), (name, FOREIGN.search(text))
        (folder / name).write_text(text)
    print(f"{len(kept)} records; left out: {len(left)}", *left, sep="\n  ")
    return list(kept.values())


def archived(root, name):
    """Puts a folder of results into the archive: its records, its finding and its study."""
    folder = root / "outputs" / name
    if not folder.exists():
        return
    target = root / "outputs/archive" / f"{folder.name}.zip"
    readme = (folder / "README.md").read_text()
    readme = re.sub(r"(?s)<picture>.*?</picture>\n*|<!-- numbers.*?-->\n?|<!--/?\w*-->|\*\*", "", readme)
    readme = re.sub(r" ?\[Report\].*|\[([^\]]*)\]\([^)]*\)", lambda found: found[1] or "", readme).strip() + "\n"
    notes = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", (folder / "notes.md").read_text())
    parts = {"README.md": readme.encode(), "notes.md": notes.encode(), "study.yaml": (folder / "study.yaml").read_bytes()}
    with zipfile.ZipFile(folder / "records.zip") as archive:
        parts |= {one: archive.read(one) for one in archive.namelist()}
    with zipfile.ZipFile(target, "w") as archive:
        for one in sorted(parts):
            archive.writestr(zipfile.ZipInfo(one, DATE), parts[one], zipfile.ZIP_DEFLATED, 9)
    shutil.rmtree(folder)
    index = root / "outputs/README.md"
    index.write_text(index.read_text().replace(f"({name}/README.md)", f"(archive/{folder.name}.zip)"))
    print(f"{name} is archived: {target.stat().st_size / 1e3:.0f} kB")


def condition(axis, arm):
    """A condition of quoted.py on the settings of an arm."""
    words = []
    for name, value in zip(axis.settings, arm.split(", "), strict=True):
        shown = {"true": "True", "false": "False"}.get(value, value)
        words.append(f"{name} == {shown if re.fullmatch(r'-?[0-9.]+|True|False', shown) else repr(shown)}")
    return " and ".join(words)


class Found:
    """What the page needs of measured()."""

    def __init__(self, outputs):
        import does_not_fit
        from mixed_precision_study.report.tables import read_tables

        self.lib = does_not_fit
        self.axis = read_tables(outputs / does_not_fit.FOLDER).axis
        self.table = does_not_fit.measured(outputs)
        self.asked = self.table[self.table.asked]
        self.usual = does_not_fit.fit_budget.plain_of(self.axis)
        saved = self.asked.less / (self.asked.gib + self.asked.less)
        self.single = self.asked[self.asked.is_single].assign(saved=saved)

    def worth(self, names, models=""):
        """The remedies among some that save 3% in each model that they were measured in, the one of the least time first; none that
        another one beats in both everywhere. With `models` those alone whose name has this text."""
        rows = {}
        asked = self.single[self.single.model.str.contains(models)]
        for name, own in asked[asked["name"].isin(names)].groupby("name"):
            if own.saved.min() >= self.lib.SAVES_NOTHING and own.more.notna().all():
                rows[name] = own
        def beaten(name):
            one = rows[name].set_index("model")
            for other in rows:
                two = rows[other].set_index("model")
                both = one.index.intersection(two.index)
                if other != name and len(both) == len(one) and (two.saved[both] >= one.saved[both]).all() and (two.more[both] <= one.more[both]).all():
                    return True
            return False
        return sorted((name for name in rows if not beaten(name)), key=lambda name: rows[name].more.max())

    def shown(self, names):
        for row in self.single[self.single["name"].isin(names)].itertuples():
            print(f"    {row.name:26} {self.lib.short_model(row.model):22} {self.lib.cell_of(row)}  ({row.saved:.0%} of the peak)")


def first_of(found, root):
    """Says for each part of memory what the table puts first, and writes FIRST accordingly."""
    path = root / "mixed_precision_study/explain/out_of_memory.py"
    text = path.read_text()
    start, end = text.index("FIRST = {"), text.index("\n}\n", text.index("FIRST = {")) + 3
    scope = {}
    exec(text[start:end], scope)
    first = scope["FIRST"]
    for part, names in AIMED.items():
        good = found.worth(names, "GPT" if part == "logits" else "")
        print(f"FIRST, {part}: {', '.join(good) or 'nothing saves 3% everywhere, so the sentence stays'}")
        found.shown(names)
        if good:
            steps = good[:1]
            for name in good[1:2]:
                if part == "activations":  # compiled, the loss in parts takes more memory
                    steps.append(name)
            sentence = ", then ".join(SAID[name][1] for name in steps)
            first[part] = f"{sentence[0].upper()}{sentence[1:]}."
    new = "FIRST = {  # by what fills most of the memory\n"
    for part, sentence in first.items():
        line = f'    "{part}": "{sentence}",\n'
        if len(line) > 101:
            words = textwrap.wrap(sentence, 86, drop_whitespace=False)
            line = f'    "{part}": (\n' + "".join(f'        "{one}"\n' for one in words) + "    ),\n"
        new += line
    new += "}\n"
    path.write_text(text[:start] + new + text[end:])
    run(Path(sys.executable).with_name("ruff"), "format", "-q", path, cwd=root)
    run("git", "diff", "-U0", "--", path, cwd=root)
    (wrapped := path.read_text()) and print("longest line:", max(map(len, wrapped.splitlines())))


def texts(found, records, minutes):
    lib, names = found.lib, collections.Counter(one["run"]["study"]["name"] for one in records)
    gpt = next(model for model in found.asked.model.unique() if "context 1,024" in model)
    there = set(found.single[(found.single.model == gpt) & found.single.more.notna()]["name"])
    good = [name for name in found.worth([*lib.LOSSES], "GPT") if name in there]
    assert good, "no remedy that keeps the training saves 3% everywhere: write the answer by hand"
    first = good[0]
    print("first to switch on:", good)
    row = next(found.single[(found.single["name"] == first) & (found.single.model == gpt)].itertuples())
    layers, width = re.search(r"(\d+) × (\d+)", gpt).groups()
    model = f"layers == {layers} and width == {width} and context == 1024"
    least = lib.best_of(found.asked[found.asked.model == gpt]).iloc[-1]
    timed = row.low == row.low
    best = f"processes == {row.processes:.0f}" if row.processes else "processes == 0"
    word, sign = ("less", "1 - 1 / ratio") if row.more < 0 else ("more", "1 / ratio - 1")
    ends = ("low", "high") if row.more < 0 else ("high", "low")
    numbers = {}
    def quote(name, line):
        numbers[name] = line
        return f"<!--{name}-->0<!--/-->"
    rows = {
        "first": f"FOLDERratios where arm == {row.arm!r} and base == {found.usual!r} and {model} and {best}",
        "plain": f"FOLDERtrainings where {model} and {condition(found.axis, found.usual)} and memory_limit_gib == 0",
        "helped": f"FOLDERtrainings where {model} and {condition(found.axis, row.arm)} and memory_limit_gib == 0",
        "smallest": f"FOLDERtrainings where {model} and {condition(found.axis, least.arm)} and memory_limit_gib == 0",
        "single": "FOLDERtrainings where max_steps == 20 and memory_limit_gib == 0",
    }
    before, after = quote("before", "gib of plain as .1f"), quote("after", "gib of helped as .1f")
    takes = quote("takes", f"{sign} of first as .0%")
    n = "<!--n-->0<!--/-->"
    if timed:
        numbers["n"] = "processes of first as word"
        low, high = (quote(name, f"{sign.replace('ratio', name)} of first as .0%") for name in ends)
        hedge = f" (95%: {low} to {high}, n = {n})"
        single = f" (interval: {low} to {high}, n = {n})"
    else:
        numbers["n"] = "gib of plain as count"
        hedge = " (n = 1, so no interval: that takes three)"
        single = " (single processes, so without an interval)"
    sides = f"peak memory falls from {before} to {after} GiB. A step takes {takes} {word} time"
    said = SAID[first][0]
    answer = f"**{said} first: a GPT's {sides} than in bf16 AMP{hedge}.**"
    down = f"Its least peak is {quote('least', 'gib of smallest as .1f')} GiB, by {least['name'].replace(' + ', ', ')}."
    finding = f"**{said} comes first: a GPT's {sides} than in bf16 AMP{single}.**"
    beside = quote("beside", "card_gib - gib of single as .1f")
    used = {name for name in numbers if name != "n" or timed}
    def block(folder, wanted):
        named = [name for name in numbers if name in wanted]
        needed = {numbers[name].split(" of ")[1].split(" as ")[0] for name in named}
        lines = [f"{name} = {rows[name].replace('FOLDER', folder)}" for name in rows if name in needed]
        return "\n".join(["<!-- numbers", *lines, *(f"{name}: {numbers[name]}" for name in named), "-->"])
    lacking = [name for name in STUDIES if not names[name]]
    intervals = "“~” is one process, ( ) 95%." if (found.asked.low.notna()).any() else "“~” is one process; intervals take three (`fit-time`)."
    page = f"""# {ASKED}

{answer} {down}

<picture>
  <source media="(max-width:600px)" srcset="../images/fit-narrow.svg">
  <img alt="Dots: peak memory against time of a step for each remedy, with the frontier of three models as a line" src="../images/fit.svg">
</picture>

<sub>GPT-2 (124 million, 8 or 2 texts) and ViT-B/16 (128 images), AdamW, H200. PyTorch's peaks; nvidia-smi shows {beside} GiB more.</sub>

<!-- remedies -->
<!-- /remedies -->

Over bf16 AMP in eager mode, each alone. {intervals.replace('“', '"').replace('”', '"')} Loss: = same bits in eager mode, ≈ sums in another order, ≠ other arithmetic, clipping or model.

**What did nothing here** (below 3% of the peak):

<!-- nothing -->
<!-- /nothing -->

**What fits my card?** This predicts the fastest, then measures it:

    python run_all.py fit -p memory_limit_gib 12

<!-- score -->
<!-- /score -->

**Does it learn as well?** <!-- quality -->
<!-- /quality -->

[Pairs, reserve and nvidia-smi](../../outputs/main/fit-h200/README.md); [plan](../contributors/plans.md). Repeat it:

    python run_all.py fit

{block('main/fit-h200/', used)}
"""
    page = page.replace("**Does it learn as well?** <!-- quality -->", "**Does it learn as well?**\n\n<!-- quality -->")
    in_readme = {"before", "after", "takes"} | ({"n"} | set(ends) if timed else set())
    readme = f"""# What does each remedy for memory save and cost? (H200)

{finding}

Each remedy stands on bf16 AMP in eager mode, alone and in pairs. [The answer](../../../docs/answers/does-not-fit.md) has single remedies, and [the plan](../../../docs/contributors/plans.md) the rules.

<picture>
  <source media="(max-width:600px)" srcset="picture-narrow.svg">
  <img alt="How many times as fast as TF32 each remedy for memory trains, as dots: two GPTs and a ViT-B/16 on H200s" src="picture.svg">
</picture>

bf16 AMP, and below it what is on the frontier: no other arm is at least as small and as fast. LoRA is left out, as it trains another model.

<!-- frontier -->
<!-- /frontier -->

[Report](summary.ipynb), [all ratios](ratios.csv), [all trainings](trainings.csv), [machines, limits and what lacks](notes.md).

{block('', in_readme)}
"""
    notes = notes_of(found, records, names, lacking, minutes)
    return page, readme, notes


def notes_of(found, records, names, lacking, minutes):
    def values(section, name):
        return ", ".join(sorted({str(one[section][name]) for one in records}))
    ok = [one for one in records if one["run"]["status"] == "ok"]
    others = collections.Counter(f"{one['run']['status']} ({one['run']['reason'] or 'no reason'})" for one in records if one["run"]["status"] != "ok")
    begun = [datetime.datetime.fromisoformat(one["run"]["started_at"]) for one in records]
    counts = ", ".join(f"{count} of `{name}`" for name, count in names.items())
    commits = ", ".join(sorted({(one["run"]["commit"] or "unknown")[:8] for one in records}))
    hosts = len({one["machine"]["host_id"] for one in ok})
    cards = len({one["machine"]["gpu_uuid"] for one in ok})
    apart = found.table[found.table.peaks > 1]
    lines = [f"- **Peaks of an arm differ** between its processes in {len(apart)} cases, and the highest one is told: " + "; ".join(f"{row.name} ({row.model})" for row in apart.itertuples()) + "."] if len(apart) else []
    if names["fit-time"]:
        several = found.table[found.table.processes > 1]
        agree = "" if len(apart) else " Their peaks are equal to the byte."
        lines.append(f"- **{len(several)} arms have several processes**, and their times are those of `fit-time`.{agree} All else has the single time of `fit`.")
    lines += [f"- **`{name}` lacks.** What it would decide is inconclusive, and the answer says what it takes." for name in lacking]
    throttled = sum(bool(one["measured"]["energy"].get("throttled")) for one in ok)
    shared = sum(bool(one["measured"]["energy"].get("gpu_shared")) for one in ok)
    arms = found.asked.groupby("model", sort=False).arm.size()
    lines.append("- Arms measured: " + "; ".join(f"{count} of {model}" for model, count in arms.items()) + ".")
    return f"""# Remedies for memory, H200

Trainings of studies: {counts}, by their [plan](../../../docs/contributors/plans.md). {len(ok)} trainings count; without a result: {'; '.join(f'{count} {word}' for word, count in others.items()) or 'none'}.
{cards} card{'s' * (cards > 1)} of {hosts} virtual machine{'s of one kind' * (hosts > 1)} ({values('machine', 'gpu_name')}, driver {values('machine', 'driver_version')}), {values('machine', 'host_cpu')}, {values('machine', 'host_cores')} cores, PyTorch {values('machine', 'torch_version')}, CUDA {values('machine', 'cuda_version')}, commit {commits}, {min(begun):%d %B %Y}. The trainings took {minutes:.0f} GPU minutes. Data are made up, so no loss says anything of quality.

- **One process each in `fit`**, because what an earlier training left would count. Neighbours trained on the machine's other cards meanwhile.
- Where an arm and bf16 AMP ran on different cards, their times are compared without pairs, and "~" stands before them.
- The power limit or another cause held back {throttled} trainings in a part of their samples. Another process was seen on the card in {shared}.
{chr(10).join(lines)}
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("clone", type=Path)
    parser.add_argument("records", type=Path)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--archive", nargs="*", default=[], help="folders below outputs/ that make room")
    parser.add_argument("--page-only", action="store_true", help="the folder is drawn already")
    parser.add_argument("--no-golden", action="store_true")
    parser.add_argument("--no-tests", action="store_true")
    given = parser.parse_args()
    root, python = given.clone.resolve(), sys.executable
    folder = root / FOLDER
    for name in given.archive:
        archived(root, name)
    if given.page_only:
        records = [*json.loads(dict(contents(folder))["records.json"]).values()]
    else:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        records = unpack(given.records.resolve(), folder)
    (folder / "study.yaml").write_text(
        "name: fit\ndescription: >-\n  What each remedy for memory saves and costs, alone and together, for two GPTs and a ViT on H200s. One process\n"
        "  each, but for what fit-time repeats.\n"
        "axis: [precision, execution, moments, rounding, clip, loss_chunks, checkpointing, memory_budget, offload,\n"
        "       micro_batches, optimizer_in_backward, adapters]\n"
        "base: [tf32, eager, as_weights, nearest, 1.0, 1, 0, 0.0, false, 1, false, 0]\n")
    if not given.page_only:
        run(python, "docs/outputs.py", folder, cwd=root)
    os.chdir(root)
    sys.path[:0] = [str(root), str(root / "docs"), str(root / "benchmarks")]
    found = Found(root / "outputs")
    page, readme, notes = texts(found, records, given.minutes)
    (folder / "README.md").write_text(readme)
    (folder / "notes.md").write_text(notes)
    (root / PAGE).write_text(page)
    index = root / "outputs/README.md"
    text = index.read_text()
    if "main/fit-h200" not in text:
        line = "| It does not fit: what first, and what does it cost? | `fit`: [H200](main/fit-h200/README.md) |\n"
        mark = "| Were five articles right?"
        index.write_text(text.replace(mark, line + mark))
    for name, mark, link in (
        ("README.md", " (eager, H200). **Quality:**", " (eager, H200). [Out of memory?](docs/answers/does-not-fit.md) **Quality:**"),
        ("docs/why-not-faster.md", "because it names what filled the memory.", "because it names what filled the memory. [What each remedy saves and costs](answers/does-not-fit.md)."),
    ):
        before = (root / name).read_text()
        if "does-not-fit.md" not in before:
            assert before.count(mark) == 1, (name, mark)
            (root / name).write_text(before.replace(mark, link))
    first_of(found, root)
    run(python, "-c", DRAW, cwd=root)
    run(python, "docs/tables.py", cwd=root)
    if not given.no_golden:
        run(python, "tests/golden/figures.py", "--write", "tests/golden/figures", "fit-h200", cwd=root)
    run(python, "benchmarks/fit_budget.py", folder, cwd=root, check=False)
    bad = run(python, Path(__file__).with_name("fit_recount.py"), root, cwd=root, check=False)
    files = [path for path in (root / "outputs").rglob("*") if path.is_file()]
    own = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    live = len([*(root / "outputs").glob("*/*/README.md")])
    print(f"fit-h200: {len(own)} files, {sum(path.stat().st_size for path in own) / 1e6:.2f} MB")
    print(f"outputs: {len(files)} files of at most 200, {size / 1e6:.2f} MB of at most 20, {live} live folders of at most 20")
    if len(files) > 200 or size >= 20e6 or live > 20:
        print("OVER THE LIMIT: give --archive FOLDER; more/scaling-h200 and more/inference-h200 are linked from outputs/README.md alone")
        bad += 1
    if not given.no_tests:
        tests = ["tests/test_docs.py", "tests/test_fit_budget.py", "tests/test_docs_tables.py", "tests/test_outputs.py", "tests/explain/test_out_of_memory.py",
                 "tests/test_reference.py", "tests/test_style.py"]
        bad += run(python, "-m", "pytest", "-q", "-n", "1", "-p", "no:cacheprovider", "-m", "release or not release", *tests, cwd=root, check=False)
    run("git", "status", "--short", cwd=root)
    return bad


if __name__ == "__main__":
    sys.exit(main())
