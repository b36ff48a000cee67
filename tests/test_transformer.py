"""transformer.ipynb: its GPT trains as a plain loop does, its data, and what its parameters do."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from conftest import CASES, experiment_of, refuses, run_cells, settings_of
from plain_gpt import PlainGpt, plain_losses

from mixed_precision_study.parameters import PLANNED_ENV
from mixed_precision_study.tasks import byte_text
from mixed_precision_study.train.precision import set_fp32_precision

pytestmark = pytest.mark.any_python
SMALL = {
    "dataset": "synthetic",
    "width": 64,
    "layers": 2,
    "context": 32,
    "batch_size": 4,
    "epochs": 1,
    "max_steps": 12,
    "lr": 0.003,
}
CPU = torch.device("cpu")
# how far losses may be apart, in units of a loss
NEAR = {"fp32": 1e-6, "tf32": 1e-3, "amp_fp16": 2e-3, "amp_bf16": 1e-2}


def load(**changes):
    """Return the data of a small training."""
    return byte_text.load(settings_of("transformer", SMALL | changes), CPU)


def losses_of(experiment, precision):
    """Return (losses of the steps as the notebook takes them, those of a plain loop)."""
    set_fp32_precision(precision)
    trainer = experiment.make_trainer(precision)
    plain = PlainGpt(trainer.network.parameters(), experiment.parameters.layers)
    steps = experiment.parameters.max_steps
    lr_at = experiment.lr_at(SimpleNamespace(steps_per_epoch=steps), [])
    batches = [*experiment.batches(0, precision, experiment.parameters.batch_size)]
    losses = []
    for step, batch in enumerate(batches):
        trainer.set_lr(lr_at(step))
        losses.append(trainer.step(batch)[0].item())
    return losses, plain_losses(plain, batches, precision, experiment.parameters.lr)


@pytest.mark.parametrize("execution", ["eager", "cuda_graph"])
@pytest.mark.parametrize("precision", ["fp32", "amp_fp16", "amp_bf16"])
def test_each_step_is_that_of_a_plain_loop(precision, execution):
    ours, plain = losses_of(experiment_of("transformer", **SMALL, execution=execution), precision)
    assert len(ours) == 12 and plain[-1] < plain[0] - 0.3
    is_exact = execution == "eager" and precision != "amp_fp16"
    assert ours == pytest.approx(plain, abs=1e-6 if is_exact else NEAR[precision])


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("execution", ["eager", "compile", "cuda_graph", "compile_cuda_graph"])
@pytest.mark.parametrize("precision", NEAR)
def test_each_step_on_a_gpu_is_that_of_a_plain_loop(precision, execution):
    ours, plain = losses_of(experiment_of("transformer", **SMALL, execution=execution), precision)
    print(f"{precision} {execution}: {max(abs(a - b) for a, b in zip(ours, plain, strict=True))}")
    assert ours == pytest.approx(plain, abs=10 * NEAR[precision])


def test_a_record_has_the_means_and_bits_of_a_plain_loop():
    given = {**SMALL, "precisions": ["fp32"], "epochs": 2}
    names = run_cells("transformer", "run", **given)
    (record,), data = names["records"], names["data"]
    batches = [one for epoch in (0, 1) for one in data.train_batches(epoch, torch.float32, 4)]
    torch.manual_seed(0)
    plain = PlainGpt(names["make_model"]().parameters(), 2)
    losses = plain_losses(plain, batches, "fp32", SMALL["lr"])
    means = [sum(part) / 12 for part in (losses[:12], losses[12:])]
    assert record.train_loss == pytest.approx(means, rel=1e-5)
    held_out = [*data.eval_batches(torch.float32, 4)]
    with torch.no_grad():
        logits = torch.cat([plain(tokens) for tokens, _ in held_out]).flatten(0, 1)
    wanted = torch.cat([one for _, one in held_out]).flatten()
    bits = torch.nn.functional.cross_entropy(logits, wanted).item() / math.log(2)
    assert record.metric[-1] == pytest.approx(bits, rel=1e-5)
    assert record.metric[-1] < record.chance_metric + 1.5
    assert record.metric_name == "bits per byte" and record.attention_reason == "no GPU"


CHANGES = [
    {"attention_dtype": "fp32"},
    {"attention": "math"},
    {"attention": "flash"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_kernel_or_its_type_changes_no_loss(change):
    given = {**SMALL, "precisions": ["fp32"], "max_steps": 5}
    (usual,) = run_cells("transformer", "run", **given)["records"]
    (record,) = run_cells("transformer", "run", **given, **change)["records"]
    assert record.status == "ok", record.reason
    assert record.train_loss == pytest.approx(usual.train_loss, rel=1e-5)
    assert torch.backends.cuda.math_sdp_enabled() and torch.backends.cuda.flash_sdp_enabled()


def test_attention_takes_the_type_that_is_asked_for(monkeypatch):
    seen = []
    real = torch.nn.functional.scaled_dot_product_attention

    def noted(query, *others, **options):
        seen.append(query.dtype)
        return real(query, *others, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    for dtype in ("auto", "bf16", "fp32"):
        names = run_cells("transformer", "model", **SMALL, attention_dtype=dtype)
        with torch.autocast("cpu", torch.bfloat16):
            names["make_model"]()(torch.zeros(1, 8, dtype=torch.long))
    # before the model is described, too
    assert [*dict.fromkeys(seen)] == [torch.float32, torch.bfloat16]
    assert seen[-2:] == [torch.float32, torch.float32] and seen.count(torch.bfloat16) >= 4


def test_trained_weights_begin_another_training(tmp_path):
    given = SMALL | {"precisions": ["fp32"], "lr": 0.01, "data_dir": str(tmp_path)}
    (first,) = run_cells("transformer", "run", **given, save_to="weights")["records"]
    given |= {"init_from": "weights-fp32.pt"}
    (second,) = run_cells("transformer", "run", **given)["records"]
    assert second.train_loss[0] < first.train_loss[0] - 0.3
    assert first.identity is None and len(second.identity["weights"]) == 12
    for wrong, says in (({"layers": 1}, "another model"), ({"init_from": "b.pt"}, r"b\.pt")):
        with refuses(says):
            run_cells("transformer", "run", **given | wrong)


def test_seeds_of_one_process_train_as_alone(monkeypatch):
    given = SMALL | {"precisions": ["fp32"], "max_steps": 3}
    alone = [run_cells("transformer", "run", **given, seed=seed)["records"][0] for seed in (1, 2)]
    assert alone[0].train_loss != alone[1].train_loss
    settings = vars(settings_of("transformer", given | {"seed": 1}))
    ways = [{"seed": 1}, {"seed": 2}]
    plan = {"parameters": settings, "given": [*settings], "ways": ways}
    monkeypatch.setenv(PLANNED_ENV, json.dumps(plan))
    together = run_cells("transformer", "run", **given, seed=1)["records"]
    assert [one.settings["seed"] for one in together] == [1, 2]
    assert [one.train_loss for one in together] == [one.train_loss for one in alone]
    assert len({one.run_id for one in together}) == 2


@pytest.mark.parametrize(
    "given, says",
    CASES["wrong transformers"],
)
def test_a_wrong_value_is_one_sentence(given, says):
    with refuses(says):
        run_cells("transformer", "data", **SMALL | given)


def test_each_window_is_read_once_in_an_order_of_seed_and_epoch():
    data = load(max_steps=0)
    steps = data.steps_per_epoch(4)
    epochs = [[*data.train_batches(epoch, torch.float32, 4)] for epoch in (0, 0, 1)]
    firsts = [[tuple(tokens[:, 0].tolist()) for tokens, _ in epoch] for epoch in epochs]
    assert [len(epoch) for epoch in epochs] == [steps] * 3 == [312] * 3
    assert firsts[0] == firsts[1] != firsts[2] and sorted(firsts[0]) == sorted(firsts[2])
    for tokens, next_tokens in epochs[0]:
        assert tokens.shape == next_tokens.shape == (4, 32)
        assert tokens[:, 1:].equal(next_tokens[:, :-1])
    held_out = data.eval_batches(torch.float32, 400)
    assert {tuple(tokens.shape) for tokens, _ in held_out} == {(10, 32)}  # never joined
    other = load(seed=1, max_steps=0)
    data.settings.asked.seed = 1  # as a later way of one process sets it
    seeded = [
        [one[:, 0].tolist() for one, _ in some.train_batches(0, None, 4)] for some in (data, other)
    ]
    assert seeded[0] == seeded[1] and tuple(seeded[0][0]) != firsts[0][0]


def test_a_text_file_is_read_as_bytes_and_its_end_is_held_out(tmp_path):
    (tmp_path / "own.txt").write_bytes(bytes(range(250)) * 40)
    data = load(data_dir=str(tmp_path), dataset="own.txt", context=16)
    assert (data.used, data.source, len(data.vocabulary)) == ("own.txt", "folder", 256)
    assert (data.train_samples, data.eval_samples) == (9_000, 1_000)
    assert data.train[:3].tolist() == [0, 1, 2] and data.chance == pytest.approx(250, rel=0.01)
    (tmp_path / "own.txt").write_bytes(bytes(range(251)) * 40)
    assert load(data_dir=str(tmp_path), dataset="own.txt", context=16).fingerprint != (
        data.fingerprint
    )
