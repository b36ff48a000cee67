"""Training steps with one mistake each, and sound ones. Each function returns (step, evaluation or None)."""

import math
from functools import partial

import torch
from torch.nn import functional

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
    *,
    loss_of=functional.cross_entropy,
    autocast=FP16,
    by_hand=None,
    micro=1,
    ends="step update",
    **compiles,
):
    """Return a step with GradScaler. ends: the calls after each backward pass, of which "hand" is by_hand(model).

    autocast: its type, or "inside" where forward itself enters it, as in accelerate. A call with "last:" comes after
    the last micro-batch alone, and "optimizer" steps without the scaler. compiles: options of torch.compile.
    """
    model, inputs, labels = problem()
    optimizer, scaler = sgd(model.parameters()), torch.amp.GradScaler(DEVICE)
    network = torch.compile(model, **compiles) if compiles else model
    if autocast == "inside":
        autocast, model.forward = None, torch.autocast(DEVICE, FP16)(model.forward)
    calls = {
        "unscale": lambda: scaler.unscale_(optimizer),
        "clip": lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        "hand": lambda: by_hand(model),
        "keep": lambda: None,  # the gradients are not cleared
        "step": lambda: scaler.step(optimizer),
        # as many trainers do
        "careful": lambda: calls["clip"]().isfinite() and scaler.step(optimizer),
        "optimizer": optimizer.step,
        "update": lambda: scaler.update(),
    }

    def step():
        if not ends.startswith("keep"):
            optimizer.zero_grad()
        for number in range(micro):
            with torch.autocast(DEVICE, dtype=autocast or FP16, enabled=autocast is not None):
                loss = loss_of(network(inputs).float(), labels) / micro
            scaler.scale(loss).backward()
            for call in ends.split():
                if not call.startswith("last:") or number == micro - 1:
                    calls[call.removeprefix("last:")]()

    step.weights = list(model.parameters())
    return step, None


def plain(
    *,
    schedule=None,
    optimizer=sgd,
    dtype=torch.float32,
    evaluate=None,
    clear=True,
    micro=1,
    **options,
):
    """Return a step without GradScaler. schedule: "before" or "after" the optimizer's step, or at the "top".

    options: `autocast`, a type; `anomaly`, whether it is detected; `times`, a constant loss scale that is undone; and
    `functions`, as with torch.func, which sets the gradients, so that backward() is never called.
    """
    model, inputs, labels = problem(dtype)
    optimizer, autocast, times = (
        optimizer(model.parameters()),
        options.get("autocast"),
        options.get("times", 1),
    )
    scheduler, weights = (
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000),
        list(model.parameters()),
    )

    def step():
        if schedule == "top":
            scheduler.step()
        if clear:
            optimizer.zero_grad()
        for _ in range(micro):
            with torch.autocast(DEVICE, autocast or BF16, autocast is not None):
                loss = functional.cross_entropy(model(inputs).float(), labels)
            with torch.autograd.set_detect_anomaly(options.get("anomaly", False)):
                if options.get("functions"):
                    for weight, gradient in zip(
                        weights, torch.autograd.grad(loss, weights), strict=True
                    ):
                        weight.grad = gradient
                else:
                    (loss if times == 1 else loss * times).backward()
            for weight in weights if times != 1 else ():
                weight.grad /= times
            if schedule == "before":
                scheduler.step()
            optimizer.step()
            if schedule == "after":
                scheduler.step()
        return loss

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


class Foreign(torch.optim.SGD):
    """An optimizer that PyTorch does not have."""


class InTwoParts(Foreign):
    """The same, which says that what is rounded away is added later, after Kahan."""


def penalty(divides=False):
    """As in apex issue 654: the gradients of a penalty are scaled, and may be divided by the scale."""
    model, inputs, labels = problem()
    optimizer, scaler = sgd(model.parameters()), torch.amp.GradScaler(DEVICE, init_scale=1024.0)

    def step():
        optimizer.zero_grad()
        real = inputs.clone().requires_grad_(True)
        with torch.autocast(DEVICE, dtype=FP16):
            outputs = model(real)
        (gradient,) = torch.autograd.grad(
            scaler.scale(outputs.float().sum()), real, create_graph=True
        )
        gradient = gradient / scaler.get_scale() if divides else gradient
        loss = (
            functional.cross_entropy(outputs.float(), labels)
            + (gradient.norm(dim=1) - 1).square().mean()
        )
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step, None


