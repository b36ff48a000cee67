"""Makes outputs/main/weights-h200 and docs/answers/bf16-weights.md in a clone from what came back; nothing is committed.

    python weights_publish.py CLONE FOLDER_OF_ZIPS [--minutes M]

FOLDER_OF_ZIPS holds (at any depth) weights-gpt-*.zip, weights-vit-*.zip and weights-time-*.zip; the pilot's are left to
weights_rates.py, which ran before. Of two records of one name and card the first ok one counts.
"""

import argparse
import collections
import datetime
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

READY = Path(__file__).resolve().parent / "ready"
DRAW = """import sys; sys.path[:0] = ['.', 'docs']
import weights
from pathlib import Path
from docs.sheets import sheet_of
from mixed_precision_study.report.charts import chart_style, drawing_of
with chart_style():
    found = weights.figures(Path('outputs').resolve())
drawings = [drawing_of(one, f'weights{place}', 'weights') for place, one in enumerate(found)]
for ending, columns in (('', len(drawings)), ('-narrow', 1)):
    Path(f'docs/images/weights{ending}.svg').write_text(sheet_of(drawings, columns))
"""
NO_RESULT = ("failed", "timeout", "killed")


def run(*words, cwd, check=True, quiet=False):
    print("$", *words, flush=True)
    out = subprocess.DEVNULL if quiet else None
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(list(map(str, words)), cwd=cwd, check=check, stdout=out, stderr=out, env=environment).returncode


def unpack(zips, folder, old):
    """Write the records into the folder, after `old` ones; of one id on several cards each counts, in a folder a card."""
    kept, left = {}, []
    for name, record in old.items():
        kept[Path(name).name, record["machine"]["gpu_uuid"]] = json.dumps(record, indent=2).encode(), record
    for path in sorted(zips.rglob("weights-*.zip")):
        if "pilot" in path.name:
            continue
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if not name.endswith(".json") or "/" in name:
                    continue
                content = archive.read(name)
                record = json.loads(content)
                if record["run"]["study"] and record["run"]["study"]["name"] == "weights-pilot":
                    continue
                if record["run"]["status"] in NO_RESULT:
                    left.append(f"{record['run']['status']} {name}: {record['run']['reason']}")
                    continue
                record["settings"]["output_dir"] = f"outputs/{record['run']['study']['name']}"  # and no folder of a machine
                content = json.dumps(record, indent=2).encode()
                key = name, record["machine"]["gpu_uuid"]
                if key in kept and kept[key][1]["run"]["status"] == "ok":
                    if kept[key][0] != content:
                        left.append(f"a second {name} of {path.name}")
                    continue
                kept[key] = content, record
    names = collections.Counter(name for name, _ in kept)
    for (name, card), (content, _) in kept.items():
        place = folder / name if names[name] == 1 else folder / str(card)[:8] / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    print(f"{len(kept)} records; left out: {len(left)}", *left, sep="\n  ")
    return [record for _, record in kept.values()]


def facts(records, minutes):
    def values(section, name):
        return ", ".join(sorted({str(one[section][name]) for one in records}))

    ok = [one for one in records if one["run"]["status"] == "ok"]
    others = collections.Counter(
        f"{one['run']['status']} ({one['run']['reason'] or 'no reason'})" for one in records if one["run"]["status"] != "ok")
    begun = [datetime.datetime.fromisoformat(one["run"]["started_at"]) for one in records]
    bases = collections.Counter(
        f"{one['run']['notebook']} {(one['run']['identity'] or {}).get('weights')}" for one in records if one["settings"].get("init_from"))
    texts = {str(one["run"]["data_fingerprint"]) for one in records if one["settings"]["dataset"] == "stdlib.txt"}
    return {
        "cards": str(len({one["machine"]["gpu_uuid"] for one in ok})),
        "gpu": values("machine", "gpu_name"), "driver": values("machine", "driver_version"),
        "cpu": values("machine", "host_cpu"), "cores": values("machine", "host_cores"),
        "torch": values("machine", "torch_version"), "cuda": values("machine", "cuda_version"),
        "python": values("machine", "python_version"),
        "commit": ", ".join(sorted({(one["run"]["commit"] or "unknown")[:8] for one in records})),
        "date": f"{min(begun):%d %B %Y}".lstrip("0"), "count": str(len(ok)),
        "others": "; ".join(f"{count} {word}" for word, count in others.items()) or "none",
        "bases": "; ".join(f"{name} ({count} trainings)" for name, count in sorted(bases.items())),
        "text": ", ".join(sorted(texts)), "minutes": f"{minutes:.0f}",
    }


def filled(name, known):
    text = (READY / name).read_text()
    for key, word in known.items():
        text = text.replace(f"{{{key}}}", word)
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("clone", type=Path)
    parser.add_argument("zips", type=Path)
    parser.add_argument("--minutes", type=float, default=0)
    given = parser.parse_args()
    root, python = given.clone.resolve(), sys.executable
    folder, pilot = root / "outputs/main/weights-h200", root / "outputs/checks/weights-pilot-h200.zip"
    old = {}
    if (folder / "records.zip").exists():  # those of earlier blocks
        with zipfile.ZipFile(folder / "records.zip") as archive:
            old = json.loads(archive.read("records.json"))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    records = unpack(given.zips.resolve(), folder, old)
    shutil.copy(READY / "study.yaml", folder)
    (folder / "notes.md").write_text(filled("notes.md", facts(records, given.minutes)))
    run(python, "docs/outputs.py", folder, cwd=root, quiet=True)
    run(python, "benchmarks/kept_share.py", pilot, folder, "--csv", folder / "cells.csv", cwd=root)
    sys.path.insert(0, str(root / "benchmarks"))
    import kept_share

    rows = kept_share.trainings_in([pilot])
    rates = kept_share.pilot_of(rows[rows.notebook == "transformer"]).rates
    known = {f"r{place}": f"{rate:g}" for place, rate in enumerate(rates, 1)}
    (folder / "README.md").write_text(filled("README.md", known))
    (root / "docs/answers/bf16-weights.md").write_text(filled("bf16-weights.md", known))
    run(python, "-c", DRAW, cwd=root)
    run(python, "docs/tables.py", cwd=root)
    bad = run(python, Path(__file__).with_name("weights_recount.py"), root, cwd=root, check=False)
    files = [path for path in (root / "outputs").rglob("*") if path.is_file()]
    print(f"outputs has {len(files)} files of at most 200, and {sum(path.stat().st_size for path in files) / 1e6:.1f} MB of at most 20")
    tests = ["tests/test_docs.py", "tests/test_docs_weights.py", "tests/test_docs_tables.py", "tests/test_outputs.py"]
    bad += run(python, "-m", "pytest", "-q", "-n", "1", "-p", "no:cacheprovider", *tests, cwd=root, check=False)
    run("git", "status", "--short", cwd=root)
    return bad


if __name__ == "__main__":
    sys.exit(main())
