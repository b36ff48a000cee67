"""diagnose(): the mistakes it names, the sound loops it leaves alone, and that it changes nothing."""

import cProfile
import os
import subprocess
import sys
import threading
import time
import timeit

import pytest
import torch
from conftest import ENVIRONMENT, ROOT
from diagnosis_cases import DEVICE, MISTAKES, SOUND, adam_in_fp16, fp32, plain, problem, scaled, sgd
from foreign_loops import FOREIGN, character_loop
from torch.utils.data import DataLoader

from mixed_precision_study import diagnose
from mixed_precision_study.diagnosis import doors
from mixed_precision_study.diagnosis.measure import Measurement
from mixed_precision_study.diagnosis.mistakes import REMEDIES
from mixed_precision_study.errors import UserError
from mixed_precision_study.precision import set_fp32_precision

ON_GPU = torch.cuda.is_available()


@pytest.fixture(autouse=True)
def switches_set_on_purpose():
    """On a GPU PyTorch's own defaults are two mistakes; other tests have them."""
    if ON_GPU:
        set_fp32_precision("fp32")
        torch.backends.cudnn.benchmark = True


WARM_UP = 8 if ON_GPU else 3
NEEDED = WARM_UP + 20 + 4  # steps that warm up, are timed, and are profiled


def state_of_process():
    """Return what a diagnosis could leave behind."""
    functions = [vars(owner)[name] for owner, name, _ in doors.doors()]
    hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
    mode = torch.utils._python_dispatch._get_current_dispatch_mode()
    sampling = [thread for thread in threading.enumerate() if thread.name == "diagnose"]
    profiled = torch.autograd._profiler_enabled()
    return functions, dict(hooks), mode, profiled, sys.getprofile(), sampling, list(doors.LISTENERS)


@pytest.fixture(autouse=True)
def nothing_stays():
    before = state_of_process()
    yield
    assert state_of_process() == before


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case.__name__)
def test_a_mistake_is_named_and_no_other(case):
    step, evaluate = case()
    (sentence,) = diagnose(step, steps=20 if case.__name__ == "scale_falls" else 3, evaluate=evaluate).mistakes
    assert MISTAKES[case] in sentence


@pytest.mark.parametrize("case", SOUND, ids=lambda case: case.__name__)
def test_a_sound_step_has_none(case):
    step, evaluate = case()
    report = diagnose(step, steps=3, evaluate=evaluate)
    assert report.mistakes == [] and report.seen.unseen == []
    assert (report.seen.watched, report.seen.timed, report.seen.steps) == (
        4,
        3,
        WARM_UP + 7,
    ) and report.seen.step_ms > 0
    assert report.seen.evaluation_finite is (None if evaluate is None else True)


@pytest.mark.parametrize("loop", FOREIGN, ids=lambda loop: loop.__name__)
def test_a_foreign_loop_is_diagnosed_in_two_lines(loop):
    with diagnose() as report:
        loop(NEEDED + 8)
    assert [sentence for sentence in report.mistakes if not sentence.startswith(FOREIGN[loop] or "?")] == []
    assert len(report.mistakes) == (FOREIGN[loop] is not None)
    assert (report.seen.watched, report.seen.timed) == (4, 20)


def test_a_read_on_a_cpu_waits_for_no_device():
    assert ON_GPU or diagnose(plain(read=True), steps=1).mistakes == []


def test_the_types_of_the_products_are_known_whatever_autocast_says():
    model, inputs, labels = problem()
    optimizer = sgd(model)

    def step():  # autocast is around the loss alone, so that every product runs in float32
        optimizer.zero_grad()
        outputs = model(inputs)
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(outputs, labels)
        loss.backward()
        optimizer.step()

    seen = diagnose(step, steps=1).seen
    rows = 2 * 16 * (32 * 32 + 32 * 8)  # FLOPs of the forward pass; the input needs no gradient
    assert seen.flops == {("matmul", "float32"): 4 * (3 * rows - 2 * 16 * 32 * 32)}
    assert seen.autocasts == {"float16"} and seen.only_fp32


def test_an_eps_that_fp16_cannot_hold_is_named():
    sentences = diagnose(adam_in_fp16()[0], steps=3).mistakes
    assert sum("1e-08 is 0 in float16" in sentence for sentence in sentences) == 1


# It changes nothing


