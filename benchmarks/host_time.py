"""Measure where the host's time goes in eager mode and under torch.compile, on one GPU.

    python benchmarks/host_time.py                                # ResNet-18 and the LSTM, on the GPU
    python benchmarks/host_time.py --model lstm --executions eager compile "compile with cpp_wrapper"
    python benchmarks/host_time.py --device cpu --steps 2         # tiny: shows that it works, measures nothing

The models, losses and steps are the notebooks' own, in amp_bf16, on one made-up batch that stays on the device. Every
execution is measured twice, in the order a b c, c b a. Cells with two numbers show both passes.
ms/step      The wall time of a step: the median of five blocks, with one synchronisation a block.
host         The time that the host needs to launch a part of a step, the median of the steps. The GPU is idle before
             each step, so no launch waits for room in the queue.
GPU          From torch.profiler with CUDA activity alone: time with a kernel running, kernels and launches per step.
compiled     Graphs, graph breaks and seconds of torch.compile. Code that is cached on disk compiles faster.
The events come from a profile of host and GPU. It slows the host, so compare the events with each other. "Inductor's
wrapper" is the generated code around the kernels. "Compiled region" is Dynamo's code and Python that it calls.
"""

import argparse
import io
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from notebook_cells import experiment_of  # noqa: E402

from mixed_precision_study.experiment import Experiment  # noqa: E402
from mixed_precision_study.explain.profile import NO_KERNEL, busy_time, kernels_of  # noqa: E402
from mixed_precision_study.measure.environment import cpu_model  # noqa: E402
from mixed_precision_study.measure.timing import read_compiler, synchronize  # noqa: E402
from mixed_precision_study.parameters import (  # noqa: E402
    COMPILE_MODES,
    Unsupported,
    error_line,
)
from mixed_precision_study.train.precision import check_supported, set_fp32_precision  # noqa: E402
from mixed_precision_study.train.step import Trainer, allow_search  # noqa: E402

PRECISION = "amp_bf16"
MODELS: dict[str, tuple[str, dict, dict]] = {  # notebook, parameters, parameters to change on the CPU
    "resnet18": ("cifar_resnet", {"model": "resnet18", "batch_size": 128}, {"batch_size": 4}),
    "lstm": ("lstm_language_model", {"model": "lstm", "batch_size": 20, "bptt": 35}, {"batch_size": 4, "bptt": 5}),
}
EXECUTIONS: dict[str, tuple[str, str]] = {  # execution and compile mode of the Trainer
    "eager": ("eager", "default"),
    "compile": ("compile", "default"),
    "compile with cpp_wrapper": ("compile", "cpp_wrapper"),
}
USUAL = ["eager", "compile"]  # PyTorch 2.11 compiles the C++ wrapper for longer than a minute
CPP_WRAPPER: dict = {"options": {"cpp_wrapper": True}}  # as an option, torch.compile keeps its code apart
PHASES = ("forward", "backward", "optimizer", "zero_grad")
BLOCKS = 5
WARM_UP_STEPS = 15
PROFILED_STEPS = 5
LARGEST = 10  # events to print of each execution
LR = 1e-3  # so that the loss stays finite
NOT_HOST_WORK = r"^(ProfilerStep|cudaDeviceSynchronize|Activity Buffer)"  # of the profile itself
LAUNCH = r"^cu(da)?(Launch|Memcpy|Memset|GraphLaunch)"
EVENT_KINDS = {  # by the profiler's names of events; the first match counts
    "guards": r"^TorchDynamo Cache Lookup",
    "AOTDispatcher's wrapper": r"^AOTDispatcher",
    "Inductor's wrapper": r"CompiledFxGraph|inductor_wrapper_call",
    "compiled region": r"^(Torch-Compiled Region|Pregraph bytecode)",
    "CompiledFunction": r"^CompiledFunction",
    "Triton launchers": r"^triton_",
    "launches, copies and fills": LAUNCH,
    "other CUDA calls": r"^cu(da)?[A-Z]",
    "RNN": r"_cudnn_rnn|aten::lstm|mkldnn_rnn",
    "autograd engine": r"^autograd::|Backward\d+$|AccumulateGrad",
    "optimizer and hooks": r"^Optimizer\.|_foreach_|_fused_",
    "other operations": r"^(aten|inductor|prims|torch\w*)::",
}


@dataclass
class Compiled:
    """What torch.compile did for one execution. `reasons` counts the graph breaks by their first line.

    again: graphs compiled while steps were timed, so that the times are not those of steps alone.
    """

    graphs: int = 0
    again: int = 0
    breaks: int = 0
    seconds: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)


