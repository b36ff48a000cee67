"""Training steps with one mistake each, and sound ones.

Each function returns (step, evaluation or None).
"""

import math
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn import functional
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FP16, BF16 = torch.float16, torch.bfloat16
sgd, adam = partial(SGD, lr=0.01), partial(torch.optim.Adam, lr=1e-3)


def problem(dtype=torch.float32):
    """Return (model, inputs, labels) of a small classification."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
    inputs, labels = torch.randn(16, 32, dtype=dtype), torch.randint(0, 8, (16,))
    return model.to(DEVICE, dtype), inputs.to(DEVICE), labels.to(DEVICE)


def overflow(model, inputs):
    with torch.no_grad(), torch.autocast(DEVICE, dtype=FP16):
        return model(inputs * 1e6)


def slope(model, inputs):
    points = inputs.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(model(points).sum(), points)
    return gradient.norm()


class Foreign(SGD):
    """An optimizer that PyTorch does not have, but that steps as one of PyTorch's."""


class InTwoParts(Foreign):
    """The same with a step of its own, which may add later what is rounded away, as Kahan does."""

    def step(self, closure=None):
        return super().step(closure)


def penalty(divides=False):
    """As in apex issue 654: the gradients of a penalty are scaled, and may be divided by the
    scale.
    """
    model, inputs, labels = problem()
    optimizer, scaler = sgd(model.parameters()), GradScaler(DEVICE, init_scale=1024.0)

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


def turns(turn, *, scale=1024.0, optimizer=sgd, dtype=torch.float32, autocast=FP16, **options):
    """Return a step that calls turn(part), whose loss() is a new forward pass.

    autocast: its type, None, or False where it is switched off. options: of GradScaler; `clear`,
    whether gradients are; `evaluate`; and `compiles`, options of torch.compile.
    """
    clear, evaluate, compiles = map(
        options.pop, ("clear", "evaluate", "compiles"), (True, None, None)
    )
    model, inputs, labels = problem(dtype)
    network = torch.compile(model, **compiles) if compiles else model
    part = SimpleNamespace(model=model, inputs=inputs, last=None)
    part.weights = list(model.parameters())
    part.optimizer, part.scaler = (
        optimizer(part.weights),
        GradScaler(DEVICE, scale, **options),
    )

    def loss(of=functional.cross_entropy, **reduction):
        context = torch.autocast(DEVICE, autocast or BF16, enabled=bool(autocast))
        with nullcontext() if autocast is None else context:
            outputs = network(part.inputs)
        part.last = of(outputs.float(), labels, **reduction)
        return part.last

    def step():
        if clear:
            part.optimizer.zero_grad()
        turn(part)
        return part.last

    part.loss, step.weights = loss, part.weights
    return step, partial(evaluate, model, inputs) if evaluate else None


def scaled(*calls, of=functional.cross_entropy, **options):
    """Return a step with GradScaler that makes calls after its backward pass."""
    first = partial(backward, of=of)
    return turns(turn_of(first, *(calls or (end,))), **{"scale": 2.0**16, **options})


def plain(*calls, **options):
    """Return a step without GradScaler, of these calls."""
    return turns(turn_of(*(calls or (descend, plain_step))), **{"autocast": None, **options})


def descend(part, times=1):
    (part.loss() * times).backward()


def detect(part):
    with torch.autograd.set_detect_anomaly(True):
        descend(part)


def by_functions(part):
    """As with torch.func, so that backward() is never called."""
    gradients = torch.autograd.grad(part.loss(), part.weights)
    for weight, gradient in zip(part.weights, gradients, strict=True):
        weight.grad = gradient


def schedule(part):
    """Begin a schedule behind the first step, and follow it behind each later one."""
    if hasattr(part, "schedule"):
        part.schedule.step()
    else:
        part.schedule = torch.optim.lr_scheduler.LambdaLR(part.optimizer, lambda _: 1)


def step_if_finite(part):
    """As many trainers do."""
    if clipped(part).isfinite():
        part.scaler.step(part.optimizer)


def update(part):
    part.scaler.update()


def end(part):
    part.scaler.step(part.optimizer)
    part.scaler.update()


def divided(part, number=None):
    for weight in part.weights:
        weight.grad /= number or part.scaler.get_scale()


def divided_by_a_count(part):
    part.count = getattr(part, "count", 100) + 7
    divided(part, part.count)


