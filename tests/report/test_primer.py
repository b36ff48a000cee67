"""The picture of the number formats."""

import pytest
import torch
from drawn_reports import SECTION

from mixed_precision_study.report.primer import FORMATS
from mixed_precision_study.report.report import Report

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TYPES |= {"fp8 e4m3": torch.float8_e4m3fn, "fp8 e5m2": torch.float8_e5m2}


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_ranges_are_those_of_pytorch(form):
    if form.name in TYPES:
        limits = torch.finfo(TYPES[form.name])
        assert (form.largest, form.smallest) == (limits.max, limits.tiny)
        assert 1 + form.exponent + form.mantissa == limits.bits
    else:
        assert (form.exponent, form.mantissa) == (8, 10)  # the range of fp32 with the mantissa of fp16


def test_a_report_without_runs_explains_nothing():
    assert SECTION["primer"](Report()).parts == []
