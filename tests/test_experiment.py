"""A fourth experiment from plain functions, and the guard around a run: whatever ends it becomes
its record.
"""

import gc
import json
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from conftest import read_json, seeded
from small_training import CPU, make_record
from torch import nn

from mixed_precision_study import experiment
from mixed_precision_study.experiment import (
    NOT_ABOUT_INFERENCE,
    NOT_ASKED,
    Experiment,
    Metric,
    explain,
    guarded,
)
from mixed_precision_study.parameters import (
    PLANNED_ENV,
    Diverged,
    Unsupported,
    UserError,
    own_parameters,
)
from mixed_precision_study.store import record as records
from mixed_precision_study.store.reading import read_records
from mixed_precision_study.store.record import NOT_YET_EXPLAINED
from mixed_precision_study.store.variables import RUNNER_ENV, STUDY_ENV
from mixed_precision_study.tasks.batches import TrainingData

GPU = torch.device("cuda")
PACKAGE = "mixed_precision_study.experiment"


@pytest.mark.parametrize(
    "error, status, reason",
    [
        (
            torch.OutOfMemoryError("CUDA out of memory"),
            "oom",
            "OutOfMemoryError: CUDA out of memory",
        ),
        (
            RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"),
            "oom",
            "RuntimeError: CUBLAS_STATUS_ALLOC_FAILED",
        ),
        (RuntimeError("not enough memory: 1 EiB"), "oom", "RuntimeError: not enough memory: 1 EiB"),
        (ValueError("wrong shape\nmore lines"), "failed", "ValueError: wrong shape"),
        (
            Diverged("the training loss is not finite"),
            "diverged",
            "the training loss is not finite",
        ),
        (Unsupported("needs a GPU"), "unsupported", "needs a GPU"),
    ],
)
def test_an_exception_becomes_the_status(error, status, reason, capsys):
    record = make_record()
    with guarded(record, "out", CPU):
        raise error
    written = read_json(Path("out") / f"{record.run_id}.json")["run"]
    assert (written["status"], written["reason"]) == (status, reason)
    assert written["started_at"] <= written["finished_at"]
    assert ("Traceback" in capsys.readouterr().out) is (status == "failed")


@pytest.mark.parametrize("error", [UserError("say what to do"), KeyboardInterrupt()])
def test_a_user_error_ends_the_notebook_without_a_record(error):
    with pytest.raises(type(error)), guarded(make_record(), "out", CPU):
        raise error
    assert not Path("out").exists()


def test_no_traceback_keeps_tensors_alive():
    alive = []

    def train():
        alive.append(weakref.ref(torch.zeros(1000)))
        try:
            raise KeyError("first")
        except KeyError:
            raise RuntimeError("CUDA out of memory") from None

    gc.disable()
    try:
        with guarded(make_record(), "out", CPU):
            train()
        assert alive[0]() is None
    finally:
        gc.enable()


def test_a_run_begins_without_workspaces_and_old_peaks(monkeypatch):
    """A device that is lost when its memory is released costs no record."""
    calls = []
    for name in ("clear_workspaces", "memory.reset_peaks", "describe_environment"):
        monkeypatch.setattr(f"{PACKAGE}.{name}", lambda *_, name=name: calls.append(name))
    monkeypatch.setattr(
        f"{PACKAGE}.memory.release_memory", Mock(side_effect=RuntimeError("CUDA error: lost"))
    )
    record = make_record(
        metric=[0.5], metric_better="higher", epoch_seconds=[1.0], samples_per_second=3.0
    )
    with guarded(record, "out", CPU):
        assert calls == ["clear_workspaces", "memory.reset_peaks", "describe_environment"]
        assert record.status == "failed"  # "ok" only at the end
    assert (
        read_json(Path("out") / f"{record.run_id}.json")["run"]["status"] == record.status == "ok"
    )


PLACES = torch.randn(96, 2, generator=seeded(0))
ABOVE = (PLACES.sum(1) > 0).long()


