"""compare() trains what it was given, and its records are its own: mode, switches, batches,
metric, identity.
"""

import functools

import pytest
import torch
from conftest import refuses, seeded
from small_training import METRIC, error, losses_of_a_loop
from torch import nn
from torch.backends import cudnn
from torch.optim import SGD

from mixed_precision_study.experiment import Metric
from mixed_precision_study.own_model import compare
from mixed_precision_study.report.files import sort_out
from mixed_precision_study.report.tables import read_tables
from mixed_precision_study.store.reading import read_records
from mixed_precision_study.tasks.iterable import IterableData
from mixed_precision_study.train.precision import switches_now
from mixed_precision_study.train.step import training_step

INPUTS = torch.randn(32, 16, generator=seeded(0))
LABELS = INPUTS.sum(1, keepdim=True)
BATCHES = list(zip(INPUTS.split(8), LABELS.split(8), strict=True))
QUICK = {"precisions": ["fp32", "amp_bf16"], "epochs": 2, "lr": 0.01, "max_steps": 9}
ALONE = {"precisions": ["fp32"]}


def make_model(units=32, dropout=0.5):
    first, last = nn.Linear(16, units), nn.Linear(units, 1)
    return nn.Sequential(first, nn.BatchNorm1d(units), nn.Dropout(dropout), last)


def loss(model, batch):
    return nn.functional.mse_loss(model(batch[0]).float(), batch[1].float())


def frozen(**options):
    model = make_model(**options)
    model[1].eval()
    return model


MODES = {
    "train": (make_model, True),
    "eval": (lambda **options: make_model(**options).eval(), True),
    "frozen": (frozen, False),
}
COMPILED = pytest.param("compile", marks=pytest.mark.exhaustive)


@pytest.mark.any_python
@pytest.mark.parametrize("execution", ["eager", COMPILED])
@pytest.mark.parametrize("kind", MODES)
def test_a_model_is_trained_in_its_mode_in_every_epoch(kind, execution):
    make, norm_trains = MODES[kind]
    # compiled code draws others
    make = functools.partial(make, dropout=0.5 if execution == "eager" else 0.0)
    seen = []

    def noted(model, batch):
        if not torch.compiler.is_compiling() and torch.is_grad_enabled():
            seen.append((model.training, model[1].training, model[2].training))
        return loss(model, batch)

    given = {"evaluate": error, "eval_batches": BATCHES, "metric": METRIC, "execution": execution}
    (record,) = compare("modes", make, BATCHES, noted, **QUICK | given | ALONE)
    assert (record.status, len(record.metric)) == ("ok", 2), record.reason
    assert set(seen) <= {(True, norm_trains, True)}
    torch.manual_seed(0)
    model = make().train()
    model[1].train(norm_trains)
    assert record.train_loss == pytest.approx(
        plain_losses(model), rel=1e-6 if execution == "eager" else 1e-4
    )


@pytest.mark.parametrize("kind, told", {"train": 0, "eval": 0, "frozen": 1}.items())
def test_a_part_that_stays_in_evaluation_mode_is_told_once(kind, told, capsys):
    compare("told", MODES[kind][0], BATCHES, loss, **QUICK)
    assert capsys.readouterr().out.count("make_model leaves 1 in evaluation mode") == told


def plain_losses(model, epochs=2):
    """The losses of the usual loop, with the random numbers that compare() gives each step."""
    optimizer = SGD(model.parameters(), lr=0.01)
    each = [IterableData(BATCHES, None).read(epoch) for epoch in range(epochs)]
    return losses_of_a_loop(model, optimizer, loss, each)


def tf32():
    torch.set_float32_matmul_precision("high")


SETTERS = {
    "cuda.matmul.fp32_precision": tf32,
    "cudnn.conv.fp32_precision": lambda: setattr(cudnn.conv, "fp32_precision", "tf32"),
    "cudnn.deterministic": lambda: setattr(cudnn, "deterministic", True),
    "cudnn.benchmark": lambda: setattr(cudnn, "benchmark", False),
    "set_autocast_dtype": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "set_default_dtype": lambda: torch.set_default_dtype(torch.float64),
}


