"""Train three models by plain PyTorch, add one line at a time, and time what each line gives.

    python benchmarks/lines.py --out lines.jsonl --models resnet18 gpt
    python benchmarks/lines.py --table lines.jsonl

`train` has the lines to copy, and nothing of this project is imported, so they do what they do in
your own script. The first command starts four processes, one after the other, and every second one
goes through models and rows backwards, because a GPU that becomes warmer must favour no row. A
result is a line of JSON, written as soon as it is measured. The same file may be continued.

The compiler keeps what it has made on the disk, which would make a second process look quick.
So the first processes (--cold) have an empty folder for it, and the others use the folders of
those, and each line says which it was. Seconds to compile are what the first steps take beyond
steady ones, and what the compiler itself takes to start, because a user waits for both.

`mode="reduce-overhead"` replays forward and backward pass as CUDA graphs, while loss, scaler and
optimizer stay outside. The next replay overwrites what the last one returned, and this loop needs
no care for it: the model runs once a step, its loss is computed outside, and `zero_grad` drops the
gradients before the next forward pass. A loop that adds up gradients of several batches is another
matter, because the second replay overwrites the gradients of the first.

The optimizers are PyTorch's default ones. `fused=True` is no line here, because a fused SGD with
momentum starts from memory that nobody has set where GradScaler skips the first step.
"""

import argparse
import functools
import gc
import itertools
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import timm
import torch
import torch.nn.functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS = {  # a row's name, and the line that it adds to those above it; fp16 takes bf16's place
    "default": "PyTorch's default",
    "tf32": 'torch.set_float32_matmul_precision("high")',
    "channels_last": "model.to(memory_format=torch.channels_last)",
    "compile": 'torch.compile(model, mode="reduce-overhead")',
    "bf16": "torch.autocast(bfloat16)",
    "fp16": "torch.autocast(float16), GradScaler",
}
AUTOCAST = ("bf16", "fp16")


def train(network, make_optimizer, loss_function, batches, lines):
    """Train without an end by the lines that are named, and yield the loss of each step."""
    if "tf32" in lines:
        torch.set_float32_matmul_precision("high")
    model = network.to(DEVICE)
    if "channels_last" in lines:
        model = model.to(memory_format=torch.channels_last)
    optimizer = make_optimizer(model.parameters())
    if "compile" in lines:
        model = torch.compile(model, mode="reduce-overhead")
    half = torch.float16 if "fp16" in lines else torch.bfloat16
    autocast = "fp16" in lines or "bf16" in lines
    scaler = torch.amp.GradScaler(DEVICE, enabled="fp16" in lines)  # else it does nothing
    for inputs, targets in itertools.cycle(batches):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, half, enabled=autocast):
            loss = loss_function(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        yield loss.detach()


class Block(torch.nn.Module):
    """A layer of the GPT, which normalises before attention and before the two wide matrices."""

    def __init__(self, width, head_size):
        super().__init__()
        self.head_size = head_size
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)])
        self.queries_keys_values = torch.nn.Linear(width, 3 * width)
        self.mix = torch.nn.Linear(width, width)
        self.wide = torch.nn.Linear(width, 4 * width)
        self.narrow = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        """Return (batch, context, width) of the same."""
        batch, context, width = x.shape
        parts = self.queries_keys_values(self.norms[0](x))
        heads = parts.view(batch, context, 3, -1, self.head_size)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).reshape(batch, context, width))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


class GPT(torch.nn.Module):
    """A language model of bytes."""

    def __init__(self, layers, width, context, head_size=64, bytes_known=256):
        super().__init__()
        self.meaning = torch.nn.Embedding(bytes_known, width)
        self.place = torch.nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = torch.nn.Sequential(*(Block(width, head_size) for _ in range(layers)))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, bytes_known, bias=False)

    def forward(self, text):
        """Return logits (batch * context, 256) of bytes (batch, context)."""
        return self.head(self.norm(self.blocks(self.meaning(text) + self.place))).flatten(0, 1)


