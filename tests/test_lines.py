"""benchmarks/lines.py: its rows, its training, and its table."""

import lines
import pytest
import torch
from conftest import on_request


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