@pytest.mark.any_python
@pytest.mark.parametrize("name", SETTERS)
def test_a_switch_that_a_training_sets_makes_it_fail(name):
    def setting(*given):
        SETTERS[name]()
        return training_step(*given)

    before = switches_now()
    with refuses(name):
        compare(
            "sets", make_model, BATCHES, loss, training_step=setting, output_dir="sets", **QUICK
        )
    assert switches_now() == before
    records = read_records("sets")[0]
    assert [record["status"] for record in records] == ["failed"] * 2
    is_tf32 = [
        record["fp32_precision_matmul"] for record in records if name.startswith("cuda.matmul")
    ]
    assert set(is_tf32) <= {"tf32"}


class Switching(SGD):
    def step(self, closure=None):
        tf32()
        return super().step(closure)


class Reading:
    def __iter__(self):
        tf32()
        return iter(BATCHES)


def usual(**changed):
    held_out = {"evaluate": error, "eval_batches": BATCHES, "metric": METRIC}
    functions = {"make_model": make_model, "batches": BATCHES, "compute_loss": loss, **QUICK}
    return (
        functions
        | (held_out if "evaluate" in changed or "eval_batches" in changed else {})
        | changed
    )


PLACES = {
    "model": {"make_model": lambda: tf32() or make_model()},
    "optimizer": {"make_optimizer": lambda weights: tf32() or SGD(weights, lr=0.01)},
    "optimizer's step": {"make_optimizer": lambda weights: Switching(weights, lr=0.01)},
    "batches": {"batches": Reading()},
    "evaluate": {"evaluate": lambda model, batches: tf32() or 1.0},
}


@pytest.mark.any_python
@pytest.mark.parametrize("place", PLACES)
def test_a_switch_is_seen_wherever_it_is_set(place):
    seen = set()

    def noted(model, batch):
        seen.add(torch.backends.cuda.matmul.fp32_precision)
        return loss(model, batch)

    given = usual(compute_loss=noted, **PLACES[place])
    if place in ("model", "optimizer"):  # they run before the training, so what they set is undone
        records = compare("place", **given)
        assert {(one.status, one.fp32_precision_matmul) for one in records} == {("ok", "ieee")}
        assert seen == {"ieee"}
    else:
        with refuses("fp32_precision"):
            compare("place", **given)


def holds_itself():
    batch = [INPUTS, LABELS]
    batch.append(batch)
    return batch


SAMPLES = torch.utils.data.TensorDataset(INPUTS, LABELS)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([(INPUTS, LABELS)])


ONE = nn.Linear(16, 1)
# which has nothing to do with torch's
OTHER_DATASET = type("Dataset", (list,), {})([(INPUTS, LABELS)])
RAGGED = torch.nested.nested_tensor([torch.ones(2, 16), torch.ones(3, 16)], layout=torch.jagged)