class Points(TrainingData):
    """Points in a plane and whether they lie above a line."""

    used, source, sample_unit = "points", "own", "points"
    train_samples, eval_samples, largest_batch = 64, 32, 64

    def steps_per_epoch(self, size):
        return 64 // size

    def train_batches(self, epoch, dtype, size):
        yield from zip(PLACES[:64].to(dtype).split(size), ABOVE[:64].split(size), strict=True)

    def eval_batches(self, dtype, size):
        yield PLACES[64:].to(dtype), ABOVE[64:]


def make_model():
    return nn.Linear(2, 2)


def point_loss(model, batch, hidden):
    places, above = batch
    return nn.functional.cross_entropy(model(places).float(), above), None


def accuracy(model, batches):
    right = [(model(places).argmax(1) == above).float().mean().item() for places, above in batches]
    return sum(right) / len(right)


GIVEN = {"precisions": ["fp32", "amp_bf16"], "batch_size": 16, "epochs": 2, "lr": 1}


def make_experiment(data=None, make=make_model, loss=point_loss, **options):
    parameters = GIVEN | options.pop("parameters", {})
    options = {
        "evaluate": accuracy,
        "metric": Metric("accuracy", better="higher", chance=0.5),
        **options,
    }
    return Experiment("points", parameters, data or Points(), make, loss, **options)


def test_a_fourth_experiment_leaves_a_record_of_each_precision():
    told = {
        "status": "ok",
        "reason": None,
        "notebook": "points",
        "test_metric": None,
        "steps_per_epoch": 4,
        "samples_per_epoch": 64,
        "batch_size_used": 16,
        "metric_name": "accuracy",
        "metric_better": "higher",
        "chance_metric": 0.5,
        **dict.fromkeys(("dataset_used", "sample_unit"), "points"),
    }
    parts = ("inference", "profile", "limit", "ledger")
    told |= {f"{part}_reason": "no GPU" for part in parts}
    for record, (precision, autocast) in zip(
        make_experiment().run(), (("fp32", None), ("amp_bf16", "bfloat16")), strict=True
    ):
        known = {**told, "precision": precision, "autocast_dtype": autocast}
        assert {name: getattr(record, name) for name in known} == known
    written, left_out = read_records("outputs")
    assert ([record["settings"]["batch_size"] for record in written], left_out) == ([16, 16], [])


def test_each_repetition_has_an_order_of_its_own(monkeypatch):
    """A record is there before the next training begins, and knows its place and what ran before
    it.
    """
    names, rows, before = ["tf32", "fp32", "amp_fp16", "amp_bf16"], [], []
    monkeypatch.setenv("MIXED_PRECISION_ORDER", "7")  # as run_all.py sets it

    def note(self, record, precision):
        assert len(list(Path("outputs").glob("*.json"))) == 4 * len(rows) + len(trained)
        trained.append(precision)
        raise Unsupported("not here")

    monkeypatch.setattr(Experiment, "train_and_evaluate", note)
    for repeat in range(2):
        trained = []
        records = make_experiment(parameters={"precisions": names, "repeat": repeat}).run()
        assert [record.precision for record in records] == names
        own = {record.precision: record for record in records}
        assert [own[name].order_in_comparison for name in trained] == [7, 8, 9, 10]
        before += [own[name].runs_before_in_process for name in trained]
        rows.append(trained)
    assert sorted(rows[0]) == sorted(rows[1]) == sorted(names) and rows[0] != rows[1]
    assert [number - before[0] for number in before] == list(range(8))


