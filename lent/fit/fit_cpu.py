"""Tiny trainings of `fit` on the CPU, one process for all: skeletons of records for a rehearsal."""
import itertools, sys, time, json
sys.path[:0] = [".", "tests"]
from pathlib import Path
import yaml
from conftest import run_cells
study = yaml.safe_load(Path("notebooks/studies.yaml").read_text())["fit"]
out = Path(sys.argv[1]); out.mkdir(exist_ok=True)
seen = set()
for number, entry in enumerate(study["runs"]):
    vit = entry["notebook"] == "cifar_resnet"
    tiny = {"model": "vit_tiny_patch16_224", "batch_size": 4} if vit else {"layers": 2, "width": 64, "vocabulary": 256, "context": 32, "batch_size": 4}
    for way in entry["ways"]:
        lists = {k: v if isinstance(v, list) else [v] for k, v in way.items()}
        for values in itertools.product(*lists.values()):
            one = dict(zip(lists, values)); one["precisions"] = [one["precisions"]]
            given = {**entry["parameters"], **tiny, "max_steps": 2, **one, "output_dir": str(out)}
            key = (entry["notebook"], json.dumps(one, sort_keys=True))
            compiled = one.get("execution") == "compile"
            if key in seen or (compiled and (vit or one.get("loss_chunks") or one.get("memory_budget") not in (0.0, 0.3))): continue
            seen.add(key)
            began = time.time()
            try:
                records = run_cells(entry["notebook"], "run", **given)["records"]
                print(entry["notebook"], one, [(r.status, r.reason) for r in records], f"{time.time()-began:.1f}", flush=True)
            except Exception as e:
                print(entry["notebook"], one, repr(e)[:300], flush=True)
