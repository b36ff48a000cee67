"""Forms of weights and moments: each step of a GPT is that of a plain loop with the same recipe."""

import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import CASES, experiment_of
from plain_gpt import PlainGpt, plain_losses

from mixed_precision_study.explain.memory_breakdown import bytes_of
from mixed_precision_study.parameters import Unsupported
from mixed_precision_study.train.precision import set_fp32_precision

SMALL = {"dataset": "synthetic", "width": 64, "layers": 1, "context": 16, "batch_size": 4}
SMALL |= {"epochs": 1, "max_steps": 12, "lr": 0.0003, "vocabulary": 64}
FP32, BF16 = torch.float32, torch.bfloat16
RECIPES = {(*recipe,): size for *recipe, size in CASES["recipes"]}


class PlainAdamW(torch.optim.Optimizer):
    """AdamW in fp32 by its formula, whose results are kept in the types of a recipe."""

    def __init__(self, groups, lr, moments, rounding):
        super().__init__(groups, {"lr": lr})
        self.moments, self.rounding, self.steps = moments, rounding, 0

    def near(self, exact):
        """Round to one of the two neighbours, by the digits between them where at random."""
        if self.rounding != "stochastic":
            return exact.to(BF16)
        lower = (exact.view(torch.int32) & -65536).view(FP32)
        upper = ((exact.view(torch.int32) & -65536) + 65536).view(FP32)
        share = (exact - lower) / (upper - lower)
        drawn = torch.randint_like(exact, 65536)
        return torch.where(drawn >= 65536 * (1 - share), upper, lower).to(BF16)

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        first, second = 1 - 0.9**self.steps, 1 - 0.95**self.steps
        for group in self.param_groups:
            rows = []
            for weight in group["params"]:
                kept = self.state[weight]
                zeros = torch.zeros_like(weight, dtype=FP32)
                mean, square = (kept.get(name, zeros).float() for name in ("mean", "square"))
                exact = kept["copy"] if "copy" in kept else weight.float()
                exact = exact + kept.get("rest", zeros).float()
                mean = mean.lerp(weight.grad.float(), 1 - 0.9)
                square = 0.95 * square + (1 - 0.95) * weight.grad.float() ** 2
                exact = exact * (1 - group["lr"] * group["weight_decay"])
                sizes = square.sqrt() / second**0.5 + 1e-8
                exact = exact - group["lr"] / first * mean / sizes
                rows.append((weight, exact, mean, square))
            for weight, exact, *_ in rows:
                weight.copy_(exact if weight.dtype == FP32 else self.near(exact))
                if self.rounding == "kahan":
                    self.state[weight]["rest"] = (exact - weight.float()).to(BF16)
                if self.rounding == "fp32_copy":
                    self.state[weight]["copy"] = exact
            for place, name in ((2, "mean"), (3, "square")):
                for row in rows:
                    is_short = (self.moments or row[0].dtype) == BF16
                    self.state[row[0]][name] = self.near(row[place]) if is_short else row[place]


def trained(precision, moments, rounding):
    """Return (trainer after the steps, plain model after its own)."""
    given = {"moments": moments, "rounding": rounding}
    experiment = experiment_of("transformer", **SMALL, **given)
    set_fp32_precision(precision)
    trainer = experiment.make_trainer(precision)
    plain = PlainGpt(trainer.network.parameters(), 1)
    lr_at = experiment.lr_at(SimpleNamespace(steps_per_epoch=12), [])
    batches = [*experiment.batches(0, precision, 4)]

    def make_optimizer(groups, lr, **_):
        if moments == "8bit":
            from torchao.optim import AdamW8bit

            class Plain8bit(AdamW8bit):
                def step(self, closure=None):
                    for group in self.param_groups:
                        group["lr"] = torch.as_tensor(group["lr"])
                    return super().step(closure)

            return Plain8bit(groups, lr, betas=(0.9, 0.95))
        if (moments, rounding) == ("as_weights", "nearest"):
            return torch.optim.AdamW(groups, lr, betas=(0.9, 0.95), foreach=True)
        types = {"fp32": FP32, "bf16": BF16}
        return PlainAdamW(groups, lr, types.get(moments), rounding)

    torch.manual_seed(5)
    for step, batch in enumerate(batches):
        trainer.set_lr(lr_at(step))
        trainer.step(batch)
    torch.manual_seed(5)
    plain_losses(plain, batches, precision, SMALL["lr"], make_optimizer)
    return trainer, plain


def apart(trainer, plain):
    """Return the share of weights that differ, of fp32 weights by more than AMP's own noise."""
    pairs = zip(trainer.network.parameters(), plain.parameters(), strict=True)
    far = [(one - two).abs() > (3e-5 if one.dtype == FP32 else 0) for one, two in pairs]
    return torch.cat([one.flatten() for one in far]).float().mean().item()


@pytest.mark.parametrize("recipe", RECIPES, ids="-".join)
def test_each_step_is_that_of_a_plain_loop(recipe):
    trainer, plain = trained(*recipe)
    # fp32's last digit decides how a remainder of 16 bits is rounded
    assert apart(trainer, plain) < (0.05 if recipe[-1] in ("kahan", "fp32_copy") else 0.005)
    count = sum(weight.numel() for weight in trainer.weights)
    state = [one for kept in trainer.optimizer.state.values() for one in kept.values()]
    kept = [*trainer.weights, *(weight.grad for weight in trainer.weights), *state]
    assert bytes_of(kept) / count == pytest.approx(RECIPES[recipe], abs=0.01)


def test_recipes_of_16_bits_differ():
    """So that equality above says something."""
    recipes = [one for one in RECIPES if one[0] == "bf16_true"]
    trainer, _ = trained(*recipes.pop())
    for recipe in recipes:
        assert apart(trainer, trained(*recipe)[1]) > 0.06


def test_moments_of_8_bits_are_torchaos_or_a_sentence(monkeypatch):
    if importlib.util.find_spec("torchao"):
        trainer, plain = trained("amp_bf16", "8bit", "nearest")
        assert apart(trainer, plain) < 0.005
        kept, *_ = [trainer.optimizer.state[one] for one in trainer.weights if one.numel() == 16384]
        assert bytes_of([kept["exp_avg"]]) < 1.2 * 16384
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(Unsupported, match="package torchao"):
        trained("amp_bf16", "8bit", "nearest")
    with pytest.raises(Unsupported, match=r"AdamW8bit|torchao"):
        trained("bf16_true", "8bit", "stochastic")
