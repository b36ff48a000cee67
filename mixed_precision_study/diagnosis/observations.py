"""What is seen of a training step, before anything is judged."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

SWITCHES_MIXED = (
    "Old and new TF32 switches do not agree, and torch.compile may raise. Set them by"
    ' torch.set_float32_matmul_precision("high") or ("highest"), which sets both.'
)

WARM_UP = {"cpu": 3, "cuda": 8}  # steps before the first that is timed; a GPU's libraries search and compile in them
WATCHED = 4  # steps that the profiler looks into, after the timed ones


@dataclass
class Observations:
    """What many timed steps and a few profiled ones showed. Times are in milliseconds, sizes in bytes."""

    device: str = "cpu"  # "cuda" or "cpu"
    gpu: str | None = None  # its name
    capability: tuple[int, int] | None = None  # compute capability of the GPU
    switches: dict[str, str] = field(default_factory=dict)  # {"matmul", "conv"}: PyTorch's switches for fp32 arithmetic
    mixed_switches: bool = False  # the old and the new switch for matrix products do not agree
    compiled: bool = False  # torch.compile was used
    benchmark: bool = False  # torch.backends.cudnn.benchmark
    unseen: list[str] = field(default_factory=list)  # a sentence for each thing that could not be looked at

    steps: int = 0  # all that were taken
    events: list[list[str]] = field(default_factory=list)  # of each step: its calls in order, see doors.py
    model_on: str | None = None  # "cuda" or "cpu": where the weights are
    autocasts: set[str] = field(default_factory=set)  # types of the autocasts that were entered with gradients on
    backward_in_autocast: int = 0  # calls
    scaler_on: bool = False
    scales: list[list[float]] = field(default_factory=list)  # of each GradScaler, after each profiled step
    loss_multiplied: bool = False  # by the loop itself, which may be a loss scale
    clipped_by_hand: bool = False  # scaled gradients became smaller, and not by a constant factor
    uncleared: bool = False  # no gradient was None or 0 between two steps of an optimizer
    doubled_steps: bool = False  # an optimizer steps twice with the same gradients
    eps_lost: float | None = None  # an optimizer's eps that float16 cannot hold
    anomaly_detection: bool = False
    losses: list[float] = field(default_factory=list)  # what backward() was called on, without the loss scale
    evaluation_finite: bool | None = None  # of what the evaluation returned; None: not seen
    evaluation_in: str | None = None  # the type of what it returned
    half_weights: list[str] = field(default_factory=list)  # "AdamW, bfloat16": optimizers of 16-bit weights alone
    scheduled_first: bool = False  # a scheduler stepped before the first backward(), and then once a step

    watched: int = 0  # steps that were profiled
    reads: Counter = field(default_factory=Counter)  # {place in the code: profiled steps in which the CPU waited there}
    scaler_reads: int = 0  # profiled steps in which GradScaler itself waits for the device
    pageable_ms: float = 0.0  # a step's copies to the GPU from memory that is not pinned
    shapes: set = field(default_factory=set)  # (images, weight) of convolutions
    flops: dict[tuple[str, str], float] = field(default_factory=dict)  # {(kind, type): FLOPs of the profiled steps}
    misaligned_flops: float = 0.0  # of those, in 16 bits with sizes that are not multiples of 8
    fp8_sizes: set = field(default_factory=set)  # (rows, inner, columns) of fp8 products
    kernels: dict[str, Any] = field(default_factory=dict)  # what read_kernels fills in
    profile_reason: str | None = None  # why there are no kernels

    timed: int = 0  # steps
    step_ms: float | None = None  # the median of the timed steps
    data_wait_fraction: float | None = None  # waiting for a DataLoader; None where there is none

    memory: dict[str, int] = field(default_factory=dict)  # {"weights", "gradients", "optimizer", "other"} at the peak
    reserved: int = 0  # bytes that PyTorch holds, its cache with them
    in_use: list[int] = field(default_factory=list)  # bytes of live tensors after each profiled step
    growth: float = 0.0  # bytes by which they grow in a timed step

    @property
    def autocast(self) -> str | None:
        """The type in which the model ran under autocast; None where there is none, or several."""
        return next(iter(self.autocasts)) if len(self.autocasts) == 1 else None

    def share_of_flops(self, kind: str | None, dtype: str) -> float:
        """Return the share that a kind of arithmetic (None: any) in a type has in all FLOPs."""
        total = sum(self.flops.values())
        found = sum(
            size for (one, kind_dtype), size in self.flops.items() if kind in (None, one) and kind_dtype == dtype
        )
        return found / total if total else 0.0

    @property
    def only_fp32(self) -> bool:
        """Whether products were seen, and all of them ran in float32 or float64."""
        return bool(self.flops) and {dtype for _, dtype in self.flops} <= {"float32", "float64"}

    @property
    def misaligned_fraction(self) -> float:
        """The share of FLOPs with sizes that are not multiples of 8."""
        total = sum(self.flops.values())
        return self.misaligned_flops / total if total else 0.0
