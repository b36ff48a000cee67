"""The parameters of the experiments. Each is declared once: default, possible values and help.

The notebooks' parameters cells, their checks, `run_all.py -p` and the documentation read these declarations.
This module does not need PyTorch.
"""

import ast
import difflib
import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .errors import UserError

PRECISION_NAMES = ("fp32", "tf32", "amp_fp16", "amp_bf16", "o2_fp16", "o3_fp16", "bf16_true", "fp8")
COMPILE_MODES: dict[str, dict] = {  # what torch.compile gets; PyTorch's other modes have CUDA graphs of their own
    "default": {},
    "coordinate-descent": {"options": {"coordinate_descent_tuning": True, "max_autotune_pointwise": True}},
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
}


@dataclass(frozen=True)
class Parameter:
    """One parameter of an experiment.

    A value must have the type of `default`; a whole number will do for a float. `help` is the comment in the notebook
    and names the unit. A number is at least `least`, `above` a bound, or `below` one. `choices` lists all possible
    values. `word` is a text that may stand in place of a number. With `models`, any timm model is possible too.
    `items` is the type of a list's items.
    """

    name: str
    default: Any
    help: str
    least: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple = ()
    word: str | None = None
    models: bool = False
    items: type = str

    def bounds(self) -> str:
        """Return the bounds of a number in words."""
        if self.least is not None and self.below is not None:
            return f"from {self.least:g} up to, but not including, {self.below:g}"
        return f"above {self.above:g}" if self.above is not None else f"of {self.least:g} or more"

    def checked(self, value: Any) -> Any:
        """Return the value, or raise UserError. A whole number becomes a float where `default` is one."""
        if self.word is not None and value == self.word:
            return value
        if self.name == "precisions":
            return check_precisions(value)
        if self.items is int:
            return check_seeds(self.name, value)
        if self.choices and not self.models:
            if value not in self.choices:
                raise UserError(f"{self.name} is {value!r}; possible are {', '.join(map(str, self.choices))}.")
            return value
        kind = type(self.default) if self.word is None else float
        if kind in (bool, str):
            if type(value) is not kind:
                wanted = "True or False" if kind is bool else "text in quotes"
                raise UserError(f"{self.name} is {value!r}; it must be {wanted}.")
            return value
        whole = type(self.default) is int
        possible = type(value) is int or (type(value) is float and not whole)
        if not possible or not self.holds(value):
            word = f'"{self.word}" or ' if self.word is not None else ""
            number = "a whole number" if whole else "a number"
            raise UserError(f"{self.name} is {value!r}; it must be {word}{number} {self.bounds()}.")
        return value if whole or self.word is not None else float(value)

    def holds(self, number: float) -> bool:
        """Return whether a number is finite and within the bounds."""
        if not abs(number) < float("inf"):
            return False
        low = self.least is None or number >= self.least
        return low and (self.above is None or number > self.above) and (self.below is None or number < self.below)


def check_precisions(names: Any) -> list[str]:
    """Return a list of precision modes; raise UserError if it is empty or a name is unknown or repeated."""
    known = isinstance(names, list) and names and all(name in PRECISION_NAMES for name in names)
    if not known or len(set(names)) < len(names):
        wanted = f"it must be a list with some of {', '.join(PRECISION_NAMES)}, each once"
        how = '; papermill takes a list with -y: -y "precisions: [fp32, tf32]"' if isinstance(names, str) else ""
        raise UserError(f"precisions is {names!r}; {wanted}{how}.")
    return names


def check_seeds(name: str, seeds: Any) -> list[int]:
    """Return a list of seeds; raise UserError where one is no whole number of 0 or more, or is there twice."""
    sound = isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)
    if not sound or len(set(seeds)) < len(seeds):
        how = f'; papermill takes a list with -y: -y "{name}: [1, 2]"' if isinstance(seeds, str) else ""
        raise UserError(f"{name} is {seeds!r}; it must be a list of whole numbers of 0 or more, each once{how}.")
    return seeds