def test_one_process_trains_all_ways_that_are_planned(monkeypatch):
    """The parameters are those of the way while it trains, and afterwards what they were. The
    precisions of a way stand in an order of its own seed.
    """
    way = {"scaler": "device", "precisions": ["amp_bf16"]}
    parameters = vars(own_parameters("points", {**GIVEN, "precisions": ["amp_bf16", "fp32"]}))
    ways = [{}, {"seed": 1}, way]
    planned = {"parameters": parameters, "given": ["precisions"], "ways": ways}
    monkeypatch.setenv(PLANNED_ENV, json.dumps(planned))
    made = make_experiment(parameters={"precisions": ["amp_bf16", "fp32"]})
    seen = []
    make_trainer = made.make_trainer
    made.make_trainer = lambda precision: (
        seen.append((precision, made.parameters.scaler)) or make_trainer(precision)
    )
    found = made.run()
    expected = [("amp_bf16", "pytorch"), ("fp32", "pytorch")] * 2 + [("amp_bf16", "device")]
    assert [(one.precision, one.settings["scaler"]) for one in found] == expected
    assert [one.settings["seed"] for one in found] == [0, 0, 1, 1, 0]
    order = [one.order_in_comparison for one in found]
    assert order == [1, 0, 2, 3, 4] and seen == [expected[place] for place in order]
    assert {one.status for one in found} == {"ok"} and made.parameters.scaler == "pytorch"
    assert found[-1].run_id == records.run_id_of("points", parameters | way, "amp_bf16")
    assert {path.stem for path in Path("outputs").glob("*.json")} == {one.run_id for one in found}


@pytest.mark.slow
def test_a_compiled_training_that_would_end_eager_is_failed(monkeypatch):
    """Where Dynamo has compiled as often as it may, it runs the rest eagerly, which measures
    nothing.
    """

    class Counting(nn.Linear):
        taken = 0

        def forward(self, places):
            self.taken += 1  # a constant of the compiled code
            return super().forward(places) * self.taken

    given = {"precisions": ["fp32", "amp_bf16"], "execution": "compile", "epochs": 1}
    resets = []
    monkeypatch.setattr(
        torch._dynamo, "reset", lambda reset=torch._dynamo.reset: resets.append(1) or reset()
    )
    with torch._dynamo.config.patch(recompile_limit=1):
        records = make_experiment(make=lambda: Counting(2, 2), parameters=given).run()
        # where its owner compiled a part of the model
        given |= {"execution": "eager", "precisions": ["fp32"]}
        own = make_experiment(make=lambda: torch.compile(Counting(2, 2)), parameters=given).run()
    assert [record.status for record in records + own] == ["failed", "failed", "ok"]
    assert all("FailOnRecompileLimitHit" in record.reason for record in records)
    assert len(resets) >= 2  # before each


def test_after_training_sees_the_model_and_changes_nothing():
    seen, trainers = {}, {}

    class Tested(Points):
        def test_batches(self, dtype, size):
            # far above the line
            return iter([(torch.full((4, 2), 9.0, dtype=dtype), torch.ones(4, dtype=torch.long))])

    def after_training(model, precision):
        assert not model.training and not torch.is_grad_enabled()
        seen[precision] = [weight.detach().clone() for weight in model.parameters()]

    experiment = make_experiment(Tested(), after_training=after_training)
    make = experiment.make_trainer
    experiment.make_trainer = lambda precision: trainers.setdefault(precision, make(precision))
    records = experiment.run()
    assert [(record.status, record.test_metric) for record in records] == [("ok", 1.0)] * 2
    for record in records:
        trained = zip(seen[record.precision], trainers[record.precision].weights, strict=True)
        assert all(torch.equal(a, b) for a, b in trained)


def test_a_training_is_written_before_it_is_explained(monkeypatch):
    """A run that is ended in its explanation, which takes longer than a short training, keeps
    what was measured.
    """
    given, order = [], []

    def ended(record, trainer, batches, infer):
        given.append(infer)
        raise KeyboardInterrupt  # which no guard holds up, as little as a kill

    monkeypatch.setattr(f"{PACKAGE}.explain", ended)
    with pytest.raises(KeyboardInterrupt):
        make_experiment(
            after_training=lambda *_: order.append(1), parameters={"precisions": ["fp32"]}
        ).run()
    assert order == [1]  # the model was tried out, because what explains trains on
    (path,) = Path("outputs").glob("*.json")
    kept = records.flat_record(records.record_of(read_json(path)))
    assert kept["status"] == "ok" and kept["finished_at"] >= kept["started_at"]
    assert len(kept["epoch_seconds"]) == len(kept["metric"]) == 2 and kept["samples_per_second"] > 0
    assert kept["profile_reason"] == kept["inference_reason"] == NOT_YET_EXPLAINED
    assert kept["gradient_reason"] is None  # of fp16 alone
    assert given[0](make_model(), next(Points().train_batches(0, torch.float32, 16)), 3).shape == (
        3,
        2,
    )