sgd = functools.partial(torch.optim.SGD, lr=0.001, momentum=0.9)
adamw = functools.partial(torch.optim.AdamW, lr=3e-4, weight_decay=0.1)


def resnet18(tiny):
    """Return ResNet-18 for CIFAR: a stem of 3 x 3 and no pooling after it, in batches of 128."""
    network = timm.create_model("resnet18", num_classes=10)
    network.conv1 = torch.nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    network.maxpool = torch.nn.Identity()
    batch = 4 if tiny else 128
    batches = made_up(lambda: (torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))))
    return network, sgd, F.cross_entropy, batches


def efficientnet(tiny):
    """Return EfficientNet-B0 with one output, in batches of 32 images of 384 x 512 pixels."""
    network = timm.create_model("tf_efficientnet_b0", num_classes=1)
    batch, height, width = (2, 64, 96) if tiny else (32, 384, 512)
    batches = made_up(lambda: (torch.randn(batch, 3, height, width), torch.rand(batch, 1)))
    return network, sgd, F.binary_cross_entropy_with_logits, batches


def gpt(tiny):
    """Return a GPT of 6 layers, width 768 and heads of 64, in batches of 8 texts of 1,024 bytes."""
    layers, width, context, batch = (2, 128, 32, 2) if tiny else (6, 768, 1024, 8)

    def text():
        text = torch.randint(256, (batch, context + 1))
        return text[:, :-1].contiguous(), text[:, 1:].flatten()

    return GPT(layers, width, context), adamw, F.cross_entropy, made_up(text)


def made_up(batch, count=4):
    """Return batches that lie on the GPU, so that no loader is timed."""
    return [tuple(part.to(DEVICE) for part in batch()) for _ in range(count)]


MODELS = {"resnet18": resnet18, "efficientnet": efficientnet, "gpt": gpt}


def rows_of(model, wanted=tuple(ROWS)):
    """Return {row: (the row that it is compared with or None, its lines)} of a model, in order.

    Autocast in either format comes on top of all lines above it, so both have the same base.
    """
    rows, lines, base = {}, (), None
    for name in ROWS:
        if name not in wanted or (name == "channels_last" and model == "gpt"):
            continue
        rows[name] = (base, (*lines, name))
        if name not in AUTOCAST:
            base, lines = name, (*lines, name)
    return rows


def wait():
    """Wait for the GPU."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def block_times(steps, size, seconds, least):
    """Return seconds a step of blocks, until they took so many seconds and are `least` many.

    The GPU is waited for at the ends of a block alone.
    """
    times = []
    while sum(times) * size < seconds or len(times) < least:
        begun = time.perf_counter()
        for _ in range(size):
            next(steps)
        wait()
        times.append((time.perf_counter() - begun) / size)
    return times


@functools.cache
def compiler_start():
    """Return the seconds until the compiler has compiled a trivial model in this process."""
    begun = time.perf_counter()
    small = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).to(DEVICE)
    torch.compile(small, mode="reduce-overhead")(torch.ones(8, 8, device=DEVICE)).sum().backward()
    wait()
    return time.perf_counter() - begun


def clear():
    """Put everything back that a row leaves behind in this process."""
    torch.set_float32_matmul_precision("highest")
    torch.compiler.reset()
    gc.collect()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def memory():
    """Return GiB: the peaks of what tensors take and PyTorch reserves, and what the GPU gave."""
    if DEVICE == "cpu":
        return {}
    free, total = torch.cuda.mem_get_info()
    gib = {
        "allocated_gib": torch.cuda.max_memory_allocated(),
        "reserved_gib": torch.cuda.max_memory_reserved(),
        "used_gib": total - free,
    }
    return {name: round(value / 2**30, 4) for name, value in gib.items()}


def measure(model, lines, tiny):
    """Return what is measured of a model with these lines."""
    warm_up, size, seconds, least = (3, 1, 0, 2) if tiny else (10, 5, 3.0, 5)
    measured = {"compiler_seconds": compiler_start()} if "compile" in lines else {}
    clear()
    if DEVICE == "cuda":
        measured["allocated_before_gib"] = round(torch.cuda.memory_allocated() / 2**30, 4)
    counters = torch._dynamo.utils.counters
    counters.clear()
    torch.manual_seed(0)
    steps = train(*MODELS[model](tiny), lines)
    wait()
    begun = time.perf_counter()
    losses = [next(steps) for _ in range(warm_up)]
    wait()
    first = time.perf_counter() - begun
    settled = block_times(steps, size, seconds / 6, least)  # the clock of the GPU settles meanwhile
    if not tiny:
        size = max(1, round(0.3 / settled[-1]))
    blocks = block_times(steps, size, seconds, least)
    step = statistics.median(blocks)
    measured |= {
        "step_ms": 1000 * step,
        "blocks_ms": [round(1000 * block, 4) for block in blocks],
        "steps": size * len(blocks),
        "first_seconds": first - warm_up * step,
        "graphs": counters["stats"]["unique_graphs"],
        "graphs_not_captured": counters["inductor"]["cudagraph_skips"],
        "losses": [float(loss) for loss in losses],
        "last_loss": float(next(steps)),
    }
    return measured | memory()


def sentence(error):
    """Return an error's first line and its kind."""
    text = str(error).strip().splitlines() or ["no reason is given"]
    return f"{type(error).__name__}: {text[0][:200]}"


