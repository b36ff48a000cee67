"""The experiment notebooks: the step that they show, models, metrics and rates, wrong input, and
each running alone.
"""

import functools
import math
import sys

import pytest
import torch
from conftest import CASES, EXPERIMENTS, NOTEBOOKS, ROOT, experiment_of, run_cells
from notebook_outputs import executed, papermill, printed
from small_training import EXECUTIONS, MODES, sgd_trainer

from mixed_precision_study.store.record import read_run

TINY = CASES["tiny"]
CIFAR, REGRESSION, LANGUAGE, GPT = TINY
ON_CPU = ("fp32", "amp_bf16")
MODELS = {
    CIFAR: "resnet18 resnet50 wide_resnet28_10 mobilenetv3_small_050 dpn48b vit_tiny_patch16_224",
    REGRESSION: "tf_efficientnet_b0",
    LANGUAGE: "lstm gru rnn_tanh rnn_relu",
    GPT: "transformer",
}


def small(name, **parameters):
    """Return the parameters with which a notebook trains two steps of made-up data."""
    return {"dataset": "synthetic", "max_steps": 2, **TINY[name], **parameters}


def cells_of(name, last, **parameters):
    return run_cells(name, last, **small(name, **parameters))


@functools.cache
def notebook(name):
    """Return the names of a notebook up to its evaluation."""
    return cells_of(name, "evaluate")


def with_model(names, model):
    """Return what make_model() of a notebook gives for another model."""
    names["settings"].model = model
    return names["make_model"]()


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_step_that_a_notebook_shows_is_the_one_it_takes(name, execution):
    experiment = experiment_of(name, **small(name, execution=execution))
    shown = sys.modules[name].training_step
    for precision in MODES:
        trainer = experiment.make_trainer(precision)
        assert trainer.step_function is shown, precision
        assert trainer.compute_loss is sys.modules[name].compute_loss
        usual = "AdamW" if name == GPT else "SGD"
        assert type(trainer.optimizer).__name__ == (
            f"Device{usual}" if execution == "cuda_graph" else usual
        )
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(experiment.parameters.lr)


@pytest.mark.parametrize(
    "name, model", [(name, one) for name, models in MODELS.items() for one in models.split()]
)
def test_every_model_builds_and_steps(name, model):
    names = notebook(name)
    network, batch = with_model(names, model), names["data"].example(3)
    loss, step = names["compute_loss"], names["training_step"]
    trainer = sgd_trainer(network, "fp32", loss, step_function=step, lr=0.01)
    before = [weight.detach().clone() for weight in trainer.weights]
    loss, _ = trainer.step(batch)
    assert math.isfinite(loss.item())
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.weights, strict=True))
    if name == REGRESSION:
        assert network(batch[0]).shape == (3, 1)


def test_a_stem_is_of_the_image_size_and_dropout_is_passed_on():
    network = with_model(notebook(CIFAR), "resnet18")
    assert network.maxpool(network.conv1(torch.zeros(1, 3, 32, 32))).shape[2:] == (32, 32)
    assert with_model(notebook(CIFAR), "dpn92").features.conv1_1(torch.zeros(1, 3, 32, 32)).shape[
        2:
    ] == (32, 32)
    names = cells_of(CIFAR, "model", image_size=64, dropout=0.3)
    images, _ = names["data"].example(4)
    assert images.shape == (4, 3, 64, 64)
    network = with_model(names, "resnet18")
    assert (network.conv1.kernel_size, network.drop_rate, network(images).shape) == (
        (7, 7),
        0.3,
        (4, 10),
    )
    assert with_model(names, "dpn92").features.conv1_1.conv.stride == (2, 2)


@pytest.mark.parametrize(
    "schedule, rates",
    CASES["schedules"].items(),
)
def test_schedules(monkeypatch, schedule, rates):
    names = notebook(CIFAR)
    for name, value in {"schedule": schedule, "lr": 0.1, "epochs": 2}.items():
        monkeypatch.setattr(names["settings"], name, value)
    assert [names["learning_rate"](step, 5, []) for step in range(len(rates))] == pytest.approx(
        rates
    )


