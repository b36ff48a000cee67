"""Where pure bf16 stalls: the same small training in fp32, in bf16, and in bf16 with stochastic
rounding.

    python benchmarks/lost_updates.py [--steps 3000] [--figure FILE.svg]

A network of 64, 256 and 1 units learns what a fixed one of the same sizes computes, with AdamW at a
rate of 1e-4. Most of its weights are near 0.1, where neighbours in bf16 are 0.0005 apart. AdamW
moves a weight by about its rate, so most updates are rounded away. Rounding is the same on a CPU
and on a GPU. Prints a table in Markdown.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from mixed_precision_study.explain.lost_updates import read_lost_updates
from mixed_precision_study.store.record import Run, RunRecord
from mixed_precision_study.train.step import Trainer

CPU = torch.device("cpu")
RATE = 1e-4
MODES = {  # name: options of the Trainer
    "fp32": {"precision": "fp32"},
    "bf16_true": {"precision": "bf16_true"},
    "bf16_true, stochastic": {"precision": "bf16_true", "rounding": "stochastic"},
}


def network(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))


def batches(steps: int, size: int = 128):
    """Yield (x (size, 64), y (size, 1)): what the fixed network computes."""
    teacher = network(1).requires_grad_(False)
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        x = torch.randn(size, 64, generator=generator)
        yield x, 3 * teacher(x)


def compute_loss(model, batch, hidden):
    x, y = batch
    kind = next(model.parameters()).dtype
    return torch.nn.functional.mse_loss(model(x.to(kind)).float(), y), hidden


def train(steps: int, every: int, **options) -> tuple[list[float], RunRecord]:
    """Return (mean loss of each `every` steps, a record of what the last update lost)."""
    trainer = Trainer(
        network(0),
        options.pop("precision"),
        compute_loss,
        device=CPU,
        make_optimizer=lambda weights: torch.optim.AdamW(weights, lr=RATE, weight_decay=0.0),
        **options,
    )
    losses = [trainer.step(batch)[0].item() for batch in batches(steps)]
    record = RunRecord(
        run=Run(run_id="lost updates", notebook="lost_updates", precision=trainer.precision),
        settings={},
    )
    read_lost_updates(record, trainer, batches(1))
    means = [sum(losses[start : start + every]) / every for start in range(0, steps, every)]
    return means, record


def table(curves: dict[str, list[float]], ends: dict[str, RunRecord], every: int) -> str:
    """Return a table in Markdown: the loss along the training, and what became of the last
    update.
    """
    places = [len(next(iter(curves.values()))) * part // 4 - 1 for part in (1, 2, 3, 4)]
    steps = " | ".join(f"step {(place + 1) * every:,}" for place in places)
    lines = [f"| mode | {steps} | weights that stood still | update that arrived |"]
    lines.append("|---" * (len(places) + 3) + "|")
    for name, curve in curves.items():
        losses = [f"{curve[place]:.4f}" for place in places]
        fractions = ends[name].lost_update_fraction, ends[name].kept_update_fraction
        shares = ["-" if share is None else f"{share:.0%}" for share in fractions]
        lines.append(f"| {' | '.join([name, *losses, *shares])} |")
    return "\n".join(lines)


def draw(curves: dict[str, list[float]], every: int, file: str) -> None:
    """Write the curves as an SVG in the style of the report, which follows dark pages and fits a
    phone.
    """
    import matplotlib.pyplot as plt

    from docs.sheets import sheet_of
    from mixed_precision_study.report.charts import SOFT, chart_style, drawing_of
    from mixed_precision_study.report.words import COLOURS

    pure = COLOURS["bf16_true"]
    looks = {  # the colour says the format, and the line how it rounds
        "fp32": ("", COLOURS["fp32"], "-"),
        "bf16_true": ("pure bf16", pure, "-"),
        "bf16_true, stochastic": ("fp32 (grey), and with\nstochastic rounding", pure, "--"),
    }
    with chart_style():
        figure, axes = plt.subplots(figsize=(4.4, 2.8), layout="constrained")
        for name, (called, colour, line) in looks.items():
            steps = [(place + 1) * every for place in range(len(curves[name]))]
            axes.plot(steps, curves[name], line, color=colour, linewidth=2.2)
            middle = len(steps) // 8
            below = -46 if "stochastic" in name else 14
            near = {"textcoords": "offset points", "color": SOFT}
            axes.annotate(called, (steps[middle], curves[name][middle]), (0, below), **near)
        axes.set(yscale="log", xlabel="step", ylabel="training loss")
        ticks = [tick for tick in (0.01, 0.03, 0.1, 0.3, 1) if axes.get_ylim()[0] <= tick]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    drawing = drawing_of(
        figure, "lost", "Training loss in fp32, pure bf16 and with stochastic rounding"
    )
    Path(file).write_text(sheet_of([drawing], 1), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--figure", default="")
    arguments = parser.parse_args()
    every = max(1, arguments.steps // 60)
    curves, ends = {}, {}
    for name, options in MODES.items():
        curves[name], ends[name] = train(arguments.steps, every, **options)
    print(table(curves, ends, every))
    if arguments.figure:
        draw(curves, every, arguments.figure)


if __name__ == "__main__":
    main()
