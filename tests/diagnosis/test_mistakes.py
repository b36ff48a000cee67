"""What is said of figures that only a GPU gives, from made-up observations; tests/test_gpu.py has real ones."""

import os
import re
import subprocess
import sys
from collections import Counter

import diagnosis_cases
import pytest
import test_diagnose
import torch
from conftest import ENVIRONMENT, ROOT

from mixed_precision_study import diagnose
from mixed_precision_study.analysis.memory import why_memory_stays
from mixed_precision_study.diagnosis.mistakes import find_mistakes
from mixed_precision_study.diagnosis.observations import Observations
from mixed_precision_study.diagnosis.report import Diagnosis
from mixed_precision_study.errors import UserError

GIB = 2**30
H100 = {"device": "cuda", "gpu": "H100", "capability": (9, 0), "benchmark": True, "switches": {"matmul": "tf32"}}
T4 = {**H100, "gpu": "T4", "capability": (7, 5)}
P100 = {**H100, "gpu": "P100", "capability": (6, 0)}
IMAGES = {((32, 3, 224, 224), (64, 3, 7, 7)), ((32, 64, 56, 56), (64, 64, 3, 3))}
ALIKE = {**H100, "benchmark": False, "watched": 4, "shapes": IMAGES}
FP32_MATMUL = {("matmul", "float32"): 9.0, ("convolution", "float32"): 1.0}

