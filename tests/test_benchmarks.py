"""benchmarks/compare_loops.py in its tiny form on the CPU, and the arithmetic of its table."""

import importlib.util
import types

import pytest
import torch
from conftest import ROOT

SPEC = importlib.util.spec_from_file_location("compare_loops", ROOT / "benchmarks" / "compare_loops.py")
compare_loops = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(compare_loops)
TINY = ["--steps", "2", "--rounds", "1", "--device", "cpu"]


@pytest.fixture(autouse=True)
def switches_put_back(monkeypatch):
    """The script may change PyTorch's switches and hide the GPU; other tests must not see that."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    switches = [switch.fp32_precision for switch in compare_loops.SWITCHES]
    search = torch.backends.cudnn.benchmark
    yield
    torch.set_float32_matmul_precision("highest")
    for switch, value in zip(compare_loops.SWITCHES, switches, strict=True):
        switch.fp32_precision = value
    torch.backends.cudnn.benchmark = search


@pytest.fixture
def suite():
    """What the table reads of an experiment."""
    parameters, data = types.SimpleNamespace(batch_size=4), types.SimpleNamespace(train_samples=400)
    return types.SimpleNamespace(parameters=parameters, data=data)


def rows_of(text):
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {cells[0]: cells for cells in lines}


@pytest.mark.parametrize("experiment", ["resnet", "efficientnet", "lstm"])
def test_the_tiny_form_runs_every_contender_and_is_no_measurement(experiment, capsys):
    compare_loops.main([*TINY, "--only", experiment])
    text = capsys.readouterr().out
    assert text.count("NOT A MEASUREMENT") == 2
    found = experiment == "efficientnet" and importlib.util.find_spec("elpv_dataset")  # the others' folder is empty
    assert ("MADE-UP DATA" in text) is not bool(found)
    assert f"PyTorch {torch.__version__}" in text and "host cores" in text
    rows = rows_of(text)
    own = [f"{kind}, {mode}" for kind in ("tutorial", "bare") for mode in ("default fp32", "autocast fp16")]
    assert rows["tutorial, default fp32"][3].startswith("1.00x (1.00x to 1.00x)")
    for name in (*own, "suite, fp32, eager", "suite, fp32, cuda_graph"):
        assert rows[name][2] == "1", rows[name]


def test_the_order_alternates_and_the_others_run_where_one_contender_fails():
    order = []

    def run(name, seconds):
        order.append(name)
        if name == "b":
            raise RuntimeError("no\nsuch thing")
        return seconds

    runs = {name: lambda name=name: run(name, 0.5) for name in "abc"}
    seconds, reasons = compare_loops.measure(runs, 3)
    assert "".join(order) == "abccbaabc"
    assert seconds == {"a": [0.5] * 3, "b": [None] * 3, "c": [0.5] * 3}
    assert reasons == {"b": "RuntimeError: no such thing"}


@pytest.mark.parametrize(
    ("experiment", "shown"),
    [("resnet", "1 (0.5 to 2)"), ("efficientnet", "400 (200 to 800)"), ("lstm", "10 (5 to 20)")],
)
def test_the_table_has_medians_ranges_and_ratios_round_by_round(suite, experiment, shown):
    seconds = {"tutorial, default fp32": [0.04, 0.04, 0.02], "suite": [0.02, 0.01, 0.005], "none": [None] * 3}
    lines = compare_loops.table(experiment, suite, seconds, {"none": "cannot"})
    assert lines[3] == f"| suite | {shown} | 3 | 4.00x (2.00x to 4.00x) |"
    assert lines[4] == "| none | cannot | 0 | - |"


@pytest.mark.parametrize(("experiment", "said"), [("resnet", True), ("lstm", False)])
def test_the_table_says_whose_plans_tf32_uses(suite, experiment, said):
    seconds = {"tutorial, default fp32": [0.04], "suite, tf32, eager": [0.02]}
    lines = compare_loops.table(experiment, suite, seconds, {})
    assert lines[-1].startswith("tf32, contiguous") is said


def test_a_tutorial_runs_with_pytorchs_default_switches():
    for switch in compare_loops.SWITCHES:
        switch.fp32_precision = "tf32"
    torch.backends.cudnn.benchmark = True
    compare_loops.restore_defaults()
    assert [switch.fp32_precision for switch in compare_loops.SWITCHES] == compare_loops.DEFAULTS
    assert torch.backends.cudnn.benchmark is False


def test_a_tutorials_model_counts_its_batches():
    norm = torch.nn.BatchNorm2d(2)
    network = torch.nn.Sequential(norm, torch.nn.Linear(2, 2))
    norm.num_batches_tracked = None  # as the suite's trainer leaves it
    compare_loops.count_batches(network)(torch.randn(3, 2, 2, 2))
    assert norm.num_batches_tracked.item() == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_how_to_try_it(capsys):
    with pytest.raises(SystemExit):
        compare_loops.main([])
    assert "--device cpu --steps 2 --rounds 1" in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--executions", "cudagraph"), ("--precisions", "fp4")])
def test_a_name_that_the_notebooks_do_not_know_is_refused(option, capsys):
    with pytest.raises(SystemExit) as left:
        compare_loops.main([*TINY, "--only", "lstm", *option])
    assert left.value.code == 2
    assert f"invalid choice: '{option[1]}'" in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["cifar10/train", "cifar-10-batches-py"])
def test_data_that_a_notebook_has_read_or_downloaded_are_found(tmp_path, folder):
    assert compare_loops.data_parameters("resnet", tmp_path)["dataset"] == "synthetic"
    (tmp_path / folder).mkdir(parents=True)
    assert compare_loops.data_parameters("resnet", tmp_path)["dataset"] == "cifar10"
