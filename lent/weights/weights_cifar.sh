#!/bin/bash
# weights_cifar.sh: from the root of the repository, unpack the parts of CIFAR-100 that lie beside this into data/cifar100.
# A part a call is enough; the second call adds the rest. Exit status 0: both parts are there.
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p data/cifar100
for part in "$here"/cifar100.part-0[01]; do
  name=$(basename "$part")
  [ -f "$part" ] && [ ! -f "data/.$name" ] && python3 -m zipfile -e "$part" data/cifar100 && touch "data/.$name"
done
echo "CIFAR-100: $(find data/cifar100/train -name '*.webp' | wc -l) of 24000 and $(find data/cifar100/test -name '*.webp' | wc -l) of 5000 images"
[ -f data/.cifar100.part-00 ] && [ -f data/.cifar100.part-01 ]