def enter_autocast_inside(part):
    """As accelerate does: forward itself enters it."""
    within = torch.autocast(DEVICE, FP16)(part.model.forward)
    vars(part.model).setdefault("forward", within)


def clipped(part, limit=1.0):
    return nn.utils.clip_grad_norm_(part.weights, limit)


def swapped_scalers():
    """As in a GAN with two scalers, where each divides the gradients that the other's scale
    multiplied.
    """
    parts = []
    for scale in (64.0, 1024.0):
        turns(parts.append, scale=scale)[0]()
    one, other = parts

    def step():
        for part in parts:
            part.optimizer.zero_grad()
            part.scaler.scale(part.loss()).backward()
        one.scaler.step(other.optimizer)
        other.scaler.step(one.optimizer)
        one.scaler.update()
        other.scaler.update()

    return step, None


def through_a_wrapper():
    """As in accelerate issue 113: unscale_() and step() get two objects, so that the scaler
    divides twice.
    """

    def turn(part):
        part.scaler.scale(part.loss()).backward()
        part.scaler.unscale_(SimpleNamespace(param_groups=part.optimizer.param_groups))
        end(part)

    return turns(turn)


def scheduled_though_skipped(optimizer=sgd):
    return scaled(end, schedule, of=times(1000), scale=2.0**24, optimizer=optimizer)


def autocast_around_the_loop(dtype=torch.float32, inner=None, rate=0.1):
    """Autocast is entered once, by hand, because a step cannot show a block around the loop.

    inner: False where a second one, around the forward pass, switches it off.
    """
    step, _ = plain(optimizer=partial(SGD, lr=rate), dtype=dtype, autocast=inner)
    context = torch.autocast(DEVICE, BF16)

    def first():
        if not torch.is_autocast_enabled(DEVICE):
            context.__enter__()
        step()

    first.close = lambda: context.__exit__(None, None, None)
    return first, None


def loss_rounded(part):
    functional.mse_loss(part.model(part.inputs), part.inputs[:, :8]).backward()
    part.optimizer.step()


def summed(part):
    for _ in range(16):
        (part.loss() / 16).backward()
    part.optimizer.step()


def summed_with_care(part):
    """Each micro-batch is added to a sum with what was rounded away before, so the gradient is
    cleared each time.
    """
    sums, rest = ([torch.zeros_like(weight) for weight in part.weights] for _ in range(2))
    for _ in range(16):
        part.optimizer.zero_grad()
        (part.loss() / 16).backward()
        for weight, total, lost in zip(part.weights, sums, rest, strict=True):
            more = weight.grad - lost
            after = total + more
            lost.copy_(after - total - more)
            total.copy_(after)
    for weight, total in zip(part.weights, sums, strict=True):
        weight.grad = total
    part.optimizer.step()


def two_networks():
    """One loss is scaled and another is not, in one backward(), and each has its own optimizer."""
    one, two = [], []
    turns(one.append)[0]()
    turns(two.append)[0]()
    (one,), (two,) = one, two

    def step():
        one.optimizer.zero_grad()
        two.optimizer.zero_grad()
        (one.scaler.scale(one.loss()) + two.loss()).backward()
        end(one)
        two.optimizer.step()

    return step, None


