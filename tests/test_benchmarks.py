"""The scripts of benchmarks/ in their tiny forms on the CPU, and the arithmetic of their tables."""

import itertools
import random

import attention_error
import pytest
import seeds_needed
import simulate

from mixed_precision_study.judge.equivalence import EQUIVALENT, quality_difference


@pytest.mark.parametrize("scatter", simulate.SCATTERS[::2], ids=lambda scatter: scatter.name)
def test_intervals_cover_and_equal_precisions_seldom_differ(scatter):
    """Of 200 draws the share of covering intervals scatters by 1.5%."""
    cell = simulate.simulate(scatter, 3, 2, 200)
    assert cell.coverage > 0.9 and max(cell.false, cell.wrongly_same) < 0.1
    assert (cell.half_width < 0.03) == (scatter.processes < 0.01)
    assert simulate.simulate(scatter, 5, 2, 100).half_width < 0.7 * cell.half_width
    bad = cell._replace(coverage=0.9, false=0.07, wrongly_same=0.07, half_width=0.04)
    assert len(simulate.problems_of(bad)) == (4 if scatter.processes < 0.01 else 3)


@pytest.mark.parametrize("machines, by_chance", [(4, 0.125), (6, 0.031)])
def test_machines_that_agree_by_chance_tell_no_side(machines, by_chance):
    """Four have a range, which never tells a side, and six have an interval, which errs in 5%."""
    over = simulate.over_machines(simulate.SCATTERS[2], machines, 200)
    assert over.one_side == pytest.approx(by_chance, abs=0.06)
    assert over.told == 0 if machines == 4 else 0 < over.told < 0.1


@pytest.mark.parametrize("scatter, margin", [(0.002, 0.002), (0.02, 0.02), (0.012, 0.02)])
def test_the_needed_seeds_find_equal_precisions_equivalent(scatter, margin):
    draw = random.Random(0)
    one = {"metric_name": "accuracy", "metric_better": "higher", "metric_margin": margin}
    one["metric_margin_is_share"] = False
    base = dict.fromkeys(range(seeds_needed.seeds_needed(scatter, margin)), 0.5)
    studies = [{seed: 0.5 + draw.gauss(0, scatter) for seed in base} for _ in range(1000)]
    found = [quality_difference(own, base, one)["outcome"] for own in studies].count(EQUIVALENT)
    assert seeds_needed.POWER - 0.06 < found / 1000 < seeds_needed.POWER + 0.1
    assert [seeds_needed.seeds_needed(*case) for case in ((0.0, 0.02), (1.0, 0.002))] == [5, None]


def test_attention_in_16_bits_errs_as_its_format_rounds():
    rows = {(row["kernel"], row["format"]): row for row in attention_error.rows_of([64], "cpu")}
    assert set(rows) == set(itertools.product(attention_error.KERNELS, attention_error.FORMATS))
    assert "viable" in rows["cudnn", "bf16"]["reason"]
    assert rows["math", "fp32"]["chosen"] == "FLASH_ATTENTION"  # PyTorch's own of the CPU
    for part in attention_error.PARTS:
        fp32, bf16, fp16 = (float(rows["math", name][part]) for name in ("fp32", "bf16", "fp16"))
        assert fp32 < 2**-20 and 2**-11 < bf16 < 2**-7
        assert bf16 == pytest.approx(8 * fp16, rel=0.3)  # three bits of mantissa