@pytest.mark.parametrize("repeat", [0, 1])
def test_the_first_repetition_alone_is_explained_at_the_end(repeat, monkeypatch):
    done = []

    def train(self, record, trainer, size):
        done.append("timed")
        record.epoch_seconds, record.step_ms_all, record.metric = [1.0], [1.0], [0.9]

    def leave_unexplained(record, reason):
        record.profile_reason = NOT_YET_EXPLAINED if reason == "no GPU" else reason

    monkeypatch.setattr(Experiment, "train", train)
    monkeypatch.setattr(
        Experiment, "explain_afterwards", lambda self, record: done.append("explained")
    )
    monkeypatch.setattr(f"{PACKAGE}.leave_unexplained", leave_unexplained)
    make_experiment(parameters={"repeat": repeat}).run()
    assert done == ["timed", "timed"] + ["explained"] * (0 if repeat else 2)


EXPLANATION = {name for name, place in records.PLACES.items() if place[-1] in records.EXPLAINING}


@pytest.mark.parametrize("asked, precision", [(["update"], "bf16_true"), (["update"], "fp32")])
def test_a_study_may_ask_for_one_explanation_alone(asked, precision, monkeypatch):
    ran, record = [], make_record(precision)
    monkeypatch.setenv(STUDY_ENV, json.dumps({"show": {"explained": asked}}))
    for name in PARTS:
        monkeypatch.setattr(f"{PACKAGE}.{name}", lambda *_, name=name: ran.append(name))
    explain(record, SimpleNamespace(device=GPU, captured=None), lambda: iter("abc"))
    has_update = precision == "bf16_true"
    assert ran == (["read_lost_updates"] if has_update else [])
    assert record.profile_reason == record.ledger_reason == NOT_ASKED
    assert record.update_reason is record.gradient_reason is None
    done = []
    monkeypatch.setattr(Experiment, "explain_afterwards", lambda *_: done.append(1))
    assert make_experiment().run()[0].profile_reason == NOT_ASKED and not done


def test_an_explanation_leaves_what_was_measured(monkeypatch):
    """It trains a new model a little and judges nothing. What explains it is made up here."""
    asked, tried, explained = [], [], []

    def explain(record, trainer, *_):
        explained.append((trainer.precision, trainer.steps))
        record.kernels_per_step = 100.0
        record.gpu_busy_fraction = record.step_ms_median
        return {}

    monkeypatch.setattr(f"{PACKAGE}.explain", explain)
    monkeypatch.setattr(f"{PACKAGE}.EXPLAINED_STEPS", 3)
    schedule = {"schedule": lambda step, *_, **__: asked.append(step) or 0.1}
    experiment = make_experiment(after_training=lambda *_: tried.append(1), **schedule)
    record, _ = experiment.run()
    assert (record.kernels_per_step, record.profile_reason) == (None, "no GPU")
    before = records.flat_record(record)
    asked.clear()
    experiment.explain_afterwards(record)
    after = records.flat_record(record)
    changed = {name for name in after if after[name] != before[name]}
    assert {"kernels_per_step", "gpu_busy_fraction", "profile_reason"} <= changed <= EXPLANATION
    assert (explained, asked, len(tried)) == ([("fp32", 3)], [0, 1, 2], 2)
    # of the timed run, not of the short one
    assert (record.gpu_busy_fraction, record.profile_reason) == (record.step_ms_median, None)
    written = Path("outputs") / f"{record.run_id}.json"
    assert records.read_run(written)["kernels_per_step"] == 100


