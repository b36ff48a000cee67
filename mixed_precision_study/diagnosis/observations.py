"""What is seen of a training step, before anything is judged."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

SWITCHES_MIXED = (
    "Old and new TF32 switches do not agree, and torch.compile may raise. Set them by"
    ' torch.set_float32_matmul_precision("high") or ("highest"), which sets both.'
)

WARM_UP = 3  # steps before the first that is watched


@dataclass
class Observations:
    """What a few watched steps and many timed ones showed. Times are in milliseconds, sizes in bytes."""

    device: str = "cpu"  # "cuda" or "cpu"
    gpu: str | None = None  # its name
    capability: tuple[int, int] | None = None  # compute capability of the GPU
    switches: dict[str, str] = field(default_factory=dict)  # {"matmul", "conv"}: PyTorch's switches for fp32 arithmetic
    mixed_switches: bool = False  # the old and the new switch for matrix products do not agree
    compiled: bool = False  # torch.compile was used
    benchmark: bool = False  # torch.backends.cudnn.benchmark

    steps: int = 0  # all that were taken
    watched: int = 0  # steps
    events: list[list[str]] = field(default_factory=list)  # of each watched step: its calls in order, see watch.CALLS
    model_on: str | None = None  # "cuda" or "cpu": where the weights are
    autocast: str | None = None  # the type in which the model ran under autocast
    backward_in_autocast: int = 0  # calls
    scaler_on: bool = False
    scales: list[float] = field(default_factory=list)  # loss scales, after each watched step
    losses: list[float] = field(default_factory=list)  # what backward() was called on, without the loss scale
    evaluation_finite: bool | None = None  # None: not seen
    evaluation_in: str | None = None  # the type in which the evaluation ran
    half_weights: list[str] = field(default_factory=list)  # "AdamW, bfloat16": optimizers of 16-bit weights alone
    reads: Counter = field(default_factory=Counter)  # {place in the code: values read from the device}
    scaler_reads: int = 0  # values that GradScaler itself reads from the device
    unpinned: int = 0  # bytes copied to the GPU from memory that is not pinned
    shapes: set = field(default_factory=set)  # of the images of the first convolution
    flops: dict[tuple[str, str], float] = field(default_factory=dict)  # {(kind, type): FLOPs of the watched steps}
    misaligned_flops: float = 0.0  # of those in sizes that are not multiples of 8
    fp8_sizes: set = field(default_factory=set)  # (rows, inner, columns) of fp8 products

    timed: int = 0  # steps
    step_ms: float | None = None  # the mean of the timed steps
    data_wait_fraction: float | None = None  # waiting for a DataLoader; None where there is none
    kernels: dict[str, Any] = field(default_factory=dict)  # what read_kernels fills in
    profile_reason: str | None = None  # why there are no kernels

    memory: dict[str, int] = field(default_factory=dict)  # {"weights", "gradients", "optimizer", "other"} at the peak
    reserved: int = 0  # bytes that PyTorch holds, its cache with them
    in_use: list[int] = field(default_factory=list)  # bytes of live tensors after each watched step
    growth: float = 0.0  # bytes by which they grow in a timed step

    def share_of_flops(self, kind: str, dtype: str) -> float:
        """Return the share that a kind of arithmetic in a type has in all FLOPs."""
        total = sum(self.flops.values())
        return self.flops.get((kind, dtype), 0.0) / total if total else 0.0

    @property
    def misaligned_fraction(self) -> float:
        """The share of FLOPs with sizes that are not multiples of 8."""
        total = sum(self.flops.values())
        return self.misaligned_flops / total if total else 0.0
