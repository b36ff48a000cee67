"""The experiment notebooks: data in its real formats, models, wrong input, and each file running alone."""

import csv
import http.server
import json
import math
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ENVIRONMENT, EXPERIMENTS, NOTEBOOKS, ROOT, beside, run_cells
from PIL import Image

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def cifar():
    return run_cells("cifar_resnet", "train", dataset="synthetic", batch_size=4, max_steps=2)


@pytest.fixture(scope="module")
def regression():
    small = {"image_height": 32, "image_width": 48, "batch_size": 4, "max_steps": 2}
    return run_cells("efficientnet_regression", "train", dataset="synthetic", **small)


@pytest.fixture(scope="module")
def language():
    return run_cells("lstm_language_model", "train", dataset="synthetic", batch_size=4, bptt=5, max_steps=2)


def save_image(path, value=0, size=(32, 32), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = value if mode == "L" else (value, 0, 255 - value)
    Image.new(mode, size, colour).save(path)


def assert_steps(names, network, batch, precision="fp32"):
    trainer = names["Trainer"](network, precision, names["compute_loss"], device=CPU, lr=0.01)
    before = [weight.detach().clone() for weight in trainer.weights]
    loss, _ = trainer.step(batch)
    assert math.isfinite(loss.item())
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.weights, strict=True))


# CIFAR


@pytest.mark.parametrize(
    "model", ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet28_10", "mobilenetv3_small_050"]
)
def test_every_cifar_model_builds_and_steps(cifar, model):
    network = cifar["make_network"](model, 10)
    if model.startswith("resnet"):
        assert network.conv1.kernel_size == (3, 3)
        assert network.conv1.stride == (1, 1)
        assert isinstance(network.maxpool, torch.nn.Identity)
        assert network.layer4(torch.zeros(1, network.layer4[0].conv1.in_channels, 8, 8)).shape[-1] == 4
    assert_steps(cifar, network, (torch.randn(2, 3, 32, 32), torch.tensor([0, 9])))


def test_a_transformer_for_32_pixels_builds(cifar):
    network = cifar["make_network"]("vit_tiny_patch16_224", 10)
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_an_unknown_model_stops_with_the_nearest_names(cifar, regression):
    for call in (lambda: cifar["make_network"]("resnet19", 10), lambda: regression["make_network"]("resnet19")):
        with pytest.raises(Exception, match=r"'resnet19' is not in timm; the nearest names: .*resnet18") as stopped:
            call()
        assert type(stopped.value).__name__ == "Stop"


def make_tree(folder, per_class=3, size=(32, 32)):
    for part in ("train", "test"):
        for number, name in enumerate(("cat", "dog")):
            for index in range(per_class):
                save_image(folder / part / name / f"{index}.png", 100 * number + index, size)


