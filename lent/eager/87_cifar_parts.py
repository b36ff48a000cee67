"""CIFAR-10 in four zips of at most 28 MiB, which fit into a call each: 87_cifar_parts.py OUT; on the machine: python3 -m zipfile -e PART DATA/cifar10"""

import sys
import zipfile
from pathlib import Path

out = Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
archives = [zipfile.ZipFile(f"data/cifar10/{name}.zip") for name in ("train-a", "train-b", "test")]
found = [(name, one) for one in archives for name in one.namelist() if name.endswith(".webp")]
parts = [zipfile.ZipFile(out / f"cifar10.part-0{number}", "w", zipfile.ZIP_STORED) for number in range(4)]
for number, (name, one) in enumerate(found):
    parts[number % 4].writestr(zipfile.ZipInfo(name), one.read(name))
for one in parts:
    one.close()
print(len(found), [path.stat().st_size / 2**20 for path in sorted(out.glob("cifar10.part-*"))])
