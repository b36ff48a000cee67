"""A reader's own model and batches, as compare() takes them."""

import inspect
import random
import shlex
import textwrap

import pytest
import torch
from conftest import ROOT, run_cells

import mixed_precision_study
from mixed_precision_study import environment, own_model
from mixed_precision_study.errors import UserError
from mixed_precision_study.experiment import Metric
from mixed_precision_study.own_model import STEPS_WITHOUT_GPU, IterableData, compare
from mixed_precision_study.record import read_records

QUICK = {"precisions": ["fp32", "amp_bf16"], "epochs": 2, "lr": 0.01}
INPUTS = torch.randn(70, 16, generator=torch.Generator().manual_seed(0))
LABELS = INPUTS.sum(1, keepdim=True)
SAMPLES = torch.utils.data.TensorDataset(INPUTS, LABELS)


def make_model():
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))


def compute_loss(model, batch):
    x, y = batch
    return torch.nn.functional.mse_loss(model(x).float(), y.float())


def epochs_of(batches, epochs=(0, 1, 0), **options):
    """Return the first tensors of the batches of some epochs."""
    data = IterableData(batches, None, **options)
    return data, [[batch[0] for batch in data.train_batches(epoch, torch.float32, data.size)] for epoch in epochs]


def test_the_example_in_the_docstring_runs(monkeypatch):
    names = {"torch": torch}
    exec(textwrap.dedent(inspect.getdoc(compare).partition("Example:\n")[2]), names)
    assert {record.precision: record.status for record in names["records"]} == {
        "fp32": "ok",
        "tf32": "unsupported",
        "amp_fp16": "unsupported",
        "amp_bf16": "ok",
    }
    assert len(read_records("outputs/squares")[0]) == 4


def test_each_precision_sees_the_same_shuffled_batches_and_epochs_differ():
    loader = torch.utils.data.DataLoader(SAMPLES, 32, shuffle=True)
    before = torch.get_rng_state()
    data, (first, second, again) = epochs_of(loader)
    assert torch.equal(torch.get_rng_state(), before)  # the reader's own random numbers are left alone
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], second[0])
    assert (data.size, data.steps_per_epoch(32), data.train_samples) == (32, 2, 64)  # the last 6 samples are left out


def test_data_that_draw_by_themselves_are_the_same_in_an_epoch_whatever_the_model_draws():
    class Noisy:
        def __iter__(self):
            for _ in range(3):
                yield (torch.randn(4, 2) + random.random(),)

    data = IterableData(Noisy(), None)
    quiet = [batch[0] for batch in data.train_batches(5, torch.float32, 4)]
    drawn = []
    for batch in data.train_batches(5, torch.float32, 4):
        torch.rand(7)  # as dropout on the CPU would
        random.random()
        drawn.append(batch[0])
    assert all(torch.equal(a, b) for a, b in zip(quiet, drawn, strict=True))


def test_a_batch_may_be_a_nest_of_dicts_and_comes_back_as_it_was():
    batch = {"input_ids": torch.arange(6).view(2, 3), "more": [torch.ones(2), "text"], "none": None}
    data = IterableData([batch, batch], None)
    (tensors, _) = data.train_batches(0, torch.float16, 2)
    assert [tensor.dtype for tensor in tensors] == [torch.int64, torch.float16]
    whole = data.whole(tensors)
    assert whole.keys() == batch.keys() and whole["more"][1] == "text" and whole["none"] is None
    assert torch.equal(whole["input_ids"], batch["input_ids"])


def test_a_loss_with_a_hidden_state_an_optimizer_and_an_evaluation_are_used():
    seen = []

    def with_hidden(model, batch, hidden):
        seen.append(hidden is None)
        loss = compute_loss(model, batch)
        return loss, loss.detach().reshape(1)

    def evaluate(model, batches):
        errors = [(model(x).float() - y.float()).abs().mean() for x, y in batches]
        return sum(errors) / len(errors)

    records = compare(
        "with_hidden",
        make_model,
        torch.utils.data.DataLoader(SAMPLES, 32),
        with_hidden,
        make_optimizer=lambda weights: torch.optim.AdamW(weights, lr=0.01),
        evaluate=evaluate,
        eval_batches=[(INPUTS, LABELS)],
        metric=Metric("absolute error", better="lower"),
        **QUICK,
    )
    assert [record.status for record in records] == ["ok", "ok"]
    assert all(len(record.metric) == 2 and record.metric[1] < record.metric[0] for record in records)
    assert True in seen and False in seen