def test_a_folder_tree_is_read_and_kept_and_read_anew_when_it_changes(cifar, tmp_path):
    folder = tmp_path / "cifar10"
    make_tree(folder)
    data = cifar["load_data"]("auto", str(tmp_path))
    assert (data.used, data.source, data.classes) == ("cifar10", "folder", ["cat", "dog"])
    images, labels = data.train
    assert images.shape == (6, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert images[4, :, 0, 0].tolist() == [101, 0, 154]  # dog 1, channels first
    assert len(list((tmp_path / "cache").glob("cifar10-*.npz"))) == 1
    again = cifar["load_data"]("cifar10", str(tmp_path))
    assert torch.equal(again.train[0], images)
    save_image(folder / "train" / "dog" / "7.png", 200)
    assert len(cifar["load_data"]("cifar10", str(tmp_path)).train[0]) == 7


def test_images_of_another_size_are_resized(cifar, tmp_path):
    make_tree(tmp_path / "cifar100", size=(50, 40))
    data = cifar["load_data"]("cifar100", str(tmp_path))
    assert data.test[0].shape == (6, 3, 32, 32)


def test_an_unreadable_image_is_named(cifar, tmp_path):
    make_tree(tmp_path / "cifar10")
    (tmp_path / "cifar10" / "test" / "cat" / "1.png").write_bytes(b"no image")
    with pytest.raises(cifar["Stop"], match=r"cat/1\.png cannot be read"):
        cifar["load_data"]("auto", str(tmp_path))


def test_an_empty_folder_says_what_it_needs(cifar, tmp_path):
    (tmp_path / "cifar10" / "train" / "cat").mkdir(parents=True)
    with pytest.raises(cifar["Stop"], match="holds no images; it needs one folder for each class"):
        cifar["load_data"]("auto", str(tmp_path))


def test_without_data_auto_is_synthetic_and_says_so_while_a_name_stops(cifar, tmp_path, monkeypatch, capsys):
    def offline(name, folder):
        raise OSError("no network")

    monkeypatch.setitem(cifar, "read_torchvision", offline)
    assert cifar["load_data"]("auto", str(tmp_path)).source == "synthetic"
    assert "MADE-UP IMAGES" in capsys.readouterr().out
    with pytest.raises(cifar["Stop"], match=r"could not be downloaded .*train/<class>/"):
        cifar["load_data"]("cifar100", str(tmp_path))


@pytest.mark.parametrize("another_is_faster", [False, True])
def test_a_download_is_moved_into_place_whole(cifar, tmp_path, monkeypatch, another_is_faster):
    class Made:
        base_folder = "made"
        classes = ("a", "b")

        def __init__(self, folder, train=True, download=False):
            if download:
                (Path(folder) / "made").mkdir()
                (Path(folder) / "made" / "file").write_text("x")
                if another_is_faster:
                    shutil.copytree(Path(folder) / "made", tmp_path / "new" / "made", dirs_exist_ok=True)
            assert (Path(folder) / "made" / "file").exists()
            self.data, self.targets = np.zeros((4, 32, 32, 3), np.uint8), [0, 1, 0, 1]

    monkeypatch.setitem(cifar["CIFAR"], "cifar10", Made)
    data = cifar["read_torchvision"]("cifar10", tmp_path / "new")
    assert data.train[0].shape == (4, 3, 32, 32)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["made"]

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cifar["os"], "replace", refuse)
    monkeypatch.setattr(Made, "base_folder", "elsewhere")
    with pytest.raises(OSError, match="Permission denied"):
        cifar["read_torchvision"]("cifar10", tmp_path / "other")


def test_gpu_batches_crop_flip_and_repeat_with_the_seed(cifar):
    padded, labels = cifar["padded"], cifar["train_labels"]
    first = list(cifar["itertools"].islice(cifar["gpu_batches"](padded, labels, 0, torch.float32, 4), 3))
    again = list(cifar["itertools"].islice(cifar["gpu_batches"](padded, labels, 0, torch.float32, 4), 3))
    other = next(cifar["gpu_batches"](padded, labels, 1, torch.float32, 4))
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0][0], other[0])
    # Every image is a window of a padded one, or its mirror image.
    generator = torch.Generator(CPU).manual_seed(0)
    chosen = torch.randperm(len(padded), generator=generator)[0]
    windows = padded[chosen].unfold(1, 32, 1).unfold(2, 32, 1).permute(1, 2, 0, 3, 4).reshape(-1, 3, 32, 32)
    shown = (first[0][0][0] * cifar["STD"] + cifar["MEAN"]).round().to(torch.uint8)
    assert any(torch.equal(shown, w) or torch.equal(shown, w.flip(2)) for w in windows)


def test_the_ordinary_loader_gives_the_same_kind_of_batches(cifar):
    images, labels = next(cifar["worker_batches"](0, torch.float16, 4))
    assert images.shape == (4, 3, 32, 32)
    assert images.dtype == torch.float16
    assert labels.shape == (4,)
    assert abs(images.float().mean()) < 1


def test_the_learning_rate_rises_and_falls_to_zero(cifar):
    steps = cifar["steps_in_epoch"](4)
    total = steps * cifar["epochs"]
    rates = [cifar["lr_at"](step, steps) for step in range(total)]
    assert max(rates) == pytest.approx(0.1)
    assert rates.index(max(rates)) <= 0.2 * total
    assert rates[-1] < rates[0] + 0.1
    assert all(rate > 0 for rate in rates)
    assert cifar["lr_at"](total, steps) == 0


# EfficientNet


