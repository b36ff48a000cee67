"""The data that every section of the report is drawn from."""

from dataclasses import dataclass, field


@dataclass
class Report:
    """The records of a folder, grouped into comparisons and judged; `load` fills it, the sections only read it."""

    folder: str = "."
    used: list = field(default_factory=list)  # records
    left_out: list = field(default_factory=list)  # (path, why) of the others
    others: list = field(default_factory=list)  # records measured by other code than the newest of their notebook
    aside: list = field(default_factory=list)  # of these, what run_all.py had set aside: not used
    devices: dict = field(default_factory=dict)  # {short name of a device: its records}
    on_cpu: bool = False  # every run was on the CPU
    every_group: list = field(default_factory=list)  # comparisons, also those of the largest batches
    largest: list = field(default_factory=list)  # comparisons in which each run took its largest batch
    comparisons: list = field(default_factory=list)  # the others; elsewhere a comparison is its number in this list
    ways_up: list = field(default_factory=list)  # the ladders, each a list of steps
    sweeps: dict = field(default_factory=dict)  # of loss scales
    alone: set = field(default_factory=set)  # numbers of the comparisons that stand in a ladder or a sweep alone
    charted: list = field(default_factory=list)  # the other numbers
    speedups: dict = field(default_factory=dict)  # {(number, precision, baseline): paired ratio}
    sentences: dict = field(default_factory=dict)  # {(number, precision, baseline): verdict}
    timed: list = field(default_factory=list)  # (number, record) of the runs that ended well
    disturbed: list = field(default_factory=list)  # of these, the throttled ones and those that shared their GPU
    several_runs: bool = False  # whether any precision of a comparison has more than one run that ended well
    uneven: set = field(default_factory=set)  # the experiments whose epochs are unequal work
    epoch_times: dict = field(default_factory=dict)  # as the next, what pool() returns: seconds
    peaks: dict = field(default_factory=dict)  # GiB that PyTorch had allocated
    whole: dict = field(default_factory=dict)  # GiB of the whole device
    latency: dict = field(default_factory=dict)  # milliseconds of the inference of one sample
