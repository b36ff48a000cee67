"""Which training fits: peaks of made-up models whose parts grow as real ones do."""

import pytest
from made_up_fit import ledger_of

from mixed_precision_study.judge.axis import Axis
from mixed_precision_study.judge.fit import Predicted, fastest_within, predict

AXIS = Axis(("precision", "execution", "loss_chunks", "checkpointing"), ("tf32, eager, 1, 0",), {})
SMALL = {"layers": 12, "width": 768, "context": 1024, "batch_size": 8, "memory_limit_gib": 0}
SMALL |= {"vocabulary": 50_000, "moments": "as_weights", "model": "gpt", "execution": "eager"}
SMALL |= {"micro_batches": 1, "optimizer_in_backward": False}
LARGE = SMALL | {"layers": 24, "width": 1024}
ARMS = [
    {"loss_chunks": 1, "checkpointing": 0},
    {"loss_chunks": 8, "checkpointing": 0},
    {"loss_chunks": 8, "checkpointing": 1},
    {"loss_chunks": 1, "checkpointing": 1},
    {"loss_chunks": 1, "checkpointing": 0, "execution": "compile"},
]


def made(settings, precision="amp_bf16"):
    record = {"notebook": "transformer", "precision": precision, "settings": settings}
    return record | ledger_of(settings, precision)


# of bf16 weights the loss was measured in parts alone
TABLE = [made(SMALL | ARMS[1], "bf16_true")]
TABLE += [made(sizes | arm) for arm in ARMS for sizes in (SMALL, SMALL | {"context": 64})]


@pytest.mark.parametrize("arm", ARMS[:4], ids=str)
def test_a_larger_model_is_predicted_part_by_part(arm):
    for batch in (8, 32):
        wanted = made(LARGE | arm | {"batch_size": batch})
        found = predict(TABLE, AXIS, wanted)
        assert found.peak_mib == pytest.approx(wanted["peak_allocated_mib"], rel=1e-6)
        assert found.step_ms == made(SMALL | arm)["step_ms_median"]


def test_what_was_not_measured_is_not_predicted():
    assert predict(TABLE, AXIS, made(LARGE | ARMS[4])) is not None
    others = [{"execution": "compile_cuda_graph"}, {"model": "other"}, {"checkpointing": 2}]
    for other in (*others, {"batch_size": "max"}, {"optimizer": "sgd"}):
        wanted = {"notebook": "transformer", "precision": "amp_bf16"}
        wanted["settings"] = LARGE | ARMS[0] | other
        assert predict(TABLE, AXIS, wanted) is None


def test_times_of_two_models_are_not_put_in_order():
    """The arm was measured at a context of 64 alone, whose steps are shorter."""
    table = [one for one in TABLE if one["settings"] != SMALL | ARMS[4]]
    assert predict(table, AXIS, made(LARGE | ARMS[4])) is None
    assert predict(table, AXIS, made(LARGE | ARMS[4] | {"context": 128})) is not None


def test_a_compiler_may_need_more_for_a_loss_in_parts():
    table = [made(SMALL | ARMS[4]), made(SMALL | ARMS[4] | {"loss_chunks": 8})]
    table[1]["ledger_activations_mib"] = table[0]["ledger_activations_mib"] + 500
    wanted = made(SMALL | ARMS[4] | {"width": 1024})
    without = predict(table[:1], AXIS, wanted)
    assert predict(table, AXIS, wanted).peak_mib == pytest.approx(without.peak_mib)
    # what other logits take is not known then
    assert predict(table, AXIS, made(SMALL | ARMS[4] | {"vocabulary": 100_000})) is None


def test_all_gradients_are_there_at_the_end():
    wanted = made(LARGE | ARMS[2] | {"batch_size": 1})
    assert wanted["ledger_gradients_mib"] == wanted["ledger_parameters_mib"]
    found = predict(TABLE, AXIS, wanted)
    assert found.peak_mib == pytest.approx(wanted["peak_allocated_mib"], rel=1e-6)


def test_a_peak_at_the_end_does_not_hide_what_blocks_keep():
    without_logits = SMALL | ARMS[3] | {"vocabulary": 1}
    small = made(without_logits | {"batch_size": 1})
    assert small["ledger_gradients_mib"] == small["ledger_parameters_mib"]
    wanted = made(without_logits | {"batch_size": 64})
    assert wanted["ledger_gradients_mib"] == 0
    found = predict([small], AXIS, wanted)
    assert found.peak_mib == pytest.approx(wanted["peak_allocated_mib"], rel=1e-3)


def test_the_fastest_that_leaves_a_margin_is_chosen():
    found = [Predicted("a", 970, 9), Predicted("b", 971, 3), Predicted("c", 500, 12)]
    chosen = [fastest_within(found, limit) for limit in (1100, 1000, 600, 400)]
    assert chosen == [found[1], found[0], found[2], None]