@pytest.mark.once
@pytest.mark.parametrize(
    "says, changed",
    [
        *(("batch_size", {"batch_size": wrong}) for wrong in (5, "16")),
        *(("DataLoader", {"batches": wrong}) for wrong in (SAMPLES, OTHER_DATASET)),
        *(
            ("DataLoader", {"eval_batches": wrong, "evaluate": len})
            for wrong in (SAMPLES, Stream())
        ),
        *(
            ("batches", {"batches": wrong})
            for wrong in ((one for one in [INPUTS]), [], 3, lambda: [])
        ),
        ("tensor", {"batches": ["text"]}),
        ("make_model", {"make_model": ONE}),
        ("None.*Module", {"make_model": lambda: None}),
        ("make_model.*twice", {"make_model": lambda: ONE}),
        ("compute_loss", {"compute_loss": lambda model: 0}),
        (r"compute_loss.*\(8, 1\)", {"compute_loss": lambda model, batch: model(batch[0])}),
        (
            "compute_loss.*hidden",
            {"compute_loss": lambda model, batch, hidden: model(batch[0]).mean()},
        ),
        ("model", {"compute_loss": lambda model, batch: torch.zeros(())}),
        (
            "a dict.*add",
            {"compute_loss": lambda model, batch: {"a": torch.zeros(()), "b": torch.zeros(())}},
        ),
        (
            "tuple.*one optimizer",
            {"make_optimizer": lambda weights: (torch.optim.SGD(weights), None)},
        ),
        ("schedule", {"schedule": 0.1}),
        ("clip", {"clip": 1.0, "training_step": training_step}),
        ("clip", {"clip": -1.0}),
        ("epoch", {"epoch": 3}),
        ("eval_batches", {"evaluate": len, "eval_batches": None}),
        ("ZeroDivisionError", {"compute_loss": lambda model, batch: 1 / 0}),
        ("metric", {"evaluate": error, "metric": None}),
        ("metric", {"evaluate": error, "metric": "accuracy"}),
        ("evaluate.*number", {"evaluate": lambda model, batches: None}),
        ("eval_batches", {"eval_batches": (one for one in BATCHES)}),
        ("eval_batches", {"eval_batches": []}),
        ("0 samples", {"batches": [(torch.zeros(0, 16), torch.zeros(0, 1))]}),
        ("batch 4 has 0", {"batches": [*BATCHES, (torch.zeros(0, 16), torch.zeros(0, 1))]}),
        ("holds itself", {"batches": [holds_itself()]}),
        (r"batch\[0\] is a nested", {"batches": [(RAGGED, LABELS)]}),
        ("execution", {"execution": []}),
        ("schedule", {"schedule": max}),
        ("schedule.*number", {"schedule": lambda step: None}),
        ("compute_loss", {"compute_loss": max}),
        ("LBFGS.*training_step=", {"make_optimizer": torch.optim.LBFGS}),
        ("training_step=", {"make_optimizer": lambda weights: Hookless(weights)}),
        ("lazy", {"make_model": lambda: nn.LazyLinear(1)}),
    ],
)
def test_what_is_wrong_is_refused_before_any_training(says, changed, tmp_path):
    with refuses(says):
        compare("refused", **usual(**changed, output_dir=str(tmp_path), **ALONE))
    assert [one for one in read_records(tmp_path)[0] if one["status"] == "ok"] == []


@pytest.mark.parametrize("name", [7, None, "a\0b"])
def test_a_name_that_is_no_text_is_one_sentence(name, tmp_path):
    with refuses("model is"):
        compare(name, **usual(output_dir=str(tmp_path)))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_call_without_gradients_is_one_sentence(mode):
    with mode(), refuses("outside"):
        compare("refused", **usual())


class Hookless:
    """Plain gradient descent of a class that knows nothing of PyTorch's."""

    def __init__(self, weights):
        self.param_groups = [{"params": list(weights), "lr": 0.01}]
        self.state = {}

    def zero_grad(self, set_to_none=True):
        for weight in self.param_groups[0]["params"]:
            weight.grad = None

    @torch.no_grad()
    def step(self):
        for weight in self.param_groups[0]["params"]:
            weight.sub_(weight.grad, alpha=0.01)


def test_an_optimizer_without_hooks_trains():
    given = usual(
        make_optimizer=Hookless, training_step=functools.partial(training_step), precisions=["fp32"]
    )
    (record,) = compare("hookless", **given)
    torch.manual_seed(0)
    assert record.train_loss == pytest.approx(plain_losses(make_model()), rel=1e-6)
    assert record.skipped_steps == 0


class Averaging(SGD):
    """As schedule-free optimizers: it trains one set of weights, and another one is to be
    evaluated.
    """

    in_training = False

    def train(self):
        self.move(not self.in_training, 1.0)
        self.in_training = True

    def eval(self):
        self.move(self.in_training, -1.0)
        self.in_training = False

    @torch.no_grad()
    def move(self, needed, by):
        for weight in self.param_groups[0]["params"] if needed else ():
            weight.add_(by)

    def step(self, closure=None):
        assert self.in_training
        return super().step(closure)