class Output(dict):
    """What Hugging Face models return: a dict whose entries are attributes, too."""

    __getattr__ = dict.__getitem__


class ConfiguredTransformer(torch.nn.Module):
    """A language model in Hugging Face's style: it is built from a config, takes keywords and computes its own loss."""

    def __init__(self, vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2):
        super().__init__()
        self.embeddings = torch.nn.Embedding(vocab_size, hidden_size)
        layer = torch.nn.TransformerEncoderLayer(hidden_size, num_attention_heads, 32, 0.0, batch_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, num_hidden_layers)
        self.lm_head = torch.nn.Linear(hidden_size, vocab_size)

    def forward(self, input_ids, attention_mask=None, labels=None):
        padding = None if attention_mask is None else attention_mask == 0
        logits = self.lm_head(self.encoder(self.embeddings(input_ids), src_key_padding_mask=padding))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return Output(loss=loss, logits=logits)


class SmallUNet(torch.nn.Module):
    """Down, up, and a connection past both."""

    def __init__(self):
        super().__init__()
        self.down = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.up = torch.nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.last = torch.nn.Conv2d(11, 2, 3, padding=1)

    def forward(self, images):
        return self.last(torch.cat([images, self.up(self.down(images).relu()).relu()], 1))


WORDS = torch.randint(64, (8, 6), generator=torch.Generator().manual_seed(0))
SENTENCES = {"input_ids": WORDS, "attention_mask": torch.ones_like(WORDS), "labels": WORDS}
PICTURES = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0)), torch.zeros(8, 16, 16).long()


def loss_of_output(model, batch):
    return model(**batch).loss


def loss_of_pixels(model, batch):
    images, masks = batch
    return torch.nn.functional.cross_entropy(model(images).float(), masks)


@pytest.mark.parametrize(
    ("make", "batch", "loss"),
    [(ConfiguredTransformer, SENTENCES, loss_of_output), (SmallUNet, PICTURES, loss_of_pixels)],
    ids=["language model", "segmentation"],
)
def test_models_of_other_kinds_are_compared(make, batch, loss):
    def adamw(weights):
        return torch.optim.AdamW(weights, lr=0.01)

    records = compare("others", make, [batch] * 3, loss, make_optimizer=adamw, **{**QUICK, "epochs": 4, "max_steps": 3})
    assert [record.status for record in records] == ["ok", "ok"]
    assert all(record.train_loss[-1] < record.train_loss[0] for record in records)


def test_two_optimizers_are_refused_in_a_sentence():
    def two(weights):
        return torch.optim.SGD(weights[:1], lr=0.1), torch.optim.SGD(weights[1:], lr=0.1)

    with pytest.raises(UserError, match="returned a tuple; it must return one optimizer"):
        compare("refused", make_model, [(INPUTS, LABELS)], compute_loss, make_optimizer=two, **QUICK)


def test_several_ways_of_execution_are_told_apart_and_what_cannot_be_is_a_record():
    batches = [(INPUTS[:32], LABELS[:32])] * 2
    records = compare("ways", make_model, batches, compute_loss, execution=["eager", "cuda_graph"], **QUICK)
    assert [record.status for record in records] == ["ok", "ok", "unsupported", "unsupported"]
    assert len({record.run_id for record in records}) == 4


def test_the_notebook_runs_as_it_stands_and_with_another_number_of_steps():
    parameters = {"precisions": ["fp32"], "batch_size": 8, "epochs": 1}
    for given, steps in (({}, STEPS_WITHOUT_GPU), ({"max_steps": 3}, 3)):
        (record,) = run_cells("your_model", "run", **parameters, **given)["records"]
        assert (record.status, record.steps_per_epoch, record.batch_size_used) == ("ok", steps, 8)
        assert 0 <= record.metric[0] <= 1