def test_an_explanation_that_fails_costs_no_record(monkeypatch):
    experiment = make_experiment()
    record, _ = experiment.run()
    with monkeypatch.context() as patch:
        patch.setattr(f"{PACKAGE}.warm_up", lambda *_: 1 / 0)
        experiment.explain_afterwards(record)
    kept = records.read_run(Path("outputs") / f"{record.run_id}.json")
    assert (kept["status"], len(kept["epoch_seconds"])) == ("ok", 2)
    assert kept["profile_reason"].startswith("ZeroDivisionError")


def test_only_data_that_ask_for_it_are_prepared_ahead(monkeypatch):
    wrapped = []
    monkeypatch.setattr(
        f"{PACKAGE}.prefetch_to_device", lambda given, side: wrapped.append(1) or given
    )
    made = make_experiment()
    for asked, ahead in ((False, True), (True, False), (True, True)):
        made.data.prefetch = asked
        assert len(list(made.batches(0, "fp32", 16, ahead=ahead))) == 4
    assert len(wrapped) == 1


@pytest.mark.parametrize(
    "max_steps, run, reduced", [(0, "", True), (5, "", False), (0, "run-ab", False)]
)
def test_without_a_gpu_a_notebook_trains_a_little(monkeypatch, max_steps, run, reduced):
    """They do not pass over a later training, also where all cells of a notebook are run once
    more.
    """
    monkeypatch.setenv(RUNNER_ENV, run)
    monkeypatch.setattr(experiment, "choose_device", lambda: CPU)
    asked = SimpleNamespace(
        batch_size=128, max_steps=max_steps, execution="eager", memory_limit_gib=0.0
    )
    # until the preflight, because every collection of a later test would take half a second
    gc.unfreeze()
    with monkeypatch.context() as patch:
        # as Python 3.12 begins, before anybody freezes
        patch.setattr(gc, "get_freeze_count", lambda: 375)
        experiment.preflight(asked, without_gpu={"batch_size": 4, "max_steps": 2})
    assert (asked.batch_size, asked.max_steps) == ((4, 2) if reduced else (128, max_steps))
    frozen = gc.get_freeze_count()
    network = nn.Linear(2, 2)
    network.itself = [network]  # only a collection frees it
    there = weakref.ref(network)
    experiment.preflight(asked)
    assert 100_000 < frozen >= gc.get_freeze_count()
    del network
    gc.collect()
    assert there() is None


PARTS = {  # and where the reason stands when one fails
    "measure_inference": "inference_reason",
    "read_memory_breakdown": "ledger_reason",
    "profile_steps": "profile_reason",
    "read_attention": "attention_reason",
    "count_work": "limit_reason",
    "measure_limits": "limit_reason",
    "read_gradients": "gradient_reason",
    "read_lost_updates": "update_reason",
}


@pytest.mark.parametrize(
    "failing, captured, shown",
    [
        ([*PARTS], None, True),
        (["measure_inference"], object(), True),
        (["count_work"], object(), False),
    ],
)
def test_a_part_that_fails_leaves_its_reason(monkeypatch, failing, captured, shown):
    """A graph is replayed before steps outside it, and inference is for studies that show it."""
    ran, taken, record = [], [], make_record()

    def part(record, trainer, batches, name, infer=None):
        ran.append(name)
        taken.append(next(batches))
        if name in failing:
            raise RuntimeError(f"{name} is forbidden\nwith a long story\n")

    for name in PARTS:
        monkeypatch.setattr(f"{PACKAGE}.{name}", partial(part, name=name))
    monkeypatch.setenv(STUDY_ENV, json.dumps({"show": {"inference": shown}}))
    explain(record, SimpleNamespace(device=GPU, captured=captured), lambda: iter("abc"))
    order = [*PARTS]
    if captured:
        order[1:3] = reversed(order[1:3])
    assert ran == order[not shown :]
    assert "".join(taken) == "abcabcab"[: len(ran)]  # batches begin again
    reasons = dict.fromkeys(PARTS.values()) | (
        {} if shown else {"inference_reason": NOT_ABOUT_INFERENCE}
    )
    reasons |= {PARTS[name]: f"RuntimeError: {name} is forbidden" for name in failing}
    assert {name: getattr(record, name) for name in PARTS.values()} == reasons
