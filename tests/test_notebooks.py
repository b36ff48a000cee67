"""The experiment notebooks: the step that they show, models, metrics and rates, wrong input, and each running alone."""

import functools
import json
import math
import sys

import pytest
import torch
from conftest import EXPERIMENTS, NOTEBOOKS, ROOT, experiment_of, run_cells
from made_up_data import write_texts
from notebook_outputs import executed, papermill, printed
from small_training import CPU, EXECUTIONS, MODES, everything, make_batch, norm_of_update, same_bits
from small_training import make_trainer as make_small_trainer

from mixed_precision_study.train.step import Trainer

TINY = {
    "cifar_resnet": {"model": "test_resnet", "batch_size": 4},
    "efficientnet_regression": {"model": "test_efficientnet", "batch_size": 4, "image_height": 32, "image_width": 48},
    "lstm_language_model": {"units": 16, "batch_size": 4, "bptt": 5},
}
CIFAR, REGRESSION, LANGUAGE = TINY
MODELS = {
    CIFAR: "resnet18 resnet50 wide_resnet28_10 mobilenetv3_small_050 dpn48b vit_tiny_patch16_224",
    REGRESSION: "tf_efficientnet_b0",
    LANGUAGE: "lstm gru rnn_tanh rnn_relu transformer",
}


def cells_of(name, last, **parameters):
    return run_cells(name, last, **{"dataset": "synthetic", "max_steps": 2, **TINY[name], **parameters})


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
def test_the_step_that_a_notebook_shows_is_the_one_that_is_taken(name, execution):
    experiment = experiment_of(name, dataset="synthetic", max_steps=2, execution=execution, **TINY[name])
    shown = sys.modules[name].training_step
    for precision in MODES:
        trainer = experiment.make_trainer(precision)
        assert trainer.step_function is shown, precision
        assert trainer.compute_loss is sys.modules[name].compute_loss
        assert type(trainer.optimizer).__name__ == ("DeviceSGD" if execution == "cuda_graph" else "SGD")
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(experiment.parameters.lr)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("precision", MODES)
def test_the_step_that_clips_does_so_after_unscaling(precision, execution):
    step = cells_of("lstm_language_model", "training-step", clip=0.01)["training_step"]
    trainer = make_small_trainer(precision, lr=1.0, momentum=0.0, execution=execution, step_function=step)
    assert norm_of_update(trainer) == pytest.approx(0.01, rel=0.05 if precision in ("o3_fp16", "bf16_true") else 1e-3)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("precision", MODES)
def test_where_nothing_is_clipped_the_three_steps_are_one(precision, execution):
    """The language model's step unscales by itself, the others leave it to the scaler: bit for bit the same."""
    results = []
    for name in EXPERIMENTS:
        step = cells_of(name, "training-step", **({"clip": 1e9} if "lstm" in name else {}))["training_step"]
        trainer = make_small_trainer(precision, execution=execution, step_function=step)
        for number in range(4):
            trainer.step(make_batch(number))
        results.append(everything(trainer))
    assert same_bits(results[0], results[1])
    for a, b in zip(results[0], results[2], strict=True):  # clipping multiplies, if only by 1 within rounding
        assert all(torch.allclose(x, y, rtol=1e-5, atol=1e-6) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("name", "model"), [(name, one) for name, models in MODELS.items() for one in models.split()])
def test_every_model_builds_and_steps(name, model):
    names = notebook(name)
    network, batch = with_model(names, model), names["data"].example(3)
    loss, step = names["compute_loss"], names["training_step"]
    trainer = Trainer(network, "fp32", loss, device=CPU, step_function=step, lr=0.01)
    before = [weight.detach().clone() for weight in trainer.weights]
    loss, _ = trainer.step(batch)
    assert math.isfinite(loss.item())
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.weights, strict=True))
    if name == REGRESSION:
        assert network(batch[0]).shape == (3, 1)


@pytest.mark.parametrize("model", ["dpn92", "resnet18"])
def test_images_of_32_pixels_reach_the_first_stage_at_full_size(model):
    network = with_model(notebook(CIFAR), model)
    stage, seen = network.layer1 if model == "resnet18" else network.features.conv2_1, []
    stage.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[2:]))
    network(torch.zeros(1, 3, 32, 32))
    assert seen == [(32, 32)]


