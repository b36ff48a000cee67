"""What a study says that it shows."""

from dataclasses import dataclass, field


@dataclass
class Study:
    """Name, description and what is shown."""

    name: str = ""
    description: str = ""
    show: dict = field(default_factory=dict)


def study_of(folder, records):
    """Return the study of a folder."""
    return Study()
