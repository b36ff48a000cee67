"""Put records of run_all folders into a folder of the outputs: put.py FOLDER STUDY SOURCE..."""
import json, re, sys
from pathlib import Path
FOREIGN = re.compile(r"(?<![\w.])/(?:home|root|tmp|opt|usr|work|mnt)/\w+")
folder, study = Path(sys.argv[1]), sys.argv[2]
folder.mkdir(parents=True, exist_ok=True)
n = 0
for source in sys.argv[3:]:
    for path in sorted(Path(source).glob("*.json")):
        record = json.loads(path.read_text())
        assert record["run"]["study"]["name"] == study, path
        assert record["run"]["status"] == "ok" and not record["run"]["commit"].endswith("-dirty")
        record["settings"]["output_dir"], record["settings"]["data_dir"] = f"outputs/{study}", "data"
        text = json.dumps(record, indent=2)
        assert not FOREIGN.search(text), (path, FOREIGN.search(text))
        (folder / path.name).write_text(text); n += 1
print(n)
