"""The whole training step as one CUDA graph: execution="cuda_graph".

A replay cannot ask the host anything, so loss scaling, the skipping of a step, the learning rate and the hidden state
live on the device. On the CPU the same steps run without a graph, which is how the tests know their arithmetic.
"""

import functools

import torch

from .errors import Unsupported, error_line
from .memory import is_out_of_memory, release_memory, reset_peaks
from .precision import gather_master_gradients, write_back


class DeviceScaler:
    """Scales the loss by torch.amp.GradScaler's rule; whether a step overflowed stays on the device, in `found`.

    `scale` None: the loss passes as it is. Not `dynamic`: the scale stays. Gradients may be fp16 as well.
    """

    def __init__(self, scale, dynamic, device):
        self.enabled, self.dynamic, self.growth_interval = scale is not None, dynamic, 2000  # GradScaler's defaults
        self.factor = torch.full((), scale or 1.0, dtype=torch.float32, device=device)
        self.good_steps = torch.zeros((), dtype=torch.int32, device=device)  # since the scale last changed
        self.found = torch.zeros((), device=device)  # 1.0 where the gradients of the last step overflowed
        self.skipped = torch.zeros((), device=device)  # how many steps did so far
        self.unscaled = False  # in the step that is being taken

    def is_enabled(self):
        return self.enabled

    def scale(self, loss):
        return loss * self.factor if self.enabled else loss

    def unscale_(self, optimizer):
        gather_master_gradients(optimizer)
        self.unscaled = True
        if self.enabled:
            self.found.zero_()
            inverse = self.factor.double().reciprocal().float()
            gradients = optimizer.gradients()
            for kind in dict.fromkeys(gradient.dtype for gradient in gradients):
                same = [gradient for gradient in gradients if gradient.dtype == kind]
                torch._amp_foreach_non_finite_check_and_unscale_(same, self.found, inverse)

    def step(self, optimizer):
        """Update the weights, or change nothing after an overflow; unscales first where that has not been done."""
        if not self.unscaled:
            self.unscale_(optimizer)
        optimizer.step(self.found if self.enabled else None)

    def update(self):
        """Count an overflow, and move the scale if it is dynamic."""
        self.unscaled = False
        if self.enabled:
            self.skipped.add_(self.found)
        if self.dynamic:
            torch._amp_update_scale_(self.factor, self.good_steps, self.found, 2.0, 0.5, self.growth_interval)

    def get_scale(self):
        return self.factor.item()

    def state_dict(self):
        factors = {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": self.growth_interval}
        return {"scale": self.get_scale(), "_growth_tracker": self.good_steps.item(), **factors}


def as_line(tensor, like):
    """Return a dense tensor's elements as (N,) in the order of memory, which must be that of `like`."""
    if any(a != b for a, b, size in zip(tensor.stride(), like.stride(), like.shape, strict=True) if size > 1):
        tensor = torch.empty_like(like).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))


class DeviceSGD:
    """torch.optim.SGD's update in one fused kernel, which returns at once where `found` tells of an overflow.

    The trap of torch.optim.SGD(fused=True), momenta that are made, uninitialised, at a first step that is skipped, is
    none here: they are there from the start, as zeros, and 0 x momentum + gradient is what SGD's first step takes.
    The learning rate is a tensor, so that a replay reads what set_lr has written.
    """

    def __init__(self, weights, lr, momentum=0.0, weight_decay=0.0, nesterov=False):
        self.weights, self.momentum, self.weight_decay, self.nesterov = weights, momentum, weight_decay, nesterov
        self.lr = torch.full((), lr, dtype=torch.float32, device=weights[0].device)
        self.param_groups = [{"params": weights, "lr": self.lr}]
        self.state = {weight: {"momentum_buffer": torch.zeros_like(weight)} for weight in weights if momentum}
        self.master_pairs = ()

    @classmethod
    def like(cls, optimizer):
        """Return a DeviceSGD with the settings of a torch.optim.SGD that has taken no step yet.

        Raises Unsupported for any other optimizer, and for settings that the fused kernel is not given here.
        """
        groups = optimizer.param_groups
        if type(optimizer) is not torch.optim.SGD or len(groups) > 1:
            kind = f"{type(optimizer).__name__} with {len(groups)} parameter group{'s' if len(groups) > 1 else ''}"
            raise Unsupported(f"a CUDA graph needs torch.optim.SGD with one parameter group; this is {kind}")
        (group,) = groups
        if group["dampening"] or group["maximize"]:
            raise Unsupported("a CUDA graph needs an SGD without dampening and maximize")
        settings = {name: group[name] for name in ("lr", "momentum", "weight_decay", "nesterov")}
        return cls(group["params"], **settings)

    def zero_grad(self, set_to_none=True):
        """Forget the gradients; keep_masters() replaces this where the weights are master copies."""
        for weight in self.weights:
            weight.grad = None

    def reset(self):
        """Forget the momenta, in place: a graph goes on reading them where they are."""
        for state in self.state.values():
            state["momentum_buffer"].zero_()

    def gradients(self):
        return [weight.grad for weight in self.weights if weight.grad is not None]

    @torch.no_grad()
    def step(self, found=None):
        """Update every weight that has a gradient, or, where `found` (fp32 on the device) is 1, change nothing."""
        by_type = {}
        for weight in self.weights:
            if weight.grad is not None:
                lists = by_type.setdefault(weight.dtype, ([], [], []))
                lists[0].append(as_line(weight, weight))
                lists[1].append(as_line(weight.grad, weight))
                lists[2].extend(as_line(buffer, weight) for buffer in self.state.get(weight, {}).values())
        options = {"weight_decay": self.weight_decay, "momentum": self.momentum, "nesterov": self.nesterov}
        options |= {"lr": self.lr, "dampening": 0.0, "maximize": False, "is_first_step": False, "found_inf": found}
        for weights, gradients, momenta in by_type.values():
            torch._fused_sgd_(weights, gradients, momenta, **options)
        write_back(self)


