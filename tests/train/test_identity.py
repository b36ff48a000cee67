"""What tells two trainings of one name apart."""

import functools
import itertools

import pytest
import torch
from torch import nn

from mixed_precision_study.train.identity import identity_of

SCALE = 2.0
numbers = itertools.count()


class Net(nn.Module):
    def __init__(self, width=8, dropout=0.1):
        super().__init__()
        self.layer, self.drop = nn.Linear(4, width), nn.Dropout(dropout)

    def forward(self, x):
        return self.drop(self.layer(x)).relu()


class OtherNet(Net):
    def forward(self, x):
        return self.drop(self.layer(x)).tanh()


def helper(x):
    return x.square()


def loss(model, batch):
    """Return the loss."""
    return SCALE * helper(model(batch)).mean()


def written(tmp_path, source, name="f", **known):
    """Return a function of a file of its own, so that Python has its source."""
    path = tmp_path / f"written_{next(numbers)}.py"
    path.write_text(source)
    exec(compile(source, str(path), "exec"), known)
    return known[name]


def identity(model=None, functions=None, batches=("a",), **options):
    model = model or Net()
    return identity_of(
        model, torch.optim.AdamW(model.parameters(), **options), functions or {}, batches
    )


def differing(first, second):
    return {name for name in first.keys() | second.keys() if first.get(name) != second.get(name)}


@pytest.mark.parametrize(
    "changed, parts",
    [
        ({"model": Net(16)}, {"model"}),
        ({"model": Net(dropout=0.2)}, {"model"}),
        ({"model": Net().bfloat16()}, {"model"}),
        ({"batches": ("b",)}, {"batches"}),
        ({"weight_decay": 0.5}, {"optimizer"}),
        ({}, set()),
    ],
)
def test_each_part_is_told_apart_from_the_others(changed, parts):
    torch.manual_seed(len(parts))  # the values of the weights do not count
    assert differing(identity(), identity(**changed)) == parts


TEXT = (
    "def f(model, batch):\n    '''What it is.'''\n    # why\n    return model(batch).mean() "
    "* scale\n"
)


@pytest.mark.parametrize(
    "source, known, same",
    [
        (
            "\n\n" + TEXT.replace("What it is", "Other words").replace("# why", "# because"),
            {"scale": 2},
            True,
        ),
        (TEXT.replace("mean", "sum"), {"scale": 2}, False),
        (TEXT, {"scale": 3}, False),
        (TEXT, {"scale": helper}, False),
        (TEXT, {"scale": 2, "seed": 9, "other": 1}, True),
    ],
)
def test_comments_do_not_count_but_code_and_what_it_names_do(tmp_path, source, known, same):
    first, second = written(tmp_path, TEXT, scale=2), written(tmp_path, source, **known)
    found = [identity(functions={"compute_loss": one})["compute_loss"] for one in (first, second)]
    assert (found[0] == found[1]) == same


def test_lambdas_partials_methods_and_classes_are_told_apart():
    scale = 3
    functions = [
        *(
            lambda: Net(8),
            lambda: Net(9),
            lambda: OtherNet(8),
            lambda: Net(scale),
            Net,
            OtherNet,
            Net().forward,
        ),
        *(functools.partial(Net, 8), functools.partial(Net, 9), loss, helper, max),
    ]
    found = [identity(functions={"make_model": one})["make_model"] for one in functions]
    assert len(set(found)) == len(functions)
    again = [identity(functions={"make_model": one})["make_model"] for one in functions]
    assert again == found


def test_numbers_that_only_repeat_a_training_do_not_count():
    def made(seed, repeat, width):
        return identity(functions={"make_model": lambda: Net(width + 0 * (seed + repeat))})[
            "make_model"
        ]

    assert made(0, 0, 8) == made(5, 2, 8) != made(0, 0, 9)


def test_the_order_of_a_set_does_not_count(tmp_path):
    text = "f = lambda model, batch: model(batch) in {%s}\n"
    sources = [text % members for members in ("0, 8", "8, 0", "1, 8")]
    found = [
        identity(functions={"compute_loss": written(tmp_path, one)})["compute_loss"]
        for one in sources
    ]
    assert found[0] == found[1] != found[2]


NESTED = (
    "def f(model, batch):\n    def inner(x):\n        '''%s'''\n"
    "        return helper(x)\n    return inner(model(batch))\n"
)


@pytest.mark.parametrize("has_source", [True, False])
def test_what_an_inner_function_names_counts(tmp_path, has_source):
    def made(words, known):
        names = {"helper": known}
        if has_source:
            return written(tmp_path, NESTED % words, **names)
        exec(NESTED % words, names)
        return names["f"]

    functions = [made(*one) for one in (("a", helper), ("b", helper), ("a", torch.sum))]
    found = [identity(functions={"compute_loss": one})["compute_loss"] for one in functions]
    assert found[0] == found[1] != found[2]
