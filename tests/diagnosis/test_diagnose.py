"""diagnose(): the mistakes it names, the sound loops it leaves alone, and that it changes nothing."""

import sys
import time
import timeit

import pytest
import torch
from diagnosis_cases import DEVICE, MISTAKES, SOUND, fp32, plain, problem, sgd
from foreign_loops import FOREIGN, character_loop
from torch.utils.data import DataLoader

from mixed_precision_study import diagnose
from mixed_precision_study.diagnosis.measure import Measurement
from mixed_precision_study.errors import UserError
from mixed_precision_study.precision import set_fp32_precision

ON_GPU = torch.cuda.is_available()


@pytest.fixture(autouse=True)
def switches_set_on_purpose():
    """On a GPU PyTorch's own defaults are two mistakes; other tests have them."""
    if ON_GPU:
        set_fp32_precision("fp32")
        torch.backends.cudnn.benchmark = True


NEEDED = 3 + 4 + 5 * ON_GPU + 20  # steps that warm up, are watched, profiled and timed


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case.__name__)
def test_a_mistake_is_named_and_no_other(case):
    step, evaluate = case()
    (sentence,) = diagnose(step, steps=3, evaluate=evaluate).mistakes
    assert MISTAKES[case] in sentence


@pytest.mark.parametrize("case", SOUND, ids=lambda case: case.__name__)
def test_a_sound_step_has_none(case):
    step, evaluate = case()
    report = diagnose(step, steps=3, evaluate=evaluate)
    assert report.mistakes == []
    assert str(report).startswith("No mistake was found.")
    assert report.seen.watched == 4 and report.seen.timed == 3 and report.seen.step_ms > 0
    assert report.seen.evaluation_finite is (None if evaluate is None else True)


@pytest.mark.parametrize("loop", FOREIGN, ids=lambda loop: loop.__name__)
def test_a_foreign_loop_is_diagnosed_in_two_lines(loop):
    with diagnose() as report:
        loop(NEEDED + 8)
    (sentence,) = report.mistakes
    assert sentence.startswith(FOREIGN[loop])
    assert (report.seen.watched, report.seen.timed) == (4, 20)


def test_the_reads_of_a_step_are_named_by_their_lines():
    report = diagnose(plain(read=True), steps=1)
    (place,) = report.seen.reads
    assert place.startswith("diagnosis_cases.py:")
    assert report.seen.reads[place] == 4


def test_the_numbers_of_a_loop_are_those_without_a_diagnosis():
    expected = character_loop(NEEDED + 8)
    with diagnose():
        found = character_loop(NEEDED + 8)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_nothing_of_it_stays_behind():
    before = torch.amp.GradScaler.update, torch.utils.data.dataloader._BaseDataLoaderIter.__next__
    with diagnose():
        character_loop(5)  # it ends while the steps are watched
    with pytest.raises(KeyError), diagnose():
        raise KeyError("from the loop")
    assert (torch.amp.GradScaler.update, torch.utils.data.dataloader._BaseDataLoaderIter.__next__) == before
    assert not torch.utils._python_dispatch._get_current_dispatch_mode()
    assert not sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
    assert sys.getprofile() is None


def test_a_loop_that_ends_early_says_so():
    with diagnose() as report:
        character_loop(6)
    assert report.mistakes  # what was watched until then counts
    assert "No step was timed: the loop ended too early." in str(report)


class Slow(torch.utils.data.Dataset):
    """Samples that take as long as PyTorch issue threads say: far longer than the step."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.ones(32), index % 8


def test_waiting_for_data_is_measured_and_comes_first():
    model, _, _ = problem()
    optimizer = sgd(model)
    with diagnose(steps=20) as report:
        for batch in DataLoader(Slow(), batch_size=1):
            inputs, labels = (part.to(DEVICE) for part in batch)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    assert 0.5 < report.seen.data_wait_fraction < 1
    bound, words = report.gains[0]
    assert bound == pytest.approx(1 / (1 - report.seen.data_wait_fraction)) and "DataLoader workers" in words
    assert "The loop waits for its DataLoader" in str(report) and "What to try" in str(report)


def test_gradscaler_s_own_wait_is_told_but_no_mistake():
    """As in PyTorch issue 80167. An optimizer with fused=True needs no such read."""
    from diagnosis_cases import scaled

    read = diagnose(scaled(), steps=1)
    fused = diagnose(scaled(optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.01, fused=True)), steps=1)
    assert read.mistakes == fused.mistakes == []
    assert (read.seen.scaler_reads, fused.seen.scaler_reads) == (4, 0)
    assert "An optimizer with fused=True needs no such wait" in str(read)
    assert "fused" not in str(fused)


def test_a_timed_step_costs_less_than_2_percent_of_2_milliseconds():
    measurement = Measurement(10_000)
    for _ in range(3 + 4):
        measurement.advance()
    assert measurement.watcher.seen.watched == 4 and sys.getprofile() is None
    measurement.listen()
    try:
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])

        def hooks():
            scaler.update()
            measurement.optimizer_stepped(optimizer)

        assert min(timeit.repeat(hooks, number=500, repeat=5)) / 500 < 0.02 * 0.002
        assert measurement.count == 3 + 4 + 2500
    finally:
        measurement.stop()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [({"steps": 0}, "steps is 0"), ({"step": 3}, "step is 3"), ({"evaluate": "no"}, "evaluate is 'no'")],
)
def test_wrong_arguments_are_told_in_a_sentence(arguments, word):
    with pytest.raises(UserError, match=word):
        diagnose(**arguments)


def test_a_step_that_runs_out_of_batches_says_how_many_are_needed():
    step, _ = fp32()
    left = iter(range(10))

    def until_the_end():
        next(left)
        step()

    with pytest.raises(UserError, match=f"ran out of batches after 10 steps; diagnose needs {NEEDED}"):
        diagnose(until_the_end)


@pytest.mark.parametrize(("steps", "says"), [(0, "no optimizer took a step"), (2, "Its first 3 steps only warm up")])
def test_where_nothing_was_looked_at_no_loop_is_called_sound(steps, says):
    with diagnose() as report:
        character_loop(steps) if steps else None
    assert says in str(report) and "No mistake" not in str(report) and report.mistakes == []


def test_a_step_that_trains_nothing_is_not_called_sound():
    report = diagnose(lambda: None, steps=3)
    assert "neither backward() nor an optimizer" in str(report) and "No mistake" not in str(report)


def test_a_loss_that_is_nan_in_fp32_is_not_blamed_on_precision():
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step():
        optimizer.zero_grad()
        (weight.sum() * float("nan")).backward()
        optimizer.step()

    (said,) = diagnose(step, steps=3).mistakes
    assert "in fp32, so precision is not the cause" in said
