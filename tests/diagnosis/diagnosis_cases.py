"""Training steps with one mistake each, and sound ones. Each function returns (step, evaluation or None)."""

import math
from functools import partial

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def problem(dtype=torch.float32, width=32):
    """Return (model, inputs, labels) of a small classification."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(32, width), torch.nn.ReLU(), torch.nn.Linear(width, 8)
    inputs, labels = torch.randn(16, 32, dtype=dtype), torch.randint(0, 8, (16,))
    return torch.nn.Sequential(*layers).to(DEVICE, dtype), inputs.to(DEVICE), labels.to(DEVICE)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def scaled(*, clip=None, autocast=torch.float16, optimizer=None, update=True, through_scaler=True, loss_of=None):
    """Return a step with GradScaler. clip: "before" or "after" unscale_."""
    model, inputs, labels = problem()
    optimizer = (optimizer or sgd)(model)
    scaler = torch.amp.GradScaler(DEVICE)
    loss_of = loss_of or functional.cross_entropy

    def step():
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=autocast):
            loss = loss_of(model(inputs).float(), labels)
        scaler.scale(loss).backward()
        if clip == "after":
            scaler.unscale_(optimizer)
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if through_scaler:
            scaler.step(optimizer)
        else:
            optimizer.step()
        if update:
            scaler.update()
        else:
            scaler._per_optimizer_states.clear()  # or unscale_ raises in the second step

    return step


def plain(*, autocast=None, backward_inside=False, schedule=None, read=False, optimizer=None, dtype=torch.float32):
    """Return a step without GradScaler. schedule: "before" or "after" the optimizer's step, or at the "top"."""
    model, inputs, labels = problem(dtype)
    optimizer = (optimizer or sgd)(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)

    def step():
        if schedule == "top":
            scheduler.step()
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            loss = functional.cross_entropy(model(inputs).float(), labels)
            if backward_inside:
                loss.backward()
        if not backward_inside:
            loss.backward()
        if schedule == "before":
            scheduler.step()
        optimizer.step()
        if schedule == "after":
            scheduler.step()
        if read:
            return loss.item()
        return loss

    return step


def clip_before_unscale():
    return scaled(clip="before"), None


def scaler_with_bf16():
    return scaled(autocast=torch.bfloat16), None


def step_past_the_scaler():
    gentle = partial(torch.optim.SGD, lr=1e-9)  # or the loss becomes NaN at once
    return scaled(through_scaler=False, update=False, optimizer=lambda model: gentle(model.parameters())), None


def no_update():
    return scaled(update=False), None


def scale_falls():
    """As in insightface issue 2262: some gradient is inf at any scale."""
    return scaled(
        loss_of=lambda logits, labels: functional.cross_entropy(logits, labels) + (logits.sum() * 0).sqrt()
    ), None


def loss_is_nan():
    return scaled(loss_of=lambda logits, labels: functional.cross_entropy(logits, labels) * math.nan), None


def fp16_without_scaler():
    return plain(autocast=torch.float16), None


def autocast_around_backward():
    return plain(autocast=torch.bfloat16, backward_inside=True), None


def scheduler_first():
    return plain(schedule="before"), None


def scheduler_at_the_top():
    """As in loops written for PyTorch 1.0. Only its very first steps show it."""
    return plain(schedule="top"), None


def pure_bf16_with_adamw():
    """As in torchtune issue 2254: updates below half a unit in the last place are lost."""
    return plain(dtype=torch.bfloat16, optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-5)), None


def evaluation_overflows():
    """As in PyTorch issue 58392: the loss is finite, and the evaluation is not."""
    model, inputs, _ = problem()
    step = scaled()

    def evaluate():
        model.eval()
        with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.float16):
            return model(inputs * 1e6)

    return step, evaluate


def scaled_loop(*, clear=True, twice=False, after_backward=lambda model: None, autocast=True, micro=1, early=False):
    """Return a step with GradScaler and gradient accumulation. early: unscale_ and update in every micro-batch."""
    model, inputs, labels = problem()
    optimizer, scaler = sgd(model), torch.amp.GradScaler(DEVICE)

    def step():
        if clear:
            optimizer.zero_grad()
        for number in range(micro):
            with torch.autocast(DEVICE, dtype=torch.float16, enabled=autocast):
                loss = functional.cross_entropy(model(inputs).float(), labels) / micro
            scaler.scale(loss).backward()
            after_backward(model)
            last = number == micro - 1
            if early:
                scaler.unscale_(optimizer)
            if last:
                scaler.step(optimizer)
            if last or early:
                scaler.update()
        if twice:
            optimizer.step()

    return step, None


def clamped(model):
    for weight in model.parameters():
        weight.grad.clamp_(-1e-3, 1e-3)