def processor():
    """Return the name of the CPU."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def results(file):
    """Return the results in a file."""
    path = Path(file)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def write(out, result):
    """Add a result to the file, and tell it."""
    with open(out, "a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")
    told = result.get("error") or f"{result['step_ms']:.2f} ms a step"
    print(f"process {result['process']}, {result['model']}, {result['row']}: {told}", flush=True)


def rows_in_order(options, number):
    """Return (model, row) of all that process `number` measures, in its order."""
    rows = [(model, row) for model in options.models for row in rows_of(model, options.rows)]
    return rows if number % 2 == 0 else rows[::-1]


def known_of(number, cold):
    """Return what is known of a process before it measures anything."""
    return {
        "process": number,
        "order": "backward" if number % 2 else "forward",
        "compiler_cache": "cold" if cold else "warm",
        "gpu": torch.cuda.get_device_name() if DEVICE == "cuda" else "none",
        "cpu": processor(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "timm": timm.__version__,
    }


def measure_all(options, known):
    """Measure all rows in this process. A row that fails leaves its error, and the others go on."""
    torch.zeros(1, device=DEVICE)  # so that no row waits for the GPU's start
    for model, row in rows_in_order(options, known["process"]):
        lines = rows_of(model, options.rows)[row][1]
        try:
            measured = measure(model, lines, options.tiny)
            if not math.isfinite(measured["last_loss"]):
                measured["error"] = "The loss is not finite, so the time counts for nothing."
        except Exception as error:
            measured = {"error": sentence(error)}
        write(options.out, known | {"model": model, "row": row, "lines": lines} | measured)


def start_process(options, number, cold, folder):
    """Measure all rows in a process of its own, and note those that it did not reach."""
    words = [sys.executable, __file__, "--process", str(number), "--out", options.out]
    words += ["--models", *options.models, "--rows", *options.rows]
    words += ["--tiny"] if options.tiny else []
    words += ["--is-cold"] if cold else []
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder)}
    environment.pop("TRITON_CACHE_DIR", None)  # it would be shared; else it lies in the folder
    try:
        code = subprocess.run(words, env=environment, timeout=options.seconds).returncode
        reason = f"The process ended with code {code} before this row was measured."
    except subprocess.TimeoutExpired:
        reason = f"The process was ended after {options.seconds:g} s, before this row was measured."
    done = [(row["model"], row["row"]) for row in results(options.out) if row["process"] == number]
    for model, row in rows_in_order(options, number):
        if (model, row) not in done:
            result = {"model": model, "row": row, "error": reason}
            write(options.out, known_of(number, cold) | result)


STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 97.5%, 1 to 9 degrees


def ratio_of(pairs):
    """Return how many times as fast the second of each pair is: {n, mean, low, high, least, most}.

    pairs: seconds of a step before and after, of one process each. The mean is taken on logarithms
    and low and high are its 95% interval, which a single pair does not have.
    """
    logs = [math.log(before / after) for before, after in pairs]
    if not logs:
        return {"n": 0}
    middle = statistics.fmean(logs)
    found = {"n": len(logs), "mean": math.exp(middle)}
    found |= {"least": math.exp(min(logs)), "most": math.exp(max(logs))}
    if len(logs) > 1:
        student = STUDENT[min(len(logs) - 1, len(STUDENT)) - 1]
        half = student * statistics.stdev(logs) / math.sqrt(len(logs))
        found |= {"low": math.exp(middle - half), "high": math.exp(middle + half)}
    return found


def seconds_to_compile(row):
    """Return the seconds of a compiled row, in a process that compiles nothing else."""
    return row["compiler_seconds"] + row["first_seconds"]


def paid_after(compiled, eager):
    """Return the steps until compiling has paid against an eager row, or None if it never does."""
    gain = (eager["step_ms"] - compiled["step_ms"]) / 1000
    return math.ceil(seconds_to_compile(compiled) / gain) if gain > 0 else None


def compiling(compiled, eager):
    """Return {cold_seconds, cold_steps, warm_seconds, warm_steps}, each a list over processes.

    compiled, eager: {run: result} of a compiled row and of the last row that is not compiled.
    """
    found = {}
    for cache in ("cold", "warm"):
        rows = {run: row for run, row in compiled.items() if row["compiler_cache"] == cache}
        found[f"{cache}_seconds"] = [seconds_to_compile(row) for row in rows.values()]
        steps = [paid_after(row, eager[run]) for run, row in rows.items() if run in eager]
        found[f"{cache}_steps"] = steps
    return found


def ratio_over(other, mine):
    """Return the ratio of two rows, {run: result} each, of the processes that measured both."""
    both = [run for run in mine if run in other]
    return ratio_of([(other[run]["step_ms"], mine[run]["step_ms"]) for run in both])


def median_of(results_of_row, value):
    """Return the median of a value over processes, or None where none has it."""
    known = [result[value] for result in results_of_row if value in result]
    return statistics.median(known) if known else None


def good_results(mine, names):
    """Return {row: {run: result}} of results without an error."""
    good = {name: {} for name in names}
    for result in mine:
        if not result.get("error"):
            good[result["row"]][result["run"]] = result
    return good


def errors_of(mine, name):
    """Return the errors of a row, each once."""
    of_row = [result for result in mine if result["row"] == name]
    return list(dict.fromkeys(result["error"] for result in of_row if result.get("error")))


def summary_of(rows, model):
    """Return a dict for each row of a model: n, step_ms, ratios, memory, seconds to compile, steps.

    rows: results of one kind of GPU, which have a `run` that tells processes apart. Ratios are of
    two rows of one process: over the row that a row adds its line to, and over PyTorch's default.
    """
    mine = [row for row in rows if row["model"] == model]
    present = rows_of(model, {row["row"] for row in mine})
    good = good_results(mine, present)
    eager = {}
    summary = []
    for name, (base, lines) in present.items():
        found = {"row": name, "base": base, "n": len(good[name])}
        found["over_base"] = ratio_over(good.get(base, {}), good[name])
        found["over_default"] = ratio_over(good.get("default", {}), good[name])
        for value in ("step_ms", "allocated_gib", "reserved_gib", "used_gib"):
            found[value] = median_of(good[name].values(), value)
        if "compile" in lines:
            found |= compiling(good[name], eager)
        elif name not in AUTOCAST:
            eager = good[name]
        summary.append(found | {"errors": errors_of(mine, name)})
    return summary


def ratio_text(ratio):
    """Return a ratio with its interval in round brackets and its range in square ones."""
    if not ratio["n"]:
        return "-"
    text = f"{ratio['mean']:.2f}"
    if "low" in ratio:
        text += f" ({ratio['low']:.2f}-{ratio['high']:.2f})"
        text += f" [{ratio['least']:.2f}-{ratio['most']:.2f}]"
    return text


def list_text(values, form="{:.0f}"):
    """Return the least and the most of values as a text, in which None is the most: never."""
    if not values:
        return "-"
    ordered = sorted(values, key=lambda value: math.inf if value is None else value)
    texts = ["never" if value is None else form.format(value) for value in ordered]
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


def number_text(value):
    """Return a number, or a dash where there is none."""
    return "-" if value is None else f"{value:.2f}"


HEAD = ("line added", "n", "ms a step", "times as fast as before it", "as default")
HEAD += ("GiB: tensors", "reserved", "GPU")
HEAD += ("s to compile, cold", "warm", "steps until it has paid, cold", "warm")
NOTE = """
Times are medians. ( ): 95% interval of the mean over processes; [ ]: least and most of them.
bf16 and fp16 are compared with the row of TF32 above both. Cold: the compiler found nothing that
it had made before. Compiling has paid against the last row that is not compiled."""


def cells_of(row):
    """Return the cells of a row of a summary."""
    cells = [ROWS[row["row"]], str(row["n"]), number_text(row["step_ms"])]
    cells += [ratio_text(row["over_base"]), ratio_text(row["over_default"])]
    cells += [number_text(row[f"{kind}_gib"]) for kind in ("allocated", "reserved", "used")]
    cells += [list_text(row.get(f"{cache}_seconds")) for cache in ("cold", "warm")]
    cells += [list_text(row.get(f"{cache}_steps"), "{:,}") for cache in ("cold", "warm")]
    return cells


def table(rows):
    """Return the tables of all models as Markdown."""
    texts = []
    kinds = {(row["model"], row["gpu"], row["torch"]) for row in rows}
    for model, gpu, version in sorted(kinds):
        of_kind = [row for row in rows if (row["gpu"], row["torch"]) == (gpu, version)]
        found = summary_of(of_kind, model)
        lines = [HEAD, ("---",) * len(HEAD), *(cells_of(row) for row in found)]
        texts += [
            f"{model}, {gpu}, PyTorch {version}\n",
            *(f"|{'|'.join(line)}|" for line in lines),
        ]
        texts += [f"\n{row['row']}: {error}" for row in found for error in row["errors"]]
        texts.append("")
    return "\n".join(texts) + NOTE


def options_of(words=None):
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    add = parser.add_argument
    add("--models", nargs="+", choices=MODELS, default=list(MODELS))
    add("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="lines to add one by one")
    add("--processes", type=int, default=4, help="every second one runs backwards")
    add("--cold", type=int, default=2, help="processes that find nothing compiled")
    add("--seconds", type=float, default=300, help="that a process may take at most")
    add("--out", default="lines.jsonl", help="file of results, which is continued")
    add("--tiny", action="store_true", help="a smoke test on a CPU, whose times mean nothing")
    add("--table", nargs="+", metavar="FILE", help="print the tables of these files alone")
    add("--process", type=int, help=argparse.SUPPRESS)  # measure as this one, in this very process
    add("--is-cold", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if min(options.processes, options.cold) < 1:
        parser.error("At least one process has to run and to compile first, so say 1 or more.")
    for file in options.table or ():
        if not Path(file).exists():
            parser.error(f"There is no file {file}, so name one that was given as --out.")
    return options


def main():
    """Measure, or print the table of what was measured."""
    options = options_of()
    if options.process is not None:
        measure_all(options, known_of(options.process, options.is_cold))
        return
    if not options.table:
        first = max((row["process"] + 1 for row in results(options.out)), default=0)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            for number in range(options.processes):
                compiled = Path(folder, str(number % options.cold))
                start_process(options, first + number, number < options.cold, compiled)
    files = options.table or [options.out]
    runs = [(file, row) for file in files for row in results(file)]
    print(table([row | {"run": (file, row["process"])} for file, row in runs]))


if __name__ == "__main__":
    main()
