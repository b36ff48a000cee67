# one card. The first repetition of ResNet-18 is there (eager/back/forms0.zip). PARTS and TASKS may be cut by hand: what comes last may lack.
export ROUNDS=2
T="unpack forms-resnet18-1 forms-resnet18-2 forms-resnet18-3 peers"
for k in 0 1 2 3; do T="$T forms-wide_resnet28_10-$k forms-resnet50-$k"; done
export TASKS="$T"
