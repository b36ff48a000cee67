"""Pack 240 training and 50 test images of each class of CIFAR-100 into two zips: cifar_pack.py"""
import zipfile
from collections import defaultdict

archives = [zipfile.ZipFile(f"data/cifar100/{n}.zip") for n in ("train-a", "train-b", "test")]
found = {name: one for one in archives for name in one.namelist() if name.endswith(".webp")}
groups = defaultdict(list)
for name in sorted(found):
    part, kind, _ = name.split("/")
    groups[part, kind].append(name)
kinds = sorted({kind for _, kind in groups})
assert len(kinds) == 100
for number in (0, 1):
    with zipfile.ZipFile(f"./.carry/weights/cifar100.part-0{number}", "w", zipfile.ZIP_STORED) as packed:
        for kind in kinds[50 * number : 50 * number + 50]:
            for part, count in (("train", 240), ("test", 50)):
                for name in groups[part, kind][:count]:
                    packed.writestr(zipfile.ZipInfo(name), found[name].read(name))