@dataclass
class Result:
    """What was measured of one execution, in ms per step.

    step_ms, phase_ms: one value for each pass. events: {name: the host's own time}; step_profiled_ms: of a whole step
        under the same profiler. failed: why there are no numbers.
    """

    step_ms: list[float] = field(default_factory=list)
    phase_ms: list[dict[str, float]] = field(default_factory=list)
    compiled: Compiled | None = None
    gpu: dict[str, float] | None = None
    events: dict[str, float] = field(default_factory=dict)
    step_profiled_ms: float = 0.0
    failed: str | None = None


@dataclass
class Contender:
    """A Trainer, the batch of all its steps, the hidden state after its last step, and what was measured of it."""

    name: str
    trainer: Trainer
    batch: tuple
    clip: float
    hidden: Any = None
    result: Result = field(default_factory=Result)

    def step(self) -> None:
        _, self.hidden = self.trainer.step(self.batch, self.hidden)


def make_suite(model: str, device: torch.device) -> Experiment:
    """Return a notebook's experiment on made-up data. On the CPU it is tiny."""
    notebook, parameters, on_cpu = MODELS[model]
    parameters = {**parameters, "dataset": "synthetic", "max_steps": 2}
    if device.type == "cpu":
        parameters |= on_cpu
    with redirect_stdout(io.StringIO()):
        return experiment_of(ROOT / "notebooks" / f"{notebook}.ipynb", parameters)


def make_contenders(suite: Experiment, names: Iterable[str]) -> list[Contender]:
    """Return the contenders. All are made before one takes a step, because a Trainer resets torch.compile."""
    COMPILE_MODES["cpp_wrapper"] = CPP_WRAPPER
    batch = next(iter(suite.batches(0, PRECISION, suite.parameters.batch_size, ahead=False)))
    contenders = []
    for name in names:
        execution, mode = EXECUTIONS[name]
        vars(suite.parameters).update(execution=execution, compile_mode=mode)
        trainer = suite.make_trainer(PRECISION)
        trainer.set_lr(LR)
        contenders.append(Contender(name, trainer, batch, suite.parameters.clip))
    return contenders


def warm_up(contender: Contender, steps: int) -> None:
    """Take the first steps, which search, compile and load kernels, and note what torch.compile did."""
    from torch._dynamo.utils import counters

    trainer = contender.trainer
    counters.clear()
    seconds_before = read_compiler(trainer)["seconds"]
    for _ in range(steps):
        contender.step()
    synchronize(trainer.device)
    after = read_compiler(trainer)
    if trainer.loss_of is not trainer.compute_loss:
        reasons: dict[str, int] = {}
        for text, count in counters["graph_break"].items():
            reasons[first_line(text)] = reasons.get(first_line(text), 0) + count
        seconds = after["seconds"] - seconds_before
        contender.result.compiled = Compiled(
            graphs=after["graphs"], breaks=sum(reasons.values()), seconds=seconds, reasons=reasons
        )


def first_line(text: str) -> str:
    """Return the first line of a text that is not empty, at most 150 characters."""
    return next((line.strip()[:150] for line in text.splitlines() if line.strip()), "no reason given")


def reason_of(error: BaseException) -> str:
    """Return an error as one line: its first line and, below a compiler's command, the first line with an error."""
    others = str(error).strip().splitlines()[1:]
    named = [line.strip()[:200] for line in others if re.search(r"error: |Error: ", line)]
    return "; ".join([error_line(error), *named[:1]])


def block_ms(contender: Contender, steps: int) -> float:
    """Return the ms per step of a block of steps, with one synchronisation at its end."""
    device = contender.trainer.device
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(steps):
        contender.step()
    synchronize(device)
    return (time.perf_counter() - begin) * 1000 / steps


def step_in_phases(contender: Contender) -> dict[str, float]:
    """Take a step with the calls of training_step and return the ms that each phase kept the host busy."""
    trainer = contender.trainer
    optimizer, scaler = trainer.optimizer, trainer.scaler
    begin = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    cleared = time.perf_counter()
    with trainer.mode.autocast():
        loss, contender.hidden = trainer.loss_of(trainer.network, contender.batch, contender.hidden)
    forward = time.perf_counter()
    scaler.scale(loss).backward()
    backward = time.perf_counter()
    scaler.unscale_(optimizer)
    if contender.clip:
        torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], contender.clip)
    scaler.step(optimizer)
    scaler.update()
    end = time.perf_counter()
    seconds = (forward - cleared, backward - forward, end - backward, cleared - begin)
    return {phase: value * 1000 for phase, value in zip(PHASES, seconds, strict=True)}


def host_phases(contender: Contender, steps: int) -> dict[str, float]:
    """Return the median ms of each phase and of the whole step. The device is idle before each step."""
    taken = []
    for _ in range(steps):
        synchronize(contender.trainer.device)
        taken.append(step_in_phases(contender))
    medians = {phase: statistics.median(one[phase] for one in taken) for phase in PHASES}
    return medians | {"whole": statistics.median(sum(one.values()) for one in taken)}


