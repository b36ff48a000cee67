"""What was found of runs, as a code with names and numbers: report/ puts it into words."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    code: what it is, one of those that the function that returns it names
    run: the run that it is about, by what tells it from the other one, as its precision
    values: {name: number, share or name} of what its words need; shares lie between 0 and 1
    """

    code: str
    run: str = ""
    values: dict = field(default_factory=dict, hash=False)
