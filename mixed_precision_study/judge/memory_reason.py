"""Why 16 bits did not shrink the memory, from what fills it."""

MOSTLY = 0.6  # of the peak
SMALLER = 0.9  # memory went down where it is below this share of what it was
STAYING = ("parameters", "gradients", "optimizer", "masters")  # autocast keeps them in fp32


def memory_reason(record: dict, base: dict) -> str | None:
    """Return why 16 bits need as much memory as the baseline;

    None where it went down or the parts are not known.
    """
    peak, before = record["peak_allocated_mib"], base["peak_allocated_mib"]
    parts = {name: record[f"ledger_{name}_mib"] for name in (*STAYING, "data", "activations")}
    if record["precision"] in ("fp32", "tf32") or not peak or not before or peak < SMALLER * before:
        return None
    if parts["activations"] is None:
        return None
    staying = sum(parts[name] or 0 for name in STAYING) / peak
    data = (parts["data"] or 0) / peak
    activations, earlier = parts["activations"], base["ledger_activations_mib"]
    if staying >= MOSTLY:
        because = (
            f"weights, gradients and optimizer are {staying:.0%} of the peak, and 16 bits "
            "halve activations only"
        )
    elif data >= MOSTLY:
        because = f"the data set on the GPU is {data:.0%} of the peak"
    elif staying + data >= MOSTLY:
        because = f"weights, gradients, optimizer and data set are {staying + data:.0%} of the peak"
    elif earlier and activations >= SMALLER * earlier:
        share = f"{activations / peak:.0%} of the peak"
        because = (
            f"activations and workspace, {share}, did not shrink: some stay in fp32, some "
            "are kept in both types"
        )
    else:
        return None
    return f"memory did not go down: {because}"
