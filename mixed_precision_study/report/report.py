"""The data that every section of the report is drawn from."""

from collections.abc import Callable
from dataclasses import dataclass, field

Key = tuple[int, str]  # number of a comparison, precision
PairKey = tuple[int, str, str]  # number of a comparison, precision, baseline
Unit = Callable[[dict], str]  # from a comparison to the unit of its figures
Bar = tuple[float, float, float, int]  # height, smallest, largest, number of values


@dataclass
class Report:
    """The records of a folder, grouped into comparisons and judged. `load` fills it; the sections only read it.

    A comparison is a dict, see `group_runs`; elsewhere it is named by its number in `comparisons`.
    """

    folder: str = "."  # into which it is written, and which the paths of its records are relative to
    source: str = "."  # where its records lie
    target_metric: float = 0.0  # held-out metric for the time to the same quality; 0: the experiments' own
    used: list[dict] = field(default_factory=list)  # records
    left_out: list[tuple[str, str]] = field(default_factory=list)  # (path, reason) of the others
    others: list[dict] = field(default_factory=list)  # measured by other code than the newest of their notebook
    aside: list[dict] = field(default_factory=list)  # of these, what run_all.py had set aside: not used
    equal: list[dict] = field(default_factory=list)  # equal runs of the study `aa`, which are compared with no other
    devices: dict[str, list[dict]] = field(default_factory=dict)  # {short name of a device: its records}
    on_cpu: bool = False  # every run was on the CPU
    every_group: list[dict] = field(default_factory=list)  # all comparisons
    largest: list[dict] = field(default_factory=list)  # comparisons in which each run took its largest batch
    comparisons: list[dict] = field(default_factory=list)  # the others
    ladders: list[list[tuple]] = field(default_factory=list)  # see find_ladders
    widths: list = field(default_factory=list)  # see find_widths
    sweeps: dict[tuple, dict] = field(default_factory=dict)  # of loss scales, see sweeps_of
    alone: set[int] = field(default_factory=set)  # comparisons of one precision that only a ladder or sweep shows
    charted: list[int] = field(default_factory=list)  # the other comparisons
    speedups: dict[PairKey, dict] = field(default_factory=dict)  # see speedup_between
    standing: set[PairKey] = field(default_factory=set)  # speed-ups that differ from 1 after Holm's correction
    sentences: dict[PairKey, str] = field(default_factory=dict)  # verdicts
    timed: list[tuple[int, dict]] = field(default_factory=list)  # (comparison, record) of the runs that ended well
    disturbed: list[tuple[int, dict]] = field(default_factory=list)  # of these, throttled or sharing their GPU
    several_runs: bool = False  # some precision of a comparison has more than one run that ended well
    uneven: set[str] = field(default_factory=set)  # experiments whose epochs are unequal work
    epoch_times: dict[Key, Bar] = field(default_factory=dict)  # seconds
    peaks: dict[Key, Bar] = field(default_factory=dict)  # GiB that PyTorch had allocated
    whole: dict[Key, Bar] = field(default_factory=dict)  # GiB of the whole device
    latency: dict[Key, Bar] = field(default_factory=dict)  # milliseconds of the inference of one sample

    @property
    def measured(self) -> list[dict]:
        """The used records; in a folder of equal runs alone, those."""
        return self.used or self.equal

    @property
    def charted_groups(self) -> list[tuple[int, dict]]:
        """(number, comparison) of the comparisons that have bars in the charts."""
        return [(number, self.comparisons[number]) for number in self.charted]

    def runs(self, number: int, precision: str) -> list[dict]:
        """Return the runs of a comparison in one precision."""
        return self.comparisons[number]["runs"][precision]