def test_an_optimizer_with_modes_is_in_the_right_one():
    means = []

    def evaluate(model, batches):
        means.append(model[3].bias.item())
        return 0.0

    given = usual(
        make_optimizer=lambda weights: Averaging(weights, lr=1e-12),
        evaluate=evaluate,
        precisions=["fp32"],
    )
    (record,) = compare("averaging", **given)
    assert record.status == "ok" and len(means) == 2
    assert all(abs(mean) < 0.5 for mean in means)  # without the 1 that is added for training


@pytest.mark.any_python
@pytest.mark.parametrize("value", [1e301, -1e301, float("inf"), float("nan")])
def test_a_metric_beyond_what_can_be_read_is_left_out(value, tmp_path):
    compare("huge", **usual(evaluate=lambda model, batches: value, output_dir=str(tmp_path)))
    records, left_out = read_records(tmp_path)
    used, contradicting = sort_out(records)
    assert (len(used), left_out, contradicting) == (2, [], [])
    assert [record["metric"] for record in used] == [[None, None]] * 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": 7, "better": "higher"},
        {"name": "a"},
        {"name": "a", "better": "max"},
        {"chance": "much"},
    ],
)
def test_a_metric_checks_itself(wrong):
    with refuses():
        Metric(**wrong)
    assert Metric("a", "higher", torch.tensor(0.5)).chance == 0.5


def test_held_out_batches_can_be_read_twice_and_by_number():
    counts = []

    def evaluate(model, batches):
        again = (
            sum(1 for _ in batches),
            sum(1 for _ in batches),
            len(batches),
            len(batches[0]),
            len(batches[1:]),
        )
        counts.append(again)
        return torch.equal(batches[0][0], BATCHES[0][0])

    for given in (BATCHES, tuple(BATCHES)):
        records = compare("twice", **usual(evaluate=evaluate, eval_batches=given))
        assert {tuple(record.metric) for record in records} == {(1.0, 1.0)}
    assert set(counts) == {(4, 4, 4, 2, 3)}


class Changing:
    """Batches that are others after so many readings."""

    def __init__(self, after, batches):
        self.left, self.batches = after, batches

    def __iter__(self):
        self.left -= 1
        return iter(BATCHES if self.left >= 0 else self.batches)


OTHERS = {
    "fewer": BATCHES[:1],
    "more": [*BATCHES, *BATCHES],
    "smaller": [(x[:2], y[:2]) for x, y in BATCHES],
    "none": [],
    "longer": [(torch.cat([x, x]), torch.cat([y, y])) for x, y in BATCHES],
}


@pytest.mark.once
@pytest.mark.parametrize(
    "kind, after", [*((kind, 2) for kind in OTHERS), *(("fewer", after) for after in (1, 3, 4))]
)
def test_an_epoch_of_other_steps_or_shapes_is_no_result(kind, after, tmp_path):
    batches = Changing(after, OTHERS[kind])
    given = usual(batches=batches, epochs=3, max_steps=99, output_dir=str(tmp_path), **ALONE)
    with refuses():
        compare("changing", **given)
    assert {record["status"] for record in read_records(tmp_path)[0]} == {"failed"}


@pytest.mark.any_python
def test_evaluations_of_other_batches_are_no_result():
    for batches in (Changing(1, BATCHES[:2]), Changing(0, [])):
        with refuses("eval_batches"):
            compare("shrinking", **usual(evaluate=error, eval_batches=batches, **ALONE))


@pytest.mark.any_python
def test_padding_that_differs_from_epoch_to_epoch_is_trained_on():
    texts = [torch.ones(length, 16) * length for length in (3, 5, 7, 9, 11, 13)]

    def padded(samples):
        return nn.utils.rnn.pad_sequence(samples, batch_first=True)

    for generator in (None, seeded(3)):
        loader = torch.utils.data.DataLoader(
            texts, 2, shuffle=True, collate_fn=padded, generator=generator
        )
        seen = {False: [], True: []}

        def noted(model, batch, seen=seen):
            seen[torch.is_autocast_enabled("cpu")].append(batch.shape)
            return model(batch).float().square().mean()

        records = compare("padded", lambda: nn.Linear(16, 1), loader, noted, **QUICK)
        assert [record.status for record in records] == ["ok", "ok"], records[0].reason
        assert seen[False][-6:] == seen[True][-6:]


