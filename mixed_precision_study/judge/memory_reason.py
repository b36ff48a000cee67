"""Why 16 bits did not shrink the memory, from what fills it."""

from .finding import Finding

MOSTLY = 0.6  # of the peak
SMALLER = 0.9  # memory went down where it is below this share of what it was
STAYING = ("parameters", "gradients", "optimizer", "masters")  # autocast keeps them in fp32


def memory_reason(record: dict, base: dict) -> Finding | None:
    """Return why 16 bits need as much memory as the baseline, with the share of the peak.

    It is "weights", "data_set", "weights_and_data" or "activations"; None where memory went down or
    the parts are not known.
    """
    peak = record["peak_allocated_mib"]
    before = base["peak_allocated_mib"]
    activations = record["ledger_activations_mib"]
    known = peak and before and activations is not None
    if not known or record["precision"] in ("fp32", "tf32") or peak < SMALLER * before:
        return None
    staying = sum(record[f"ledger_{name}_mib"] or 0 for name in STAYING) / peak
    data = (record["ledger_data_mib"] or 0) / peak
    parts = {"weights": staying, "data_set": data, "weights_and_data": staying + data}
    for code, share in parts.items():
        if share >= MOSTLY:
            return Finding(code, values={"share": share})
    earlier = base["ledger_activations_mib"]
    if earlier and activations >= SMALLER * earlier:
        return Finding("activations", values={"share": activations / peak})
    return None
