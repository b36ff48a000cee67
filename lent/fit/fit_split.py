"""Writes a studies file in which each training of some studies is a run of its own, so that GPUs share them evenly and a call that is
ended loses no more than what runs just then.

    python fit_split.py FILE [STUDY ...]      # from notebooks/studies.yaml of the current folder; default: fit fit-held-out

Seeds of a way stay in one process. Records are those of the study itself: run ids, parameters, name, axis and base are the same.
"""

import copy
import itertools
import sys
from pathlib import Path

import yaml

studies = yaml.safe_load(Path("notebooks/studies.yaml").read_text())
found = {}
for name in sys.argv[2:] or ["fit", "fit-held-out"]:
    study, runs = {**copy.deepcopy(studies[name]), "interleaved": False}, []
    for entry in study["runs"]:
        assert not entry.get("sweep") and entry.get("repeats", 1) == 1, name
        for way in entry.get("ways", [{}]):
            lists = {key: value if isinstance(value, list) and key != "seed" else [value] for key, value in way.items()}
            for values in itertools.product(*lists.values()):
                one = dict(zip(lists, values))
                if "precisions" in one:
                    one["precisions"] = [one["precisions"]]
                # on several GPUs the most minutes begin first: bases, then what compiles, then the rest
                plain = set(one) == {"precisions"} and one.get("precisions", [""])[0] in ("tf32", "amp_bf16")
                minutes = 3.0 if plain else 0.9 if one.get("execution") == "compile" else 0.7 if one.get("moments") == "8bit" else 0.4
                runs.append({"notebook": entry["notebook"], "parameters": entry["parameters"], "ways": [one], "apart": name != "fit-quality", "minutes": minutes})
    found[name] = {**study, "runs": runs}
Path(sys.argv[1]).write_text(yaml.safe_dump(found, sort_keys=False, allow_unicode=True))
print({name: len(study["runs"]) for name, study in found.items()})