def test_the_regression_model_has_one_output_and_steps(regression):
    network = regression["make_network"]("tf_efficientnet_b0")
    assert network(torch.zeros(2, 3, 32, 48)).shape == (2, 1)
    assert_steps(regression, network, (torch.randn(2, 3, 32, 48), torch.tensor([0.0, 1 / 3])))


def write_csv(path, rows, columns=("path", "image", "label")):
    with path.open("w", newline="") as opened:
        csv.writer(opened).writerows([columns, *rows])
    return str(path)


def test_a_csv_of_images_is_read(regression, tmp_path):
    for number in range(3):
        save_image(tmp_path / "pictures" / f"{number}.png", 80 * number, (20, 10), "L" if number else "RGB")
    path = write_csv(tmp_path / "mine.csv", [("pictures", f"{n}.png", n * 10) for n in range(3)])
    data = regression["load_data"]("auto", path)
    assert (data.source, data.labels.tolist()) == ("csv", [0, 10, 20])
    image = data.read(2)
    assert image.shape == (3, 32, 48)
    assert image.dtype == torch.uint8
    assert image.float().mean() == 160


def test_wrong_csv_files_stop_with_one_sentence(regression, tmp_path):
    save_image(tmp_path / "a.png")
    wrong = {
        "lacks the column 'label'": write_csv(tmp_path / "1.csv", [(".", "a.png", 1)], ("path", "image", "labels")),
        "has no rows": write_csv(tmp_path / "2.csv", []),
        "label 'high' in row 3 is not a number": write_csv(
            tmp_path / "3.csv", [(".", "a.png", 1), (".", "a.png", "high")]
        ),
        "cannot be read as a CSV": str(tmp_path / "none.csv"),
    }
    for sentence, path in wrong.items():
        with pytest.raises(regression["Stop"], match=sentence):
            regression["load_data"]("csv", path)
    with pytest.raises(regression["Stop"], match="csv_path is empty"):
        regression["load_data"]("csv", "")
    (tmp_path / "b.png").write_bytes(b"no image")
    data = regression["load_data"]("csv", write_csv(tmp_path / "4.csv", [(".", "b.png", 1), (".", "c.png", 1)]))
    for index, name in enumerate(("b.png", "c.png")):
        with pytest.raises(regression["Stop"], match=f"{name} cannot be read"):
            data.read(index)


def test_elpv_comes_from_its_package_or_is_asked_for(regression, monkeypatch, capsys):
    pytest.importorskip("elpv_dataset")
    data = regression["load_data"]("auto", "")
    assert (data.used, data.source, len(data.labels)) == ("elpv", "package", 2624)
    assert sorted({round(label, 2) for label in data.labels.tolist()}) == [0, 0.33, 0.67, 1]
    assert data.read(0).shape == (1, 32, 48)
    missing = "mixed_precision_study.environment.missing_packages"
    monkeypatch.setattr(missing, lambda packages: list(packages.values()))
    with pytest.raises(regression["Stop"], match="pip install elpv-dataset"):
        regression["load_data"]("elpv", "")
    assert regression["load_data"]("auto", "").source == "synthetic"
    assert "MADE-UP IMAGES" in capsys.readouterr().out

    def offline(command, check):
        raise regression["subprocess"].CalledProcessError(1, command)

    monkeypatch.setenv("COLAB_RELEASE_TAG", "1")  # there it is installed, if there is a network
    monkeypatch.setattr(regression["subprocess"], "run", offline)
    assert regression["load_data"]("auto", "").source == "synthetic"
    with pytest.raises(regression["Stop"], match="pip install elpv-dataset"):
        regression["load_data"]("elpv", "")


def test_both_losses_and_the_error_in_units_of_the_label(regression, monkeypatch):
    batch = (torch.zeros(2, 3, 32, 48), torch.tensor([0.0, 1.0]))

    def network(images):
        return torch.zeros(len(images), 1)

    assert regression["compute_loss"](network, batch, None)[0].item() == pytest.approx(math.log(2))
    monkeypatch.setitem(regression, "loss_function", "mse")
    assert regression["compute_loss"](network, batch, None)[0].item() == pytest.approx(0.5)


