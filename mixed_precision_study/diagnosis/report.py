"""What a diagnosis says: mistakes, where time and memory go, and what could be gained."""

from dataclasses import dataclass, field

from ..analysis.bottleneck import ARITHMETIC, find_bottleneck
from ..analysis.memory import why_memory_stays
from .mistakes import MANY_FLOPS, REMEDIES, find_mistakes
from .observations import Observations

GIB = 2**30
WORTH_SAYING = 1.05  # a gain of less is left out
MUCH_MORE = 1.2  # times the peak: what PyTorch keeps beyond it is told


@dataclass(repr=False)
class Diagnosis:
    """The result of diagnose(). `print` shows it."""

    seen: Observations = field(default_factory=Observations)
    mistakes: list[str] = field(default_factory=list)  # a sentence each; empty for a sound step

    def judge(self, seen: Observations, error: BaseException | None = None) -> None:
        """Take in what was seen, and the error that ended the loop, if one did, which gets the remedy as a note."""
        self.seen = seen
        self.mistakes = find_mistakes(seen)
        for part, remedy in REMEDIES.items():
            if error is not None and part in str(error):
                self.mistakes.insert(0, f"{type(error).__name__}: {remedy}")
                if hasattr(error, "add_note"):  # from Python 3.11 on
                    error.add_note(f"diagnose(): {remedy}")

    @property
    def gains(self) -> list[tuple[float, str]]:
        """What to try as (largest possible speed-up, words), the largest first. These are bounds, not measurements."""
        return sorted(possible_gains(self.seen), reverse=True)

    def __str__(self) -> str:
        parts = [mistakes_text(self.mistakes, self.seen), time_text(self.seen)]
        tries = [f"- {words}: at most {bound:.2f}x" for bound, words in self.gains]
        if tries:
            parts.append("\n".join(["What to try, the largest possible gain first:", *tries]))
        parts += [memory_text(self.seen.memory, self.seen.reserved), "\n".join(self.seen.unseen)]
        return "\n\n".join(filter(None, parts))

    __repr__ = __str__  # as the last line of a cell shows it


def mistakes_text(mistakes: list[str], seen: Observations) -> str:
    """Return the mistakes as a list, or that there is none, or that nothing was looked at."""
    if mistakes:
        return "\n".join(["Mistakes:", *(f"- {sentence}" for sentence in mistakes)])
    if not any(seen.events):
        return "Nothing was looked at: no optimizer took a step, and backward() was not called."
    return "No mistake was found."


def facts_for_bottleneck(seen: Observations) -> dict:
    """Return what find_bottleneck reads, in the names of a record."""
    names = ("kernel_family_fractions", "gpu_busy_fraction", "tensor_core_fraction")
    return {name: seen.kernels.get(name) for name in names} | {
        "profile_reason": seen.profile_reason,
        "data_wait_fraction": seen.data_wait_fraction,
        "misaligned_flops_fraction": seen.misaligned_fraction,
        "precision": "fp32" if seen.autocast is None else "amp",
        "compute_limit_fraction": None,
        "bandwidth_limit_fraction": None,
    }


def time_text(seen: Observations) -> str:
    """Return where the time of a step goes."""
    if not seen.step_ms:
        return f"No step was timed: the loop ended after {seen.steps}." if seen.steps else ""
    case, because = find_bottleneck(facts_for_bottleneck(seen))
    lines = [f"A step takes {seen.step_ms:,.4g} ms (the median of {seen.timed}). It is limited by {case}: {because}."]
    if case == "not known":
        lines = [f"A step takes {seen.step_ms:,.4g} ms (the median of {seen.timed}); {because}."]
    if seen.data_wait_fraction is not None:
        lines.append(f"The loop waits for its DataLoader {seen.data_wait_fraction:.0%} of the time.")
    if seen.watched and seen.scaler_reads >= seen.watched:
        lines.append(
            "GradScaler reads in every step whether a gradient overflowed, and the CPU waits. An optimizer with"
            " fused=True needs no such wait."
        )
    if seen.flops and "recurrent network" not in {kind for kind, _ in seen.flops}:
        shares = {dtype: seen.share_of_flops(None, dtype) for _, dtype in seen.flops}
        ran = [f"{share:.0%} in {dtype}" for dtype, share in sorted(shares.items(), key=lambda item: -item[1])]
        lines.append(f"Its products and convolutions ran {' and '.join(ran)}.")
    in_tf32 = seen.device == "cuda" and seen.switches.get("conv") == "tf32"
    if in_tf32 and seen.share_of_flops("convolution", "float32") >= MANY_FLOPS:
        lines.append("Convolutions in fp32 use TF32, which is PyTorch's default.")
    return "\n".join(lines)


def possible_gains(seen: Observations) -> list[tuple[float, str]]:
    """Return (bound, words) of what could be gained: the time of a step without what a measure can take away."""
    waiting = seen.data_wait_fraction or 0.0
    gains = {"more DataLoader workers" + (", or data kept on the GPU" if seen.device == "cuda" else ""): waiting}
    busy = seen.kernels.get("gpu_busy_fraction")
    families = dict(seen.kernels.get("kernel_family_fractions") or [])
    if busy is not None and families:
        gains["a CUDA graph of the step, or a larger batch"] = max(0.0, 1 - busy - waiting)
        arithmetic = sum(families.get(name, 0.0) for name in ARITHMETIC)
        slow = max(0.0, arithmetic - (seen.kernels.get("tensor_core_fraction") or 0.0))
        moving = 1 - arithmetic
        tensor_cores = seen.capability is None or seen.capability >= (7, 0)
        if seen.misaligned_fraction >= 0.5 and seen.autocast:
            gains["channels, units and vocabulary rounded up to multiples of 8"] = busy * arithmetic
        elif tensor_cores:
            gains["TF32 or 16 bits, so that arithmetic runs on Tensor Cores"] = busy * slow
        if seen.autocast is None:
            gains["16 bits, which are half the bytes"] = busy * moving / 2
        else:
            gains["torch.compile or channels_last, which move fewer bytes"] = busy * moving
    bounds = [(1 / (1 - min(share, 0.99)), words) for words, share in gains.items()]
    return [(bound, words) for bound, words in bounds if bound >= WORTH_SAYING]


def memory_text(memory: dict[str, int], reserved: int) -> str:
    """Return what fills the memory at its peak, and what PyTorch holds beyond it. All in bytes."""
    if not memory:
        return ""
    total = sum(memory.values())
    names = {"other": "activations and workspace"}
    parts = [f"{names.get(name, name)} {size / GIB:.2f} GiB" for name, size in memory.items()]
    reason = why_memory_stays(memory["weights"], memory["gradients"], memory["optimizer"], memory["other"])
    words = [f"Memory at its peak: {total / GIB:.2f} GiB ({', '.join(parts)}).", reason]
    if reserved > MUCH_MORE * total:
        kept = f"PyTorch holds {reserved / GIB:.2f} GiB"
        words.append(f"{kept}: what is freed it keeps for later, and nvidia-smi shows all of it.")
    return " ".join(filter(None, words))
