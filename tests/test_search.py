"""cuDNN's search: bounded, timed, and told apart from compiling."""

import math
import types

import pytest
import torch
from small_training import make_batch, make_record, make_trainer

from mixed_precision_study.train.step import SEARCH_LIMIT, allow_search, read_search, warm_up


def pretend_trainer(kind="cuda", layer=torch.nn.Conv2d(1, 1, 1)):  # noqa: B008
    return types.SimpleNamespace(device=torch.device(kind), network=torch.nn.Sequential(layer))


def test_the_search_is_bounded_and_reported_and_where_there_is_none_a_reason_says_why(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark_limit", 0)
    off, record, quick, cpu, plain = (make_record() for _ in range(5))
    read_search(off, pretend_trainer(), 3.0, 0.5)
    allow_search()
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit) == (True, SEARCH_LIMIT)
    for first in (3.0, 0.6):  # the second time it has searched already, in the last probe or an earlier repeat
        read_search(record, pretend_trainer(), first, 0.5)
        assert (record.search_seconds, record.search_limit_algorithms, record.search_reason) == (2.5, 10, None)
    read_search(cpu, pretend_trainer("cpu"), 3.0, 0.5)
    read_search(plain, pretend_trainer(layer=torch.nn.Linear(2, 2)), 3.0, 0.5)
    read_search(quick, pretend_trainer(), 0.4, 0.5)
    assert quick.search_seconds == 0
    assert {one.search_seconds or one.search_limit_algorithms for one in (off, cpu, plain)} == {None}
    assert len({one.search_reason for one in (off, cpu, plain)}) == 3


@pytest.mark.parametrize(
    ("most", "step_seconds", "limit"), [(10, 0.0, 10), (10, 0.4, 10), (10, 2.8, 3), (10, 60.0, 1), (2, 2.8, 2)]
)
def test_where_a_step_takes_long_fewer_algorithms_are_searched(monkeypatch, most, step_seconds, limit):
    monkeypatch.setattr("mixed_precision_study.train.step.SEARCH_LIMIT", most)
    for switch in ("benchmark", "benchmark_limit"):
        monkeypatch.setattr(torch.backends.cudnn, switch, getattr(torch.backends.cudnn, switch))
    allow_search(step_seconds)
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit) == (True, limit)


def test_compiling_is_no_part_of_the_search(monkeypatch):
    given, spent = [], iter([10.0, 12.5, *[12.5] * 9])
    monkeypatch.setattr(
        "mixed_precision_study.train.step.read_compiler", lambda trainer: {"graphs": 0, "seconds": next(spent)}
    )
    monkeypatch.setattr(
        "mixed_precision_study.train.step.read_search",
        lambda record, trainer, first, steady: given.append((first, steady)),
    )
    trainer, record = make_trainer("fp32"), make_record()
    warm_up(record, trainer, lambda: iter([make_batch()]))
    ((first, steady),) = given
    assert first == pytest.approx(steady - 2.5)  # one step on the CPU, of which compiling "took" 2.5 s
    assert math.isfinite(steady)
