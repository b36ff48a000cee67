"""Why 16 bits did not shrink the memory, from what fills it."""

MOSTLY = 0.6  # of the peak


def why_memory_stays(weights: float, gradients: float, optimizer: float, activations: float) -> str | None:
    """Return a sentence where weights, gradients and optimizer take most of the memory, else None.

    The sizes may have any unit. Autocast keeps fp32 weights, so it halves activations only.
    """
    total = weights + gradients + optimizer + activations
    share = (weights + gradients + optimizer) / total if total else 0.0
    if share < MOSTLY:
        return None
    return f"Weights, gradients and optimizer are {share:.0%} of the peak; autocast halves activations only."
