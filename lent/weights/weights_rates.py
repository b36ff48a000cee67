"""After the pilot: its records and CSV into outputs/checks/weights-pilot-h200.zip, its numbers into the plan and studies.yaml.

    python weights_rates.py CLONE FOLDER_OF_ZIPS      (weights-pilot-*.zip below the folder; nothing is committed)
"""

import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

clone, zips = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path[:0] = [str(clone), str(clone / "benchmarks")]
import kept_share

from docs.outputs import zip_files
from mixed_precision_study.report.tables import read_tables

target = Path(tempfile.mkdtemp())
count = 0
for path in sorted(zips.rglob("weights-pilot-*.zip")):
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".json") and "/" not in name:
                (target / name).write_bytes(archive.read(name))
                count += 1
print(count, "records of", *sorted(path.name for path in zips.rglob("weights-pilot-*.zip")))
(target / "trainings.csv").write_bytes(read_tables(target).csv()["trainings.csv"])
packed = clone / "outputs/checks/weights-pilot-h200.zip"
packed.unlink(missing_ok=True)
found = kept_share.trainings_in([target])
zip_files(target / "pilot.zip", [*sorted(target.glob("*.json")), target / "trainings.csv"])
packed.write_bytes((target / "pilot.zip").read_bytes())
lines, rates, gains = [], {}, {}
names = {"transformer": ("GPT", "bits per byte"), "cifar_resnet": ("ViT-S/4", "of accuracy")}
for notebook in names:
    rows = found[found.notebook == notebook]
    if not len(rows):
        continue
    pilot = kept_share.pilot_of(rows)
    rates[notebook] = pilot.rates
    title, unit = names[notebook]
    gains[title] = pilot.gains
    lines.append(f"- **{title}** begins at {abs(pilot.start):.4f} {unit}, and the margin is {pilot.margin:.4f} {unit}.")
    lines.append(f"  The rates are {', '.join(f'{rate:g}' for rate in pilot.rates)}.")
    lines.append(f"  Equal recipes need {pilot.needed or 'over 200'} seeds, and with {kept_share.SEEDS} the power is {pilot.power:.0%}.")
table = [["rate", *gains], ["---"] * (1 + len(gains))]
for rate in sorted({rate for known in gains.values() for rate in known}):
    table.append([f"{rate:g}", *(f"{known[rate]:.4f}" if rate in known else "-" for known in gains.values())])
lines += ["", "TF32's gain is a mean of three seeds:", "", *(f"|{'|'.join(row)}|" for row in table)]
plan = clone / "docs/contributors/weights_plan.md"
head = plan.read_text().partition("## Numbers of the pilot\n")[0]
commits = ", ".join(sorted({str(one)[:8] for one in found.commit}))
said = "The pilot's records and CSV lie in [a zip](../../outputs/checks/weights-pilot-h200.zip)."
blank = "\n\n"
plan.write_text(f"{head}## Numbers of the pilot{blank}{said} They are of commit {commits}.{blank}" + "\n".join(lines) + "\n")
studies = clone / "notebooks/studies.yaml"
text = studies.read_text()
before, mark, after = text.partition("\nweights:\n")
places = iter([rates.get("transformer"), rates.get("cifar_resnet")])


def sweep(match):
    new = next(places, None)
    if not new:
        return match[0]
    words = ", ".join(re.sub(r"^(\d)e", r"\1.0e", f"{rate:.1e}".replace("e-0", "e-").replace(".0e", "e")) for rate in new)
    return f"sweep: {{lr: [{words}]}}  # those of the pilot"


studies.write_text(before + mark + re.sub(r"sweep: \{lr: \[[^\]]*\]\}  # to be those of the pilot", sweep, after))
subprocess.run(["git", "-C", str(clone), "diff", "--stat"], check=True)
subprocess.run(["git", "-C", str(clone), "diff", "notebooks/studies.yaml", str(plan)], check=True)
subprocess.run([sys.executable, "benchmarks/kept_share.py", str(packed)], cwd=clone, check=True)