def reason_unsupported(precision: str, execution: str, capability: tuple[int, int] | None) -> str | None:
    """Return why a device cannot run a mode, or None. `capability` is the GPU's (major, minor), None for the CPU."""
    if capability is None:
        if "cuda_graph" in execution:
            return f'execution="{execution}" needs an NVIDIA GPU; this run is on the CPU'
        if precision not in ("fp32", "amp_bf16"):
            return f"{precision} needs an NVIDIA GPU; this run is on the CPU"
        return None
    number = "{}.{}".format(*capability)
    if precision == "tf32" and capability < (8, 0):
        return f"TF32 needs compute capability 8.0 (Ampere) or newer; this GPU has {number}"
    if precision in ("amp_bf16", "bf16_true") and capability < (8, 0):
        return f"this GPU (compute capability {number}) would only emulate bfloat16"
    if precision == "fp8" and capability < (8, 9):
        return f"fp8 needs compute capability 8.9 (Ada, Hopper) or newer; this GPU has {number}"
    return None


def _dataset(help: str, *choices: str) -> Parameter:
    return Parameter("dataset", "auto", help, choices=choices)


MORE_SEEDS = Parameter(
    "more_seeds", [], "trained after `seed` in the same process: for quality, not for times", items=int
)
PRECISIONS_WANTED = Parameter(
    "precisions",
    ["fp32", "tf32", "amp_fp16", "amp_bf16"],
    "run one after the other; also o2_fp16, o3_fp16, bf16_true, fp8",
)
MAX_STEPS = Parameter("max_steps", 0, "steps per epoch, and evaluation batches, at most; 0 for all", least=0)
LOSS_SCALE = Parameter(
    "loss_scale", "dynamic", 'for fp16: "dynamic", or a fixed number such as 128', above=0, word="dynamic"
)
CHANNELS_LAST = Parameter("channels_last", False, "NHWC memory layout, which Tensor Cores prefer for convolutions")
EXECUTION = (
    Parameter(
        "execution",
        "eager",
        'or "compile" (torch.compile), "cuda_graph" (a step in one launch), "compile_cuda_graph" (both)',
        choices=("eager", "compile", "cuda_graph", "compile_cuda_graph"),
    ),
    Parameter(
        "compile_mode",
        "default",
        'or "coordinate-descent", "max-autotune-no-cudagraphs": longer searches for faster kernels',
        choices=tuple(COMPILE_MODES),
    ),
    Parameter(
        "scaler",
        "pytorch",
        'or "device": no step waits to read whether a gradient overflowed, as in a CUDA graph',
        choices=("pytorch", "device"),
    ),
    Parameter(
        "fp16_accumulation", False, "fp16 matmuls add up in fp16: faster on consumer cards, less exact everywhere"
    ),
)
ROUNDING = Parameter(
    "rounding",
    "nearest",
    'in bf16_true: or "stochastic", so that small updates are not lost',
    choices=("nearest", "stochastic"),
)
FP8_SCALING = Parameter(
    "fp8_scaling",
    "tensorwise",
    'in fp8: one scale for each matrix, or "rowwise": one for each row, which is more exact',
    choices=("tensorwise", "rowwise"),
)
OPTIMIZER = Parameter("optimizer", "sgd", 'or "adamw", which wants a smaller lr', choices=("sgd", "adamw"))
LIMIT_AND_REPEATS = (
    Parameter("memory_limit_gib", 0.0, "GiB of the GPU that PyTorch may take; 0 for the whole GPU", least=0),
    Parameter(
        "checkpoint_minutes", 0.0, "between checkpoints, from which an ended training goes on; 0 for none", least=0
    ),
    Parameter("repeats", 1, "repetitions of every training, for the spread of the times", least=1),
    Parameter("repeat", 0, "number of this repetition; run_all.py sets it, else 0", least=0),
    Parameter(
        "purpose",
        "all",
        'train and explain; "time" or "aa": no explanation; "explain": train little; run_all.py sets it',
        choices=("all", "time", "explain", "aa"),
    ),
)
FOLDERS = (
    Parameter("data_dir", "data", "folder of the data sets, for downloads and decoded images"),
    Parameter("output_dir", "outputs", "folder for the run records"),
)
LOADER = (
    Parameter(
        "loader",
        "gpu",
        '"gpu": images stay on the GPU as bytes; "workers": an ordinary DataLoader',
        choices=("gpu", "workers"),
    ),
    Parameter("num_workers", 2, 'worker processes of the loader "workers"', least=0),
)

