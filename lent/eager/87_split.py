"""Study files that hold a part of the seeds of quality-compiled, so that several GPUs share it: 87_split.py CLONE OUT PARTS [SEEDS]

OUT/part-K.yaml has seeds K, K + PARTS, ... of each notebook in one process; the study keeps its name, so the records belong together.
SEEDS ends the seeds of both notebooks (default: all, 9 and 8).
"""

import sys
from pathlib import Path

import yaml

clone, out, parts = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
most = int(sys.argv[4]) if len(sys.argv) > 4 else 99
study = yaml.safe_load((clone / "notebooks/studies.yaml").read_text())["quality-compiled"]
out.mkdir(parents=True, exist_ok=True)
for part in range(parts):
    runs = []
    for entry in study["runs"]:
        ways = entry["ways"][:most][part::parts]
        if ways:
            runs.append({**entry, "ways": ways, "minutes": entry["minutes"] * len(ways) / len(entry["ways"])})
    text = yaml.safe_dump({"quality-compiled": {**study, "runs": runs}}, sort_keys=False)
    (out / f"part-{part}.yaml").write_text(text)
