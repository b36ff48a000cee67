"""Optimizers whose step never asks the host anything: for CUDA graphs, scaler="device", and weights
or moments that are rounded in another way than PyTorch does.
"""

import itertools
from typing import Any

import torch

from ..parameters import Unsupported

MOMENTS = {"fp32": torch.float32, "bf16": torch.bfloat16}
AT_ONCE = 2**25  # numbers, about, of which fp32 copies are made at once
# What a weight and its remainder give together: twice the digits of bf16, as Kahan's sums do, or
# exactly the fp32 copy whose first half the weight is.
REMAINDERS = {"kahan": torch.bfloat16, "fp32_copy": torch.float32}


def in_order_of(like: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor, or its copy with its elements in the memory order of `like`."""
    for stride, wanted, size in zip(tensor.stride(), like.stride(), like.shape, strict=True):
        if stride != wanted and size > 1:
            return torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)
    return tensor


class DeviceOptimizer:
    """An optimizer's update in fused kernels, which do nothing if a gradient overflowed.

    Learning rates are tensors, so that a CUDA graph's replay reads their current values. Buffers
    start as zeros.
    groups: of torch's optimizer. Its frozen weights keep nothing, because they get no gradient.
    lacking: settings of torch's that must be off. buffers: what is kept for each weight, but not
        without momentum.
    rounding: of 16-bit weights: to "nearest"; "stochastic", at random and the buffers too, see
        rounded_at_random; or one of REMAINDERS, which keeps what rounding takes for the next step.
    moments: the type of the buffers; None: that of their weight.

    Raises Unsupported where one of the lacking settings is on.
    """

    lacking: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    # of a subclass: update(group, columns, found_inf) updates columns of weights, gradients and
    # each buffer
    update: Any

    def __init__(
        self, groups: list[dict], rounding: str = "nearest", moments: torch.dtype | None = None
    ):
        if any(group[name] for group in groups for name in self.lacking):
            raise Unsupported(
                f"on the device an optimizer has neither {' nor '.join(self.lacking)}"
            )
        self.rounding, self.moments = rounding, moments
        self.weights = list(itertools.chain(*(group["params"] for group in groups)))
        self.param_groups = []
        self.state: dict[torch.Tensor, dict] = {}
        for group in groups:
            lr = torch.full((), group["lr"], dtype=torch.float32, device=self.weights[0].device)
            self.param_groups.append({**group, "lr": lr})
            names = self.buffers if group.get("momentum", True) else ()
            for weight in group["params"]:
                if weight.requires_grad:
                    self.state[weight] = self.zeros_for(weight, names)

    def zeros_for(self, weight: torch.Tensor, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        """Return the buffers of a weight."""
        types = dict.fromkeys(names, self.moments)
        if self.rounding in REMAINDERS and weight.dtype != torch.float32:
            types["remainder"] = REMAINDERS[self.rounding]
        return {name: torch.zeros_like(weight, dtype=dtype) for name, dtype in types.items()}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients. keep_masters() replaces this method if the weights are master
        copies.
        """
        for weight in self.weights:
            weight.grad = None

    def reset(self) -> None:
        """Set the buffers to zero in place: a graph keeps reading them at the same address."""
        for kept in self.state.values():
            for buffer in kept.values():
                buffer.zero_()

    def gradients(self) -> list[torch.Tensor]:
        return [weight.grad for weight in self.weights if weight.grad is not None]

    @torch.no_grad()
    def step(self, found_inf: torch.Tensor | None = None) -> None:
        """Update every weight that has a gradient; change nothing if `found_inf` (fp32, on the
        device) is 1.
        """
        for group in self.param_groups:
            by_dtype: dict[torch.dtype, list[list]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    by_dtype.setdefault(weight.dtype, []).append(self.flat(weight))
            for rows in by_dtype.values():
                usual = self.is_usual(rows[0])
                update = self.update if usual else self.update_in_fp32
                for some in [rows] if usual else in_pieces(rows):
                    update(group, [list(column) for column in zip(*some, strict=True)], found_inf)

    def is_usual(self, row: list[torch.Tensor]) -> bool:
        """Return whether PyTorch's fused kernel updates a weight as it is to be."""
        types = {tensor.dtype for tensor in row}
        on_gpu = row[0].device.type != "cpu"
        usual = self.rounding == "nearest" and on_gpu and len(types) == 1
        return usual or types == {torch.float32}

    def flat(self, weight: torch.Tensor) -> list[torch.Tensor]:
        """Return flat views of a weight, its gradient and its buffers, all in the weight's order
        in memory, also if the model was moved to channels_last after they were made.
        """
        kept = self.state[weight]
        for name, buffer in kept.items():
            kept[name] = in_order_of(weight, buffer)
        tensors = [weight, in_order_of(weight, weight.grad), *kept.values()]
        return [tensor.as_strided((tensor.numel(),), (1,)) for tensor in tensors]

    def update_in_fp32(self, group: dict, columns: list[list], found_inf: Any) -> None:
        """Update fp32 copies, and round weights and buffers to their type. What has fp32 itself is
        updated in place.

        On a CPU every 16-bit update is done so: PyTorch 2.9's fused kernel leaves out some elements
        there.
        """
        exact = []
        for column in columns:
            exact.append([tensor.float() for tensor in column])
        remainders = []
        if self.rounding in REMAINDERS and columns[0][0].dtype != torch.float32:
            remainders = columns.pop()
            torch._foreach_add_(exact[0], exact.pop())
        self.update(group, exact, found_inf)
        for place in (0, *range(2, len(columns))):
            if exact[place][0] is not columns[place][0]:
                torch._foreach_copy_(columns[place], self.rounded(exact[place]))
        if remainders:
            torch._foreach_sub_(exact[0], columns[0])
            torch._foreach_copy_(remainders, exact[0])

    def rounded(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return fp32 values as they are to be copied to 16 bits, which rounds to the nearest."""
        if self.rounding != "stochastic":
            return values
        return [rounded_at_random(value) for value in values]


class DeviceSGD(DeviceOptimizer):
    """torch.optim.SGD's update.

    torch.optim.SGD(fused=True) leaves its momentum buffers uninitialised if the first step is
    skipped. Here they start as zeros, which gives the same first step.
    """

    lacking = ("dampening", "maximize")
    buffers = ("momentum_buffer",)

    def update(self, group: dict, columns: list[list], found_inf: Any) -> None:
        weights, gradients, *momenta = columns
        names = ("lr", "momentum", "weight_decay", "nesterov", "dampening", "maximize")
        settings: dict[str, Any] = {name: group[name] for name in names}
        torch._fused_sgd_(
            weights,
            gradients,
            momenta[0] if momenta else [],
            is_first_step=False,
            found_inf=found_inf,
            **settings,
        )


class DeviceAdamW(DeviceOptimizer):
    """torch.optim.AdamW's update. A skipped step does not count for the bias correction."""

    lacking = ("amsgrad", "maximize")
    buffers = ("exp_avg", "exp_avg_sq")

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.steps = torch.zeros((), dtype=torch.float32, device=self.weights[0].device)

    def reset(self) -> None:
        super().reset()
        self.steps.zero_()

    def step(self, found_inf: torch.Tensor | None = None) -> None:
        self.steps.add_(1)
        super().step(found_inf)
        if found_inf is not None:
            self.steps.sub_(found_inf)

    def update(self, group: dict, columns: list[list], found_inf: Any) -> None:
        steps = [self.steps] * len(columns[0])
        beta1, beta2 = group["betas"]
        names = ("lr", "eps", "weight_decay", "amsgrad", "maximize")
        settings: dict[str, Any] = {name: group[name] for name in names}
        torch._fused_adamw_(
            *columns, [], steps, beta1=beta1, beta2=beta2, found_inf=found_inf, **settings
        )


def in_pieces(rows: list[list]) -> list[list[list]]:
    """Return rows of weights in their order, some together, because of all of them together fp32
    copies would take more memory than the training.
    """
    ends = itertools.accumulate(row[0].numel() for row in rows)
    return [list(some) for _, some in itertools.groupby(rows, lambda _: next(ends) // AT_ONCE)]


def rounded_at_random(exact: torch.Tensor) -> torch.Tensor:
    """Round fp32 to one of the two neighbours in bf16, the nearer one more often: right on average.

    A bf16 is the upper half of an fp32. So 16 random bits are added to the lower half, and the sum
    is cut off.
    """
    bits = exact.view(torch.int32)
    return ((bits + torch.randint_like(bits, 1 << 16)) & -65536).view(torch.float32).bfloat16()


DEVICE_OPTIMIZERS: dict[type, Any] = {torch.optim.SGD: DeviceSGD, torch.optim.AdamW: DeviceAdamW}


def on_device(
    optimizer: torch.optim.Optimizer, rounding: str = "nearest", moments: torch.dtype | None = None
) -> DeviceOptimizer:
    """Return the device's form of an optimizer that has taken no step yet;

    Unsupported if it is no SGD or AdamW.
    """
    kind = DEVICE_OPTIMIZERS.get(type(optimizer))
    if kind is None:
        raise Unsupported(
            "a step without waits for the device needs torch.optim.SGD or AdamW; "
            f"this is {type(optimizer).__name__}"
        )
    return kind(optimizer.param_groups, rounding, moments)


def in_8_bits(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return torchao's AdamW, whose moments have 8 bits, in the place of an AdamW without steps.

    Its step needs torch.compile. Raises Unsupported without torchao, or for another optimizer.
    """
    if type(optimizer) is not torch.optim.AdamW:
        raise Unsupported(f"8-bit moments need AdamW; this is {type(optimizer).__name__}")
    try:
        from torchao.optim import AdamW8bit
    except ImportError as error:
        raise Unsupported(f"8-bit moments need the package torchao ({error})") from None
    names = "params", "lr", "betas", "eps", "weight_decay"
    return AdamW8bit([{name: group[name] for name in names} for group in optimizer.param_groups])
