"""diagnose(): the mistakes it names, the sound loops it leaves alone, and that it changes
nothing.
"""

import contextlib
import cProfile
import io
import math
import os
import re
import sys
import threading
import time
from functools import partial

import pytest
import torch
from conftest import CASES, ROOT
from diagnosis_cases import (
    DEVICE,
    MISTAKES,
    SOUND,
    clipped,
    clipped_loop,
    end,
    inf_at_any_scale,
    plain,
    problem,
    scaled,
    sgd,
    times,
    unscale,
)
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional
from torch.optim import SGD, AdamW
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from mixed_precision_study import diagnose
from mixed_precision_study.diagnosis.ears import LISTENERS, doors
from mixed_precision_study.diagnosis.graph import Backward, mark
from mixed_precision_study.diagnosis.mistakes import (
    GUARD,
    SENTENCES,
    Diagnosis,
    facts,
    find_mistakes,
)
from mixed_precision_study.diagnosis.notes import remedy_for
from mixed_precision_study.diagnosis.profile import place_of, read_times
from mixed_precision_study.diagnosis.watch import LOOKED, WARM_UP, Watch
from mixed_precision_study.parameters import UserError
from mixed_precision_study.train.device_optimizer import DeviceAdamW
from mixed_precision_study.train.precision import set_fp32_precision

ON_GPU = torch.cuda.is_available()
FIRST = WARM_UP[DEVICE]
NEEDED = FIRST + 20 + LOOKED  # steps that warm up, are timed, and are profiled


def quiet(report):
    """Take a report, and print nothing."""


def rules(report):
    return [mistake.rule for mistake in report.mistakes]


def state_of_process():
    """Return what a diagnosis could leave behind."""
    functions = [vars(owner)[name] for owner, name, _ in doors()]
    hooks = dict(sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks)
    profiled = torch.autograd._profiler_enabled()
    return (
        functions,
        hooks,
        profiled,
        sys.getprofile(),
        list(LISTENERS),
        os.environ.get("TEARDOWN_CUPTI"),
    )


@pytest.fixture(autouse=True)
def nothing_stays():
    if ON_GPU:  # PyTorch's own default is a mistake
        set_fp32_precision("fp32")
    before = state_of_process()
    yield
    assert state_of_process() == before


def report_of(case, steps):
    """Diagnose a case, and close what it keeps open."""
    step, evaluate = case()
    report = diagnose(step, steps=steps, evaluate=evaluate, on_report=quiet)
    getattr(step, "close", list)()
    return report


@pytest.mark.any_python
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_and_no_other(name):
    rule, case = MISTAKES[name]
    report = report_of(case, steps=20 if rule == "scale falls" else 3)
    assert rules(report) == [rule] + ["loss not finite"] * (rule == "eps")
    assert all(
        mistake.sentence
        == SENTENCES[mistake.rule].format(**mistake.figures, or_bfloat16=" or bfloat16")
        for mistake in report.mistakes
    )