def test_accuracy_is_the_share_of_right_answers_also_in_the_log():
    answers = torch.eye(3)[torch.tensor([0, 1, 2, 2])]  # one of four is wrong
    batches = [(answers[:3], torch.tensor([0, 1, 2])), (answers[3:], torch.tensor([1]))]
    assert notebook(CIFAR)["evaluate"](lambda images: images, batches) == 0.75
    (record,) = cells_of(CIFAR, "run", max_steps=3, epochs=2, log_every=2, precisions=["fp32"])[
        "records"
    ]
    assert [entry[:2] for entry in record.training_log] == [[1, 2], [2, 2]]
    # of 2 * 4 images
    assert all(
        loss > 0 and accuracy * 8 in range(9) for _, _, loss, accuracy in record.training_log
    )


def test_both_losses_and_the_error_in_units_of_the_label(monkeypatch):
    regression, batch = notebook(REGRESSION), (torch.zeros(2, 3, 32, 48), torch.tensor([0.0, 1.0]))

    def network(images):
        return torch.zeros(len(images), 1)

    assert regression["compute_loss"](network, batch, None)[0].item() == pytest.approx(math.log(2))
    # the sigmoid of 0 lies between the labels
    assert regression["evaluate"](network, [batch]) == pytest.approx(0.5)
    monkeypatch.setattr(regression["settings"], "loss_function", "mse")
    monkeypatch.setitem(regression, "loss_of", regression["LOSSES"]["mse"])
    assert regression["compute_loss"](network, batch, None)[0].item() == pytest.approx(0.5)
    assert regression["evaluate"](
        network, [batch, (batch[0], torch.tensor([0.0, 5.0]))]
    ) == pytest.approx(1.5)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_perplexity_is_of_the_whole_text_with_its_state_kept(kind):
    language = notebook(LANGUAGE)
    network = with_model(language, kind).eval()
    batches = list(language["data"].eval_batches(torch.float32, 10))
    found = language["evaluate"](network, batches)
    words, following = (torch.cat(parts) for parts in zip(*batches, strict=True))
    exact, hidden = language["compute_loss"](network, (words, following), None)
    assert len(batches) > 1 and found == pytest.approx(exact.exp().item(), rel=1e-4)
    assert not any(
        part.requires_grad for part in (hidden if isinstance(hidden, tuple) else (hidden,))
    )


def test_the_rate_is_a_quarter_where_perplexity_is_no_better():
    rates = {
        (): 20,
        (100, 90): 20,
        (100, 100): 5,
        (100, 110, 95): 5,
        (100, 90, 95, 91): 1.25,
        (math.inf,): 5,
    }
    assert {
        metrics: notebook(LANGUAGE)["learning_rate"](0, 5, list(metrics)) for metrics in rates
    } == rates


@pytest.fixture(scope="module", params=EXPERIMENTS)
def trained(request, tmp_path_factory):
    """The folder of a notebook that has trained two steps, and its records: {precision: record}.

    One is a file that was copied alone into an empty folder, as where the package is installed,
    for papermill. The others run in this process, because a kernel loads everything anew.
    """
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    asked = small(name, epochs=1, precisions=list(MODES))
    if name == LANGUAGE:
        (folder / f"{name}.ipynb").write_bytes((NOTEBOOKS / f"{name}.ipynb").read_bytes())
        done = papermill(f"{name}.ipynb", folder, {"PYTHONPATH": str(ROOT)}, **asked)
        assert done.returncode == 0, done.stderr[-2000:]
    else:
        run_cells(name, "results", **asked, output_dir=str(folder / "outputs"))
    found = [read_run(path) for path in (folder / "outputs").glob("*.json")]
    return folder, {record["precision"]: record for record in found}


def test_a_notebook_leaves_a_record_of_each_mode(trained):
    found = trained[1]
    statuses = {name: "ok" if name in ON_CPU else "unsupported" for name in MODES}
    assert {name: record["status"] for name, record in found.items()} == statuses
    assert {(one["device_type"], one["synthetic"]) for one in found.values()} == {("cpu", True)}
    assert {one["settings"]["batch_size"] for one in found.values()} == {4}


@pytest.mark.parametrize("trained", [LANGUAGE], indirect=True)
def test_a_kernel_says_how_it_started_and_what_needs_a_gpu(trained):
    folder, found = trained
    (started,) = [record for record in found.values() if record["startup_seconds"]]
    parts = [
        started[f"startup_{part}_seconds"]
        for part in ("import", "preflight", "data", "model", "warmup")
    ]
    assert all(seconds > 0 for seconds in parts)
    assert started["startup_seconds"] == pytest.approx(sum(parts))
    said = printed(executed(folder))
    assert said.count("needs an NVIDIA GPU") == len(MODES) - len(ON_CPU)