def compiled_loop(steps, **options):
    """A compiled network with AdamW under autocast; returns its losses and weights."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).to(DEVICE)
    network = torch.compile(model, **options)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(16, 32, device=DEVICE)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = network(inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses + [weight.detach() for weight in model.parameters()]


def frames_compiled():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize(
    "loop",
    [
        character_loop,
        lambda steps: compiled_loop(steps, backend="eager", fullgraph=True),
        pytest.param(lambda steps: compiled_loop(steps, fullgraph=True), marks=pytest.mark.slow),
    ],
    ids=["eager", "fullgraph", "inductor"],
)
def test_the_numbers_of_a_loop_are_those_without_a_diagnosis(loop):
    expected = loop(NEEDED + 8)
    graphs = frames_compiled()
    with diagnose() as report:
        found = loop(NEEDED + 8)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert report.seen.watched == 4 and frames_compiled() - graphs <= graphs


def test_an_error_of_the_loop_comes_through_and_one_of_our_own_does_not(monkeypatch):
    with pytest.raises(KeyError), diagnose():
        raise KeyError("from the loop")
    monkeypatch.setattr(Measurement, "advance", lambda self: 1 / 0)
    with diagnose() as report:
        character_loop(5)
    assert "ZeroDivisionError" in report.seen.unseen[0] and report.seen.unseen[0] in str(report)


ERRORS = {
    "unscale_() has already been called": lambda: scaled_twice(),
    "Attempting to unscale FP16 gradients": lambda: half_with_a_scaler(),
}


def scaled_twice():
    model, inputs, labels = problem()
    optimizer, scaler = sgd(model), torch.amp.GradScaler(DEVICE)
    scaler.scale(torch.nn.functional.cross_entropy(model(inputs), labels)).backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


def half_with_a_scaler():
    model, inputs, labels = problem(torch.float16)
    optimizer, scaler = sgd(model), torch.amp.GradScaler(DEVICE)
    scaler.scale(torch.nn.functional.cross_entropy(model(inputs), labels)).backward()
    scaler.unscale_(optimizer)


@pytest.mark.parametrize("message", ERRORS)
def test_what_a_common_error_means_is_noted_on_it(message):
    with pytest.raises((RuntimeError, ValueError)) as caught, diagnose() as report:
        ERRORS[message]()
    assert message in str(caught.value) and REMEDIES[message] in report.mistakes[0]
    assert sys.version_info < (3, 11) or REMEDIES[message] in caught.value.__notes__[0]


def test_each_of_several_optimizers_and_scalers_is_watched():
    """As in a cross-validation, whose folds have an optimizer each, and in a GAN with two scalers."""
    with diagnose(steps=3) as report:
        for _ in range(WARM_UP + 7):
            step = fp32()[0]
            for _ in range(4):
                step()
    assert report.seen.watched == 4
    sound, falling = scaled(), scaled(loss_of=lambda logits, labels: (logits.sum() * 0).sqrt())

    def both():
        falling()
        sound()

    (said,) = diagnose(both, steps=20).mistakes
    assert "of one of the GradScalers" in said


def test_a_loop_under_a_profiler_of_its_own_is_not_profiled_and_runs():
    from torch.profiler import ProfilerActivity, profile

    for own in (profile(activities=[ProfilerActivity.CPU]), cProfile.Profile()):
        with diagnose(steps=1) as report, own:
            character_loop(WARM_UP + 17)
        assert report.seen.timed == 1 and report.seen.watched == (4 if isinstance(own, cProfile.Profile) else 0)
        assert len(report.seen.unseen) == 1 - report.seen.watched // 4

    with diagnose(steps=1) as report:
        character_loop(WARM_UP + 3)  # two of its steps are profiled when the loop's own profiler begins
        with profile(activities=[ProfilerActivity.CPU]) as own:
            character_loop(4)
    assert report.seen.watched == 2 and own.events()


def test_diagnoses_inside_and_beside_each_other_are_each_undone():
    step = scaled(clip="before")
    with diagnose(steps=1) as outer:
        for _ in range(WARM_UP + 6):
            step()
            inner = diagnose(scaled(), steps=1)
    assert inner.mistakes == [] and len(outer.mistakes) == 1
    first, second = diagnose(steps=1), diagnose(steps=1)
    reports = first.__enter__(), second.__enter__()
    step()
    first.__exit__(None, None, None)
    step()
    second.__exit__(None, None, None)
    assert [report.seen.steps for report in reports] == [1, 2]


def test_a_loop_in_another_thread_is_heard_but_not_profiled():
    with diagnose(steps=1) as report:
        thread = threading.Thread(target=character_loop, args=(WARM_UP + 9,))
        thread.start()
        thread.join()
    assert len(report.mistakes) == 1 and report.seen.timed == 1 and report.seen.watched == 0
    assert "another thread" in report.seen.unseen[0]


def test_two_trainings_at_once_are_not_mixed_up():
    mistaken = scaled(clip="before")
    with diagnose(steps=3) as report:
        fp32()[0]()  # this thread trains first
        thread = threading.Thread(target=lambda: [mistaken() for _ in range(WARM_UP + 6)])
        thread.start()
        thread.join()
    assert report.mistakes == [] and report.seen.steps == 1


def test_a_function_that_the_loop_replaces_stays_replaced():
    before = torch.amp.GradScaler.update
    with diagnose():
        ours = torch.amp.GradScaler.update
        torch.amp.GradScaler.update = theirs = lambda scaler: ours(scaler)
        character_loop(4)
    try:
        assert torch.amp.GradScaler.update is theirs
        character_loop(2)
    finally:
        torch.amp.GradScaler.update = before


def test_warnings_as_errors_stop_no_loop():
    code = (
        "import torch\nfrom foreign_loops import character_loop\nfrom mixed_precision_study import diagnose\n"
        "with diagnose() as report:\n    character_loop(40)\nprint(len(report.mistakes), report.seen.watched)"
    )
    places = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "diagnosis"), ENVIRONMENT.get("PYTHONPATH", "")])
    environment = {**ENVIRONMENT, "PYTHONPATH": places}
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "4"], done.stderr


# What it says of time


def test_a_loop_that_ends_early_says_so():
    with diagnose() as report:
        character_loop(2)
    assert len(report.mistakes) == 1  # what was heard until then counts
    assert report.seen.step_ms is None and report.seen.watched == 0
    assert f"{NEEDED} are needed" in report.seen.unseen[0]


def test_a_step_is_told_by_its_median_beside_an_evaluation():
    step = fp32()[0]
    count = iter(range(100))

    def with_an_evaluation():
        step()
        if next(count) == 8:
            time.sleep(1)

    assert diagnose(with_an_evaluation, steps=10).seen.step_ms < 100


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


@pytest.mark.skipif(not ON_GPU, reason="no GPU")
def test_gradscaler_s_own_wait_is_told_but_no_mistake():
    """As in PyTorch issue 80167. An optimizer with fused=True needs no such read."""
    read = diagnose(scaled(), steps=1)
    fused = diagnose(scaled(optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.01, fused=True)), steps=1)
    assert read.mistakes == fused.mistakes == []
    assert fused.seen.scaler_reads == 0 and "fused" not in str(fused)


def test_a_timed_step_costs_less_than_2_percent_of_2_milliseconds():
    measurement = Measurement(10_000)
    try:
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
        before = torch.amp.GradScaler.update

        def hooks():
            doors.tell("begun", "update", (scaler,))
            doors.optimizer_stepped(optimizer)
            doors.tell("ended", "update", (scaler,))

        for _ in range(WARM_UP):
            hooks()
        count = measurement.count
        assert min(timeit.repeat(hooks, number=500, repeat=5)) / 500 < 0.02 * 0.002
        assert measurement.count == count + 2500 and before is torch.amp.GradScaler.update
    finally:
        measurement.stop()


# Where nothing can be said


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


def test_where_nothing_was_looked_at_no_loop_is_called_sound():
    with diagnose() as report:
        pass
    for nothing in (report, diagnose(lambda: None, steps=3)):
        assert str(nothing).startswith("Nothing was looked at") and nothing.mistakes == []


def nan_step(dtype):
    weight = torch.ones(4, 4, requires_grad=True, device=DEVICE, dtype=dtype)
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step():
        optimizer.zero_grad()
        ((weight @ weight).sum() * float("nan")).backward()
        optimizer.step()

    return step


def test_precision_is_ruled_out_only_where_every_product_ran_in_32_bits():
    (said,) = diagnose(nan_step(torch.float32), steps=3).mistakes
    assert "precision is not the cause" in said
    for dtype in (torch.float16, torch.bfloat16):
        assert not any("not the cause" in said for said in diagnose(nan_step(dtype), steps=3).mistakes)
    with diagnose() as report:  # too short for its products to be seen
        step = nan_step(torch.float32)
        step(), step()
    assert not any("not the cause" in said for said in report.mistakes) and len(report.mistakes) == 1