@pytest.mark.parametrize(
    ("batches", "says"),
    [
        ((batch for batch in [(INPUTS, LABELS)]), "only once"),
        ([], "batches is empty"),
        (["text"], "no tensor"),
    ],
)
def test_batches_that_cannot_be_trained_on_are_refused_in_one_sentence(batches, says):
    with pytest.raises(UserError, match=says):
        compare("refused", make_model, batches, compute_loss)


ONE = torch.nn.Linear(4, 1)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"make_model": make_model()}, "make_model must be a function"),
        ({"make_model": lambda: None}, "make_model returned None; it must return a torch.nn.Module"),
        ({"make_model": lambda: ONE}, "the same model twice"),
        ({"compute_loss": lambda model: 0}, r"a function of \(model, batch\)"),
        ({"compute_loss": lambda model, batch: None}, "compute_loss returned None; it must return the mean loss"),
        ({"compute_loss": lambda model, batch: model(batch[0])}, "returned a tensor of shape"),
        ({"compute_loss": lambda model, batch, hidden: model(batch[0]).mean()}, r"must return \(loss, hidden\)"),
        ({"compute_loss": lambda model, batch: torch.zeros(())}, "does not depend on the model"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_functions_that_cannot_be_trained_by_are_refused_in_one_sentence(changed, says, tmp_path):
    given = {"make_model": make_model, "compute_loss": compute_loss} | changed
    if changed.get("make_model") and "twice" in says:
        given["compute_loss"] = lambda model, batch: model(torch.ones(4)).mean()
    with pytest.raises(UserError, match=says) as refusal:
        compare("refused", batches=[(INPUTS, LABELS)], **given, **{**QUICK, "output_dir": str(tmp_path)})
    assert len(refusal.traceback) <= 2  # this line and that of compare()


def test_a_wrong_parameter_and_an_evaluation_without_data_are_refused():
    with pytest.raises(UserError, match="epoch"):
        compare("refused", make_model, [(INPUTS, LABELS)], compute_loss, epoch=3)
    with pytest.raises(UserError, match="eval_batches"):
        compare("refused", make_model, [(INPUTS, LABELS)], compute_loss, evaluate=lambda model, batches: 0.0)


def test_the_package_offers_compare_without_loading_it_at_import():
    assert mixed_precision_study.compare is compare
    with pytest.raises(AttributeError, match="no attribute compere"):
        mixed_precision_study.compere  # noqa: B018


@pytest.mark.parametrize(("processes", "counted"), [("abc", 3), ("aaa", 1)], ids=["three", "one"])
def test_three_processes_of_an_own_model_give_an_interval(tmp_path, monkeypatch, processes, counted):
    """Each with its own `repeat`, as the docstring says. Three calls in one process give none."""
    from mixed_precision_study.report.load import load

    for repeat, process in enumerate(processes):
        monkeypatch.setattr(environment, "process_identity", lambda process=process: process)
        given = {**QUICK, "output_dir": str(tmp_path), "repeat": repeat}
        compare("thrice", make_model, [(INPUTS, LABELS)], compute_loss, **given)
    report = load(tmp_path)
    assert {speedup["processes"] for speedup in report.speedups.values()} == {counted}


@pytest.mark.parametrize("wrong", [lambda: [], 3])
def test_what_yields_no_batch_is_told_in_one_sentence(wrong):
    with pytest.raises(UserError, match="which yields no batch; give a list"):
        compare("refused", make_model, wrong, compute_loss)


def test_the_command_of_the_report_works_from_where_the_script_was_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    compare("else where", make_model, [(INPUTS, LABELS)], compute_loss, **QUICK)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("The report: ")]
    words = shlex.split(line.removeprefix("The report: python "))
    assert (tmp_path / words[0]).resolve() == ROOT / "run_all.py"
    assert words[1:] == ["--report", "outputs/else where"]
    monkeypatch.setattr(own_model, "__file__", str(tmp_path / "unpacked" / "own_model.py"))  # without a clone
    assert (
        own_model.command_of_report("outputs/a")
        == "open summary.ipynb, set records_dir = 'outputs/a', and run all cells"
    )