def inf_at_any_scale(logits, labels):
    return functional.cross_entropy(logits, labels) + (logits.sum() * 0).sqrt()


def times(factor):
    return lambda logits, labels: functional.cross_entropy(logits, labels) * factor


MISTAKES = {  # a case: (the rule that its diagnosis names, the case); the numbers are issues
    "clip before unscale_": (
        "clipped while scaled",
        lambda: scaled(ends="clip unscale step update"),
    ),
    "clamped by hand": (
        "clipped while scaled",
        lambda: scaled(by_hand=clamp, ends="hand step update"),
    ),
    "norm by hand": (
        "clipped while scaled",
        lambda: scaled(by_hand=to_a_norm, ends="hand step update"),
    ),
    "scaler with bf16": ("scaler with bf16", lambda: scaled(autocast=BF16)),
    "past the scaler": ("past the scaler", lambda: scaled(loss_of=times(1e-7), ends="optimizer")),
    "insightface 2262": ("scale falls", lambda: scaled(loss_of=inf_at_any_scale)),
    "loss is NaN": ("loss not finite", lambda: scaled(loss_of=times(math.nan))),
    "Paddle 67895": ("gradients not cleared", lambda: scaled(ends="keep step update")),
    "not cleared in fp32": ("gradients not cleared", lambda: plain(clear=False)),
    "Applio 860": ("steps twice", lambda: scaled(ends="step update optimizer")),
    "torchvision 017e9b99": ("steps twice", lambda: scaled(ends="step update clip optimizer")),
    "pytorch 36601": (
        "update without step",
        lambda: scaled(micro=2, ends="unscale last:step update"),
    ),
    "WatChMaL 106": ("no 16 bits", lambda: scaled(autocast=None)),
    "apex 654": ("penalty of scaled gradients", penalty),
    "fp16 without scaler": ("fp16 without scaler", lambda: plain(autocast=FP16)),
    "scheduler before": ("scheduler first", lambda: plain(schedule="before")),
    "scheduler at the top": ("scheduler first", lambda: plain(schedule="top")),
    "UniK3D 16": ("anomaly detection", lambda: plain(anomaly=True)),
    "torchtune 2254": (
        "lost updates",
        lambda: plain(dtype=BF16, optimizer=partial(torch.optim.AdamW, lr=1e-5)),
    ),
    "foreign optimizer": (
        "lost updates",
        lambda: plain(dtype=BF16, optimizer=partial(Foreign, lr=1e-6)),
    ),
    "pytorch 8860": ("eps", lambda: plain(dtype=FP16, optimizer=adam)),
    "pytorch 58392": ("evaluation not finite", lambda: plain(evaluate=overflow)),
    "semseg 60": (
        "evaluation with gradients",
        lambda: plain(evaluate=lambda model, inputs: model(inputs)),
    ),
}


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


SOUND = {
    "fp32": lambda: plain(schedule="after"),
    "bf16": lambda: plain(autocast=BF16, optimizer=torch.optim.AdamW, evaluate=slope),
    "after unscale_": lambda: scaled(ends="unscale clip step update"),
    "swav 47: search for the scale": lambda: scaled(loss_of=times(1000)),
    "skipped where gradients are not finite": lambda: scaled(
        loss_of=times(1000), ends="unscale careful update"
    ),
    "autocast inside the model": lambda: scaled(autocast="inside"),
    "accumulated": lambda: scaled(micro=2, ends="last:step last:update"),
    "divided by a count": lambda: scaled(by_hand=divide, ends="hand step update"),
    "norm that is logged": lambda: scaled(
        by_hand=lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf),
        ends="hand step update",
    ),
    "small updates that are kept": lambda: plain(
        dtype=BF16, optimizer=partial(InTwoParts, lr=1e-6)
    ),
    "penalty": lambda: penalty(divides=True),
    "nerfacc 307, done right": lambda: plain(autocast=FP16, times=1024),
    "scheduled in every micro-batch": lambda: plain(schedule="after", micro=2),
    "gradients without backward()": lambda: plain(functions=True),
    "sparse gradients": sparse_gradients,
    "optimizer in backward()": optimizer_in_backward,
}


def clipped_loop(steps, **compiles):
    """Take steps whose gradients are clipped before they are unscaled, and return the weights."""
    torch._dynamo.reset()
    step, _ = scaled(ends="clip step update", **compiles)
    for _ in range(steps):
        step()
    return step.weights
