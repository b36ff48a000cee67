"""What limits a run, by plain rules, and what to try against it."""

from .finding import Finding

IDLE = 0.2  # from this share of idle time on, the GPU is not the limit
# the kernel families that Tensor Cores can run
ARITHMETIC = ("convolution", "matmul", "fp8 matmul", "attention")
FAMILIES_NAMED = 2  # families of other kernels, the longest
# families of kernels that the layout of images changes, and the share of kernel time from which on
# it is worth trying: a ViT has one convolution, a language model none
OF_LAYOUT = ("convolution", "depthwise convolution", "layout change")
CONVOLVES = 0.1

LOADING, LAUNCHES, GRAPH_GAIN = "loading", "launches", "graph_gain"
SIZES = "sizes"  # not multiples of 8
OTHER_KERNELS = "other_kernels"
ON_TENSOR_CORES, WITHOUT_TENSOR_CORES = "on_tensor_cores", "without_tensor_cores"
NOT_PROFILED = "not_profiled"
TO_TRY = {
    LOADING: ("more_workers", "data_on_gpu"),
    LAUNCHES: ("larger_batch", "graph"),
    GRAPH_GAIN: ("larger_batch", "graph"),
    SIZES: ("round_sizes",),
    OTHER_KERNELS: ("channels_last", "compile", "16_bits"),
    WITHOUT_TENSOR_CORES: ("tensor_cores", "fp16_cores"),
}
VOLTA, AMPERE = 7.0, 8.0  # capabilities from which a card has Tensor Cores, and TF32 and bf16


def find_bottleneck(record: dict) -> list[Finding]:
    """Return what limits an ok run, and behind it what else takes its time. All values are shares.

    The first case that applies comes first: LOADING, LAUNCHES, GRAPH_GAIN, SIZES, OTHER_KERNELS,
    ON_TENSOR_CORES or WITHOUT_TENSOR_CORES; NOT_PROFILED where the kernels are not known.

    Where the same training was faster as a CUDA graph beyond the margin (`graph_gain`, which a
    report notes as a Finding), launches are the limit, although the GPU idles less than
    IDLE, because a graph removes nothing else.
    """
    families = dict(record["kernel_family_fractions"])
    if record["gpu_busy_fraction"] is None or not families:
        return [Finding(NOT_PROFILED, values={"reason": record["profile_reason"]})]
    idle = round(1 - record["gpu_busy_fraction"], 6)  # 1 - 0.8 is a little less than 0.2
    waiting = record["data_wait_fraction"] or 0
    if idle >= IDLE:
        return causes_of_idleness(idle, waiting)
    if gain := record.get("graph_gain"):
        return [Finding(GRAPH_GAIN, values={"gain": gain, "idle": idle})]
    found = limits_of_kernels(record, families)
    if idle >= IDLE / 2 and waiting >= idle / 2:
        found.append(Finding("also_idle", values={"idle": idle, "waiting": waiting}))
    return found


def causes_of_idleness(idle: float, waiting: float) -> list[Finding]:
    """Return the larger cause of idle time, and the other one from half of the first on."""
    for_data = min(waiting, idle)
    for_launches = idle - for_data
    values = {"idle": idle, "waiting": waiting, "launches": for_launches}
    codes = [LOADING, "also_launches"]
    shares = [for_data, for_launches]
    if for_data < for_launches:
        codes = [LAUNCHES, "also_waits"]
    told = codes if min(shares) >= max(shares) / 2 else codes[:1]
    return [Finding(code, values=values) for code in told]


def limits_of_kernels(record: dict, families: dict[str, float]) -> list[Finding]:
    """Return what limits a run that keeps the GPU busy, and how near the card's limit it comes."""
    arithmetic = sum(families.get(name, 0) for name in ARITHMETIC)
    misaligned = record["misaligned_flops_fraction"] or 0
    values = {"arithmetic": arithmetic}
    if record["precision"] != "fp32" and misaligned >= 0.5 and arithmetic >= 0.3:
        return [Finding(SIZES, values={**values, "misaligned": misaligned})]
    if arithmetic < 0.5:
        return [
            Finding(
                OTHER_KERNELS,
                values={"other": 1 - arithmetic, "longest": longest_others(record)},
            )
        ]
    # other patterns of kernel names
    values["on_cores"] = min(1, (record["tensor_core_fraction"] or 0) / arithmetic)
    code = ON_TENSOR_CORES if values["on_cores"] >= 0.5 else WITHOUT_TENSOR_CORES
    found = [Finding(code, values=values)]
    if limit := record["compute_limit_fraction"]:
        found.append(Finding("reached", values={"limit": limit}))
    return found


def longest_others(record: dict) -> dict[str, float]:
    """Return {family: share of kernel time} of the longest kernels other than arithmetic."""
    shares = {n: share for n, share in record["kernel_family_fractions"] if n not in ARITHMETIC}
    return dict(sorted(shares.items(), key=lambda item: item[::-1], reverse=True)[:FAMILIES_NAMED])


def remedies_of(code: str, record: dict) -> list[str]:
    """Return what to try next against a limit: those codes of TO_TRY that are not done yet, and
    that the card can do.
    """
    settings = record["settings"]
    capability = float(record["compute_capability"] or AMPERE)
    execution = settings.get("execution")
    in_32_bits = record["precision"] in ("fp32", "tf32")
    families = dict(record["kernel_family_fractions"])
    convolves = sum(families.get(name, 0) for name in OF_LAYOUT) >= CONVOLVES
    fits = {
        "graph": execution in ("eager", "compile"),
        "channels_last": convolves and settings.get("channels_last") is False,
        "compile": execution in ("eager", "cuda_graph"),
        "16_bits": in_32_bits,
        "tensor_cores": in_32_bits and capability >= AMPERE,
        "fp16_cores": in_32_bits and VOLTA <= capability < AMPERE,
    }
    return [remedy for remedy in TO_TRY.get(code, ()) if fits.get(remedy, True)]
