"""Training steps with one mistake each, and sound ones. Each function returns (step, evaluation or None)."""

import math
from functools import partial

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FP16, BF16 = torch.float16, torch.bfloat16
sgd, adam = partial(torch.optim.SGD, lr=0.01), partial(torch.optim.Adam, lr=1e-3)


def problem(dtype=torch.float32):
    """Return (model, inputs, labels) of a small classification."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    inputs, labels = torch.randn(16, 32, dtype=dtype), torch.randint(0, 8, (16,))
    return model.to(DEVICE, dtype), inputs.to(DEVICE), labels.to(DEVICE)


def scaled(
    *, loss_of=functional.cross_entropy, autocast=FP16, after_backward=None, micro=1, clear=True, ends="step update"
):
    """Return a step with GradScaler. ends: the calls after each backward pass.

    A call with "last:" comes after the last micro-batch alone, and "optimizer" steps without the scaler.
    """
    model, inputs, labels = problem()
    optimizer, scaler = sgd(model.parameters()), torch.amp.GradScaler(DEVICE)
    calls = {
        "unscale": lambda: scaler.unscale_(optimizer),
        "clip": lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        "hand": lambda: after_backward(model),
        "step": lambda: scaler.step(optimizer),
        "optimizer": optimizer.step,
        "update": lambda: scaler.update(),
        "forget": scaler._per_optimizer_states.clear,  # or unscale_ raises in the second step
    }

    def step():
        if clear:
            optimizer.zero_grad()
        for number in range(micro):
            with torch.autocast(DEVICE, dtype=autocast or FP16, enabled=autocast is not None):
                loss = loss_of(model(inputs).float(), labels) / micro
            scaler.scale(loss).backward()
            for call in ends.split():
                if not call.startswith("last:") or number == micro - 1:
                    calls[call.removeprefix("last:")]()

    return step, None


def plain(*, autocast=None, inside=False, schedule=None, read=False, optimizer=sgd, dtype=torch.float32, evaluate=None):
    """Return a step without GradScaler. schedule: "before" or "after" the optimizer's step, or at the "top"."""
    model, inputs, labels = problem(dtype)
    optimizer = optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)

    def step():
        if schedule == "top":
            scheduler.step()
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=autocast or BF16, enabled=autocast is not None):
            loss = functional.cross_entropy(model(inputs).float(), labels)
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        if schedule == "before":
            scheduler.step()
        optimizer.step()
        if schedule == "after":
            scheduler.step()
        return loss.item() if read else loss

    return step, partial(evaluate, model, inputs) if evaluate else None


def clamp(model):
    for weight in model.parameters():
        weight.grad.clamp_(-1e-3, 1e-3)


def to_a_norm(model):
    norm = torch.sqrt(sum(weight.grad.square().sum() for weight in model.parameters()))
    for weight in model.parameters():
        weight.grad.mul_((1 / norm).clamp(max=1))


def divide(model, counts=[100]):  # noqa: B006
    counts[0] += 7
    for weight in model.parameters():
        weight.grad /= counts[0]


def overflow(model, inputs):
    with torch.no_grad(), torch.autocast(DEVICE, dtype=FP16):
        return model(inputs * 1e6)


def slope(model, inputs):
    points = inputs.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(model(points).sum(), points)
    return gradient.norm()


