"""A studies file of `fit` whose arms are entries for the CPU, tiny; for a rehearsal alone."""
import copy, itertools, sys
from pathlib import Path
import yaml
study = yaml.safe_load(Path("notebooks/studies.yaml").read_text())["fit"]
runs = []
for entry in study["runs"]:
    tiny = {"layers": 2, "width": 64, "vocabulary": 256, "context": 32 if entry["parameters"].get("context") == 1024 else 64, "batch_size": 4} if entry["notebook"] == "transformer" else {"model": "vit_tiny_patch16_224", "batch_size": 4}
    for way in entry["ways"]:
        lists = {k: v if isinstance(v, list) else [v] for k, v in way.items()}
        for values in itertools.product(*lists.values()):
            one = dict(zip(lists, values))
            one["precisions"] = [one["precisions"]]
            cpu = {**entry["parameters"], **tiny, "max_steps": 2, **one}
            runs.append({"notebook": entry["notebook"], "cpu": cpu, "minutes": 1})
Path(sys.argv[1]).write_text(yaml.safe_dump({"fit": {**study, "runs": runs}}))
print(len(runs))