def test_labels_beyond_0_to_1_ask_for_mse(tmp_path):
    save_image(tmp_path / "a.png")
    path = write_csv(tmp_path / "mine.csv", [(".", "a.png", value) for value in (0, 5)])
    with pytest.raises(Exception, match='reach from 0 to 5, beyond 0 to 1; set loss_function to "mse"'):
        run_cells("efficientnet_regression", "data-choice", csv_path=path)


def test_the_held_out_images_are_a_fifth_and_never_trained_on(regression):
    training, held_out = set(regression["training"].tolist()), set(regression["held_out"].tolist())
    assert not training & held_out
    assert len(held_out) == len(training | held_out) // 5


# Language model


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("words", [16, 33])
def test_every_language_model_builds_and_steps(language, kind, words):
    network = language["LanguageModel"](kind, words, 8, 2, 0.2)
    text = torch.randint(words, (6, 3))
    assert network(text)[0].shape == (6, 3, -(-words // 8) * 8)
    assert_steps(language, network, (text[:5], text[1:]))


def test_padding_the_vocabulary_leaves_loss_and_gradient_right(language):
    torch.manual_seed(0)
    network = language["LanguageModel"]("lstm", 33, 8, 1, 0.0)
    text = torch.randint(33, (6, 3))
    loss, _ = language["compute_loss"](network, (text[:5], text[1:]), None)
    logits = network(text[:5])[0]
    exact = torch.nn.functional.cross_entropy(logits[..., :33].flatten(0, 1), text[1:].flatten())
    assert loss.item() == pytest.approx(exact.item(), rel=1e-6)
    loss.backward()
    assert network.decoder.weight.grad[33:].abs().max() == 0
    assert network.decoder.bias.grad[33:].abs().max() == 0
    assert network.decoder.weight.grad[:33].abs().max() > 0


def test_the_hidden_state_is_carried_without_its_history(language):
    for kind in ("lstm", "gru"):
        network, text = language["LanguageModel"](kind, 16, 8, 1, 0.0), torch.randint(16, (11, 3))
        whole = network(text[:10])[0]
        _, carry = language["compute_loss"](network, (text[:5], text[1:6]), None)
        parts = carry if isinstance(carry, tuple) else (carry,)
        assert not any(part.requires_grad for part in parts)
        assert torch.allclose(network(text[5:10], carry)[0], whole[5:], atol=1e-6)


def test_text_becomes_columns_and_steps(language):
    rows = language["in_columns"](torch.arange(47), 4)
    assert rows.shape == (11, 4)
    assert rows[:3, 1].tolist() == [11, 12, 13]
    batches = list(language["text_batches"](rows))  # bptt is 5
    assert len(batches) == 2
    assert all(torch.equal(words + 1, following) for words, following in batches)
    with pytest.raises(language["Stop"], match="too short for 4 columns"):
        language["in_columns"](torch.arange(20), 4)


def test_wikitext_lines_become_numbers(language, tmp_path):
    (tmp_path / "train.txt").write_text(" \n = Title = \n a b <unk> a\n", encoding="utf-8")
    (tmp_path / "valid.txt").write_text("b strange\n", encoding="utf-8")
    train, valid = (language["read_words"](tmp_path / name) for name in ("train.txt", "valid.txt"))
    assert train == ["<eos>", "=", "Title", "=", "<eos>", "a", "b", "<unk>", "a", "<eos>"]
    vocabulary, (_, numbers) = language["number_words"](train, valid)
    assert numbers.tolist() == [vocabulary["b"], vocabulary["<unk>"], vocabulary["<eos>"]]
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(language["Stop"], match=r"bad\.txt cannot be read .*UTF-8"):
        language["read_words"](tmp_path / "bad.txt")


def test_guessing_by_frequency_gives_the_perplexity_of_that_guess(language, monkeypatch):
    data = language["SimpleNamespace"](train=torch.tensor([0, 0, 1]), valid=torch.tensor([0, 1]), vocabulary="ab")
    monkeypatch.setitem(language, "data", data)
    assert language["chance_perplexity"]() == pytest.approx(math.sqrt(5 / 3 * 5 / 2))


@pytest.fixture
def server(tmp_path):
    """A local server of the files in tmp_path / "served"; yields its address."""
    (tmp_path / "served").mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(tmp_path / "served"))

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}/"
        served.shutdown()