def spoiled_buffers():
    """As in PyTorch issue 88474: a step is skipped, but its forward pass has spoiled the running
    statistics.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 8), nn.BatchNorm1d(8)).to(DEVICE)
    _, inputs, _ = problem()
    optimizer, scaler, count = (
        sgd(model.parameters()),
        GradScaler(DEVICE, 64.0),
        iter(range(1000)),
    )

    def step():
        optimizer.zero_grad()
        batch = inputs * 1e7 if next(count) == 4 else inputs
        with torch.autocast(DEVICE, FP16):
            outputs = model(batch)
        scaler.scale(outputs.float().nan_to_num().square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    return step, torch.no_grad()(partial(model, inputs))


def cached(surrogate, by_grad=False):
    """A gradient cache: the loss of all embeddings is scaled, and the surrogates that carry it
    on rightly are not.
    """
    head = nn.Linear(8, 8).to(DEVICE)

    def turn(part):
        if len(part.optimizer.param_groups) == 1:
            part.optimizer.add_param_group({"params": list(head.parameters())})
        with torch.no_grad(), torch.autocast(DEVICE, FP16):
            rows = part.model(part.inputs)
        rows = rows.float().requires_grad_(True)
        loss = part.scaler.scale(head(rows).square().mean())
        if by_grad:
            (gradients,) = torch.autograd.grad(loss, rows)
        else:
            loss.backward()
            gradients = rows.grad
        for place in range(0, 16, 4):
            with torch.autocast(DEVICE, FP16):
                again = part.model(part.inputs[place : place + 4])
            surrogate(again.float(), gradients[place : place + 4])
        end(part)

    return turns(turn)


def two_passes(part):
    """SAM, whose first gradients are divided by hand and lead to the weights where the second
    ones are taken.
    """
    part.scaler.scale(part.loss()).backward()
    moves = [0.05 * weight.grad / part.scaler.get_scale() for weight in part.weights]
    with torch.no_grad():
        for weight, move in zip(part.weights, moves, strict=True):
            weight += move
    part.optimizer.zero_grad()
    part.scaler.scale(part.loss()).backward()
    with torch.no_grad():
        for weight, move in zip(part.weights, moves, strict=True):
            weight -= move
    end(part)


def copied_weights():
    """As apex had it: a model in half(), a constant scale, and an optimizer of fp32 weights that
    are copied back.
    """
    model, inputs, labels = problem(FP16)
    weights = list(model.parameters())
    masters = [weight.detach().float().requires_grad_() for weight in weights]
    optimizer = sgd(masters)

    def step():
        model.zero_grad()
        (functional.cross_entropy(model(inputs).float(), labels) * 128).backward()
        for master, weight in zip(masters, weights, strict=True):
            master.grad = weight.grad.float() / 128
        optimizer.step()
        with torch.no_grad():
            for master, weight in zip(masters, weights, strict=True):
                weight.copy_(master)

    return step, None


def with_a_closure():
    model, inputs, labels = problem()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        with torch.autocast(DEVICE, BF16):
            outputs = model(inputs)
        loss = functional.cross_entropy(outputs.float(), labels)
        loss.backward()
        return loss

    return lambda: optimizer.step(closure), None


def checkpointed(part, reentrant=False):
    inputs = part.inputs.clone().requires_grad_(reentrant)
    outputs = checkpoint(lambda rows: part.model(rows) * 2.0, inputs, use_reentrant=reentrant)
    part.scaler.scale(outputs.float().square().mean()).backward()
    part.scaler.unscale_(part.optimizer)
    clipped(part)
    end(part)


class Mine(AdamW):
    """A subclass whose step is its parent's, which PyTorch tells of twice once a plain parent
    was made.
    """

    def step(self, closure=None):
        return super().step(closure)


def of_a_parent():
    AdamW([torch.zeros(1, requires_grad=True)])
    return plain(optimizer=Mine)


def masked_buffers():
    """A mask of -inf is no fault, and neither is a weight of no numbers."""
    step, _ = plain(autocast=BF16)
    kept = nn.Module()
    kept.register_buffer("mask", torch.full((4,), -math.inf))
    step.kept = kept
    return step, None


def fused_by_hand(part):
    """An optimizer that divides by a scale itself, which is given to it by hand."""
    (part.loss() * 512).backward()
    part.optimizer.grad_scale = torch.tensor(512.0, device=DEVICE)
    part.optimizer.found_inf = torch.tensor(0.0, device=DEVICE)
    part.optimizer.step()


def turn_of(*calls):
    """Return a turn that makes calls one after the other."""

    def turn(part):
        for call in calls:
            call(part)

    return turn


def backward(part, of=functional.cross_entropy):
    part.scaler.scale(part.loss(of)).backward()


def unscale(part):
    part.scaler.unscale_(part.optimizer)


def plain_step(part):
    part.optimizer.step()


fused = partial(SGD, lr=0.01, fused=True)
quick, fast = partial(SGD, lr=1.0), partial(SGD, lr=10.0)


MISTAKES = {  # a case: (the rule that its diagnosis names, the case); the numbers are issues
    "clip before unscale_": (
        "clipped while scaled",
        lambda: scaled(clipped, unscale, end),
    ),
    "scaler with bf16": ("scaler with bf16", lambda: scaled(autocast=BF16)),
    "past the scaler": ("past the scaler", lambda: scaled(plain_step, of=times(1e-7))),
    "insightface 2262": ("scale falls", lambda: scaled(of=inf_at_any_scale)),
    "loss is NaN": ("loss not finite", lambda: scaled(of=times(math.nan))),
    "Paddle 67895": ("gradients not cleared", lambda: scaled(clear=False)),
    "not cleared in fp32": ("gradients not cleared", lambda: plain(clear=False)),
    "Applio 860": ("steps twice", lambda: scaled(end, plain_step)),
    "torchvision 017e9b99": ("steps twice", lambda: scaled(end, clipped, plain_step)),
    "pytorch 36601": (
        "update without step",
        lambda: scaled(unscale, update, backward, unscale, end),
    ),
    "WatChMaL 106": ("no 16 bits", lambda: scaled(autocast=None)),
    "fp16 without scaler": ("fp16 without scaler", lambda: plain(autocast=FP16)),
    "UniK3D 16": ("anomaly detection", lambda: plain(detect, plain_step)),
    "torchtune 2254": (
        "lost updates",
        lambda: plain(dtype=BF16, optimizer=partial(AdamW, lr=1e-5)),
    ),
    "foreign optimizer": (
        "lost updates",
        lambda: plain(dtype=BF16, optimizer=partial(Foreign, lr=1e-6)),
    ),
    "pytorch 8860": ("eps", lambda: plain(dtype=FP16, optimizer=adam)),
    "pytorch 58392": ("evaluation not finite", lambda: plain(evaluate=overflow)),
    "accelerate 113": ("unscaled twice", through_a_wrapper),
    "by hand and by the scaler": ("unscaled twice", lambda: scaled(divided, end)),
    "unscale_ and by hand": (
        "unscaled twice",
        lambda: scaled(unscale, divided, end),
    ),
    "lightning 4148": (
        "never scaled",
        lambda: scaled(descend, end),
    ),
    "swapped scalers": ("another scale", swapped_scalers),
    "clipped past the scaler": (
        "past the scaler",
        lambda: scaled(clipped, plain_step),
    ),
    "clipped by value": (
        "clipped while scaled",
        lambda: scaled(lambda part: nn.utils.clip_grad_value_(part.weights, 0.01), end),
    ),
    "a scaler in every step": (
        "many scalers",
        lambda: turns(
            turn_of(
                lambda part: setattr(part, "scaler", GradScaler(DEVICE, 64.0)),
                backward,
                end,
            )
        ),
    ),
    "scale grows each step": (
        "steps skipped",
        lambda: scaled(growth_interval=1),
    ),
    "lightning 18828": ("scheduled though skipped", scheduled_though_skipped),
    "the same, fused": ("scheduled though skipped", lambda: scheduled_though_skipped(fused)),
    "Flow-Factory 186": ("stale weights", autocast_around_the_loop),
    "DeepSpeedExamples 754": (
        "loss in 16 bits",
        lambda: turns(loss_rounded, optimizer=quick, dtype=BF16, autocast=None),
    ),
    "micro-batches in bf16": (
        "sums in 16 bits",
        lambda: turns(summed, optimizer=fast, dtype=BF16, autocast=None),
    ),
    "pytorch 88474": ("buffers not finite", spoiled_buffers),
}


def sparse_gradients():
    torch.manual_seed(0)
    table = nn.Embedding(50, 16, sparse=True).to(DEVICE)
    optimizer, words = torch.optim.SparseAdam(table.parameters()), torch.arange(8, device=DEVICE)

    def step():
        optimizer.zero_grad()
        table(words).square().mean().backward()
        optimizer.step()

    return step, None


def optimizer_in_backward():
    model, inputs, labels = problem()
    each = {weight: SGD([weight], 0.01) for weight in model.parameters()}

    def update(weight):
        each[weight].step()
        each[weight].zero_grad()

    for weight in each:
        weight.register_post_accumulate_grad_hook(update)
    return lambda: functional.cross_entropy(model(inputs), labels).backward(), None


SOUND = {
    "fp32": lambda: plain(descend, plain_step, schedule),
    "bf16": lambda: plain(autocast=BF16, optimizer=AdamW, evaluate=slope),
    "after unscale_": lambda: scaled(unscale, clipped, end),
    "swav 47: search for the scale": lambda: scaled(of=times(1000)),
    "skipped where gradients are not finite": lambda: scaled(
        unscale, step_if_finite, update, of=times(1000)
    ),
    "autocast inside the model": lambda: turns(
        turn_of(enter_autocast_inside, backward, end), autocast=None
    ),
    "accumulated": lambda: scaled(backward, end),
    "divided by a count": lambda: scaled(divided_by_a_count, end),
    "norm that is logged": lambda: scaled(lambda part: clipped(part, math.inf), end),
    "small updates that are kept": lambda: plain(
        dtype=BF16, optimizer=partial(InTwoParts, lr=1e-6)
    ),
    "penalty": lambda: penalty(divides=True),
    "nerfacc 307, done right": lambda: plain(
        lambda part: descend(part, 1024),
        lambda part: divided(part, 1024),
        plain_step,
        autocast=FP16,
    ),
    "scheduled in every micro-batch": lambda: plain(*(descend, plain_step, schedule) * 2),
    "gradients without backward()": lambda: plain(by_functions, plain_step),
    "sparse gradients": sparse_gradients,
    "limit times the scale": lambda: turns(
        turn_of(backward, lambda part: clipped(part, 1e-3 * part.scaler.get_scale()), end)
    ),
    "clamped by the scale": lambda: turns(
        turn_of(
            backward, lambda part: [one.grad.clamp_(-1.024, 1.024) for one in part.weights], end
        )
    ),
    "scale of 1": lambda: scaled(clipped, end, scale=1.0),
    "scale per sample": lambda: turns(
        lambda part: (
            (part.loss(reduction="none") * torch.rand(16, device=DEVICE) * 1024).mean().backward(),
            divided(part, 1024),
            part.optimizer.step(),
        )
    ),
    "scale as a number": lambda: turns(
        lambda part: (
            part.scaler.scale(part.loss()),
            (part.loss() * part.scaler.get_scale()).backward(),
            end(part),
        )
    ),
    "scale as gradient": lambda: turns(
        lambda part: (
            part.loss().backward(gradient=part.scaler.scale(torch.ones((), device=DEVICE))),
            end(part),
        )
    ),
    "losses in a list": lambda: turns(
        lambda part: (
            *(one.backward() for one in part.scaler.scale([part.loss(), 3 * part.loss()])),
            end(part),
        )
    ),
    "scaled before the mean": lambda: turns(
        lambda part: (part.scaler.scale(part.loss(reduction="none")).mean().backward(), end(part))
    ),
    "cached, dot": lambda: cached(
        lambda rows, kept: torch.dot(rows.flatten(), kept.flatten()).backward()
    ),
    "cached, gradient=": lambda: cached(lambda rows, kept: rows.backward(gradient=kept)),
    "cached, grad()": lambda: cached(
        lambda rows, kept: (rows * kept).sum().backward(), by_grad=True
    ),
    "SAM": lambda: turns(two_passes),
    "Kahan": lambda: turns(summed_with_care, optimizer=fast, dtype=BF16, autocast=None),
    "master weights": copied_weights,
    "closure": with_a_closure,
    "checkpointed": lambda: turns(checkpointed),
    "checkpointed, reentrant": lambda: turns(partial(checkpointed, reentrant=True)),
    "fused": lambda: scaled(unscale, clipped, end, optimizer=fused),
    "divided by hand in bf16": lambda: turns(
        turn_of(backward, divided, plain_step), optimizer=quick, dtype=BF16, autocast=None
    ),
    "fused by hand": lambda: turns(fused_by_hand, optimizer=fused),
    "subclass": of_a_parent,
    "mask of -inf": masked_buffers,
    "autocast closed after the step": lambda: turns(
        lambda part: torch.autocast(DEVICE, BF16)(
            lambda: (part.loss().backward(), part.optimizer.step())
        )(),
        autocast=None,
    ),
    "optimizer in backward()": optimizer_in_backward,
    "autocast around 16-bit weights": lambda: autocast_around_the_loop(dtype=BF16, rate=10.0),
    "autocast off in a part": lambda: autocast_around_the_loop(inner=False),
    "divided by a mean of micro-batches": lambda: scaled(
        unscale, lambda part: divided(part, 8), end, scale=8.0
    ),
    "one of two losses elsewhere": two_networks,
}


def clipped_loop(steps, **compiles):
    """Take steps whose gradients are clipped before they are unscaled, and return the weights."""
    if compiles:
        torch._dynamo.reset()
    step, _ = scaled(clipped, end, compiles=compiles)
    for _ in range(steps):
        step()
    return step.weights
