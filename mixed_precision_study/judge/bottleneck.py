"""What limits a run, by plain rules, and what to try against it."""

IDLE = 0.2  # from this share of idle time on, the GPU is not the limit
# the kernel families that Tensor Cores can run
ARITHMETIC = ("convolution", "matmul", "fp8 matmul", "attention")
OTHER_KERNELS = "kernels other than arithmetic"
FAMILIES_NAMED = 2  # families of these, the longest


def find_bottleneck(record: dict) -> tuple[str, str]:
    """Return (what limits an ok run, the figures that say so). The first case that applies is
    returned:

    "data loading", "kernel launches", "sizes not multiples of 8", OTHER_KERNELS, "arithmetic on
    Tensor Cores", "arithmetic without Tensor Cores"; "not known" where the run was not profiled.

    Where the same training was faster as a CUDA graph beyond the margin (`graph_gain`, which a
    report notes), launches are the limit, although the GPU idles less than IDLE, because a graph
    removes nothing else.
    """
    families = dict(record["kernel_family_fractions"])
    if record["gpu_busy_fraction"] is None or not families:
        return (
            "not known",
            f"what limits it is not known ({record['profile_reason'] or 'it was not profiled'})",
        )
    idle = round(1 - record["gpu_busy_fraction"], 6)  # 1 - 0.8 is a little less than 0.2
    waiting = record["data_wait_fraction"] or 0
    if idle >= IDLE:
        return cause_of_idleness(idle, waiting)
    if gain := record.get("graph_gain"):
        return (
            "kernel launches",
            f"as a CUDA graph it is {gain} as fast, though the GPU is idle {idle:.0%} of the time",
        )
    case, because = find_limit_of_kernels(record, families)
    if idle >= IDLE / 2 and waiting >= idle / 2:
        because += (
            f"; the GPU is also idle {idle:.0%} of the time, and the loop waits "
            f"{waiting:.0%} for its data"
        )
    return case, because


def cause_of_idleness(idle: float, waiting: float) -> tuple[str, str]:
    """Return (the larger cause of idle time, the figures that say so); a second one from half of
    the first on.
    """
    for_data = min(waiting, idle)
    for_launches = idle - for_data
    data = f"the loop waits {waiting:.0%} for its data"
    if for_data >= for_launches:
        second = (
            f", the rest between kernel launches ({for_launches:.0%})"
            if for_launches >= for_data / 2
            else ""
        )
        return "data loading", f"the GPU is idle {idle:.0%} of the time and {data}{second}"
    second = f", and {data}" if for_data >= for_launches / 2 else ""
    return (
        "kernel launches",
        f"the GPU is idle {idle:.0%} of the time between kernel launches{second}",
    )


def find_limit_of_kernels(record: dict, families: dict) -> tuple[str, str]:
    """Return (what limits a run that keeps the GPU busy, the figures that say so)."""
    arithmetic = sum(families.get(name, 0) for name in ARITHMETIC)
    misaligned = record["misaligned_flops_fraction"] or 0
    share = f"{arithmetic:.0%} of kernel time is convolution and matmul"
    if record["precision"] != "fp32" and misaligned >= 0.5 and arithmetic >= 0.3:
        return (
            "sizes not multiples of 8",
            f"{share}, and {misaligned:.0%} of that work has sizes not multiples of 8",
        )
    if arithmetic < 0.5:
        return (
            OTHER_KERNELS,
            f"{1 - arithmetic:.0%} of kernel time is not arithmetic ({longest_others(record)})",
        )
    # other patterns of kernel names
    on_tensor_cores = min(1, (record["tensor_core_fraction"] or 0) / arithmetic)
    limit = record["compute_limit_fraction"]
    reached = f" and reaches {limit:.0%} of what this card was measured to do" if limit else ""
    case = (
        "arithmetic on Tensor Cores"
        if on_tensor_cores >= 0.5
        else "arithmetic without Tensor Cores"
    )
    return case, f"{share}, {on_tensor_cores:.0%} of it on Tensor Cores{reached}"


def longest_others(record: dict) -> str:
    """Return the longest families of kernels other than arithmetic, each with its share of
    kernel time.
    """
    others = [
        (share, name) for name, share in record["kernel_family_fractions"] if name not in ARITHMETIC
    ]
    return ", ".join(
        f"{name} {share:.0%}" for share, name in sorted(others, reverse=True)[:FAMILIES_NAMED]
    )


def advice_of(case: str, record: dict) -> str:
    """Return what to try next against a limit, as a clause, or nothing."""
    settings = record["settings"]
    execution = settings.get("execution")
    in_32_bits = record["precision"] in ("fp32", "tf32")
    ways = []
    if case == "data loading":
        ways += ["more num_workers", 'data kept on the device (loader="gpu")']
    elif case == "kernel launches":
        ways.append("a larger batch")
        if execution in ("eager", "compile"):
            ways.append("a CUDA graph of the whole step")
    elif case == "sizes not multiples of 8":
        ways.append("channels, units and vocabulary rounded up to multiples of 8")
    elif case == OTHER_KERNELS:
        if settings.get("channels_last") is False:
            ways.append("channels_last")
        if execution in ("eager", "cuda_graph"):
            ways.append("torch.compile")
        if in_32_bits:
            ways.append("16-bit values, which are half the bytes")
    elif case == "arithmetic without Tensor Cores" and in_32_bits:
        ways.append("tf32, amp_fp16 or amp_bf16, where the card has Tensor Cores")
    *first, last = ways or [""]
    return f": try {', '.join(first)}{' or ' if first else ''}{last}" if last else ""