def test_enlarged_images_get_the_stem_of_imagenet_and_dropout_reaches_the_models():
    names = cells_of(CIFAR, "model", image_size=64, dropout=0.3)
    images, _ = names["data"].example(4)
    assert images.shape == (4, 3, 64, 64)
    network = with_model(names, "resnet18")
    assert (network.conv1.kernel_size, network.drop_rate, network(images).shape) == ((7, 7), 0.3, (4, 10))
    assert with_model(names, "dpn92").features.conv1_1.conv.stride == (2, 2)
    wide = cells_of(CIFAR, "model", model="wide_resnet28_10", dropout=0.3)["make_model"]()
    assert [m.p for m in wide.modules() if isinstance(m, torch.nn.Dropout)] == [0.3] * 12


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("triangle", [0.05, 0.1, 0.1, 0.0875, 0.075, 0.0625, 0.05, 0.0375, 0.025, 0.0125, 0]),
        ("sixth", [0.06, 0.1, 0.096, 0.084, 0.072, 0.06, 0.048, 0.036, 0.024, 0.012, 0]),
        ("warmup", [0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]),
        ("constant", [0.1] * 10),
    ],
)
def test_schedules(monkeypatch, schedule, rates):
    names = notebook(CIFAR)
    for name, value in {"schedule": schedule, "lr": 0.1, "epochs": 2}.items():
        monkeypatch.setattr(names["settings"], name, value)
    assert [names["learning_rate"](step, 5, []) for step in range(len(rates))] == pytest.approx(rates)


def test_accuracy_is_the_share_of_right_answers_in_the_evaluation_and_the_training_log():
    answers = torch.eye(3)[torch.tensor([0, 1, 2, 2])]  # one of four is wrong
    batches = [(answers[:3], torch.tensor([0, 1, 2])), (answers[3:], torch.tensor([1]))]
    assert notebook(CIFAR)["evaluate"](lambda images: images, batches) == 0.75
    (record,) = cells_of(CIFAR, "run", max_steps=3, epochs=2, log_every=2, precisions=["fp32"])["records"]
    assert [entry[:2] for entry in record.training_log] == [[1, 2], [2, 2]]
    for _, _, loss, accuracy in record.training_log:
        assert loss > 0
        assert accuracy * 8 in range(9)  # of two batches of four


def test_both_losses_and_the_error_in_units_of_the_label(monkeypatch):
    regression, batch = notebook(REGRESSION), (torch.zeros(2, 3, 32, 48), torch.tensor([0.0, 1.0]))

    def network(images):
        return torch.zeros(len(images), 1)

    assert regression["compute_loss"](network, batch, None)[0].item() == pytest.approx(math.log(2))
    assert regression["evaluate"](network, [batch]) == pytest.approx(0.5)  # the sigmoid of 0 lies between the labels
    monkeypatch.setattr(regression["settings"], "loss_function", "mse")
    monkeypatch.setitem(regression, "loss_of", regression["LOSSES"]["mse"])
    assert regression["compute_loss"](network, batch, None)[0].item() == pytest.approx(0.5)
    assert regression["evaluate"](network, [batch, (batch[0], torch.tensor([0.0, 5.0]))]) == pytest.approx(1.5)


def test_the_hidden_state_is_carried_without_its_history():
    language = notebook(LANGUAGE)
    for kind in ("lstm", "gru"):
        network, text = with_model(language, kind).eval(), torch.randint(1001, (11, 3))
        whole = network(text[:10])[0]
        _, hidden = language["compute_loss"](network, (text[:5], text[1:6]), None)
        parts = hidden if isinstance(hidden, tuple) else (hidden,)
        assert not any(part.requires_grad for part in parts)
        assert torch.allclose(network(text[5:10], hidden)[0], whole[5:], atol=1e-6)


def test_perplexity_is_of_the_whole_text_with_the_state_carried_on():
    language = notebook(LANGUAGE)
    network = with_model(language, "lstm").eval()
    batches = list(language["data"].eval_batches(torch.float32, 10))
    joined = list(language["data"].eval_batches(torch.float32, 40))
    assert len(joined) < len(batches)
    with torch.no_grad():
        found = language["evaluate"](network, batches)
        assert language["evaluate"](network, joined) == pytest.approx(found, rel=1e-5)
        words, following = (torch.cat(parts) for parts in zip(*batches, strict=True))
        exact = language["compute_loss"](network, (words, following), None)[0]
    assert found == pytest.approx(exact.exp().item(), rel=1e-4)


def test_the_rate_is_divided_by_four_where_the_perplexity_is_no_better():
    rates = {(): 20, (100, 90): 20, (100, 100): 5, (100, 110, 95): 5, (100, 90, 95, 91): 1.25, (math.inf,): 5}
    assert {metrics: notebook(LANGUAGE)["learning_rate"](0, 5, list(metrics)) for metrics in rates} == rates