def to_a_norm(model):
    norm = torch.sqrt(sum(weight.grad.square().sum() for weight in model.parameters()))
    for weight in model.parameters():
        weight.grad.mul_((1 / norm).clamp(max=1))


def averaged(model):
    for weight in model.parameters():
        weight.grad /= 2


def gradients_are_not_cleared():
    """As in Paddle issue 67895 and pytorch issue 47175."""
    return scaled_loop(clear=False)


def two_steps_with_the_same_gradients():
    """As in Applio pull request 860."""
    return scaled_loop(twice=True)


def update_in_every_micro_batch():
    """As in PyTorch pull request 36601."""
    return scaled_loop(micro=2, early=True)


def clipped_by_hand():
    """As in EveryDream2trainer pull request 175, by clamp_ in place of clip_grad_value_."""
    return scaled_loop(after_backward=clamped)


def clipped_by_hand_to_a_norm():
    return scaled_loop(after_backward=to_a_norm)


def forward_outside_autocast():
    """As in WatChMaL pull request 106: the loss is scaled, and nothing runs in 16 bits."""
    return scaled_loop(autocast=False)


def anomaly_detection_left_on():
    """As in UniK3D issue 16."""
    step = plain()

    def slow():
        with torch.autograd.set_detect_anomaly(True):
            step()

    return slow, None


def adam_in_fp16():
    """As in pytorch issue 8860: 1e-8 is 0 in fp16."""
    return plain(dtype=torch.float16, optimizer=lambda model: torch.optim.Adam(model.parameters(), 1e-3)), None


class Sign(torch.optim.Optimizer):
    """An optimizer that PyTorch does not have."""

    def __init__(self, weights, lr):
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


def pure_bf16_with_a_foreign_optimizer():
    return plain(dtype=torch.bfloat16, optimizer=lambda model: Sign(model.parameters(), 1e-6)), None


def penalty_of_scaled_gradients():
    """As in apex issue 654."""
    model, inputs, labels = problem()
    optimizer, scaler = sgd(model), torch.amp.GradScaler(DEVICE, init_scale=1024.0)

    def step():
        optimizer.zero_grad()
        real = inputs.clone().requires_grad_(True)
        with torch.autocast(DEVICE, dtype=torch.float16):
            outputs = model(real)
        (gradient,) = torch.autograd.grad(scaler.scale(outputs.float().sum()), real, create_graph=True)
        penalty = (gradient.norm(dim=1) - 1).square().mean()
        scaler.scale(functional.cross_entropy(outputs.float(), labels) + penalty).backward()
        scaler.step(optimizer)
        scaler.update()

    return step, None


def evaluation_with_gradients():
    """As in semseg issue 60: without no_grad the evaluation keeps what a backward() would need."""
    model, inputs, _ = problem()
    return plain(), lambda: model(inputs)


MISTAKES = {  # a case: the rule that its diagnosis names, alone
    clip_before_unscale: "clipped while scaled",
    scaler_with_bf16: "scaler with bf16",
    step_past_the_scaler: "past the scaler",
    no_update: "no update",
    scale_falls: "scale falls",
    loss_is_nan: "loss not finite",
    fp16_without_scaler: "fp16 without scaler",
    autocast_around_backward: "backward in autocast",
    scheduler_first: "scheduler first",
    scheduler_at_the_top: "scheduler first",
    gradients_are_not_cleared: "gradients not cleared",
    two_steps_with_the_same_gradients: "steps twice",
    update_in_every_micro_batch: "update without step",
    clipped_by_hand: "clipped while scaled",
    clipped_by_hand_to_a_norm: "clipped while scaled",
    forward_outside_autocast: "no 16 bits",
    anomaly_detection_left_on: "anomaly detection",
    pure_bf16_with_adamw: "lost updates",
    pure_bf16_with_a_foreign_optimizer: "lost updates",
    adam_in_fp16: "eps",
    penalty_of_scaled_gradients: "penalty of scaled gradients",
    evaluation_overflows: "evaluation not finite",
    evaluation_with_gradients: "evaluation with gradients",
}


# Sound steps: a diagnosis finds nothing


def accumulated_and_averaged_by_hand():
    return scaled_loop(micro=2, after_backward=averaged)


def scaled_by_hand():
    """As in nerfacc issue 307, done right: a constant scale, and gradients divided by it."""
    model, inputs, labels = problem()
    optimizer = sgd(model)

    def step():
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = functional.cross_entropy(model(inputs).float(), labels)
        (loss * 1024).backward()
        for weight in model.parameters():
            weight.grad /= 1024
        optimizer.step()

    return step, None


def searching_for_the_scale():
    """As in swav issue 47: the scale falls in each of the first steps until it fits, which is normal."""
    return scaled(loss_of=lambda logits, labels: functional.cross_entropy(logits, labels) * 1000), None