class Sign(torch.optim.Optimizer):
    """An optimizer that PyTorch does not have."""

    def __init__(self, weights, lr=1e-6):
        super().__init__(weights, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for weight in self.param_groups[0]["params"]:
            weight.sub_(weight.grad.sign(), alpha=self.param_groups[0]["lr"])


class SignInTwoParts(Sign):
    """The same, with what is rounded away added later, after Kahan."""

    @torch.no_grad()
    def step(self, closure=None):
        for weight in self.param_groups[0]["params"]:
            lost = self.state[weight].setdefault("lost", torch.zeros_like(weight))
            update = lost - self.param_groups[0]["lr"] * weight.grad.sign()
            after = weight + update
            lost.copy_(update - (after - weight))
            weight.copy_(after)


def slow_with_anomalies():
    step, _ = plain()

    def slow():
        with torch.autograd.set_detect_anomaly(True):
            step()

    return slow, None


def penalty(divides=False):
    """As in apex issue 654: the gradients of a penalty are scaled, and may be divided by the scale."""
    model, inputs, labels = problem()
    optimizer, scaler = sgd(model.parameters()), torch.amp.GradScaler(DEVICE, init_scale=1024.0)

    def step():
        optimizer.zero_grad()
        real = inputs.clone().requires_grad_(True)
        with torch.autocast(DEVICE, dtype=FP16):
            outputs = model(real)
        (gradient,) = torch.autograd.grad(scaler.scale(outputs.float().sum()), real, create_graph=True)
        gradient = gradient / scaler.get_scale() if divides else gradient
        loss = functional.cross_entropy(outputs.float(), labels) + (gradient.norm(dim=1) - 1).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step, None


def inf_at_any_scale(logits, labels):
    return functional.cross_entropy(logits, labels) + (logits.sum() * 0).sqrt()


def times(factor):
    return lambda logits, labels: functional.cross_entropy(logits, labels) * factor


MISTAKES = {  # a case: (the rule that its diagnosis names, the case); the numbers are issues
    "clip before unscale_": ("clipped while scaled", lambda: scaled(ends="clip unscale step update")),
    "clamped by hand": ("clipped while scaled", lambda: scaled(after_backward=clamp, ends="hand step update")),
    "norm by hand": ("clipped while scaled", lambda: scaled(after_backward=to_a_norm, ends="hand step update")),
    "scaler with bf16": ("scaler with bf16", lambda: scaled(autocast=BF16)),
    "past the scaler": ("past the scaler", lambda: scaled(loss_of=times(1e-7), ends="optimizer")),
    "insightface 2262": ("scale falls", lambda: scaled(loss_of=inf_at_any_scale)),
    "loss is NaN": ("loss not finite", lambda: scaled(loss_of=times(math.nan))),
    "Paddle 67895": ("gradients not cleared", lambda: scaled(clear=False)),
    "not cleared in fp32": ("gradients not cleared", lambda: no_zero_grad()),
    "Applio 860": ("steps twice", lambda: scaled(ends="step update optimizer")),
    "torchvision 017e9b99": ("steps twice", lambda: scaled(ends="step update clip optimizer")),
    "pytorch 36601": ("update without step", lambda: scaled(micro=2, ends="unscale last:step update")),
    "WatChMaL 106": ("no 16 bits", lambda: scaled(autocast=None)),
    "apex 654": ("penalty of scaled gradients", penalty),
    "fp16 without scaler": ("fp16 without scaler", lambda: plain(autocast=FP16)),
    "backward in autocast": ("backward in autocast", lambda: plain(autocast=BF16, inside=True)),
    "scheduler before": ("scheduler first", lambda: plain(schedule="before")),
    "scheduler at the top": ("scheduler first", lambda: plain(schedule="top")),
    "UniK3D 16": ("anomaly detection", slow_with_anomalies),
    "torchtune 2254": ("lost updates", lambda: plain(dtype=BF16, optimizer=partial(torch.optim.AdamW, lr=1e-5))),
    "foreign optimizer": ("lost updates", lambda: plain(dtype=BF16, optimizer=Sign)),
    "pytorch 8860": ("eps", lambda: plain(dtype=FP16, optimizer=adam)),
    "pytorch 58392": ("evaluation not finite", lambda: plain(evaluate=overflow)),
    "semseg 60": ("evaluation with gradients", lambda: plain(evaluate=lambda model, inputs: model(inputs))),
}


def no_zero_grad():
    model, inputs, labels = problem()
    optimizer = sgd(model.parameters())

    def step():
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return step, None


def scaled_by_hand():
    """As in nerfacc issue 307, done right: a constant scale, and gradients divided by it."""
    model, inputs, labels = problem()
    optimizer = sgd(model.parameters())

    def step():
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=FP16):
            loss = functional.cross_entropy(model(inputs).float(), labels)
        (loss * 1024).backward()
        for weight in model.parameters():
            weight.grad /= 1024
        optimizer.step()

    return step, None


def skipped_where_gradients_are_not_finite():
    """As many trainers do: update() without step() where the norm is inf, as in a search for the scale."""
    model, inputs, labels = problem()
    optimizer, scaler = sgd(model.parameters()), torch.amp.GradScaler(DEVICE)

    def step():
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=FP16):
            loss = functional.cross_entropy(model(inputs).float(), labels) * 1000
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).isfinite():
            scaler.step(optimizer)
        scaler.update()

    return step, None