@pytest.mark.parametrize("files", [("train", "valid", "test"), ("train", "valid")])
def test_each_trained_model_writes_and_is_judged_on_the_test_text_where_there_is_one(files, tmp_path, capsys):
    lines = [f" the cat {number % 7} sat on mat {number % 3} \n" for number in range(60)]  # a third of them are empty
    write_texts(tmp_path / "data" / "wikitext-2", **{name: " \n".join(lines) for name in files})
    tested = "test" in files
    options = {"dataset": "auto" if tested else "wikitext-2", "data_dir": str(tmp_path / "data"), "bptt": 3}
    options |= {"model": "transformer", "epochs": 1, "max_steps": 30, "lr": 5.0, "precisions": ["fp32", "amp_bf16"]}
    names = cells_of("lstm_language_model", "results", **options, generate_words=60)
    data, parts = names["data"], capsys.readouterr().out.split("It writes:\n")
    assert (data.source, len(data.test)) == ("folder", (60 * 8 + 59) * tested)
    assert not tested or data.vocabulary[data.test[0]] == "the"
    heads = {part.strip().splitlines()[-1].partition(":")[0]: part.strip().splitlines()[-1] for part in parts[:-1]}
    records = {record.precision: record for record in names["records"]}
    for (precision, head), text in zip(heads.items(), parts[1:], strict=True):
        record, written = records[precision], names["written"][precision]
        assert record.status == "ok" and record.metric[-1] < 20  # of 15 words
        assert f"{record.metric[-1]:.5g}" in head and (", test " in head) == tested
        assert record.test_metric == (pytest.approx(record.metric[-1]) if tested else None)  # of the same text
        assert (record.data_fingerprint, len(record.data_files_hash)) == (data.fingerprint, 12)
        assert len(written) == 60 and text.split()[:60] == written and set(written) <= set(data.vocabulary)
        assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_notebook_leaves_a_record_of_each_mode_and_of_the_cpu_no_made_up_number(name, tmp_path):
    """One is a file that was copied alone into an empty folder, as where the package is installed, for papermill.

    The others run in this process, because a kernel loads everything anew.
    """
    asked = {"dataset": "synthetic", "max_steps": 2, "epochs": 1, "precisions": list(MODES), **TINY[name]}
    if name == LANGUAGE:
        (tmp_path / f"{name}.ipynb").write_bytes((NOTEBOOKS / f"{name}.ipynb").read_bytes())
        done = papermill(f"{name}.ipynb", tmp_path, {"PYTHONPATH": str(ROOT)}, **asked)
        assert done.returncode == 0, done.stderr[-2000:]
    else:
        run_cells(name, "results", **asked, output_dir=str(tmp_path / "outputs"))
    found = [json.loads(path.read_text()) for path in (tmp_path / "outputs").glob("*.json")]
    records = {record["precision"]: record for record in found}
    trained = ("fp32", "amp_bf16")
    assert {name: r["status"] for name, r in records.items()} == {
        name: "ok" if name in trained else "unsupported" for name in MODES
    }
    assert {(r["device_type"], r["synthetic"], r["batch_size"]) for r in records.values()} == {("cpu", True, 4)}
    for record in (records[name] for name in trained):
        assert len(record["epoch_seconds"]) == len(record["metric"]) == len(record["train_loss"]) == 1
        assert record["steps_per_epoch"] == len(record["block_seconds"]) == 2  # a block for each step
        assert sum(record["block_seconds"]) <= sum(record["epoch_seconds"]) + 1e-6
        assert record["chance_metric"] > 0 and 0 <= record["data_wait_fraction"] < 1
        for what in ("card", "energy", "profile", "limit", "ledger", "device_memory", "search"):
            assert record[f"{what}_reason"] == "no GPU"
        for what in ("energy_joules", "gpu_busy_fraction", "flops_per_step", "ledger_activations_mib", "throttled"):
            assert record[what] is None  # never zero
        assert record["peak_allocated_mib"] is None and record["training_log"] == []
    assert records["amp_bf16"]["autocast_dtype"] == "bfloat16"
    first, *_, last = sorted(records.values(), key=lambda record: record["order_in_comparison"])
    assert last["runs_before_in_process"] - first["runs_before_in_process"] == len(MODES) - 1
    if name == LANGUAGE:
        (started,) = [record for record in records.values() if record["startup_seconds"]]
        parts = [started[f"startup_{part}_seconds"] for part in ("import", "preflight", "data", "model", "warmup")]
        assert all(seconds > 0 for seconds in parts) and started["startup_seconds"] == pytest.approx(sum(parts))
        text = printed(executed(tmp_path))
        assert text.count("needs an NVIDIA GPU") >= 6  # of the preflight