def scheduled_in_every_micro_batch():
    model, inputs, labels = problem()
    optimizer = sgd(model)
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
    optimizer = torch.optim.SparseAdam(table.parameters())
    words = torch.arange(8, device=DEVICE)

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
    optimizer, scaler = sgd(model), torch.amp.GradScaler(DEVICE)
    model.forward = torch.autocast(DEVICE, dtype=torch.float16)(model.forward)

    def step():
        optimizer.zero_grad()
        scaler.scale(functional.cross_entropy(model(inputs).float(), labels)).backward()
        scaler.step(optimizer)
        scaler.update()

    return step, None


def fp32():
    return plain(schedule="after"), None


def bf16_autocast():
    return plain(autocast=torch.bfloat16, optimizer=lambda model: torch.optim.AdamW(model.parameters())), None


def fp16_with_scaler_and_clipping():
    return scaled(clip="after"), None


def with_a_loader_and_a_running_sum():
    """Batches of a DataLoader, two accumulated per optimizer step; the loss is added up on the device."""
    model, inputs, labels = problem()
    optimizer = sgd(model)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=8)
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
        loss = functional.softplus(-judge(real)).mean() + functional.softplus(judge(made.detach())).mean()
        loss.backward()
        of_judge.step()
        of_maker.zero_grad()
        functional.softplus(-judge(made)).mean().backward()
        of_maker.step()

    return step, None


def compiled_transformer():
    """torch.compile, AdamW, bf16 autocast, an evaluation in between."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).to(DEVICE)
    network = torch.compile(layer, backend="eager")
    optimizer = torch.optim.AdamW(layer.parameters())
    words = torch.randn(4, 8, 16, device=DEVICE)

    def step():
        layer.train()
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = network(words).float().square().mean()
        loss.backward()
        optimizer.step()

    def evaluate():
        layer.eval()
        with torch.no_grad():
            return layer(words)

    return step, evaluate


def updates_that_are_kept_for_later():
    """As in optimi: small updates are kept for later."""
    return plain(dtype=torch.bfloat16, optimizer=lambda model: SignInTwoParts(model.parameters(), 1e-6)), None


def divided_by_a_count_of_words():
    """Scaled gradients divided by a number that changes, which is no clipping."""
    counts = iter(range(100, 1000, 7))

    def divide(model):
        count = next(counts)
        for weight in model.parameters():
            weight.grad /= count

    return scaled_loop(after_backward=divide)


def skipped_where_gradients_are_not_finite():
    """As many trainers do: update() without step() where the norm is inf, as in a search for the scale."""
    model, inputs, labels = problem()
    optimizer, scaler = sgd(model), torch.amp.GradScaler(DEVICE)

    def step():
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
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
    optimizer = sgd(model)

    def step():
        weights = list(model.parameters())
        gradients = torch.autograd.grad(functional.cross_entropy(model(inputs), labels), weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        optimizer.step()

    return step, None


def evaluation_that_needs_gradients():
    """As of a physics-informed network."""
    model, inputs, _ = problem()

    def evaluate():
        points = inputs.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(model(points).sum(), points)
        return gradient.norm()

    return plain(), evaluate


def norm_is_only_logged():
    """clip_grad_norm_ with an infinite limit changes nothing."""
    return scaled_loop(after_backward=lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf))


SOUND = (
    updates_that_are_kept_for_later,
    divided_by_a_count_of_words,
    skipped_where_gradients_are_not_finite,
    gradients_without_backward,
    evaluation_that_needs_gradients,
    norm_is_only_logged,
    fp32,
    searching_for_the_scale,
    accumulated_and_averaged_by_hand,
    scaled_by_hand,
    scheduled_in_every_micro_batch,
    sparse_gradients,
    optimizer_in_backward,
    autocast_inside_the_model,
    bf16_autocast,
    fp16_with_scaler_and_clipping,
    with_a_loader_and_a_running_sum,
    two_optimizers,
    compiled_transformer,
)


def character_loop(steps):
    """GradScaler in fp16, with the gradients clipped before they are unscaled."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(32, 16), torch.nn.Flatten(), torch.nn.Linear(128, 32)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler(DEVICE)
    text = torch.randint(0, 32, (1000,))
    for iteration in range(steps):
        starts = torch.randint(len(text) - 9, (12,)).tolist()
        x = torch.stack([text[i : i + 8] for i in starts]).to(DEVICE)
        y = torch.stack([text[i + 8] for i in starts]).to(DEVICE)
        rate = 3e-4 * 0.5 * (1 + math.cos(math.pi * iteration / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    return [parameter.detach().clone() for parameter in model.parameters()]
