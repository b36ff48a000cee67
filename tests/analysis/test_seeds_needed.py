"""How many seeds a study of quality needs."""

import random
import statistics
import subprocess
import sys

import made_up_records as made_up
import pytest
from conftest import ENVIRONMENT, ROOT

from mixed_precision_study.analysis.equivalence import EQUIVALENT, MARGINS, quality_difference
from mixed_precision_study.analysis.seeds_needed import POWER, needs_of, power_of, seeds_needed
from mixed_precision_study.record import flat_record, write_record


@pytest.mark.parametrize(("scatter", "margin"), [(0.002, 0.002), (0.02, 0.02), (0.012, 0.02)])
def test_with_the_seeds_that_are_needed_four_of_five_studies_find_equal_precisions_equivalent(scatter, margin):
    seeds = seeds_needed(scatter, margin)
    draw = random.Random(0)
    found = 0
    for _ in range(1000):
        own = {seed: 0.5 + draw.gauss(0, scatter) for seed in range(seeds)}
        base = dict.fromkeys(range(seeds), 0.5)
        metric = {0.002: "accuracy", 0.02: "mean_absolute_error"}[margin]
        assert MARGINS[metric].size == margin
        found += quality_difference(own, base, metric, "higher")["outcome"] == EQUIVALENT
    assert POWER - 0.06 < found / 1000 < POWER + 0.1
    assert power_of(seeds, scatter, margin) >= POWER > power_of(seeds - 1, scatter, margin)


def test_no_scatter_needs_the_fewest_seeds_and_a_huge_one_more_than_anyone_has():
    assert seeds_needed(0.0, 0.02) == 5
    assert seeds_needed(1.0, 0.002) is None
    assert seeds_needed(0.004, 0.002) > seeds_needed(0.002, 0.002)


def write_pilot(folder, seeds=4):
    for seed in range(seeds):
        for precision, shift in (("fp32", 0.0), ("amp_bf16", 0.001 * (-1) ** seed)):
            write_record(made_up.make("cifar_resnet", precision, parameters={"seed": seed}, shift=shift), folder)


def test_a_pilots_records_give_the_scatter_of_each_precision(tmp_path):
    records = []
    for seed in range(4):
        for precision, shift in (("fp32", 0.0), ("amp_bf16", 0.001 * (-1) ** seed)):
            records.append(flat_record(made_up.make("cifar_resnet", precision, parameters={"seed": seed}, shift=shift)))
    (need,) = needs_of(records)
    assert (need.precision, need.metric, need.seeds) == ("amp_bf16", "accuracy", 4)
    assert need.scatter == pytest.approx(statistics.stdev([0.001, -0.001] * 2))
    assert need.needed == seeds_needed(need.scatter, 0.002)
    assert needs_of(records[:4]) == []  # two seeds


def test_the_command_prints_a_table_or_one_sentence(tmp_path):
    command = [sys.executable, "-m", "mixed_precision_study.analysis.seeds_needed", str(tmp_path)]
    empty = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert empty.returncode == 1 and empty.stderr.startswith("There are no 3 seeds") and "Traceback" not in empty.stderr
    write_pilot(tmp_path)
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert "| resnet18, eager | amp_bf16 | accuracy | 4 |" in done.stdout
