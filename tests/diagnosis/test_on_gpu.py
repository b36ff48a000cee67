"""What diagnose() says of real training steps on a GPU."""

import inspect
import time

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mixed_precision_study import diagnose
from mixed_precision_study.train.precision import set_fp32_precision

pytestmark = [pytest.mark.gpu, pytest.mark.searches]


def convolutions(batch=256, autocast=None, pin=None, wait=None, width=64):
    """Return a step of a small convolutional network. pin: whether its batch comes from pinned
    host memory.
    """
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(4):
        layers += [
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        ]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).cuda()
    optimizer = SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(0, width, (batch,)).cuda()
    images = images.cuda() if pin is None else images.pin_memory() if pin else images

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            loss = functional.cross_entropy(model(images.cuda(non_blocking=True)).float(), labels)
        loss.backward()
        optimizer.step()
        return wait(loss.detach()) if wait else loss

    return step


WAITS = {
    "item": lambda loss: loss.item(),
    "cpu": lambda loss: loss.cpu(),
    "if": lambda loss: 1 if loss > 3 else 0,
    "synchronize": lambda loss: torch.cuda.synchronize(),
}


@pytest.fixture(autouse=True)
def switches():
    set_fp32_precision("tf32")
    torch.backends.cudnn.benchmark = True


def rules(report):
    print(report)
    return [mistake.rule for mistake in report.mistakes]


@pytest.mark.alone
def test_a_sound_step_has_no_mistake_and_its_kernels_are_known():
    report = diagnose(convolutions(autocast=torch.bfloat16, pin=True))
    assert rules(report) == [] and report.unseen == [] and report.watched == 4
    assert (
        0.05 < report.kernels["gpu_busy_fraction"] <= 1
        and 0 < report.kernels["tensor_core_fraction"] < 1
    )
    assert report.share_of_flops("bfloat16") > 0.9


@pytest.mark.parametrize("kind", WAITS)
@pytest.mark.parametrize("batch", [4, 256])  # the wait of a small batch is short
def test_a_wait_is_named_alone_with_its_line(kind, batch):
    report = diagnose(convolutions(batch=batch, wait=WAITS[kind]), steps=5)
    assert rules(report) == ["waits"]
    # the lambda, or its call
    source, first = inspect.getsourcelines(convolutions)
    call = next(place for place, line in enumerate(source, first) if "return wait(" in line)
    lines = {WAITS[kind].__code__.co_firstlineno, call}
    assert int(report.mistakes[0].figures["place"].rpartition(":")[2]) in lines


def test_gradscaler_s_own_wait_is_no_mistake():
    """As in PyTorch issue 80167. An optimizer with fused=True needs no such read."""
    for fused in (False, True):
        weight = torch.ones(64, 64, device="cuda", requires_grad=True)
        optimizer, scaler = (
            SGD([weight], 0.01, fused=fused),
            torch.amp.GradScaler("cuda"),
        )

        def step(weight=weight, optimizer=optimizer, scaler=scaler):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = (weight @ weight).float().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        report = diagnose(step, steps=5)
        assert rules(report) == [] and report.reads == []


def test_a_wait_of_pytorchs_average_is_no_mistake():
    """PyTorch pull request 157705:

    AveragedModel uploads its count in each step, which waits for the GPU.
    """
    model = nn.Linear(64, 64).cuda()
    optimizer = SGD(model.parameters(), 0.01, fused=True)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(torch.ones(8, 64, device="cuda")).float().mean()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)

    report = diagnose(step, steps=5)
    assert rules(report) == [] and report.reads == []


def test_memory_that_is_not_pinned_or_kept_is_named():
    assert rules(diagnose(convolutions(pin=False, batch=1024), steps=5)) == ["memory not pinned"]
    step, kept = convolutions(), []
    # 12 MiB in fp32
    report = diagnose(lambda: kept.append((step(), torch.zeros(3 * 2**20, device="cuda"))), steps=5)
    assert rules(report) == ["memory grows"] and report.mistakes[0].figures["mib"] == pytest.approx(
        12, rel=0.1
    )


@pytest.mark.alone
@pytest.mark.parametrize("phase", ["timed", "after"])
def test_a_step_takes_no_longer_than_without_it(phase):
    """In both orders, the faster of each: the hooks take less than 2%, and nothing stays that
    would.
    """
    step = convolutions(batch=512)

    def timed(steps=40):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    timed()
    without, within = [], []
    for _ in range(5):  # short pieces, because a busy host slows some of them
        without.append(timed())
        with diagnose(steps=100_000 if phase == "timed" else 1):
            timed(20)
            within.append(timed())
    print(f"40 steps: {min(without):.4f} s without, {min(within):.4f} s within")
    assert min(within) < 1.02 * min(without)
