"""The steps of every notebook are those that were recorded: tests/golden/*.json, compared
through trace.py.
"""

import itertools
import json
import math
import re
import subprocess
import sys

import pytest
from conftest import ENVIRONMENT, EXPERIMENTS, ROOT, read_json
from golden import trace

FOLDER = ROOT / "tests/golden"


def by_notebook(pattern):
    """Return {notebook: its traces and others that the same machine recorded}."""
    found = {}
    for file in FOLDER.glob(pattern):
        traces = read_json(file)
        found |= dict.fromkeys({name.partition("/")[0] for name in traces} - {"machine"}, traces)
    return found


ON_CPU, ON_GPU = by_notebook("cpu*.json"), by_notebook("gpu*.json")
HERE = trace.cpu_and_torch()
NEAR_STEPS, NEAR = 5, 0.02  # elsewhere sums have another order, and a training soon magnifies that
# from the second step on: two CPUs with bf16 instructions were 9% apart in the third
NEAR_IN_16_BITS = 0.25
GROWN = 2  # times the first loss
# of a ResNet, whose convolutions a CPU hardly knows
SLOW_MODES = ("amp_fp16", "amp_bf16", "o2_fp16", "o3_fp16")
# Of one process each; EfficientNet takes the ResNet's step and longest of all, so it is compared on
# request.
QUICK = (("cifar_resnet",), ("lstm_language_model", "transformer"))


def recorded_anew(folder, names, *options, hidden=""):
    """Return the traces of notebooks that trace.py records anew, on the CPU where the GPUs are
    `hidden`.
    """
    command = [
        sys.executable,
        str(FOLDER / "trace.py"),
        "--notebooks",
        *names,
        "--write",
        str(folder / "new.json"),
    ]
    environment = ENVIRONMENT | ({} if hidden is None else {"CUDA_VISIBLE_DEVICES": hidden})
    process = {
        "env": environment,
        "cwd": folder,
        "capture_output": True,
        "text": True,
        "check": False,
    }
    done = subprocess.run([*command, *options], **process)
    assert done.returncode == 0, done.stderr[-2000:]
    return read_json(folder / "new.json")


def assert_same(names, new, recorded=ON_CPU, here=HERE):
    assert sorted([*names, "machine"]) == sorted(new)
    for name in names:
        golden = recorded[name.partition("/")[0]]
        if here.items() <= golden["machine"].items():
            assert golden[name] == new[name], (
                f"{name}: {trace.first_difference(golden[name], new[name])}"
            )
        else:
            assert_near(name, golden[name], new[name])


def assert_near(name, old, new):
    """Compare what another machine or version computes too: losses of the first steps, and the
    skipped steps.

    A loss that was recorded as NaN may be finite elsewhere, so nothing is compared from there on.
    Where one was recorded as twice the first, the training diverges and magnifies every digit.
    """
    is_finite = [math.isfinite(float.fromhex(then[0])) for then in old["steps"]]
    finite = [*is_finite, False].index(False)
    pairs = list(zip(old["steps"], new["steps"], strict=True))[:finite]
    later = NEAR_IN_16_BITS if re.search("16|fp8", name.split("/")[1]) else NEAR
    for number, (then, now) in enumerate(pairs[:NEAR_STEPS]):
        if float.fromhex(then[0]) > GROWN * float.fromhex(pairs[0][0][0]):
            break
        near = pytest.approx(float.fromhex(then[0]), rel=later if number else NEAR)
        assert float.fromhex(now[0]) == near, f"{name}, step {number}"
    assert [now[2] for _, now in pairs] == [then[2] for then, _ in pairs], (
        f"{name}: the skipped steps"
    )


def traces_of(name, modes, executions):
    return [f"{name}/{mode}/{way}" for way, mode in itertools.product(executions, modes)]


@pytest.mark.parametrize("names", QUICK, ids=" ".join)
def test_eager_and_graph_steps_are_the_recorded_ones(names, tmp_path):
    """Of the ResNet in those modes that a CPU computes quickly."""
    modes = [mode for mode in trace.MODES if len(names) > 1 or mode not in SLOW_MODES]
    ways = ("eager", "cuda_graph")
    new = recorded_anew(tmp_path, names, "--executions", *ways, "--modes", *modes)
    assert_same([one for name in names for one in traces_of(name, modes, ways)], new)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_all_steps_are_the_recorded_ones(name, tmp_path):
    assert_same(
        traces_of(name, trace.MODES, trace.EXECUTIONS),
        recorded_anew(tmp_path, [name]),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(ON_GPU))
def test_eager_and_graph_steps_on_a_gpu_are_the_recorded_ones(name, tmp_path):
    new = recorded_anew(tmp_path, [name], "--executions", "eager", "cuda_graph", hidden=None)
    names = traces_of(name, trace.modes_of(name), ("eager", "cuda_graph"))
    assert_same(names, new, ON_GPU, {one: new["machine"][one] for one in ("torch", "gpu")})


def test_every_trace_has_been_recorded():
    for recorded, notebooks in ((ON_CPU, EXPERIMENTS), (ON_GPU, ON_GPU)):
        wanted = {"machine"}
        for one in notebooks:
            modes = trace.MODES if recorded is ON_CPU else trace.modes_of(one)
            wanted.update(traces_of(one, modes, trace.EXECUTIONS))
        assert set().union(*recorded.values()) == wanted


def test_a_step_that_differs_is_found():
    name = "lstm_language_model/amp_fp16/eager"
    golden = ON_CPU["lstm_language_model"][name]
    changed = json.loads(json.dumps(golden))
    changed["steps"][1][0] = (float.fromhex(changed["steps"][1][0]) * 1.3).hex()
    assert trace.first_difference(golden, changed).startswith("step 1: ")
    with pytest.raises(AssertionError, match="step 1"):
        assert_near(name, golden, changed)
