"""Records of a zip as one JSON file: repack.py ZIP ..."""
import json, sys, zipfile
from pathlib import Path
DATE=(1980,1,1,0,0,0)
for path in map(Path, sys.argv[1:]):
    with zipfile.ZipFile(path) as z:
        parts={n:z.read(n) for n in z.namelist()}
    if "records.json" in parts: continue
    own={n:json.loads(c) for n,c in sorted(parts.items()) if n.endswith(".json") and isinstance(json.loads(c),dict) and ("run" in json.loads(c) or "run_id" in json.loads(c))}
    before=path.stat().st_size
    rest={n:c for n,c in parts.items() if n not in own}
    with zipfile.ZipFile(path,"w") as z:
        z.writestr(zipfile.ZipInfo("records.json",DATE),json.dumps(own,separators=(",",":")),zipfile.ZIP_DEFLATED,9)
        for n in sorted(rest): z.writestr(zipfile.ZipInfo(n,DATE),rest[n],zipfile.ZIP_DEFLATED,9)
    print(path,len(own),sorted(rest)[:4],before,path.stat().st_size)
