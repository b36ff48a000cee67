"""The sections why, memory, energy and inference, where they are absent."""

import made_up_records as made_up
from drawn_reports import read_all

from mixed_precision_study.report import costs
from mixed_precision_study.report.tables import Tables


def test_the_parts_of_the_memory_add_up_or_are_not_shown():
    mib = {f"ledger_{name}_mib": 512.0 for names in costs.MEMORY_PARTS.values() for name in names}
    assert list(costs.memory_parts_of(mib).values()) == [2.0, 0.5, 0.5, 1.0]
    for broken in ({"ledger_slack_mib": -1.0}, dict.fromkeys(list(mib)[:6])):
        assert costs.memory_parts_of(mib | broken) == {}


MAKERS = (
    costs.why_section,
    costs.memory_section,
    costs.energy_section,
    costs.inference_section,
)


def test_a_section_without_its_measurements_is_absent(tmp_path):
    bare = read_all(tmp_path, made_up.make("cifar_resnet", "fp32", explained=False))
    for tables in (bare, Tables(show={"inference": True})):
        assert all(make(tables).parts == [] for make in MAKERS)
