# two cards: seeds of ResNet-18 in two processes, then the forms of the articles, whose first repetition of ResNet-18 is there (eager/back/forms0.zip)
export PARTS=${PARTS:-2}
T="peers"; for k in $(seq 0 $(( PARTS - 1 ))); do T="$T quality-cifar_resnet-$k"; done
for k in 1 2 3; do T="$T forms-resnet18-$k"; done
for m in resnet50 wide_resnet28_10; do for k in 0 1 2 3; do T="$T forms-$m-$k"; done; done
export TASKS="$T"