def gradients_without_backward():
    """As with torch.func: gradients are set, so that backward() is never called."""
    model, inputs, labels = problem()
    optimizer, weights = sgd(model.parameters()), list(model.parameters())

    def step():
        gradients = torch.autograd.grad(functional.cross_entropy(model(inputs), labels), weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        optimizer.step()

    return step, None


def scheduled_in_every_micro_batch():
    model, inputs, labels = problem()
    optimizer = sgd(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)

    def step():
        optimizer.zero_grad()
        for _ in range(2):
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            scheduler.step()

    return step, None


def sparse_gradients():
    torch.manual_seed(0)
    table = torch.nn.Embedding(50, 16, sparse=True).to(DEVICE)
    optimizer, words = torch.optim.SparseAdam(table.parameters()), torch.arange(8, device=DEVICE)

    def step():
        optimizer.zero_grad()
        table(words).square().mean().backward()
        optimizer.step()

    return step, None


def optimizer_in_backward():
    model, inputs, labels = problem()
    each = {weight: torch.optim.SGD([weight], 0.01) for weight in model.parameters()}

    def update(weight):
        each[weight].step()
        each[weight].zero_grad()

    for weight in each:
        weight.register_post_accumulate_grad_hook(update)
    return lambda: functional.cross_entropy(model(inputs), labels).backward(), None


def autocast_inside_the_model():
    """As accelerate and Hugging Face do it: forward itself enters autocast."""
    model, inputs, labels = problem()
    optimizer, scaler = sgd(model.parameters()), torch.amp.GradScaler(DEVICE)
    model.forward = torch.autocast(DEVICE, dtype=FP16)(model.forward)

    def step():
        optimizer.zero_grad()
        scaler.scale(functional.cross_entropy(model(inputs).float(), labels)).backward()
        scaler.step(optimizer)
        scaler.update()

    return step, None


def with_a_loader_and_a_running_sum():
    """Batches of a DataLoader, two accumulated per optimizer step; the loss is added up on the device."""
    model, inputs, labels = problem()
    optimizer, loader = sgd(model.parameters()), DataLoader(TensorDataset(inputs, labels), batch_size=8)
    total = torch.zeros((), device=DEVICE)

    def step():
        optimizer.zero_grad()
        for images, names in loader:
            loss = functional.cross_entropy(model(images), names) / 2
            loss.backward()
            total.add_(loss.detach())
        optimizer.step()

    return step, None


def two_optimizers():
    """A small GAN."""
    torch.manual_seed(0)
    maker, judge = torch.nn.Linear(4, 16).to(DEVICE), torch.nn.Linear(16, 1).to(DEVICE)
    of_maker, of_judge = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
    real = torch.randn(8, 16, device=DEVICE)

    def step():
        of_judge.zero_grad()
        made = maker(torch.randn(8, 4, device=DEVICE))
        (functional.softplus(-judge(real)).mean() + functional.softplus(judge(made.detach())).mean()).backward()
        of_judge.step()
        of_maker.zero_grad()
        functional.softplus(-judge(made)).mean().backward()
        of_maker.step()

    return step, None


SOUND = {
    "fp32": lambda: plain(schedule="after"),
    "bf16": lambda: plain(autocast=BF16, optimizer=torch.optim.AdamW, evaluate=slope),
    "after unscale_": lambda: scaled(ends="unscale clip step update"),
    "swav 47: search for the scale": lambda: scaled(loss_of=times(1000)),
    "update() that is not heard": lambda: scaled(ends="step forget"),
    "accumulated": lambda: scaled(micro=2, ends="last:step last:update"),
    "divided by a count": lambda: scaled(after_backward=divide, ends="hand step update"),
    "norm that is logged": lambda: scaled(
        after_backward=lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf),
        ends="hand step update",
    ),
    "small updates that are kept": lambda: plain(dtype=BF16, optimizer=SignInTwoParts),
    "penalty": lambda: penalty(divides=True),
    **{
        case.__name__: case
        for case in (
            scaled_by_hand,
            skipped_where_gradients_are_not_finite,
            gradients_without_backward,
            scheduled_in_every_micro_batch,
            sparse_gradients,
            optimizer_in_backward,
            autocast_inside_the_model,
            with_a_loader_and_a_running_sum,
            two_optimizers,
        )
    },
}


def character_loop(steps):
    """A loop as of a tutorial: GradScaler in fp16, with the gradients clipped before they are unscaled."""
    torch.manual_seed(0)
    layers = torch.nn.Embedding(32, 16), torch.nn.Flatten(), torch.nn.Linear(128, 32)
    model = torch.nn.Sequential(*layers).to(DEVICE)
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=3e-4), torch.amp.GradScaler(DEVICE)
    for _ in range(steps):
        x, y = torch.randint(32, (12, 8), device=DEVICE), torch.randint(32, (12,), device=DEVICE)
        with torch.autocast(DEVICE, dtype=FP16):
            loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    return [parameter.detach().clone() for parameter in model.parameters()]