@pytest.mark.parametrize(
    ("capability", "offered"),
    [((6, 1), False), ((7, 0), False), ((7, 5), False), ((8, 0), True), (None, True)],
)
def test_bfloat16_is_offered_where_the_gpu_has_it(capability, offered, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: capability is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    report = Diagnosis(found={"evaluation not finite": {}, "fp16 without scaler": {"share": 0.1}})
    report.judge()
    said = [mistake.sentence for mistake in report.mistakes]
    said.append(remedy_for(RuntimeError("probability tensor contains"), ["float16"])[1])
    assert ["bfloat16" in sentence for sentence in said] == [offered] * 3
    assert all(word in said[-1] for word in ("logits", "fp32"))


def test_a_guard_is_named_only_where_float16_is_used():
    hints = []
    for autocast in (torch.float16, torch.bfloat16):
        step, _ = scaled(of=times(math.nan), autocast=autocast)
        found = {one.rule: one.figures for one in diagnose(step, steps=1, on_report=quiet).mistakes}
        hints.append(found["loss not finite"]["hint"])
    assert hints == [GUARD, ""]


@pytest.mark.any_python
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_step_has_none(name):
    report = report_of(SOUND[name], steps=3)
    assert rules(report) == [] and report.unseen == []
    assert (report.watched, report.timed, report.steps) == (4, 3, FIRST + 7) and report.step_ms > 0


def bits_of(case, watched):
    torch.manual_seed(0)
    step, _ = case()
    with diagnose(steps=3, on_report=quiet) if watched else contextlib.nullcontext():
        for _ in range(FIRST + 7):
            step()
    getattr(step, "close", list)()
    return getattr(step, "weights", [])


@pytest.mark.any_python
@pytest.mark.parametrize(
    "name", ["SAM", "checkpointed", "checkpointed, reentrant", "fused", "cached, dot", "Kahan"]
)
def test_the_ledger_changes_no_bit(name):
    pairs = zip(bits_of(SOUND[name], False), bits_of(SOUND[name], True), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


class Rounded(AdamW):
    """AdamW with a step of its own, which rounds at random or keeps the rest, as Kahan does."""

    how = "stochastic"

    @torch.no_grad()
    def step(self, closure=None):
        groups = [group | {"params": [*group["params"]]} for group in self.param_groups]
        self.ours = getattr(self, "ours", None) or DeviceAdamW(groups, self.how)
        self.ours.step()


def kept_share_of(dtype=torch.bfloat16, kind=AdamW, adapter=False, **options):
    """Return (the report of a loop, the share that a twin in fp32 finds). adapter: the model is
    frozen, and a layer in fp32 behind it trains.
    """
    model, inputs, labels = problem(dtype)
    head = torch.nn.Linear(8, 8).to(inputs.device)
    trained = [*(head if adapter else model).requires_grad_(True).parameters()]
    model.requires_grad_(not adapter)
    optimizer = kind(trained, **options)
    copies = [torch.nn.Parameter(weight.detach().float()) for weight in trained]
    twin, sums = (kind if kind in (AdamW, SGD) else AdamW)(copies, **options), [0.0, 1e-30]

    def step():
        optimizer.zero_grad()
        outputs = model(inputs).float()
        functional.cross_entropy(head(outputs) if adapter else outputs, labels).backward()
        before = [weight.detach().float() for weight in trained]
        for copy, old, weight in zip(copies, before, trained, strict=True):
            copy.data, copy.grad = old.clone(), weight.grad.float()
        optimizer.step()
        twin.step()
        for copy, old, weight in zip(copies, before, trained, strict=True):
            sums[0] += float(((copy - old) * (weight - old)).sum())
            sums[1] += float((copy - old).square().sum())

    return report_of(lambda: (step, None), 20), sums[0] / sums[1]


LOOPS = {  # and whether they print a share
    "AdamW": ({"lr": 1e-4, "weight_decay": 0.1}, True),
    "SGD": ({"kind": SGD, "lr": 1e-3, "momentum": 0.9, "weight_decay": 0.01}, True),
    "a frozen base": ({"lr": 1e-3, "adapter": True}, False),
    "stochastic": ({"lr": 1e-4, "kind": Rounded}, False),
    "Kahan": ({"lr": 1e-4, "kind": type("Kahan", (Rounded,), {"how": "kahan"})}, False),
}


@pytest.mark.parametrize("name", LOOPS)
def test_the_share_of_an_update_that_arrives_is_told(name):
    options, prints = LOOPS[name]
    report, share = kept_share_of(**options)
    assert (report.kept_share is not None) == ("Kahan's sums" in str(report)) == prints
    assert not prints or 0.05 < report.kept_share < 0.95
    assert not prints or report.kept_share == pytest.approx(share, abs=0.08)
    assert "lost updates" not in rules(report) or prints


def test_the_report_comes_as_soon_as_all_is_known(capsys):
    reports, step = [], scaled(clipped, unscale, end)[0]
    with diagnose(on_report=lambda report: reports.append(report)) as report:
        for number in range(NEEDED + 3):
            step()
            assert len(reports) == (number + 1 >= NEEDED)
    assert reports == [report] and rules(report) == ["clipped while scaled"]
    with diagnose(steps=1):
        for _ in range(3):
            step()
    assert report.mistakes[0].sentence in capsys.readouterr().out


def test_start_and_stop_need_no_block_and_a_read_waits():
    reports, step = [], plain()[0]
    watch = diagnose(steps=1, on_report=reports.append).start()
    for _ in range(FIRST + 6):
        step().item()
    assert len(reports) == 1 and watch.stop() is watch.stop() is reports[0] and len(reports) == 1
    assert rules(reports[0]) == ["waits"] * ON_GPU and ("GPU" in str(reports[0])) == ON_GPU


def test_batches_that_run_out_end_a_diagnosis():
    step, batches = plain()[0], iter(range(FIRST + 2))
    report = diagnose(lambda: (next(batches), step()), steps=5, on_report=quiet)
    (sentence,) = report.unseen
    assert report.steps == FIRST + 2 and re.findall(r"\d+", sentence) == [
        str(FIRST + 2),
        str(FIRST + 5 + LOOKED),
    ]


def calls(order):
    """Return steps with a scaler: z clears, b is backward(), u unscale_(), m moves weights, s
    step(), e update().
    """
    model, inputs, _ = problem()
    optimizer, scaler = (
        SGD(model.parameters(), 0.01),
        GradScaler(DEVICE, 64.0),
    )
    each = {
        "z": optimizer.zero_grad,
        "b": lambda: scaler.scale(model(inputs).square().mean()).backward(),
        "p": lambda: model(inputs).square().mean().backward(),
        "u": lambda: scaler.unscale_(optimizer),
        "m": lambda: [nn.init.ones_(weight) for weight in model.parameters()],
        "s": lambda: scaler.step(optimizer),
        "e": scaler.update,
    }
    for letter in order:
        each[letter]()


def half(layer, *shape):
    layer.to(DEVICE, torch.float16)(torch.ones(*shape, device=DEVICE))


def written_by_a_mask():
    with torch.autocast(DEVICE, torch.bfloat16):
        rows = torch.zeros(2, 4, device=DEVICE)
        layer, mask = nn.Linear(4, 4).to(DEVICE), torch.tensor([True, False], device=DEVICE)
        rows[mask] = layer(torch.ones(1, 4, device=DEVICE))


def called_outside():
    layer = nn.Linear(4, 4).to(DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16):
        rows = layer(torch.ones(2, 4, device=DEVICE))
    layer(rows)


def of_inference():
    with torch.inference_mode():
        rows = torch.ones(2, 4)
    nn.Linear(4, 4)(rows)


ERRORS = {  # a case: (a word of its remedy, the case)
    "unscaled in each micro-batch": ("micro-batch", lambda: calls("zbubuse")),
    "unscaled twice at once": ("twice", lambda: calls("zbuuse")),
    "update() is left out": ("left out", lambda: calls("zbuszbu")),
    "a step and update() are left out": ("left out", lambda: calls("zbuzbu")),
    "SAM": ("first pass", lambda: calls("zbumzbuse")),
    "step() without update()": ("left out", lambda: calls("zbszbs")),
    "never scaled": ("scale(loss)", lambda: calls("zpus")),
    "a mask of -1e9": (
        "finfo",
        lambda: torch.zeros(2, dtype=torch.float16).masked_fill(torch.tensor([True, False]), -1e9),
    ),
    "half() of a layer": ("half()", lambda: half(nn.Linear(4, 4), 2, 4)),
    "half() of a convolution": ("half()", lambda: half(nn.Conv2d(1, 1, 1), 1, 1, 2, 2)),
    "two types": ("Cast", lambda: torch.ones(2, 2) @ torch.ones(2, 2, dtype=torch.bfloat16)),
    "outside autocast": ("outside", called_outside),
    "written by a mask": ("source", written_by_a_mask),
    "singular values": ("float()", lambda: torch.linalg.svd(torch.ones(4, 4, dtype=torch.float16))),
    "numpy": ("float()", lambda: torch.ones(4, dtype=torch.bfloat16).numpy()),
    "inference": ("no_grad", of_inference),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_gets_the_remedy_of_its_own_loop(name):
    word, case = ERRORS[name]
    reports = []
    with pytest.raises(Exception) as caught, diagnose(on_report=reports.append):
        case()
    (note,) = (
        caught.value.__notes__ if sys.version_info >= (3, 11) else [reports[0].mistakes[0].sentence]
    )
    steps = 2 if name in ("update() is left out", "step() without update()") else 1
    assert word in note and rules(reports[0]) == ["error"]
    assert f"step {steps}" in reports[0].ended_by
    assert reports[0].mistakes[0].figures["message"] in str(caught.value)


def test_an_error_that_nothing_explains_gets_no_note():
    reports = []
    for message in ("of the loop's own", "probability tensor contains either `inf`"):
        with pytest.raises(RuntimeError) as caught, diagnose(on_report=reports.append):
            raise RuntimeError(message)
        assert not hasattr(caught.value, "__notes__")
    assert [rules(report) for report in reports] == [[], []] and "No mistake" not in str(reports[0])


EAGER = {"backend": "eager", "fullgraph": True}


@pytest.mark.parametrize(
    "compiles", [{}, EAGER, pytest.param({"fullgraph": True}, marks=pytest.mark.slow)], ids=len
)
def test_the_numbers_of_a_loop_are_those_without_a_diagnosis(compiles):
    counters = torch._dynamo.utils.counters["stats"]
    expected = clipped_loop(NEEDED + 8, **compiles)
    graphs = counters["unique_graphs"]
    with diagnose(on_report=quiet) as report:
        found = clipped_loop(NEEDED + 8, **compiles)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert report.watched == 4 and counters["unique_graphs"] - graphs <= graphs


def test_errors_of_the_loop_come_through_and_ours_do_not(monkeypatch):
    with pytest.raises(KeyError), diagnose(on_report=quiet):
        raise KeyError("from the loop")
    with diagnose(steps=1, on_report=lambda report: 1 / 0) as report:
        clipped_loop(FIRST + 9)
    assert "ZeroDivisionError" in report.unseen[0]
    monkeypatch.setattr(Watch, "advance", lambda self: 1 / 0)
    with diagnose(on_report=quiet) as report:
        clipped_loop(5)
    assert "ZeroDivisionError" in report.unseen[0] and report.unseen[0] in str(report)


def test_each_of_several_optimizers_and_scalers_is_watched():
    """As in a cross-validation, whose folds have an optimizer each, and in a GAN with two
    scalers.
    """
    with diagnose(steps=3, on_report=quiet) as report:
        for _ in range(FIRST + 7):
            step = plain()[0]
            for _ in range(4):
                step()
    assert report.watched == 4
    sound, falling = scaled()[0], scaled(of=inf_at_any_scale)[0]
    with diagnose(steps=20, on_report=quiet) as report:
        for _ in range(NEEDED):
            falling()
            sound()
    assert [len(scales) for scales in report.scales] == [4, 4] and rules(report) == ["scale falls"]


def test_a_loop_under_a_profiler_of_its_own_runs():
    for own in (profile(activities=[ProfilerActivity.CPU]), cProfile.Profile()):
        with diagnose(steps=1, on_report=quiet) as report, own:
            clipped_loop(FIRST + 17)
        assert report.timed == 1 and report.watched == (
            4 if isinstance(own, cProfile.Profile) else 0
        )
    with diagnose(steps=1, on_report=quiet) as report:
        clipped_loop(FIRST + 3)  # two of its steps are profiled when the loop's own profiler begins
        with profile(activities=[ProfilerActivity.CPU]) as own:
            clipped_loop(4)
    assert report.watched == 2 and own.events()


def test_a_new_diagnosis_ends_an_older_one():
    step, reports = scaled(clipped, unscale, end)[0], []
    with diagnose(steps=1, on_report=reports.append) as outer:
        for _ in range(FIRST + 6):
            step()
        step()
        inner = diagnose(scaled()[0], steps=1, on_report=quiet)
    assert rules(inner) == [] and rules(outer) == ["clipped while scaled"]
    first = diagnose(on_report=reports.append).start()
    step()
    second = diagnose(on_report=quiet).start()
    step()
    assert reports == [outer, first.seen] and first.stop().steps == second.stop().steps == 1


def test_a_diagnosis_serves_once():
    watch = diagnose(on_report=quiet)
    with watch:
        plain()[0]()
    with pytest.raises(UserError, match="serves once"):
        watch.start()


def test_a_diagnosis_may_begin_later():
    step, _ = scaled(clipped, unscale, end)
    with diagnose(steps=1, after=50, on_report=quiet) as report:
        for _ in range(FIRST + 56):
            step()
    assert rules(report) == ["clipped while scaled"] and (report.first, report.steps) == (
        50,
        FIRST + 5,
    )
    with diagnose(after=50, on_report=quiet) as report:
        step()
    assert not report.steps and str(50 + NEEDED) in report.unseen[0]
    with pytest.raises(UserError, match="after is -1"):
        diagnose(after=-1)


def test_an_evaluation_that_fails_keeps_the_report():
    with diagnose(steps=1, evaluate=lambda: 1 / 0, on_report=quiet) as report:
        clipped_loop(FIRST + 6)
    assert rules(report) == ["clipped while scaled", "evaluation failed"]
    assert "ZeroDivisionError" in report.mistakes[1].figures["error"]


def test_a_script_s_error_ends_the_watch_that_start_began():
    before, reports, step = sys.excepthook, [], plain()[0]
    diagnose(on_report=reports.append).start()
    step()
    error = RuntimeError("without overflow")
    with contextlib.redirect_stderr(io.StringIO()):
        sys.excepthook(RuntimeError, error, None)
    assert (
        sys.excepthook is before
        and rules(reports[0]) == ["error"]
        and "step 2" in reports[0].ended_by
    )


def test_nothing_is_kept_of_a_loop_that_no_optimizer_steps():
    weight, watch = torch.ones(2, requires_grad=True), diagnose(on_report=quiet)
    with watch as report:
        for _ in range(3000):
            weight.square().sum().backward()
        assert not LISTENERS and len(report.losses) <= 2049 and len(report.events) <= 64
    assert "No mistake" not in str(report) and not report.steps


def test_a_backward_tells_what_multiplies_gradients():
    weight = nn.Parameter(torch.ones(4))
    for adds, paths in ((False, {(64.0, 1.5)}), (True, {(math.nan, math.nan)})):
        lifted = 64 * weight.exp().mean() / 2
        mark(lifted, 64.0)
        loss = 3 * lifted + weight.sin().sum() if adds else 3 * lifted
        looked = Backward([loss])
        loss.backward()
        assert repr(looked.paths([])) == repr(paths)


NETWORKS = {
    "three dimensions": lambda: (nn.Conv3d(2, 4, 3, stride=2, padding=1), (2, 2, 6, 6, 6)),
    "one dimension": lambda: (nn.Conv1d(4, 8, 5, dilation=2, stride=3), (2, 4, 40)),
    "transposed": lambda: (nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 8, 8)),
    "attention": lambda: (
        nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True),
        (2, 8, 32),
    ),
}


@pytest.mark.any_python
@pytest.mark.parametrize("name", NETWORKS)
def test_the_flops_are_those_that_pytorch_counts(name):
    model, shape = NETWORKS[name]()
    report, count = flops_of_training(model, shape)
    attention = "_scaled_dot_product_flash_attention"
    for_cpu = {  # which PyTorch 2.9 does not count, although it runs
        getattr(torch.ops.aten, f"{attention}_for_cpu{pass_}"): flop_registry[
            getattr(torch.ops.aten, f"{attention}{pass_}")
        ].__wrapped__
        for pass_ in ("", "_backward")
    }
    with FlopCounterMode(display=False, custom_mapping=for_cpu) as counter:
        count()
    assert sum(report.flops.values()) == 4 * counter.get_total_flops() > 0 and not report.uncounted


def flops_of_training(model, shape, optimizer=sgd):
    inputs, optimizer = torch.ones(shape, device=DEVICE), optimizer(model.to(DEVICE).parameters())

    def step():
        outputs = model(inputs)
        (outputs if isinstance(outputs, torch.Tensor) else outputs[0]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return diagnose(step, steps=1, on_report=quiet), step


def test_an_lstm_and_an_optimizer_s_products_are_not_counted():
    report, _ = flops_of_training(nn.LSTM(24, 64, 2), (10, 2, 24))
    assert report.uncounted and not any("products" in sentence for sentence in facts(report))
    muon = partial(torch.optim.Muon, lr=1e-3)
    report, _ = flops_of_training(nn.Linear(64, 64, bias=False), (8, 64), muon)
    assert report.flops == {("mm", "float32"): 4 * 2 * 2 * 8 * 64 * 64}


def test_a_product_of_unknown_size_leaves_no_share():
    seen = Diagnosis(
        matmul_switch="none", flops={("mm", "float32"): 9.0}, uncounted={"custom::product"}
    )
    assert [*find_mistakes(seen)] == [] and not any("100%" in sentence for sentence in facts(seen))


def test_only_the_thread_that_watches_is_heard():
    mistaken = scaled(clipped, unscale, end)[0]
    with diagnose(steps=1, on_report=quiet) as report:
        plain()[0]()
        thread = threading.Thread(target=lambda: [mistaken() for _ in range(FIRST + 6)])
        thread.start()
        thread.join()
    assert rules(report) == [] and (report.watched, report.steps) == (0, 1)
    with diagnose(on_report=quiet) as report:
        thread = threading.Thread(target=mistaken)
        thread.start()
        thread.join()
    assert report.steps == 0 and "this thread" in str(report)


def test_a_function_that_the_loop_replaces_stays_replaced():
    before = GradScaler.update
    with diagnose(on_report=quiet):
        ours = GradScaler.update
        GradScaler.update = theirs = lambda scaler: ours(scaler)
        clipped_loop(4)
    try:
        assert GradScaler.update is theirs
        clipped_loop(2)
    finally:
        GradScaler.update = before


def test_an_evaluation_is_told_apart_from_the_steps():
    seen = Diagnosis()
    read_times(seen, [10.0, 10.0, 2010.0, 10.0, 10.0], [0.005] * 5)
    assert seen.step_ms == pytest.approx(10)
    assert seen.data_wait_fraction == pytest.approx(0.5)


def test_waiting_for_data_is_measured():
    step = plain()[0]
    with diagnose(on_report=quiet) as report:
        for _ in DataLoader(range(40), batch_size=1, collate_fn=lambda batch: time.sleep(0.02)):
            step()
    assert 0.5 < report.data_wait_fraction <= 1


def test_the_line_of_a_wait_is_found_in_the_profiler_s_stacks():
    def train(loss):
        loss.item()
        float(loss.exp())  # a wait that no call makes
        repr(loss)  # waits in a function of PyTorch

    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as own:
        train(torch.ones(()))
    results = own.profiler.kineto_results
    moments = sorted(
        one.start_ns() for one in results.events() if one.name() == "aten::_local_scalar_dense"
    )
    places = [place_of(results.experimental_event_tree(), moment) for moment in moments]
    line = train.__code__.co_firstlineno
    assert places[:2] == [f"test_diagnose.py:{line + 1}", f"after test_diagnose.py:{line + 2}"]
    assert set(places[2:]) == {f"test_diagnose.py:{line + 3}"}


@pytest.mark.parametrize("rule, fields", CASES["seen on a gpu"])
def test_what_a_gpu_shows_is_named_alone_where_it_is_a_mistake(rule, fields):
    flops = {(name, dtype): number for name, dtype, number in fields.get("flops", ())}
    seen = Diagnosis(**fields | {"flops": flops})
    assert [found for found, _ in find_mistakes(seen)] == [rule] * (rule is not None)


def test_where_nothing_was_looked_at_no_loop_is_called_sound():
    with pytest.raises(UserError, match="steps is 0"):
        diagnose(steps=0)
    with diagnose(on_report=quiet) as report:
        pass
    for nothing in (report, diagnose(lambda: None, steps=3, on_report=quiet)):
        assert not nothing.events and "No mistake" not in str(nothing)


def test_the_page_has_every_rule():
    text = (ROOT / "docs" / "why-not-faster.md").read_text(encoding="utf-8")
    at_ends = set(re.findall(r"^- .*\(`([^`(]+)`\)$", text, re.MULTILINE))
    assert at_ends == set(SENTENCES) - {"error"}  # which has a list of messages
