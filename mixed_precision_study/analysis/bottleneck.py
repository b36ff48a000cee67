"""What limits a run, by plain rules, and what to try against it."""

IDLE = 0.2  # from this share of idle time on, it is not the GPU that limits
ARITHMETIC = ("convolution", "matmul", "attention")  # the kernel families that Tensor Cores can run
MEMORY_BOUND = 0.6  # from this share of the card's copying speed on, kernels that move memory wait for it, too


def find_bottleneck(record):
    """Return (what limits an ok run, the figures that say so): one of the cases below, told apart in this order.

    "data loading", "kernel launches", "sizes not multiples of 8", "kernels that move memory", "arithmetic on Tensor
    Cores", "arithmetic without Tensor Cores"; "not known" where the run was not profiled. Kernels that move memory
    are called memory-bound only where they come near to the speed at which the card copies.
    """
    families, waiting = dict(record["kernel_family_fractions"] or []), record["data_wait_fraction"] or 0
    if record["gpu_busy_fraction"] is None or not families:
        return "not known", f"what limits it is not known ({record['profile_reason'] or 'it was not profiled'})"
    idle = round(1 - record["gpu_busy_fraction"], 6)  # 1 - 0.8 is a little less than 0.2
    if idle >= IDLE and waiting >= idle / 2:
        return "data loading", f"the GPU is idle {idle:.0%} of the time and the loop waits {waiting:.0%} for its data"
    if idle >= IDLE:
        return "kernel launches", f"the GPU is idle {idle:.0%} of the time between kernel launches"
    arithmetic, misaligned = sum(families.get(name, 0) for name in ARITHMETIC), record["misaligned_flops_fraction"] or 0
    share = f"{arithmetic:.0%} of kernel time is convolution and matmul"
    if record["precision"] != "fp32" and misaligned >= 0.5 and arithmetic >= 0.3:
        return "sizes not multiples of 8", f"{share}, and {misaligned:.0%} of that work has sizes not multiples of 8"
    if arithmetic < 0.5:
        rest = sorted(((part, name) for name, part in families.items() if name not in ARITHMETIC), reverse=True)
        longest = ", ".join(f"{name} {part:.0%}" for part, name in rest[:3])
        speed = record["bandwidth_limit_fraction"]
        bound = " (memory-bound)" if round(speed or 0, 2) >= MEMORY_BOUND else ""
        speed = f", at {speed:.0%} of this card's copying speed{bound}" if speed else ""
        return "kernels that move memory", f"{1 - arithmetic:.0%} of kernel time moves memory ({longest}){speed}"
    on_tensor_cores = min(1, (record["tensor_core_fraction"] or 0) / arithmetic)  # told by other parts of the names
    reached = record["compute_limit_fraction"]
    reached = f" and reaches {reached:.0%} of what this card was measured to do" if reached else ""
    case = "arithmetic on Tensor Cores" if on_tensor_cores >= 0.5 else "arithmetic without Tensor Cores"
    return case, f"{share}, {on_tensor_cores:.0%} of it on Tensor Cores{reached}"


def advice_of(case, record):
    """Return what to try next against a limit, as a clause, or nothing."""
    fuse = ["torch.compile"] if record.get("execution") in ("eager", "cuda_graph") else []
    graph = ["a CUDA graph of the whole step"] if record.get("execution") in ("eager", "compile") else []
    layout = ["channels_last"] if record.get("channels_last") is False else []
    half = ["16-bit values, which are half the bytes"] if record["precision"] in ("fp32", "tf32") else []
    ways = {
        "data loading": ["more num_workers", 'data kept on the device (loader="gpu")'],
        "kernel launches": ["a larger batch", *graph],
        "sizes not multiples of 8": ["channels, units and vocabulary rounded up to multiples of 8"],
        "kernels that move memory": [*layout, *fuse, *half],
        "arithmetic without Tensor Cores": ["tf32, amp_fp16 or amp_bf16, where the card has Tensor Cores"] * bool(half),
    }
    return f": try {' or '.join(ways[case])}" if ways.get(case) else ""
