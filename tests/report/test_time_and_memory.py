"""The chart of time and memory."""

import pytest

from mixed_precision_study.report.time_and_memory import LETTERS, folded


@pytest.mark.parametrize("model", ["vit_tiny_patch16_224", "vit_small_patch16_224", "tf_efficientnetv2_b0_in21k"])
def test_a_long_name_of_a_model_ends_a_line_after_an_underscore(model):
    lines = folded(model)
    assert "".join(lines) == model and len(lines) > 1
    assert all(line.endswith("_") for line in lines[:-1]) and max(map(len, lines)) <= LETTERS


def test_a_short_name_and_what_follows_it_stay_as_they_are():
    assert folded("amp_bf16 against tf32") == ["amp_bf16 against", "tf32"]
    assert folded("cifar10, b64") == ["cifar10, b64"]
    assert folded("") == []