FAILED_GRAPHS = []  # kept, because PyTorch's allocator may still ask one of them whose memory it is


@functools.cache
def graph_stream(device):
    """Return the one stream of this process's graphs, None on the CPU: a stream keeps cuBLAS's workspaces for good."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def parts(value):
    """Return the tensors of a batch or a hidden state: a tuple of tensors, one tensor, or None."""
    return () if value is None else value if isinstance(value, tuple) else (value,)


def copied(value):
    """Return a copy of a batch or a hidden state in memory of its own."""
    if value is None or isinstance(value, torch.Tensor):
        return None if value is None else value.clone()
    return tuple(part.clone() for part in value)


def capture(run, stream, device):
    """Return (graph of what `run()` does on the device, the bytes of it that the allocator does not count afterwards).

    Nothing is computed by it. Raises Unsupported where `run` cannot be captured.
    """
    release_memory(device)
    reset_peaks(device)
    graph = torch.cuda.CUDAGraph()
    try:  # thread_local: a loader's own thread may go on pinning memory. A capture that fails leaves its stream current
        with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            run()
    except RuntimeError as error:
        FAILED_GRAPHS.append(graph)
        graph_stream.cache_clear()  # nobody takes a stream again in whose capture something failed
        graph.reset()  # one that could be ended, as after a lack of memory, must not go on holding the card's memory
        give_up(error, device)
    return graph, torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)


def give_up(error, device):
    """Raise what ended a capture: a lack of memory as it is, anything else as Unsupported with its first cause."""
    generator = torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    generator.graphsafe_set_state(generator.clone_state())  # or the next dropout would still believe in the capture
    while error.__context__ is not None and not is_out_of_memory(error):
        error = error.__context__
    if is_out_of_memory(error):
        raise error
    raise Unsupported(f"this training step cannot be captured in a CUDA graph ({error_line(error)})") from None


EAGER_STEPS = 3  # before the capture: cuDNN has then chosen its algorithms, and libraries have their workspaces


class CapturedStep:
    """Takes steps on tensors that stay where they are: a few as they come, then as replays of one CUDA graph.

    `take(batch, hidden)` is a whole training step that waits for nothing, `found` the tensor in which it says whether
    it was skipped. A hidden state of None means zeros. What `step` returns is overwritten by the next one.
    """

    def __init__(self, take, found, device):
        self.take, self.found, self.device, self.graph, self.taken = take, found, device, None, 0
        self.stream = graph_stream(device)
        self.batch = self.hidden = None
        self.outcome = torch.zeros(2, device=device)  # loss; 1 where the step was skipped
        self.before_capture = lambda: None
        self.unseen_bytes = 0  # in use while the graph runs, beside what the allocator counts
        self.begun_bytes = None

    def load(self, batch, hidden):
        """Copy the batch, and a hidden state that is not the one in place, to where the steps read them."""
        if self.batch is None:
            self.batch, self.hidden = copied(batch), copied(hidden)
        for place, part in zip(parts(self.batch), parts(batch), strict=True):
            if place.shape != part.shape or place.dtype != part.dtype:
                raise Unsupported(f"a CUDA graph takes batches of one shape, {tuple(place.shape)}, and one type")
            place.copy_(part, non_blocking=True)
        if hidden is not self.hidden:
            for number, place in enumerate(parts(self.hidden)):
                place.zero_() if hidden is None else place.copy_(parts(hidden)[number])

    def run(self):
        """Take a step on the tensors in place and leave its hidden state and its outcome there."""
        loss, hidden = self.take(self.batch, self.hidden)
        if self.hidden is None:
            self.hidden = copied(hidden)
        else:
            for place, part in zip(parts(self.hidden), parts(hidden), strict=True):
                place.copy_(part)
        torch.stack((loss, self.found), out=self.outcome)

    def step(self, batch, hidden):
        """Return (loss, hidden) of one step, as views of the tensors in place."""
        self.load(batch, hidden)
        if self.stream is None:
            self.run()
        elif self.taken < EAGER_STEPS:  # beside the default stream, as the capture will be
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.run()
            torch.cuda.current_stream().wait_stream(self.stream)
        else:
            if self.graph is None:
                self.before_capture()
                self.graph, self.unseen_bytes = capture(self.run, self.stream, self.device)
            self.graph.replay()
        self.taken += 1
        return self.outcome[0], self.hidden

    def unseen(self):
        """Return the bytes, asked as an epoch begins, that its steps use beside what the allocator counts.

        What evaluations have left since the first epoch counts against them: they run on another stream than the graph
        and have workspaces of their own, which training does not use.
        """
        if self.stream is None:
            return 0
        begun = torch.cuda.memory_allocated(self.device)
        self.begun_bytes = begun if self.begun_bytes is None else self.begun_bytes
        return self.unseen_bytes - max(0, begun - self.begun_bytes)
