"""What the published CIFAR experiments need: the wide ResNet, enlarged images, schedules and the training log."""

import pytest
import torch
from conftest import run_cells

SMALL = {"dataset": "synthetic", "batch_size": 4, "max_steps": 2}


@pytest.fixture(scope="module")
def cifar():
    return run_cells("cifar_resnet", "train", **SMALL)


def test_the_wide_resnet_is_the_published_one(cifar):
    network = cifar["make_network"]("wide_resnet28_10", 10)
    assert sum(weight.numel() for weight in network.parameters()) == 36_479_194  # 36.5 million in the paper
    convolutions = [m for m in network.modules() if isinstance(m, torch.nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) == 25  # with the three shortcuts of 1 x 1: 28
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_dropout_reaches_every_block_of_the_wide_resnet_and_timms_models():
    names = run_cells("cifar_resnet", "train", **SMALL, dropout=0.3)
    blocks = [m for m in names["make_network"]("wide_resnet28_10", 10).modules() if isinstance(m, names["WideBlock"])]
    assert len(blocks) == 12
    assert {block.dropout.p for block in blocks} == {0.3}
    assert names["make_network"]("resnet18", 10).drop_rate == 0.3


def test_a_shortcut_carries_the_input_where_shapes_agree(cifar):
    block = cifar["WideBlock"](8, 8, 1, 0.0).eval()
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 8, 4, 4)
    assert torch.equal(block(x), x)
    assert cifar["WideBlock"](8, 16, 2, 0.0)(x).shape == (2, 16, 2, 2)


@pytest.mark.parametrize("model", ["dpn48b", "dpn92"])
def test_a_dual_path_network_takes_a_step(cifar, model):
    trainer = cifar["Trainer"](
        cifar["make_network"](model, 10), "fp32", cifar["compute_loss"], device=torch.device("cpu"), lr=0.01
    )
    before = [weight.detach().clone() for weight in trainer.weights]
    loss, _ = trainer.step((torch.randn(2, 3, 32, 32), torch.tensor([1, 2])))
    assert loss.isfinite()
    assert any(not torch.equal(old, new) for old, new in zip(before, trainer.weights, strict=True))


@pytest.mark.parametrize("model", ["dpn48b", "dpn92", "resnet18"])
def test_images_of_32_pixels_reach_the_first_stage_at_full_size(cifar, model):
    network = cifar["make_network"](model, 10)
    stage, seen = network.layer1 if model == "resnet18" else network.features.conv2_1, []
    stage.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[2:]))
    network(torch.zeros(1, 3, 32, 32))
    assert seen == [(32, 32)]


def test_enlarged_images_keep_their_mean_and_get_the_stem_of_imagenet():
    names = run_cells("cifar_resnet", "train", **SMALL, image_size=64)
    images, _ = next(names["train_batches"](0, torch.float32, names["batch_size"]))
    assert images.shape == (4, 3, 64, 64)
    raw = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    plain = (raw - names["MEAN"]) / names["STD"]
    assert names["normalise"](raw, torch.float32).mean() == pytest.approx(plain.mean().item(), abs=1e-3)
    network = names["make_network"]("resnet18", 10)
    assert network.conv1.kernel_size == (7, 7)
    assert names["make_network"]("dpn92", 10).features.conv1_1.conv.stride == (2, 2)
    assert network(images).shape == (4, 10)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("triangle", [0.05, 0.1, 0.1, 0.0875, 0.075, 0.0625, 0.05, 0.0375, 0.025, 0.0125]),
        ("warmup", [0.02, 0.04, 0.06, 0.08, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]),
        ("constant", [0.1] * 10),
    ],
)
def test_schedules(cifar, monkeypatch, schedule, rates):
    for name, value in {"schedule": schedule, "epochs": 2, "lr": 0.1}.items():
        monkeypatch.setitem(cifar, name, value)
    assert [cifar["lr_at"](step, 5) for step in range(10)] == pytest.approx(rates)


def test_the_training_log_counts_what_was_right():
    names = run_cells("cifar_resnet", "loop", **SMALL | {"max_steps": 3}, epochs=2, log_every=2, precisions=["fp32"])
    (record,) = names["records"]
    assert [entry[:2] for entry in record.training_log] == [[1, 2], [2, 2]]
    for _, _, loss, accuracy in record.training_log:
        assert loss > 0
        assert accuracy * 8 in range(9)  # of two batches of four
    assert record.status == "ok"


def test_without_a_log_nothing_is_noted():
    names = run_cells("cifar_resnet", "loop", **SMALL, epochs=1, precisions=["fp32"])
    assert names["records"][0].training_log == []


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"schedule": "cosine"}, "schedule is 'cosine'"),
        ({"image_size": 0}, "image_size is 0"),
        ({"log_every": -1}, "log"),
    ],
)
def test_wrong_values_stop_with_a_sentence(wrong, sentence):
    with pytest.raises(Exception, match=sentence) as stopped:
        run_cells("cifar_resnet", "check", **wrong)
    assert type(stopped.value).__name__ == "Stop"


def test_own_models_are_possible_and_misspelt_ones_are_not():
    assert run_cells("cifar_resnet", "check", model="wide_resnet28_10")["parameters"]["model"] == "wide_resnet28_10"
    with pytest.raises(Exception, match="'wide_resnet28' is not in timm"):
        run_cells("cifar_resnet", "check", model="wide_resnet28")


@pytest.mark.parametrize("options", [{}, {"image_size": 48, "channels_last": True}])
def test_batches_made_together_are_those_made_one_by_one(options):
    names = run_cells("cifar_resnet", "batches", dataset="synthetic", batch_size=300, **options)
    padded, labels, normalise = (names[name] for name in ("padded", "train_labels", "normalise"))
    draw = {"generator": torch.Generator().manual_seed(3)}
    order = torch.randperm(len(padded), **draw)
    tops, lefts = (torch.randint(9, (len(padded), 1), **draw) for _ in range(2))
    mirrored = torch.rand(len(padded), 1, **draw) >= 0.5
    batches = list(names["train_batches"](3, torch.float32, 300))
    assert [len(images) for images, _ in batches] == [300] * 6  # of 2,000 images; 16 MiB hold four batches of 32 x 32
    for number, (images, given) in enumerate(batches):
        places = order[300 * number : 300 * (number + 1)]
        assert torch.equal(given, labels[places])
        for place in (0, 299):
            at = 300 * number + place
            window = padded[places[place], :, tops[at] : tops[at] + 32, lefts[at] : lefts[at] + 32]
            window = window.flip(-1) if mirrored[at] else window
            torch.testing.assert_close(images[place], normalise(window[None], torch.float32)[0])
        assert images.is_contiguous(memory_format=torch.channels_last if options else torch.contiguous_format)