def time_pass(contender: Contender, steps: int) -> None:
    """Measure the time of steps and phases once more."""
    result = contender.result
    graphs_before = read_compiler(contender.trainer)["graphs"]
    blocks = [block_ms(contender, steps) for _ in range(BLOCKS)]
    result.step_ms.append(statistics.median(blocks))
    result.phase_ms.append(host_phases(contender, steps * 3 // 2))
    if result.compiled:
        result.compiled.again += read_compiler(contender.trainer)["graphs"] - graphs_before


def profile_gpu(contender: Contender, steps: int) -> None:
    """Measure the GPU's busy time, and count kernels and launches. Raise RuntimeError if no kernel was seen."""
    device = contender.trainer.device
    synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        for _ in range(steps):
            contender.step()
        synchronize(device)
    kernels = kernels_of(profiler)
    if not kernels:
        raise RuntimeError(NO_KERNEL)
    on_host = [event for event in profiler.profiler.kineto_results.events() if "CPU" in str(event.device_type())]
    busy_ns = busy_time((start, start + duration) for _, start, duration in kernels)
    contender.result.gpu = {
        "busy ms": busy_ns / 1e6 / steps,
        "kernels": len(kernels) / steps,
        "launches": sum(bool(re.search(LAUNCH, event.name())) for event in on_host) / steps,
    }


def profile_host(contender: Contender, steps: int) -> None:
    """Measure the host's own time in every event. The first step is not recorded, because the profiler starts in it."""
    device = contender.trainer.device
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    seconds = []
    plan = schedule(wait=0, warmup=1, active=steps, repeat=1)
    with profile(activities=activities, schedule=plan, acc_events=True) as profiler:
        for _ in range(steps + 1):
            synchronize(device)
            begin = time.perf_counter()
            contender.step()
            seconds.append(time.perf_counter() - begin)
            synchronize(device)
            profiler.step()
    pairs = [(event.key, event.self_cpu_time_total) for event in profiler.key_averages()]
    contender.result.events = by_name(pairs, steps)
    contender.result.step_profiled_ms = sum(seconds[1:]) * 1000 / steps


def by_name(pairs: Iterable[tuple[str, float]], steps: int) -> dict[str, float]:
    """Return {short name: ms per step} of events (name, microseconds), the largest first."""
    total: dict[str, float] = {}
    for name, microseconds in pairs:
        if microseconds > 0 and not re.search(NOT_HOST_WORK, name):
            total[short_name(name)] = total.get(short_name(name), 0.0) + microseconds / 1000 / steps
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def short_name(name: str) -> str:
    """Return an event's name without what differs from graph to graph: numbers, hashes and names of fused kernels."""
    if "CompiledFxGraph" in name:
        return "Call CompiledFxGraph"
    if name.startswith("triton_"):
        return "triton_*"
    return re.sub(r"^(Torch-Compiled Region).*", r"\1", name)[:80].strip()


def kind_of(event: str) -> str:
    """Return the kind of an event by its name, "other events" if no pattern matches."""
    return next((kind for kind, pattern in EVENT_KINDS.items() if re.search(pattern, event)), "other events")


def by_kind(events: dict[str, float], step_ms: float) -> dict[str, float]:
    """Return {kind: ms per step}, with the rest of the profiled step, which is in no event, and the whole."""
    total = dict.fromkeys([*EVENT_KINDS, "other events"], 0.0)
    for name, ms in events.items():
        total[kind_of(name)] += ms
    return total | {"in no event (Python)": step_ms - sum(events.values()), "profiled step": step_ms}


def measure(contenders: list[Contender], steps: int) -> None:
    """Measure all contenders: warm-up, two passes in opposite orders, then the GPU, if there is one."""
    run(warm_up, contenders, min(WARM_UP_STEPS, steps + 1))
    run(time_pass, contenders, steps)
    run(time_pass, contenders[::-1], steps)
    # Without this CUPTI slows all later launches, such as those of the next model: pytorch/pytorch issue 144455.
    os.environ.setdefault("TEARDOWN_CUPTI", "1")
    if contenders[0].trainer.device.type == "cuda":
        run(profile_gpu, contenders, min(PROFILED_STEPS, steps))


def run(job: Callable[[Contender, int], None], contenders: list[Contender], steps: int) -> None:
    """Do one job for all contenders. One that fails keeps the first reason, and is left out if it has no times."""
    for contender in contenders:
        result = contender.result
        if result.failed and not result.step_ms:
            continue
        begin = time.perf_counter()
        try:
            job(contender, steps)
        except Exception as error:  # the other contenders still run
            result.failed = result.failed or f"{job.__name__}: {reason_of(error)}"
            print(f"{contender.name} failed: {result.failed}", file=sys.stderr, flush=True)
        print(f"{contender.name}, {job.__name__}: {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)


def both(values: Iterable[float]) -> str:
    """Return the values of the passes as a cell: ms with two decimals."""
    return " / ".join(f"{value:.2f}" for value in values) or "-"


def cells_of(result: Result) -> list[str]:
    """Return the cells of one execution, "-" for what is not known."""
    phases = [both(one[phase] for one in result.phase_ms) for phase in (*PHASES, "whole")]
    gpu, compiled = result.gpu, result.compiled
    on_gpu = ["-"] * 3
    if gpu:
        on_gpu = [f"{gpu['busy ms']:.2f}", f"{gpu['kernels']:.0f}", f"{gpu['launches']:.0f}"]
    by_compiler = ["-"] * 3
    if compiled:
        graphs = f"{compiled.graphs} + {compiled.again} while timed" if compiled.again else str(compiled.graphs)
        by_compiler = [graphs, str(compiled.breaks), f"{compiled.seconds:.1f}"]
    return [both(result.step_ms), *phases, *on_gpu, *by_compiler]


def main_table(results: dict[str, Result]) -> list[str]:
    """Return the table of one model in Markdown. A row of an execution that failed says why."""
    columns = ["execution", "ms/step", *(f"host {phase}" for phase in (*PHASES, "whole"))]
    columns += ["GPU busy ms", "kernels", "launches", "graphs", "graph breaks", "compile s"]
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    for name, result in results.items():
        if result.step_ms or not result.failed:
            lines.append("| " + " | ".join([name, *cells_of(result)]) + " |")
        if result.failed:
            lines.append(f"| {name} failed: {result.failed.replace('|', '/')} |")
    return lines


def kinds_table(results: dict[str, Result]) -> list[str]:
    """Return the table of the host's profiled ms per step by kind of event, in Markdown."""
    kinds = {name: by_kind(one.events, one.step_profiled_ms) for name, one in results.items() if one.events}
    lines = ["| host ms per step, profiled | " + " | ".join(kinds) + " |", "|---" + "|---:" * len(kinds) + "|"]
    for kind in next(iter(kinds.values()), {}):
        lines.append(f"| {kind} | " + " | ".join(f"{one[kind]:.3f}" for one in kinds.values()) + " |")
    return lines


def largest_events(results: dict[str, Result]) -> list[str]:
    """Return the largest events of each execution with the host's own ms per step, and its graph breaks."""
    lines = []
    for name, result in results.items():
        if result.events:
            lines += ["", f"{name}: the largest events by the host's own ms per step, profiled"]
            lines += [f"{ms:9.3f}  {event}" for event, ms in list(result.events.items())[:LARGEST]]
        if result.compiled:
            lines += [f"  {count} x graph break: {reason}" for reason, count in result.compiled.reasons.items()]
    return lines


def describe_machine(device: torch.device) -> str:
    """Return one line with the GPU, the CPU and PyTorch's version."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    return f"{gpu}; {cpu_model()}, {os.cpu_count()} cores; PyTorch {torch.__version__}"


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Return the command-line options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, help="default: both")
    names = ", ".join(f'"{name}"' for name in EXECUTIONS)
    parser.add_argument(
        "--executions", choices=EXECUTIONS, nargs="+", default=USUAL, metavar="NAME", help=f"of {names}"
    )
    parser.add_argument("--steps", type=positive, default=40, help="timed steps of a block; default: 40")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args(arguments)
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the notebooks take a GPU where they see one
    elif not torch.cuda.is_available():
        parser.error("there is no GPU that PyTorch can use; --device cpu --steps 2 shows that it works")
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse_arguments(arguments)
    device = torch.device(options.device)
    if device.type == "cpu":
        print("NOT A MEASUREMENT: on the CPU, with tiny shapes. The numbers mean nothing.")
    else:
        try:
            check_supported(PRECISION, "compile", device)
        except Unsupported as reason:
            sys.exit(f"host_time.py: {reason}")
    for model in [options.model] if options.model else list(MODELS):
        set_fp32_precision(PRECISION)
        allow_search()
        contenders = make_contenders(make_suite(model, device), options.executions)
        measure(contenders, options.steps)
        results = {one.name: one.result for one in contenders}
        print(f"\n## {model}, {PRECISION}\n")
        print(*main_table(results), sep="\n", flush=True)
        run(profile_host, contenders, min(PROFILED_STEPS, options.steps))
        print("", *kinds_table(results), *largest_events(results), sep="\n", flush=True)
    print(f"\n{describe_machine(device)}")


if __name__ == "__main__":
    main()
