"""The report as a package: what it imports, what it leaves alone, and that drawing it again gives the same."""

import subprocess
import sys

import made_up_records as made_up
from conftest import ENVIRONMENT, ROOT, results

from mixed_precision_study.parameters import PRECISION_NAMES
from mixed_precision_study.report.names import ORDER
from mixed_precision_study.report.section import Chart
from mixed_precision_study.report.sections import sections_of
from mixed_precision_study.report.tables import read_tables

DRAW = """
import os, sys
import matplotlib
before = dict(matplotlib.rcParams)
from mixed_precision_study.report import results, sections, tables
assert dict(matplotlib.rcParams) == before, "a setting of Matplotlib was changed by an import"
parts = [part for section in sections.sections_of(tables.read_tables(sys.argv[1])) for part in section]
assert len(parts) > 20
assert dict(matplotlib.rcParams) == before, "a setting of Matplotlib was changed by a chart"
assert not os.listdir(), "a file was written"
loaded = sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "timm", "torchvision"})
assert not loaded, loaded
"""


def test_the_report_is_drawn_without_pytorch_and_leaves_nothing_behind(tmp_path):
    command = [sys.executable, "-c", DRAW, str(results("first-h200"))]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_a_report_that_is_drawn_again_is_the_same(tmp_path):
    made_up.write_batches(tmp_path)
    tables = read_tables(tmp_path)
    first, second = ([part for section in sections_of(tables) for part in section] for _ in range(2))
    assert len(first) == len(second) > 8
    for one, other in zip(first, second, strict=True):
        assert type(one) is type(other)
        assert (one.name, one.png) == (other.name, other.png) if isinstance(one, Chart) else one == other


def test_precisions_have_one_order_everywhere():
    assert list(ORDER) == list(PRECISION_NAMES)