class Movable:
    """As a graph of another library: it moves itself in place."""

    def __init__(self, x):
        self.x, self.edges = x, torch.arange(3)

    def to(self, device):
        self.x = self.x.to(device)
        return self


@pytest.mark.any_python
@pytest.mark.parametrize("form", [torch.Tensor.clone, Movable], ids=["tensor", "object"])
def test_a_loss_that_changes_its_batch_changes_no_data(form):
    batches = [form(x.clone()) for x in INPUTS.split(8)]
    seen = {False: [], True: []}

    def halving(model, batch):
        x = getattr(batch, "x", batch)
        seen[torch.is_autocast_enabled("cpu")].append(x.sum().item())
        x.mul_(0.5)
        return model(x).float().square().mean()

    records = compare("halving", lambda: nn.Linear(16, 1), batches, halving, **QUICK)
    assert [record.status for record in records] == ["ok", "ok"]
    assert seen[False][-8:] == seen[True][-8:] == seen[False][-4:] * 2


def records_of(folder):
    return sorted(read_records(folder)[0], key=lambda record: record["run_id"])


def test_another_model_is_another_comparison_and_keeps_both(tmp_path):
    given = {**QUICK, "output_dir": str(tmp_path)}
    compare("mine", make_model, BATCHES, loss, **given)
    compare("mine", make_model, BATCHES, loss, **given)  # the same once more replaces its own
    assert len(records_of(tmp_path)) == 2
    compare("mine", lambda: make_model(64), BATCHES, loss, repeat=1, **given)
    compare("mine", make_model, BATCHES, lambda model, batch: 2 * loss(model, batch), **given)
    found = records_of(tmp_path)
    assert [record["status"] for record in found] == ["ok"] * 6
    assert len({record["run_id"] for record in found}) == 6
    tables = read_tables(tmp_path)
    assert len(tables.comparisons) == 3 and set(tables.ratios.processes) == {1}
    assert sum("compute_loss" in title for title in tables.comparisons.title) == 3


LATER = [*BATCHES[:1], *((100 * x, y) for x, y in BATCHES[1:])]


@pytest.mark.once
@pytest.mark.parametrize(
    "changed, parts",
    [
        ({"batches": LATER}, {"batches"}),
        ({"make_optimizer": torch.optim.AdamW}, {"make_optimizer", "optimizer"}),
        ({"evaluate": lambda model, batches: 1.0}, {"evaluate"}),
        ({"schedule": lambda step: 0.01}, {"schedule"}),
        ({"repeat": 1, "seed": 5}, set()),
    ],
)
def test_a_record_knows_what_it_is_of(changed, parts, tmp_path):
    first, second = (
        compare(
            "known", **usual(**{"evaluate": error, "output_dir": str(tmp_path), **ALONE, **one})
        )[0]
        for one in ({}, changed)
    )
    same = first.identity.keys() & second.identity.keys()
    differing = {name for name in same if first.identity[name] != second.identity[name]}
    assert differing | (first.identity.keys() ^ second.identity.keys()) == parts
    assert first.data_fingerprint == second.data_fingerprint


def test_batches_are_read_once_before_the_trainings():
    class Read:
        times = 0

        def __iter__(self):
            self.times += 1
            return iter(BATCHES)

    batches = Read()
    # which no CPU can run
    compare("read", make_model, batches, loss, **{**QUICK, "precisions": ["tf32"]})
    assert batches.times == 1


def test_a_failure_of_making_the_model_is_a_record(tmp_path):
    with refuses("ZeroDivisionError"):
        compare("fails", lambda: 1 / 0, BATCHES, loss, output_dir=str(tmp_path), **QUICK)
    assert [(record["status"], record["identity"]) for record in records_of(tmp_path)] == [
        ("failed", None)
    ] * 2


def test_a_loss_with_other_defaults_gets_no_hidden_state():
    def weighted(model, batch, weight=2.0):
        return weight * loss(model, batch)

    plain, doubled = (
        compare("weighted", **usual(compute_loss=one, **ALONE))[0].train_loss[0]
        for one in (loss, weighted)
    )
    assert doubled > 1.5 * plain
