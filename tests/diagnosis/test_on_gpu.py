"""What diagnose() says of real training steps on a GPU."""

import time

import pytest
import torch
from torch.nn import functional

from mixed_precision_study import diagnose
from mixed_precision_study.precision import set_fp32_precision

pytestmark = [pytest.mark.gpu, pytest.mark.searches]


def convolutions(batch=256, autocast=None, pin=None, read=False, width=64):
    """Return a step of a small convolutional network. pin: whether its batch comes from pinned host memory."""
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(4):
        layers += [torch.nn.BatchNorm2d(width), torch.nn.ReLU(), torch.nn.Conv2d(width, width, 3, padding=1)]
    model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(batch, 3, 32, 32), torch.randint(0, width, (batch,)).cuda()
    images = images.cuda() if pin is None else images.pin_memory() if pin else images

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            loss = functional.cross_entropy(model(images.cuda(non_blocking=True)).float(), labels)
        loss.backward()
        optimizer.step()
        return loss.item() if read else loss

    return step


@pytest.fixture(autouse=True)
def switches():
    set_fp32_precision("tf32")
    torch.backends.cudnn.benchmark = True


@pytest.mark.alone
def test_a_sound_step_has_no_mistake_and_its_kernels_and_memory_are_known():
    report = diagnose(convolutions(autocast=torch.bfloat16, pin=True))
    print(report)
    assert report.mistakes == []
    seen = report.seen
    assert 0.05 < seen.kernels["gpu_busy_fraction"] <= 1 and 0 < seen.kernels["tensor_core_fraction"] < 1
    assert sum(seen.memory.values()) == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.2)
    assert seen.memory["other"] > seen.memory["weights"] > 0
    assert report.gains == sorted(report.gains, reverse=True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"read": True}, "Every step reads a value from the device (test_on_gpu.py:"),
        ({"pin": False, "batch": 1024}, "from memory that is not pinned"),
    ],
)
def test_a_mistake_is_named_alone(arguments, sentence):
    report = diagnose(convolutions(**arguments), steps=5)
    print(report.seen)
    (said,) = report.mistakes
    assert sentence in said


def test_results_that_are_kept_are_named():
    step, kept = convolutions(), []

    def keeping():
        kept.append((step(), torch.zeros(3 * 2**20, device="cuda")))  # 12 MiB in fp32

    (said,) = diagnose(keeping, steps=5).mistakes
    assert said.startswith("Memory grows by 12 MiB in every step")


def test_memory_that_pytorch_keeps_for_later_is_told():
    step = convolutions()
    step()  # cuDNN's search needs much memory once, which PyTorch would keep
    torch.cuda.empty_cache()
    before = diagnose(step, steps=5).seen.reserved
    torch.zeros(2**31, device="cuda")  # 8 GiB, and free again
    report = diagnose(step, steps=5)
    assert report.mistakes == [] and report.seen.reserved - before >= 7 * 2**30
    assert f"PyTorch holds {report.seen.reserved / 2**30:.2f} GiB" in str(report)
    torch.cuda.empty_cache()


def test_cudnn_without_its_search_and_pytorch_s_default_for_matmul_are_named():
    torch.backends.cudnn.benchmark = False
    (said,) = diagnose(convolutions(), steps=5).mistakes
    assert "cuDNN does not search" in said


@pytest.mark.alone
def test_small_work_waits_for_launches_and_large_work_does_not():
    small, large = diagnose(convolutions(batch=4)), diagnose(convolutions(batch=2048))
    print(small, large, sep="\n")
    assert "limited by kernel launches" in str(small) and small.gains[0][1].startswith("a CUDA graph")
    assert "limited by kernel launches" not in str(large)
    assert large.seen.kernels["gpu_busy_fraction"] > 0.9


def test_strict_fp32_leaves_the_tensor_cores_idle():
    set_fp32_precision("fp32")
    report = diagnose(convolutions(batch=1024))
    assert report.seen.kernels["tensor_core_fraction"] < 0.05
    assert any("Tensor Cores" in words for _, words in report.gains)


@pytest.mark.alone
def test_timed_steps_take_no_longer_than_without_it():
    """In both orders, the faster of each: the hooks take less than 2%."""
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
        with diagnose(steps=100_000):
            timed(10)
            within.append(timed())
    print(f"40 steps: {min(without):.4f} s without, {min(within):.4f} s within")
    assert min(within) < 1.02 * min(without)
