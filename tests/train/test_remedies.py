"""What makes a training fit: the same losses where arithmetic stays, less memory, and one sentence
where two remedies exclude each other.
"""

import importlib.util
import sys

import pytest
import torch
from conftest import CASES, experiment_of, refuses, run_cells
from small_training import Words, sgd_trainer, text, word_loss

from mixed_precision_study import compare
from mixed_precision_study.parameters import Unsupported

SMALL = {
    "dataset": "synthetic",
    "width": 64,
    "layers": 4,
    "context": 32,
    "batch_size": 4,
    "epochs": 1,
    "max_steps": 4,
    "lr": 0.003,
    "clip": 0.0,
    "precisions": ["fp32", "amp_bf16"],
}
VIT = {
    "dataset": "synthetic",
    "model": "vit_tiny_patch16_224",
    "batch_size": 4,
    "epochs": 1,
    "max_steps": 2,
    "optimizer": "adamw",
    "precisions": ["amp_bf16"],
}
EXACT = [
    {"checkpointing": 2, "offload": True},
    {"optimizer_in_backward": True, "checkpointing": 1, "offload": True},
]


def losses(notebook="transformer", **given):
    records = run_cells(notebook, "run", **given)["records"]
    assert [one.status for one in records] == ["ok"] * len(records), records[-1].reason
    return [loss for one in records for loss in (*one.train_loss, *one.metric)]


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return losses(**SMALL, output_dir=str(tmp_path_factory.mktemp("usual")))


@pytest.mark.parametrize("remedy", EXACT, ids=str)
def test_what_changes_no_arithmetic_changes_no_bit(remedy, usual):
    assert losses(**SMALL, **remedy) == usual


def test_what_adds_in_another_order_changes_the_last_digits(usual):
    for remedy in ({"micro_batches": 4}, {"loss_chunks": 4}):
        assert losses(**SMALL, **remedy) == pytest.approx(usual, rel=1e-3)


@pytest.mark.slow
def test_a_vit_of_timm_is_remedied_alike():
    exact = EXACT[-1]
    assert losses("cifar_resnet", **VIT, **exact) == losses("cifar_resnet", **VIT)
    (record,) = run_cells("cifar_resnet", "run", **VIT | {"model": "resnet18"}, checkpointing=1)[
        "records"
    ]
    assert record.status == "unsupported" and "batch normalisation" in record.reason


def saved_bytes(**remedy):
    """Return (bytes that the forward pass saves, most gradients that are alive at once)."""
    experiment = experiment_of("transformer", **SMALL, **remedy)
    trainer = experiment.make_trainer("fp32")
    saved, alive = {}, []

    def pack(tensor):
        saved[tensor.data_ptr()] = tensor.nbytes
        return tensor

    def note(_):
        alive.append(sum(weight.grad is not None for weight in trainer.weights))

    for weight in trainer.weights:
        weight.register_post_accumulate_grad_hook(note)
    loss_of = trainer.loss_of

    def noted(*arguments):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            return loss_of(*arguments)

    trainer.loss_of = noted
    trainer.step(next(experiment.batches(0, "fp32", 4)))
    return sum(saved.values()), max(alive)


def test_activations_and_gradients_are_fewer():
    plain, every, second = (saved_bytes(checkpointing=number) for number in (0, 1, 2))
    assert every[0] < 0.7 * second[0] < 0.7 * plain[0]
    assert plain[1] == every[1] == 4 * 6 + 3
    assert saved_bytes(optimizer_in_backward=True)[1] == 0


def test_the_compiler_gets_its_budget():
    config = torch._functorch.config
    experiment = experiment_of("transformer", **SMALL, memory_budget=0.3, execution="compile")
    with experiment.as_in(experiment.new_records()[0]):
        assert config.activation_memory_budget == 0.3
    assert config.activation_memory_budget == 1.0


@pytest.mark.parametrize(
    "given, says",
    CASES["remedies that exclude each other"],
    ids=str,
)
def test_remedies_that_exclude_each_other_are_one_sentence(given, says):
    with refuses(says):
        experiment_of("transformer", **SMALL | given).new_records()


def test_a_state_is_of_the_whole_batch():
    trainer = sgd_trainer(Words("LSTM"), "fp32", word_loss, micro_batches=5)
    with pytest.raises(Unsupported, match="hidden state"):
        trainer.step(text(0))


def test_a_scaled_loss_refuses_the_optimizer_in_backward():
    experiment = experiment_of("transformer", **SMALL, optimizer_in_backward=True)
    with pytest.raises(Exception, match="overflow"):
        experiment.make_trainer("amp_fp16")


def test_adapters_alone_are_trained_or_peft_is_asked_for(monkeypatch):
    if importlib.util.find_spec("peft"):
        trainer = experiment_of("transformer", **SMALL, adapters=4).make_trainer("fp32")
        trained = [name for name, one in trainer.network.named_parameters() if one.requires_grad]
        assert len(trained) == 2 * 4 * 4 and all("lora_" in name for name in trained)
    monkeypatch.setitem(sys.modules, "peft", None)
    (record,) = run_cells("transformer", "run", **SMALL | {"precisions": ["fp32"]}, adapters=4)[
        "records"
    ]
    assert record.status == "unsupported" and "package peft" in record.reason


def test_a_parameter_of_ones_own_may_have_the_name_of_a_remedy(tmp_path):
    own = {"checkpointing": "selective"}
    records = compare(
        "own",
        lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)),
        [(torch.ones(2, 4),)],
        lambda model, batch: model(*batch).float().mean(),
        precisions=["fp32"],
        output_dir=str(tmp_path),
        **own,
    )
    assert [record.status for record in records] == ["ok"]
    assert own.items() <= records[0].settings.items()
