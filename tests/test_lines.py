"""benchmarks/lines.py: its rows, its training, and its table."""

import math
from statistics import fmean, stdev

import lines
import pytest
import torch
from conftest import on_request


def result(process, row, step_ms, model="gpt", **others):
    cache = "cold" if process == 0 else "warm"
    known = {
        "run": process,
        "process": process,
        "compiler_cache": cache,
        "gpu": "H100",
        "torch": "2.11",
        "model": model,
        "row": row,
        "step_ms": step_ms,
    }
    return known | others


def compiled(process, row, step_ms, first_seconds, **others):
    seconds = {"compiler_seconds": 1.0, "first_seconds": first_seconds}
    return result(process, row, step_ms, **seconds, **others)


def test_ratios_pair_rows_of_one_process_on_logarithms():
    rows = [result(run, "default", step) for run, step in {0: 10.0, 1: 12.0, 2: 11.0}.items()]
    rows += [result(run, "tf32", step) for run, step in {0: 5.0, 1: 4.0, 3: 1.0}.items()]
    rows += [result(2, "tf32", 1.0, error="The loss is not finite.")]
    default, tf32 = lines.summary_of(rows, "gpt")
    logs = [math.log(2), math.log(3)]
    half = 12.71 * stdev(logs) / math.sqrt(2)
    expected = {
        "n": 2,
        "mean": math.sqrt(6),
        "least": 2,
        "most": 3,
        "low": math.exp(fmean(logs) - half),
        "high": math.exp(fmean(logs) + half),
    }
    assert tf32["over_base"] == pytest.approx(expected)
    assert (tf32["n"], tf32["step_ms"]) == (3, 4.0)
    assert tf32["errors"] == ["The loss is not finite."]
    assert (default["over_base"], default["over_default"]["mean"]) == ({"n": 0}, 1)
    assert "low" not in lines.ratio_of([(2.0, 1.0)])


def test_compiling_is_paid_against_the_last_eager_row():
    rows = [result(run, "default", 50) for run in (0, 1)]
    rows += [result(run, "tf32", 30) for run in (0, 1)]
    rows += [compiled(0, "compile", 20, 19.0), compiled(1, "compile", 20, 4.0)]
    rows += [compiled(0, "bf16", 10, 19.0, reserved_gib=3.0), compiled(1, "bf16", 31, 4.0)]
    rows += [compiled(0, "fp16", 10, 9.0)]
    by_name = {row["row"]: row for row in lines.summary_of(rows, "gpt")}
    assert (by_name["compile"]["cold_seconds"], by_name["compile"]["cold_steps"]) == ([20], [2000])
    assert (by_name["compile"]["warm_seconds"], by_name["compile"]["warm_steps"]) == ([5], [500])
    assert (by_name["bf16"]["cold_steps"], by_name["bf16"]["warm_steps"]) == ([1000], [None])
    assert by_name["fp16"]["over_base"]["mean"] == pytest.approx(2)
    assert (by_name["fp16"]["n"], by_name["bf16"]["reserved_gib"]) == (1, 3.0)
    assert "never" in lines.table(rows)


@pytest.mark.slow
@pytest.mark.parametrize("model", on_request(lines.MODELS, "resnet18", "efficientnet"))
def test_every_row_but_the_compiled_trains_alike(model):
    """A CPU takes seconds for a step of a convolutional model in fp16, so that is left out."""
    losses = {}
    names = {*lines.ROWS} - ({"compile"} if model == "gpt" else {"compile", "fp16"})
    for name, (_, added) in lines.rows_of(model, names).items():
        measured = lines.measure(model, added, tiny=True)
        assert measured["steps"] == len(measured["blocks_ms"]) == 2
        losses[name] = measured["losses"][0]
    assert losses == pytest.approx(dict.fromkeys(losses, losses["default"]), rel=0.3)
    assert losses["tf32"] == pytest.approx(losses["default"], rel=0.01)
    assert losses["bf16"] != losses["default"]
    lines.clear()
    assert torch.get_float32_matmul_precision() == "highest"