CIFAR_RESNET = (
    _dataset(
        '"cifar10", "cifar100", "synthetic", "folder" (your images); "auto": CIFAR-10, else synthetic',
        "auto",
        "cifar10",
        "cifar100",
        "synthetic",
        "folder",
    ),
    Parameter(
        "model",
        "resnet18",
        "or resnet34/50/101/152, wide_resnet28_10, any classifier of timm",
        choices=("resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet28_10"),
        models=True,
    ),
    PRECISIONS_WANTED,
    Parameter("batch_size", 128, 'images per step; "max": the largest that fits, for each precision', 1, word="max"),
    Parameter("epochs", 5, "passes through the training images", least=1),
    MAX_STEPS,
    OPTIMIZER,
    Parameter("lr", 0.1, "peak learning rate; SGD has momentum 0.9", above=0),
    Parameter(
        "schedule",
        "triangle",
        'of lr: "triangle" (up a fifth, down to 0), "sixth" (a sixth), "warmup" (one epoch), "constant"',
        choices=("triangle", "sixth", "warmup", "constant"),
    ),
    Parameter("clip", 0.0, "largest norm of the gradient; 0: it is not clipped", least=0),
    Parameter(
        "batchnorm_momentum",
        0.1,
        "of wide_resnet28_10: share of the newest batch in its averages",
        above=0,
    ),
    Parameter(
        "dropout", 0.0, "between the convolutions of wide_resnet28_10; in timm's models where they have it", 0, below=1
    ),
    Parameter("image_size", 32, "pixels; other than 32: images are resized, and ResNets keep ImageNet's stem", least=1),
    Parameter(
        "log_every", 0, "steps between entries of the training log (loss, running accuracy); 0 for none", least=0
    ),
    LOSS_SCALE,
    ROUNDING,
    FP8_SCALING,
    CHANNELS_LAST,
    Parameter("keep_batchnorm_fp32", False, "in o3_fp16: True keeps batch normalisation in fp32"),
    *EXECUTION,
    *LIMIT_AND_REPEATS,
    Parameter("seed", 0, "of weights, batch order and augmentation", least=0),
    MORE_SEEDS,
    *LOADER,
    *FOLDERS,
)
EFFICIENTNET_REGRESSION = (
    _dataset(
        '"elpv", "csv", "synthetic"; "auto": csv_path if given, else ELPV if installed, else synthetic',
        "auto",
        "elpv",
        "csv",
        "synthetic",
    ),
    Parameter(
        "csv_path", "", "your own images: a CSV with the columns path (folder), image (file name), label (number)"
    ),
    Parameter("model", "tf_efficientnet_b0", "any model of timm; it gets one output", models=True),
    PRECISIONS_WANTED,
    Parameter("image_height", 384, "pixels; images are resized to this", least=1),
    Parameter("image_width", 512, "pixels", least=1),
    Parameter("batch_size", 32, 'images per step; "max": the largest that fits, for each precision', 1, word="max"),
    Parameter("epochs", 3, "passes through the training images", least=1),
    MAX_STEPS,
    OPTIMIZER,
    Parameter("lr", 0.001, "learning rate; SGD has momentum 0.9", above=0),
    Parameter(
        "loss_function",
        "bce_with_logits",
        'for labels from 0 to 1; "mse" for any other range',
        choices=("bce_with_logits", "mse"),
    ),
    LOSS_SCALE,
    ROUNDING,
    CHANNELS_LAST,
    *EXECUTION,
    *LIMIT_AND_REPEATS,
    Parameter("seed", 0, "of weights and batch order; the held-out images are the same for every seed", least=0),
    MORE_SEEDS,
    *LOADER,
    *FOLDERS,
)
LSTM_LANGUAGE_MODEL = (
    _dataset(
        '"wikitext-2", "synthetic"; "auto": WikiText-2 from data_dir, else downloaded, else synthetic',
        "auto",
        "wikitext-2",
        "synthetic",
    ),
    Parameter(
        "model",
        "lstm",
        'or "gru", "rnn_tanh", "rnn_relu", "transformer"',
        choices=("lstm", "gru", "rnn_tanh", "rnn_relu", "transformer"),
    ),
    PRECISIONS_WANTED,
    Parameter("batch_size", 20, 'columns of text; "max": the largest that fits, for each precision', 1, word="max"),
    Parameter("bptt", 35, "words per step and column: the length of truncated back-propagation", least=1),
    Parameter(
        "units", 200, "size of the word vectors, the hidden state and a Transformer's feed-forward layers", least=1
    ),
    Parameter("layers", 2, "recurrent or Transformer layers", least=1),
    Parameter("heads", 2, "attention heads of the Transformer; must divide units", least=1),
    Parameter("dropout", 0.2, "on word vectors and between layers; in Transformer layers 0.1 at most", 0, below=1),
    Parameter("clip", 0.25, "largest norm of the gradient", above=0),
    Parameter("epochs", 6, "passes through the training text", least=1),
    MAX_STEPS,
    OPTIMIZER,
    Parameter(
        "lr", 20.0, "of plain SGD, divided by 4 when validation does not improve; the Transformer wants 5", above=0
    ),
    LOSS_SCALE,
    ROUNDING,
    FP8_SCALING,
    *EXECUTION,
    Parameter("generate_words", 40, "words to write with each trained model at the end; 0 for none", least=0),
    Parameter("temperature", 1.0, "of the writing: below 1 likely words become likelier", above=0),
    *LIMIT_AND_REPEATS,
    Parameter("seed", 0, "of weights and dropout", least=0),
    MORE_SEEDS,
    *FOLDERS,
)
EXPERIMENTS = {
    "cifar_resnet": CIFAR_RESNET,
    "efficientnet_regression": EFFICIENTNET_REGRESSION,
    "lstm_language_model": LSTM_LANGUAGE_MODEL,
}
OWN_EXPERIMENT = (  # of an experiment that declares no parameters of its own
    Parameter("dataset", "own", "name of the data"),
    Parameter("model", "own", "name of the model"),
    PRECISIONS_WANTED,
    Parameter("batch_size", 1, "samples per step", least=1),
    Parameter("epochs", 3, "passes through the training data", least=1),
    MAX_STEPS,
    Parameter("lr", 0.1, "learning rate of SGD", above=0),
    Parameter("clip", 0.0, "largest norm of the gradient; 0: it is not clipped", least=0),
    Parameter("accumulate", 1, "batches of a step, whose gradients are averaged", least=1),
    LOSS_SCALE,
    ROUNDING,
    FP8_SCALING,
    CHANNELS_LAST,
    *EXECUTION,
    *LIMIT_AND_REPEATS,
    Parameter("seed", 0, "of weights", least=0),
    MORE_SEEDS,
    *FOLDERS,
)


