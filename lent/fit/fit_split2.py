"""python fit_split2.py RECORDS: writes /tmp/fit_card0.yaml and _card1.yaml, a training each, of fit what no record in RECORDS has (bases always), and fit-held-out.

Card 0 has the ViT and what compiles of the held-out GPT, card 1 both GPTs and the rest; bf16 AMP runs on each card for each of its models.
"""
import copy, glob, itertools, json, sys
from pathlib import Path
import yaml

NAMES = ("execution", "moments", "rounding", "loss_chunks", "checkpointing", "memory_budget", "offload", "micro_batches", "optimizer_in_backward", "adapters")
USUAL = {"execution": "eager", "moments": "as_weights", "rounding": "nearest", "loss_chunks": 1, "checkpointing": 0, "memory_budget": 0, "offload": False,
         "micro_batches": 1, "optimizer_in_backward": False, "adapters": 0}
def key(notebook, precision, settings, context):
    return notebook, context, precision, tuple((name, float(v) if not isinstance(v, str) else v) for name in NAMES if (v := settings.get(name, USUAL[name])) not in (None, USUAL[name]))
there = set()
for path in glob.glob(sys.argv[1] + "/**/*.json", recursive=True):
    record = json.loads(Path(path).read_text())
    if "settings" in record and record["run"]["study"]["name"] == "fit" and record["run"]["status"] == "ok":
        there.add(key(record["run"]["notebook"], record["run"]["precision"], record["settings"], record["settings"].get("context")))
studies = yaml.safe_load(Path("notebooks/studies.yaml").read_text())
cards = [{}, {}]
counts = {}
for name in ("fit", "fit-held-out"):
    study = studies[name]
    for card in (0, 1):
        cards[card][name] = {**copy.deepcopy(study), "interleaved": False, "runs": []}
    for entry in study["runs"]:
        for way in entry["ways"]:
            lists = {k: v if isinstance(v, list) else [v] for k, v in way.items()}
            for values in itertools.product(*lists.values()):
                one = dict(zip(lists, values))
                precision = one["precisions"]
                plain = set(one) == {"precisions"}
                compiled = one.get("execution") == "compile"
                context = entry["parameters"].get("context")
                if name == "fit" and not plain and key(entry["notebook"], precision, one, context) in there:
                    continue
                one["precisions"] = [precision]
                card = 0 if (entry["notebook"] == "cifar_resnet" if name == "fit" else compiled) else 1
                # on one card what takes the fewest minutes begins first
                minutes = 0.1 if plain else 0.9 if compiled else 0.7 if one.get("moments") == "8bit" else 0.4
                run = {"notebook": entry["notebook"], "parameters": entry["parameters"], "ways": [one], "apart": True, "minutes": minutes}
                cards[card][name]["runs"].append(run)
                counts[card, name] = counts.get((card, name), 0) + 1
                if name == "fit-held-out" and plain and precision == "amp_bf16":
                    cards[0][name]["runs"].append(copy.deepcopy(run))
                    counts[0, name] = counts.get((0, name), 0) + 1
for card in (0, 1):
    Path(f"/tmp/fit_card{card}.yaml").write_text(yaml.safe_dump(cards[card], sort_keys=False, allow_unicode=True))
print(counts)
