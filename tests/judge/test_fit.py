"""Which training fits: peaks of made-up models whose parts grow as real ones do."""

import pytest

from mixed_precision_study.judge.axis import Axis
from mixed_precision_study.judge.fit import Predicted, fastest_within, predict, table_of

AXIS = Axis(("precision", "execution", "loss_chunks", "checkpointing"), ("tf32, eager, 1, 0",), {})
SMALL = {"layers": 12, "width": 768, "context": 1024, "batch_size": 8}
LARGE = SMALL | {"layers": 24, "width": 1024}
ARMS = {  # (chunks, checkpointing, execution): ms of a step
    (1, 0, "eager"): 50,
    (8, 0, "eager"): 52,
    (8, 1, "eager"): 65,
    (1, 1, "eager"): 63,
    (1, 0, "compile"): 30,
}


def made(sizes, chunks, checkpointing, execution, **settings):
    """Return a record of a model whose parts are known."""
    given = {"model": "gpt", "vocabulary": 50_000, "memory_limit_gib": 0, "execution": execution}
    given |= sizes | {"loss_chunks": chunks, "checkpointing": checkpointing, **settings}
    numbers = given["batch_size"] * given["context"]
    blocks = numbers * given["width"] * given["layers"] * (2 if checkpointing else 20) / 2**20
    inner = numbers * given["width"] * (30 if checkpointing else 0) / 2**20
    logits = numbers * given["vocabulary"] * (6 if execution == "compile" else 10) / 2**20 / chunks
    weights = 12 * given["layers"] * given["width"] ** 2
    weights += (given["vocabulary"] + given["context"]) * given["width"]
    return {
        "notebook": "transformer",
        "precision": "amp_bf16",
        "status": "ok",
        "settings": given,
        "ledger_parameters_mib": 4 * weights / 2**20,
        "ledger_optimizer_mib": 8 * weights / 2**20,
        "ledger_masters_mib": 0,
        "ledger_gradients_mib": 0,
        "ledger_data_mib": 16,
        "ledger_activations_mib": blocks + inner + logits,
        "saved_activations_mib": blocks + (0.6 * logits if chunks == 1 else 0),
        "step_ms_median": ARMS[chunks, checkpointing, execution],
    }


def peak_of(record):
    kinds = ("parameters", "optimizer", "data", "activations")
    return sum(record[f"ledger_{kind}_mib"] for kind in kinds)


TABLE = table_of([made(sizes, *arm) for arm in ARMS for sizes in (SMALL, SMALL | {"context": 64})])


@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm[2] == "eager"], ids=str)
def test_a_larger_model_is_predicted_part_by_part(arm):
    wanted = made(LARGE, *arm)
    found = predict(TABLE, AXIS, wanted)
    assert found.peak_mib == pytest.approx(peak_of(wanted), rel=1e-6)
    assert found.step_ms == ARMS[arm]
    wanted = made(LARGE | {"batch_size": 32}, *arm)
    assert predict(TABLE, AXIS, wanted).peak_mib == pytest.approx(peak_of(wanted), rel=1e-6)


def test_what_was_not_measured_is_not_predicted():
    assert predict(TABLE, AXIS, made(LARGE, 1, 0, "compile")) is not None
    for other in ({"execution": "cuda_graph"}, {"model": "other"}, {"checkpointing": 2}):
        wanted = made(LARGE, 1, 0, "eager")
        wanted["settings"] |= other
        assert predict(TABLE, AXIS, wanted) is None
    limited = made(SMALL, 1, 0, "eager", memory_limit_gib=12)
    unknown = made(SMALL, 1, 0, "eager") | {"ledger_activations_mib": None}
    assert table_of([limited, unknown]) == []


def test_the_fastest_that_leaves_a_margin_is_chosen():
    found = {"a": Predicted(970, 9), "b": Predicted(971, 3), "c": Predicted(500, 12)}
    chosen = [fastest_within(found, limit) for limit in (1100, 1000, 600, 400)]
    assert chosen == ["b", "a", "c", None]
