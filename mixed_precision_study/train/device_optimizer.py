"""Optimizers whose step never asks the host anything: for CUDA graphs, scaler="device" and stochastic rounding."""

from typing import Any

import torch

from ..parameters import Unsupported
from .precision import write_back


def in_order_of(like: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor, or its copy with its elements in the memory order of `like`."""
    if any(
        a != b
        for a, b, size in zip(tensor.stride(), like.stride(), like.shape, strict=True)
        if size > 1
    ):
        return torch.empty_like(like).copy_(tensor)
    return tensor


class DeviceOptimizer:
    """An optimizer's update in one fused kernel, which does nothing if a gradient overflowed.

    The learning rate is a tensor, so that a CUDA graph's replay reads its current value. Buffers start as zeros.
    group: of torch's optimizer. Its frozen weights keep nothing, because they get no gradient.
    buffers: the names of what is kept for each weight. lacking: settings of torch's that must be off.
    stochastic: whether 16-bit weights and buffers are computed in fp32 and rounded at random, see rounded_at_random.

    Raises Unsupported where one of the lacking settings is on.
    """

    lacking: tuple[str, ...] = ()
    writes_back = True  # master copies to the model, in its own step

    def __init__(self, group: dict, stochastic: bool, buffers: tuple[str, ...]):
        if any(group[name] for name in self.lacking):
            raise Unsupported(
                f"on the device an optimizer has neither {' nor '.join(self.lacking)}"
            )
        self.stochastic = stochastic
        self.weights = weights = group["params"]
        self.lr = torch.full((), group["lr"], dtype=torch.float32, device=weights[0].device)
        self.param_groups = [{"params": weights, "lr": self.lr}]
        trained = [weight for weight in weights if weight.requires_grad]
        self.state = {
            weight: {name: torch.zeros_like(weight) for name in buffers} for weight in trained
        }
        self.master_pairs = ()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients. keep_masters() replaces this method if the weights are master copies."""
        for weight in self.weights:
            weight.grad = None

    def reset(self) -> None:
        """Set the buffers to zero in place: a graph keeps reading them at the same address."""
        for tensor in self.kept_tensors():
            tensor.zero_()

    def kept_tensors(self) -> list[torch.Tensor]:
        """Return all that the optimizer keeps between steps, without the learning rate."""
        return [buffer for state in self.state.values() for buffer in state.values()]

    def gradients(self) -> list[torch.Tensor]:
        return [weight.grad for weight in self.weights if weight.grad is not None]

    @torch.no_grad()
    def step(self, found_inf: torch.Tensor | None = None) -> None:
        """Update every weight that has a gradient; change nothing if `found_inf` (fp32, on the device) is 1."""
        by_dtype: dict[torch.dtype, list[tuple]] = {}
        for weight in self.weights:
            if weight.grad is not None:
                # in channels_last, too, if the model is moved there afterwards
                kept = self.state[weight]
                kept.update({name: in_order_of(weight, tensor) for name, tensor in kept.items()})
                tensors = weight, in_order_of(weight, weight.grad), *kept.values()
                lines = tuple(tensor.as_strided((tensor.numel(),), (1,)) for tensor in tensors)
                by_dtype.setdefault(weight.dtype, []).append(lines)
        groups = [
            [list(column) for column in zip(*rows, strict=True)] for rows in by_dtype.values()
        ]
        half_on_cpu = self.lr.device.type == "cpu" and by_dtype.keys() - {torch.float32}
        if self.stochastic or half_on_cpu:
            self.update_in_fp32(groups, found_inf)
        else:
            self.update(groups, found_inf)
        write_back(self)

    def update_in_fp32(
        self, groups: list[list[list[torch.Tensor]]], found_inf: torch.Tensor | None
    ) -> None:
        """Update fp32 copies, and round weights and buffers to their type, at random if `stochastic`.

        On a CPU every 16-bit update is done so: PyTorch 2.9's fused kernel leaves out some elements there.
        """
        exact = [[[tensor.float() for tensor in column] for column in group] for group in groups]
        self.update(exact, found_inf)
        for group, updated in zip(groups, exact, strict=True):
            for column, values in zip(
                (group[0], *group[2:]), (updated[0], *updated[2:]), strict=True
            ):
                rounded = (
                    [rounded_at_random(value) for value in values] if self.stochastic else values
                )
                torch._foreach_copy_(column, rounded)

    def update(
        self, groups: list[list[list[torch.Tensor]]], found_inf: torch.Tensor | None
    ) -> None:
        """Update groups of [weights, gradients, each buffer], one for each type."""
        raise NotImplementedError


class DeviceGroups(DeviceOptimizer):
    """The optimizers of several parameter groups, each with settings of its own, as one."""

    def __init__(self, parts: list[DeviceOptimizer]):
        self.parts = parts
        self.weights = [weight for part in parts for weight in part.weights]
        self.param_groups = [group for part in parts for group in part.param_groups]
        self.state = {weight: kept for part in parts for weight, kept in part.state.items()}
        self.master_pairs = ()

    def kept_tensors(self) -> list[torch.Tensor]:
        return [tensor for part in self.parts for tensor in part.kept_tensors()]

    def step(self, found_inf: torch.Tensor | None = None) -> None:
        for part in self.parts:
            part.step(found_inf)
        write_back(self)


class DeviceSGD(DeviceOptimizer):
    """torch.optim.SGD's update.

    torch.optim.SGD(fused=True) leaves its momentum buffers uninitialised if the first step is skipped. Here they start
    as zeros, which gives the same first step.
    """

    lacking = ("dampening", "maximize")

    def __init__(self, group: dict, stochastic: bool):
        super().__init__(group, stochastic, ("momentum_buffer",) if group["momentum"] else ())
        self.settings = {name: group[name] for name in ("momentum", "weight_decay", "nesterov")}

    def update(
        self, groups: list[list[list[torch.Tensor]]], found_inf: torch.Tensor | None
    ) -> None:
        options: dict[str, Any] = {
            "dampening": 0.0,
            "maximize": False,
            "is_first_step": False,
            **self.settings,
        }
        for weights, gradients, *momenta in groups:
            buffers = momenta[0] if momenta else []
            torch._fused_sgd_(
                weights, gradients, buffers, lr=self.lr, found_inf=found_inf, **options
            )


class DeviceAdamW(DeviceOptimizer):
    """torch.optim.AdamW's update. A skipped step does not count for the bias correction."""

    lacking = ("amsgrad", "maximize")

    def __init__(self, group: dict, stochastic: bool):
        super().__init__(group, stochastic, ("exp_avg", "exp_avg_sq"))
        self.settings = dict(zip(("beta1", "beta2"), group["betas"], strict=True))
        self.settings |= {"eps": group["eps"], "weight_decay": group["weight_decay"]}
        self.steps = torch.zeros((), dtype=torch.float32, device=self.lr.device)

    def kept_tensors(self) -> list[torch.Tensor]:
        return [*super().kept_tensors(), self.steps]

    def update(
        self, groups: list[list[list[torch.Tensor]]], found_inf: torch.Tensor | None
    ) -> None:
        self.steps.add_(1)
        options: dict[str, Any] = {"amsgrad": False, "maximize": False, **self.settings}
        for weights, gradients, averages, squares in groups:
            steps = [self.steps] * len(weights)
            torch._fused_adamw_(
                weights,
                gradients,
                averages,
                squares,
                [],
                steps,
                lr=self.lr,
                found_inf=found_inf,
                **options,
            )
        if found_inf is not None:
            self.steps.sub_(found_inf)


def rounded_at_random(exact: torch.Tensor) -> torch.Tensor:
    """Round fp32 to one of the two neighbours in bf16, the nearer one more often: right on average.

    A bf16 is the upper half of an fp32. So 16 random bits are added to the lower half, and the sum is cut off.
    """
    bits = exact.view(torch.int32)
    noise = torch.randint_like(bits, 1 << 16)
    return ((bits + noise) & -65536).view(torch.float32).bfloat16()


DEVICE_OPTIMIZERS: dict[type, Any] = {torch.optim.SGD: DeviceSGD, torch.optim.AdamW: DeviceAdamW}


def on_device(optimizer: torch.optim.Optimizer, stochastic: bool = False) -> DeviceOptimizer:
    """Return the device's form of an optimizer that has taken no step yet; Unsupported if it is no SGD or AdamW."""
    kind = DEVICE_OPTIMIZERS.get(type(optimizer))
    if kind is None:
        raise Unsupported(
            f"a step without waits for the device needs torch.optim.SGD or AdamW; this is {type(optimizer).__name__}"
        )
    made = [kind(group, stochastic) for group in optimizer.param_groups]
    return made[0] if len(made) == 1 else DeviceGroups(made)