def parameters_cell(declared: Sequence[Parameter]) -> str:
    """Return the source of a notebook's parameters cell: one literal a line, with its help as the comment."""
    return "\n".join(f"{one.name} = {as_literal(one.default)}  # {one.help}" for one in declared)


def as_literal(value: Any) -> str:
    """Return a default as Python source with double quotes."""
    return json.dumps(value) if isinstance(value, str | list) else repr(value)


def did_you_mean(name: str, names: Collection[str], intro: str = "it has") -> str:
    """Return a hint that lists `names` after the words `intro`, and before them the nearest one."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6) or [one for one in names if one.startswith(name)]
    known = f"{intro} {', '.join(names)}."
    return f"did you mean {near[0]}? {known[0].upper()}{known[1:]}" if near else known


def check_names(notebook: str, names: Iterable[str], declared: Sequence[Parameter]) -> None:
    """Raise UserError at the first name that is not declared."""
    known = [one.name for one in declared]
    for name in names:
        if name not in known:
            what = f"notebook {notebook}" if notebook in EXPERIMENTS else f"{notebook}"
            raise UserError(f"{what} has no parameter {name}; {did_you_mean(name, sorted(known))}")


def check_values(notebook: str, values: dict, declared: Sequence[Parameter] | None = None) -> dict:
    """Return the checked {name: value}; raise UserError at the first wrong value.

    timm models are not looked up here, because that loads PyTorch: see check_timm_model.
    """
    declared = EXPERIMENTS.get(notebook, OWN_EXPERIMENT) if declared is None else declared
    check_names(notebook, values, declared)
    missing = [one.name for one in declared if one.name not in values]
    if missing:
        raise UserError(
            f"notebook {notebook} lacks the parameter {missing[0]}; put its line back into the parameters cell."
        )
    checked = {one.name: one.checked(values[one.name]) for one in declared}
    if checked["model"] == "transformer" and "heads" in checked and checked["units"] % checked["heads"]:
        heads, units = checked["heads"], checked["units"]
        raise UserError(
            f"heads is {heads}, which does not divide units ({units}): each head takes an equal part of them."
        )
    if checked["seed"] in checked["more_seeds"]:
        raise UserError(f"more_seeds has {checked['seed']}, which is the seed already; leave it out.")
    return checked


def check_parameters(notebook: str, namespace: dict) -> SimpleNamespace:
    """Return the checked parameters of a notebook; raise UserError at the first wrong one.

    `namespace` is the notebook's globals(). Its `In`, the cells run so far, shows names that nobody declared.
    """
    declared = EXPERIMENTS[notebook]
    check_names(notebook, names_set_by_cells(namespace.get("In", ())), declared)
    values = {one.name: namespace[one.name] for one in declared if one.name in namespace}
    checked = check_values(notebook, values, declared)
    if is_timm_model(notebook, checked["model"]):
        check_timm_model(checked["model"])
    check_output_dir(checked["output_dir"])
    return SimpleNamespace(**checked)


def names_set_by_cells(cells: Iterable[str]) -> list[str]:
    """Return the names assigned by the last parameters cell and by the cell that papermill adds after it."""
    names = []
    for source in cells:
        try:
            lines = ast.parse(source).body
        except (SyntaxError, ValueError):  # a cell with a magic is not plain Python
            continue
        targets = [line.targets[0] for line in lines if isinstance(line, ast.Assign)]
        found = [target.id for target in targets if isinstance(target, ast.Name)]
        if len(found) < len(lines):  # the cell does more than set parameters
            continue
        if "precisions" in found and "batch_size" in found:
            names = found  # the parameters cell, perhaps run once more
        elif found and source.startswith("# Parameters\n"):  # the first line of papermill's cell
            names = names + found
    return names


def is_timm_model(notebook: str, model: str) -> bool:
    """Return whether the name must be looked up in timm."""
    declared = next(one for one in EXPERIMENTS[notebook] if one.name == "model")
    return declared.models and model not in (declared.default, *declared.choices)


def check_timm_model(name: str, names: Collection[str] | None = None) -> None:
    """Raise UserError with the nearest names if timm has no such model. Without `names`, timm is loaded and asked."""
    if names is None:
        import timm

        names = timm.list_models()
    if name not in names:
        near = ", ".join(difflib.get_close_matches(name, names, n=5)) or "see timm.list_models()"
        raise UserError(f"model {name!r} is not in timm; the nearest names: {near}.")


def check_output_dir(output_dir: str) -> None:
    """Make the folder if need be; raise UserError if no record can be written there."""
    try:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        probe = Path(output_dir) / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"output_dir {output_dir!r} cannot be written ({error.strerror}); choose another folder."
        ) from None