def test_a_download_is_checked_before_it_is_kept(language, tmp_path, server, monkeypatch, capsys):
    contents = {name: f"a b {name}\n".encode() * 50 for name in ("train.txt", "valid.txt", "test.txt")}
    for name, content in contents.items():
        (tmp_path / "served" / name).write_bytes(content)
    blobs = {name: language["git_blob"](content) for name, content in contents.items()}
    monkeypatch.setitem(language, "WIKITEXT_URL", server)
    monkeypatch.setitem(language, "WIKITEXT_BLOBS", {**blobs, "valid.txt": "0" * 40})
    with pytest.raises(language["Stop"], match=r"valid\.txt came with a wrong checksum"):
        language["load_data"]("wikitext-2", str(tmp_path / "data"))
    assert [path.name for path in (tmp_path / "data" / "wikitext-2").iterdir()] == ["train.txt"]
    assert language["load_data"]("auto", str(tmp_path / "data")).source == "synthetic"
    assert "wrong checksum" in capsys.readouterr().out
    monkeypatch.setitem(language, "WIKITEXT_BLOBS", blobs)
    data = language["load_data"]("auto", str(tmp_path / "data"))
    assert (data.source, data.used) == ("download", "wikitext-2")
    assert language["load_data"]("auto", str(tmp_path / "data")).source == "folder"


def test_the_checksum_is_gits_own(language):
    assert language["git_blob"](b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"


# Each file alone


SMALL = {
    "cifar_resnet": {"batch_size": 2},
    "efficientnet_regression": {"batch_size": 2, "image_height": 32, "image_width": 32},
    "lstm_language_model": {"batch_size": 4, "bptt": 5},
}
MODES = ["fp32", "tf32", "amp_fp16", "amp_bf16", "o2_fp16", "o3_fp16"]


def papermill(notebook, folder, **parameters):
    """Run a notebook as `papermill NOTEBOOK out.ipynb` does, in `folder`, and return the finished process."""
    command = [sys.executable, "-m", "papermill", notebook, "out.ipynb", "-k", "python3", "--no-progress-bar"]
    for name, value in parameters.items():
        command += ["-y", json.dumps({name: value})]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}  # as where the package is installed
    options = {"env": environment, "capture_output": True, "text": True, "check": False, "timeout": 600}
    return subprocess.run(command, cwd=folder, **options)


@pytest.mark.parametrize("notebook", ["cifar", "regression", "language"])
def test_a_training_is_written_before_it_is_explained(notebook, request, monkeypatch, tmp_path):
    """A run that is ended in its explanation, which takes longer than a short training, keeps what was measured."""

    def ended(*_):
        raise KeyboardInterrupt  # which no guard holds up, as little as a kill

    names = request.getfixturevalue(notebook)
    facts = {"metric_name": "m", "metric_better": "higher", "sample_unit": "s"}
    for name, value in {"measure_inference": ended, "epochs": 1, "output_dir": str(tmp_path)}.items():
        monkeypatch.setitem(names, name, value)
    record = names["new_record"](notebook, names["parameters"], "fp32", facts | names["card_facts"])
    with pytest.raises(KeyboardInterrupt), names["guarded"](record, str(tmp_path), CPU):
        names["train_and_evaluate"](record, "fp32")
    (path,) = tmp_path.glob("*.json")
    kept = json.loads(path.read_text())
    assert kept["status"] == "ok" and kept["finished_at"] >= kept["started_at"]
    assert len(kept["epoch_seconds"]) == len(kept["metric"]) == 1 and kept["samples_per_second"] > 0
    assert kept["profile_reason"] == kept["inference_reason"] == "the run was ended before it was explained"
    assert kept["gradient_reason"] is None  # of fp16 alone
    assert record.profile_reason is None  # it is the copy that says so


@beside(*EXPERIMENTS)
def notebook_alone(folder, name):
    """(name, folder, process) of a notebook that was copied alone into an empty folder."""
    (folder / f"{name}.ipynb").write_bytes((NOTEBOOKS / f"{name}.ipynb").read_bytes())
    asked = {"dataset": "synthetic", "max_steps": 2, "epochs": 1, "repeats": 2, "precisions": MODES, **SMALL[name]}
    return lambda: (name, folder, papermill(f"{name}.ipynb", folder, **asked))