MISTAKES = {
    "a value is read in every step": (
        {**H100, "watched": 4, "reads": Counter({"train.py:3": 4})},
        "reads a value from the device (train.py:3)",
    ),
    "bf16 on a T4 (Soup issue 387)": ({**T4, "autocasts": {"bfloat16"}}, "T4 has no bfloat16 arithmetic"),
    "16 bits on a P100 (Lightning issue 13073)": ({**P100, "autocasts": {"float16"}}, "P100 has no Tensor Cores"),
    "the model is on the CPU": ({**H100, "model_on": "cpu"}, "The model is on the CPU, though there is a GPU (H100)."),
    "the loss scale is 0 (vall-e issue 47)": ({**H100, "scales": [[0.0, 0.0]]}, "The loss scale is 0"),
    "TF32 is off by default": (
        {**H100, "switches": {"matmul": "none"}, "flops": FP32_MATMUL},
        "TF32 is off for matrix",
    ),
    "cuDNN does not search": (ALIKE, "cuDNN does not search"),
    "memory grows (PyTorch issue 1840)": (
        {**H100, "in_use": [GIB, 2 * GIB, 3 * GIB], "growth": 25.0 * 2**20},
        "Memory grows by 25 MiB in every step",
    ),
    "memory is not pinned": ({**H100, "step_ms": 10.0, "pageable_ms": 2.0}, "copies for 2.0 ms to the GPU"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_that_only_a_gpu_shows_is_named_alone(name):
    fields, words = MISTAKES[name]
    (sentence,) = find_mistakes(Observations(**fields))
    assert words in sentence


SOUND = {
    "bf16 on an H100": {**H100, "autocasts": {"bfloat16"}},
    "fp16 with a scaler on a T4": {
        **T4,
        "autocasts": {"float16"},
        "scaler_on": True,
        "events": [["scale", "backward"]],
    },
    "TF32 is off on purpose": {**H100, "switches": {"matmul": "ieee"}, "flops": FP32_MATMUL},
    "TF32 is off where matmul is little": {
        **H100,
        "switches": {"matmul": "none"},
        "flops": {("convolution", "x"): 9.0},
    },
    "TF32 is not there": {**T4, "switches": {"matmul": "none"}, "flops": FP32_MATMUL},
    "batches have several shapes": {**ALIKE, "shapes": IMAGES | {((8, 3, 224, 224), (64, 3, 7, 7))}},
    "small copies are not pinned": {**H100, "step_ms": 10.0, "pageable_ms": 0.05},
    "a value is read once in the watched steps": {**H100, "watched": 4, "reads": Counter({"train.py:3": 1})},
    "batches differ in size": {**H100, "in_use": [GIB, 2 * GIB, GIB], "growth": 25.0 * 2**20},
    "a few bytes are kept": {**H100, "in_use": [1000, 2000, 3000], "growth": 1000.0},
    "the loss scale rises": {**H100, "scales": [[1024.0, 2048.0]]},
    "the loss scale falls once": {**H100, "scales": [[65536.0, 32768.0, 32768.0]]},
    "the loss scale is still searched for": {**H100, "scales": [[8192.0, 4096.0, 2048.0, 1024.0]]},
    "fp8 in large layers": {**H100, "fp8_sizes": {(4096, 8192, 8192)}},
}


@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound_is_no_mistake(name):
    assert find_mistakes(Observations(**SOUND[name])) == []


def kernels(busy, tensor_cores=0.0, **families):
    shares = [[name.replace("_", " "), share] for name, share in families.items()]
    return {"kernel_family_fractions": shares, "gpu_busy_fraction": busy, "tensor_core_fraction": tensor_cores}


def said(**fields):
    report = Diagnosis()
    report.judge(Observations(**{**H100, "timed": 20, "step_ms": 10.0, **fields}))
    return report


def test_a_small_model_waits_for_launches():
    """As in apex issue 297: a ResNet-20 on CIFAR is slower under AMP."""
    report = said(autocasts={"float16"}, scaler_on=True, kernels=kernels(0.25, 0.4, convolution=0.5, elementwise=0.5))
    assert "It is limited by kernel launches: the GPU is idle 75% of the time" in str(report)
    assert report.gains[0] == (pytest.approx(4.0), "a CUDA graph of the step, or a larger batch")


def test_a_baseline_may_be_tf32_already():
    """As in PyTorch issue 57806: no gain by AMP on an A100."""
    switches = {"matmul": "ieee", "conv": "tf32"}
    flops = {("convolution", "float32"): 10.0}
    report = said(switches=switches, flops=flops, kernels=kernels(1.0, 0.9, convolution=0.9, elementwise=0.1))
    assert "Convolutions in fp32 use TF32, which is PyTorch's default." in str(report)
    assert report.mistakes == [] and [words for _, words in report.gains] == ["16 bits, which are half the bytes"]


def test_depthwise_convolutions_move_memory():
    """As in PyTorch issue 18631 and EfficientNet-PyTorch issue 273."""
    families = {"depthwise_convolution": 0.5, "normalisation": 0.3, "convolution": 0.2}
    report = said(autocasts={"bfloat16"}, kernels=kernels(1.0, 0.2, **families))
    assert (
        "limited by kernels other than arithmetic: 80% of kernel time is not arithmetic (depthwise convolution 50%"
        in str(report)
    )
    assert report.gains[0] == (pytest.approx(5.0), "torch.compile or channels_last, which move fewer bytes")


def test_arithmetic_off_the_tensor_cores_and_odd_sizes_are_found():
    plain = said(kernels=kernels(1.0, 0.0, matmul=1.0))
    assert plain.gains[0] == (pytest.approx(100), "TF32 or 16 bits, so that arithmetic runs on Tensor Cores")
    odd = said(
        autocasts={"bfloat16"}, flops={("matmul", "bfloat16"): 10.0}, misaligned_flops=9.0, kernels=plain.seen.kernels
    )
    assert [words for _, words in odd.gains] == ["channels, units and vocabulary rounded up to multiples of 8"]
    old = said(**{**P100, "kernels": plain.seen.kernels})
    assert old.gains == []  # it has no Tensor Cores


def test_a_short_step_beside_a_long_epoch_is_bound_by_data():
    """As in DeepLearningExamples issue 1365: the step is 2.8 times as fast, the training takes as long."""
    report = said(data_wait_fraction=0.6, kernels=kernels(0.35, 0.3, convolution=1.0))
    assert "limited by data loading" in str(report)
    assert report.gains[0] == (pytest.approx(2.5), "more DataLoader workers, or data kept on the GPU")


@pytest.mark.parametrize(
    ("sizes", "text"),
    [((6, 6, 12, 1), "Weights, gradients and optimizer are 96% of the peak; autocast halves"), ((1, 1, 1, 9), None)],
)
def test_why_memory_did_not_go_down(sizes, text):
    """As in PyTorch issue 61173."""
    sentence = why_memory_stays(*sizes)
    assert sentence is None if text is None else sentence.startswith(text)
    names = ("weights", "gradients", "optimizer", "other")
    report = str(said(memory={name: size * GIB for name, size in zip(names, sizes, strict=True)}))
    assert f"Memory at its peak: {sum(sizes)}.00 GiB" in report
    assert (text or "activations and workspace 9.00 GiB") in report


def test_what_pytorch_holds_beyond_the_peak_is_told():
    """As in PyTorch issue 37250."""
    memory = {"weights": GIB, "gradients": GIB, "optimizer": 0, "other": 2 * GIB}
    assert "nvidia-smi" not in str(said(memory=memory, reserved=int(4.5 * GIB)))
    assert "PyTorch holds 9.00 GiB: what is freed it keeps for later" in str(said(memory=memory, reserved=9 * GIB))


def test_without_memory_there_is_no_reason():
    assert why_memory_stays(0, 0, 0, 0) is None


def test_a_gpu_without_kernels_is_told_before_the_first_step(monkeypatch):
    """As in docker-python issue 1546: a P100 under a PyTorch that was built without it."""
    for name, value in {
        "is_available": True,
        "get_device_name": "P100",
        "get_device_capability": (6, 0),
        "get_arch_list": ["sm_75", "sm_90"],
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    with pytest.raises(
        UserError, match=r"this PyTorch has no kernels for compute capability 6\.0; install the last that has"
    ):
        diagnose(lambda: pytest.fail("a step was taken"))


ROW = re.compile(r"^\|.*\| `([^`]+)` \|$", re.MULTILINE)


def test_every_symptom_of_the_docs_has_a_case_and_every_case_a_symptom():
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    named = set(ROW.findall(text))
    tests = {name for name in (*globals(), *vars(test_diagnose)) if name.startswith("test_")}
    built = {case.__name__ for case in diagnosis_cases.MISTAKES}
    real = {name.partition(" (")[0] for name in MISTAKES}
    assert named <= tests | built | real
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`" in line.rpartition("| ")[2]]
    assert len(rows) == len(named) == 23
    threads = {int(number) for number in re.findall(r"/issues/(\d+)\)", text)}
    assert {
        297,
        57806,
        80167,
        2262,
        18631,
        387,
        1546,
        13073,
        1365,
        61173,
        166387,
        58392,
        40907,
        2254,
        37250,
        1840,
    } <= threads


MIXED = """
import torch
from mixed_precision_study import diagnose
torch.backends.cuda.matmul.fp32_precision = "tf32"  # the new switch alone
step = lambda: torch.ones(4, 4) @ torch.ones(4, 4)
print(diagnose(step, steps=1).mistakes)
print(*diagnose(torch.compile(step, backend="eager"), steps=1).mistakes)

def raises():  # as inductor does on a GPU
    torch.backends.cuda.matmul.allow_tf32

try:
    diagnose(raises)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_old_and_new_tf32_switches_that_are_mixed_are_named():
    """As in PyTorch issue 166387, where torch.compile raises. Without it there is no harm, and no mistake."""
    places = os.pathsep.join([str(ROOT), ENVIRONMENT.get("PYTHONPATH", "")])
    environment = {**ENVIRONMENT, "PYTHONPATH": places}
    done = subprocess.run([sys.executable, "-c", MIXED], env=environment, capture_output=True, text=True, check=True)
    plain, compiled, raised = done.stdout.splitlines()
    assert plain == "[]"
    assert compiled.startswith("Old and new TF32 switches do not agree, and torch.compile may raise.")
    assert raised == f"UserError {compiled}"
