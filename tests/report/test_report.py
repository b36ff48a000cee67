"""The report as a package: what it imports, what it leaves alone, and that drawing it again gives the same."""

import subprocess
import sys

import made_up_records as made_up
from conftest import ENVIRONMENT, ROOT
from drawn_reports import SECTION

from mixed_precision_study.parameters import PRECISION_NAMES
from mixed_precision_study.report.load import load
from mixed_precision_study.report.section import Chart
from mixed_precision_study.report.style import PRECISIONS

DRAW = """
import os, sys
import matplotlib
before = dict(matplotlib.rcParams)
from mixed_precision_study.report import results
from mixed_precision_study.report.sections import SECTIONS
assert dict(matplotlib.rcParams) == before, "a setting of Matplotlib was changed by an import"
from mixed_precision_study.report.load import load
report = load(sys.argv[1])
parts = [part for section in SECTIONS for part in section.section(report)]
assert len(parts) > 50 and report.comparisons
assert dict(matplotlib.rcParams) == before, "a setting of Matplotlib was changed by a chart"
assert not os.listdir(), "a file was written"
loaded = sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "timm", "torchvision"})
assert not loaded, loaded
"""


def test_the_report_is_drawn_without_pytorch_and_leaves_nothing_behind(tmp_path):
    folder = ROOT / "outputs" / "first-h200"
    command = [sys.executable, "-c", DRAW, str(folder)]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_a_section_that_is_drawn_again_is_the_same(tmp_path):
    made_up.write_ladder(tmp_path)
    report = load(tmp_path)
    for name, section in SECTION.items():
        first, second = (list(section(report)) for _ in range(2))
        assert [type(part) for part in first] == [type(part) for part in second], name
        for one, other in zip(first, second, strict=True):
            if not isinstance(one, Chart):
                assert one == other
            elif name in ("ladder", "articles"):
                assert (one.name, one.png) == (other.name, other.png)


def test_precisions_have_one_order_everywhere():
    assert list(PRECISIONS) == list(PRECISION_NAMES)