def test_a_notebook_copied_alone_into_an_empty_folder_runs(notebook_alone):
    name, folder, done = notebook_alone
    small = SMALL[name]
    assert done.returncode == 0, done.stderr[-2000:]
    records = {r["precision"]: r for r in (json.loads(p.read_text()) for p in (folder / "outputs").glob("*.json"))}
    assert set(records) == set(MODES)
    for precision, record in records.items():
        expected = "ok" if precision in ("fp32", "amp_bf16") else "unsupported"
        assert record["status"] == expected, record["reason"]
        assert record["device_type"] == "cpu"
        assert record["synthetic"] is True
        assert record["batch_size"] == small["batch_size"]
        if expected == "ok":
            assert len(record["epoch_seconds"]) == len(record["metric"]) == len(record["train_loss"]) == 2
            assert record["train_loss"][0] == pytest.approx(record["train_loss"][1], rel=1e-3)  # the same start
            assert record["steps_per_epoch"] == 2
            assert record["chance_metric"] > 0
            assert record["peak_allocated_mib"] is None
            assert len(record["block_seconds"]) == 4  # a block for each of two steps, twice
            assert sum(record["block_seconds"]) <= sum(record["epoch_seconds"]) + 1e-6
            assert 0 <= record["data_wait_fraction"] < 1
            for what in ("card", "energy", "profile", "limit", "ledger", "device_memory", "search"):
                assert record[f"{what}_reason"] == "no GPU"
            for name in ("energy_joules", "gpu_busy_fraction", "flops_per_step", "ledger_activations_mib", "throttled"):
                assert record[name] is None  # never zero
        else:
            assert "needs an NVIDIA GPU" in record["reason"]
    assert records["amp_bf16"]["autocast_dtype"] == "bfloat16"
    parts = [records["fp32"][f"startup_{part}_seconds"] for part in ("import", "preflight", "data", "model", "warmup")]
    assert all(seconds > 0 for seconds in parts)
    assert records["fp32"]["startup_seconds"] == pytest.approx(sum(parts))
    assert records["fp32"]["startup_warmup_seconds"] > records["fp32"]["warmup_seconds"] / 2  # that of the last repeat
    assert records["amp_bf16"]["startup_reason"] == "not the first run of its kernel"
    assert records["fp32"]["search_seconds"] is records["amp_bf16"]["startup_seconds"] is None
    executed = (folder / "out.ipynb").read_text()
    assert "it/s]" not in executed  # no progress bar was asked for
    texts = [output.get("text", "") for output in outputs_of(json.loads(executed))]
    assert sum("The checks took" in "".join(text) for text in texts) == 1
    assert "".join("".join(text) for text in texts).count(" s to the first timed step (import ") == 1
    tables = ["".join(output["data"].get("text/html", "")) for output in outputs_of(json.loads(executed), "data")]
    assert sum(table.count("needs an NVIDIA GPU; this run is on the CPU") == 4 for table in tables) >= 1


def outputs_of(notebook, kind=None):
    """Return all outputs of a notebook's cells; those that have `kind`, where it is given."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return [output for output in outputs if kind is None or kind in output]


@beside()
def wrong_value(folder):
    (folder / "outputs").mkdir()
    (folder / "outputs" / "old.json").write_text("{}")
    return lambda: (folder, papermill(str(NOTEBOOKS / "lstm_language_model.ipynb"), folder, precisions=["fp99"]))


def test_a_wrong_value_is_one_sentence_and_touches_no_record(wrong_value):
    folder, done = wrong_value
    assert done.returncode != 0
    errors = [
        output
        for cell in json.loads((folder / "out.ipynb").read_text())["cells"]
        for output in cell.get("outputs", [])
        if output["output_type"] == "error"
    ]
    assert len(errors) == 1
    assert errors[0]["traceback"] == [f"Stopped: {errors[0]['evalue']}"]
    assert "some of fp32, tf32, amp_fp16, amp_bf16, o2_fp16, o3_fp16" in errors[0]["evalue"]
    assert [path.name for path in (folder / "outputs").iterdir()] == ["old.json"]
