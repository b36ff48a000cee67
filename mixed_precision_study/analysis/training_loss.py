"""Whether a precision ends at as low a training loss as a simpler one, by a bar that was fixed before any run."""

import statistics

from .speedup import FEWEST_PROCESSES
from .trained import has_learned

LOSS_BAR = 0.02  # nats that the last training loss may be above the simpler precision's; 2% of perplexity


def judge_loss(own: list[dict], base: list[dict]) -> dict | None:
    """Return by how many nats (above) the last losses of ok runs are above those of a base in the median, or None.

    loss_outcome says what this is beside the bar. It is inconclusive where equal runs differ by as much as its distance
    from the bar (scatter). The pair that tells most has the largest `certain`.
    """
    ends = [[run["train_loss"][-1] for run in runs if run["train_loss"]] for runs in (own, base)]
    if not all(ends):
        return None
    above = statistics.median(ends[0]) - statistics.median(ends[1])
    scatter = max(max(losses) - min(losses) for losses in ends)
    runs = min(FEWEST_PROCESSES, *map(len, ends))
    learned = has_learned(own) or has_learned(base)
    outcome = "within" if above < LOSS_BAR else "outside"
    if not learned:
        outcome = "hardly trained"
    elif runs < FEWEST_PROCESSES:
        outcome = "fewer than three runs"
    elif scatter >= abs(above - LOSS_BAR):
        outcome = "inconclusive"
    return {"above": above, "scatter": scatter, "loss_outcome": outcome, "certain": (learned, runs, -scatter)}
