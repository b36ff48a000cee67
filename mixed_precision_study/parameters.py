"""The parameters of the experiments, each declared once; and the errors, each one sentence that says what to do.

The notebooks' parameters cells, run_all.py, the reader of records and the documentation read these declarations.
This module does not need PyTorch.
"""

import ast
import difflib
import functools
import json
import re
import reprlib
import tempfile
import traceback
from collections.abc import Collection
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo

from .measure.packages import UserError as UserError  # which needs no package

Precision = Literal["fp32", "tf32", "amp_fp16", "amp_bf16", "o2_fp16", "o3_fp16", "bf16_true", "fp8"]
Execution = Literal["eager", "compile", "cuda_graph", "compile_cuda_graph"]
CompileMode = Literal["default", "coordinate-descent", "cudnn-batch-norm", "max-autotune-no-cudagraphs"]
LanguageModel = Literal["lstm", "gru", "rnn_tanh", "rnn_relu", "transformer"]
COMPILE_MODES: dict[str, dict] = {  # what torch.compile gets; PyTorch's other modes have CUDA graphs of their own
    "default": {},
    "coordinate-descent": {"options": {"coordinate_descent_tuning": True, "max_autotune_pointwise": True}},
    "cudnn-batch-norm": {"backend": "cudnn_batch_norm"},  # see train/batch_norm.py
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
}
MAX_NUMBER = 1e300  # products and sums of larger ones are infinite, or cannot be converted to float


def number_in(value: Any, info: ValidationInfo) -> Any:
    """Return the number of a text that a person gave, because YAML reads 1e-3 as text."""
    with suppress(ValueError):
        return float(value) if info.context and isinstance(value, str) else value
    return value


def words_in(value: Any, info: ValidationInfo) -> Any:
    """Return the words of a text that a person gave, between its commas."""
    return [word.strip() for word in value.split(",")] if info.context and isinstance(value, str) else value


Text = Annotated[str, Field(max_length=2_000, pattern=r"^[^\x00]*$")]  # and no half of a surrogate pair
Whole = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=1, lt=2**63)]
FromZero = Annotated[float, Field(ge=0, le=MAX_NUMBER), BeforeValidator(number_in)]
AboveZero = Annotated[float, Field(gt=0, le=MAX_NUMBER), BeforeValidator(number_in)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
BatchSize = Count | Literal["max"]
Share = Annotated[float, Field(ge=0, lt=1), BeforeValidator(number_in)]
EachOnce = AfterValidator(lambda words: list(dict.fromkeys(words)))
Precisions = Annotated[list[Precision], Field(min_length=1), BeforeValidator(words_in), EachOnce]


def shown(default: Any, help: str) -> Any:
    """Declare a parameter that stands in the notebook's parameters cell, with `help` as its comment."""
    return Field(default, description=help)


def hidden(default: Any, help: str) -> Any:
    """Declare a parameter that may be assigned in the parameters cell, but does not stand there."""
    return Field(default, description=help, json_schema_extra={"hidden": True})


class Parameters(BaseModel):
    """Values that have been checked. A whole number does for a float, but no other type for another."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Common(Parameters):
    """What every experiment has."""

    dataset: Text = shown("own", "name of the data")
    model: Text = shown("own", "name of the model")
    precisions: Precisions = shown(["fp32", "tf32", "amp_fp16", "amp_bf16"], "also o2_fp16, o3_fp16, bf16_true, fp8")
    batch_size: BatchSize = shown(1, "samples per step")
    epochs: Count = shown(3, "passes through the training data")
    max_steps: Whole = shown(0, "steps per epoch, and evaluation batches, at most; 0 for all")
    lr: AboveZero = shown(0.1, "learning rate of SGD")
    loss_scale: AboveZero | Literal["dynamic"] = shown("dynamic", 'for fp16: "dynamic", or a fixed number such as 128')
    execution: Execution = shown("eager", 'or "compile", "cuda_graph" (a step in one launch), "compile_cuda_graph"')
    memory_limit_gib: FromZero = shown(0.0, "GiB of the GPU that PyTorch may take; 0 for the whole GPU")
    seed: Seed = shown(0, "of weights")
    data_dir: Text = shown("data", "folder of the data sets, for downloads and decoded images")
    output_dir: Text = shown("outputs", "folder for the run records")
    compile_mode: CompileMode = hidden("default", "coordinate-descent, cudnn-batch-norm, max-autotune-no-cudagraphs")
    scaler: Literal["pytorch", "device"] = hidden("pytorch", 'or "device": no step waits to read about overflows')
    rounding: Literal["nearest", "stochastic"] = hidden("nearest", '"stochastic" keeps small updates in bf16_true')
    repeat: Whole = hidden(0, "number of this repetition, which run_all.py sets; only the first one explains")


CHANNELS_LAST = shown(False, "NHWC memory layout, which Tensor Cores prefer for convolutions")
OPTIMIZER = shown("sgd", 'or "adamw", which wants a smaller lr')
LOADER = hidden("gpu", '"gpu": images stay on the GPU as bytes; "workers": an ordinary DataLoader')
NUM_WORKERS = hidden(2, 'worker processes of the loader "workers"')
IMAGES_PER_STEP = 'images per step; "max": the largest that fits, for each precision'


class OwnExperiment(Common):
    """An experiment that declares no parameters of its own."""

    batch_size: Count = shown(1, "samples per step")
    clip: FromZero = hidden(0.0, "largest norm of the gradient; 0: it is not clipped")
    accumulate: Count = hidden(1, "batches of a step, whose gradients are averaged")
    channels_last: bool = CHANNELS_LAST


class CifarResnet(Common):
    dataset: Literal["auto", "cifar10", "cifar100", "synthetic", "folder"] = shown(
        "auto", '"cifar10", "cifar100", "synthetic", "folder" (your images); "auto": CIFAR-10, else synthetic'
    )
    model: Text = shown("resnet18", "or resnet34/50/101/152, wide_resnet28_10, any classifier of timm")
    batch_size: BatchSize = shown(128, IMAGES_PER_STEP)
    epochs: Count = shown(5, "passes through the training images")
    lr: AboveZero = shown(0.1, "peak learning rate; SGD has momentum 0.9")
    seed: Seed = shown(0, "of weights, batch order and augmentation")
    optimizer: Literal["sgd", "adamw"] = OPTIMIZER
    image_size: Count = shown(32, "pixels; other than 32: images are resized, and ResNets keep ImageNet's stem")
    channels_last: bool = CHANNELS_LAST
    schedule: Literal["triangle", "sixth", "warmup", "constant"] = hidden(
        "triangle", 'of lr: "triangle" (up a fifth, down to 0), "sixth" (a sixth), "warmup" (one epoch), "constant"'
    )
    clip: FromZero = hidden(0.0, "largest norm of the gradient; 0: it is not clipped")
    batchnorm_momentum: AboveZero = hidden(0.1, "of wide_resnet28_10: share of the newest batch in its averages")
    dropout: Share = hidden(0.0, "between the convolutions of wide_resnet28_10; in timm's models where they have it")
    log_every: Whole = hidden(0, "steps between entries of the training log (loss, running accuracy); 0 for none")
    keep_batchnorm_fp32: bool = hidden(False, "in o3_fp16: True keeps batch normalisation in fp32")
    loader: Literal["gpu", "workers"] = LOADER
    num_workers: Whole = NUM_WORKERS


class EfficientnetRegression(Common):
    dataset: Literal["auto", "elpv", "csv", "synthetic"] = shown(
        "auto", '"elpv", "csv", "synthetic"; "auto": csv_path if given, else ELPV if installed, else synthetic'
    )
    model: Text = shown("tf_efficientnet_b0", "any model of timm; it gets one output")
    batch_size: BatchSize = shown(32, IMAGES_PER_STEP)
    epochs: Count = shown(3, "passes through the training images")
    lr: AboveZero = shown(0.001, "learning rate; SGD has momentum 0.9")
    seed: Seed = shown(0, "of weights and batch order, but not of which images are held out")
    optimizer: Literal["sgd", "adamw"] = OPTIMIZER
    csv_path: Text = shown("", "your images: a CSV with columns path (folder), image (file name), label (number)")
    image_height: Count = shown(384, "pixels; images are resized to this")
    image_width: Count = shown(512, "pixels")
    loss_function: Literal["bce_with_logits", "mse"] = shown("bce_with_logits", 'for labels from 0 to 1; else "mse"')
    channels_last: bool = CHANNELS_LAST
    loader: Literal["gpu", "workers"] = LOADER
    num_workers: Whole = NUM_WORKERS


class LstmLanguageModel(Common):
    dataset: Literal["auto", "wikitext-2", "synthetic"] = shown(
        "auto", '"wikitext-2", "synthetic"; "auto": WikiText-2 from data_dir, else downloaded, else synthetic'
    )
    model: LanguageModel = shown("lstm", 'or "gru", "rnn_tanh", "rnn_relu", "transformer"')
    batch_size: BatchSize = shown(20, 'columns of text; "max": the largest that fits, for each precision')
    epochs: Count = shown(6, "passes through the training text")
    lr: AboveZero = shown(20.0, "of plain SGD, divided by 4 when validation does not improve; the Transformer wants 5")
    seed: Seed = shown(0, "of weights and dropout")
    optimizer: Literal["sgd", "adamw"] = OPTIMIZER
    bptt: Count = shown(35, "words per step and column: the length of truncated back-propagation")
    units: Count = shown(200, "size of the word vectors, the hidden state and a Transformer's feed-forward layers")
    layers: Count = shown(2, "recurrent or Transformer layers")
    heads: Count = shown(2, "attention heads of the Transformer; must divide units")
    dropout: Share = shown(0.2, "on word vectors and between layers; in Transformer layers 0.1 at most")
    generate_words: Whole = shown(40, "words to write with each trained model at the end; 0 for none")
    clip: AboveZero = hidden(0.25, "largest norm of the gradient")
    temperature: AboveZero = hidden(1.0, "of the writing: below 1 likely words become likelier")


EXPERIMENTS: dict[str, type[Common]] = {
    "cifar_resnet": CifarResnet,
    "efficientnet_regression": EfficientnetRegression,
    "lstm_language_model": LstmLanguageModel,
}


def parameters_cell(declared: type[Parameters], shown_only: bool = False) -> str:
    """Return declared parameters as Python: one literal a line, with its help as the comment."""
    lines = []
    for name, field in declared.model_fields.items():
        if not (shown_only and field.json_schema_extra):
            default = json.dumps(field.default) if isinstance(field.default, str | list) else repr(field.default)
            lines.append(f"{name} = {default}  # {field.description}")
    return "\n".join(lines)


def checked(notebook: str, given: dict, declared: type[Parameters] | None = None) -> Any:
    """Return the values given for a notebook, completed with the defaults. Raise UserError at the first wrong one."""
    declared = declared or EXPERIMENTS[notebook]
    try:
        values: Any = declared.model_validate(given, context="given by a person")
    except ValidationError as error:
        raise UserError(said_of(error, notebook, declared.model_fields)) from None
    if declared in (CifarResnet, EfficientnetRegression) and values.model != "wide_resnet28_10":
        names = timm_models()
        if names and values.model not in names:
            near = ", ".join(nearest(values.model, names, 5)) or "see timm.list_models()"
            raise UserError(f"model {values.model!r} is not in timm; the nearest names: {near}.")
    return values


@functools.cache
def timm_models() -> list[str]:
    """Return the models of timm by its source, because loading it takes many seconds; nothing where there is none."""
    found = find_spec("timm")
    if found is None or found.origin is None:
        return []
    sources = (path.read_text(encoding="utf-8") for path in Path(found.origin).parent.glob("models/*.py"))
    return [name for text in sources for name in re.findall(r"^@register_model\s+def (\w+)", text, re.MULTILINE)]


def check_parameters(notebook: str, namespace: dict) -> Any:
    """Return the checked parameters of a notebook as attributes; raise UserError at the first wrong one.

    `namespace` is the notebook's globals(). Only names count that the last parameters cell assigns, or the cell that
    papermill adds after it; the cells run so far are in `In`. Other parameters have their defaults.
    """
    names: list[str] = [] if "In" in namespace else list(EXPERIMENTS[notebook].model_fields)
    for source in namespace.get("In", ()):
        found = assigned(source)
        if "precisions" in found and "batch_size" in found:
            names = found  # the parameters cell, perhaps run once more
        elif source.startswith("# Parameters\n"):  # the first line of papermill's cell
            names = names + found
    if not names:
        raise UserError("the parameters cell was not run; it must assign precisions and batch_size in plain Python.")
    return writable(checked(notebook, {name: namespace[name] for name in names if name in namespace}))


def own_parameters(name: str, given: dict) -> OwnExperiment:
    """Return the parameters of an experiment of one's own, completed with the defaults and checked."""
    return writable(checked(name, given, OwnExperiment))


def assigned(source: str) -> list[str]:
    """Return the names that a cell assigns; those of a cell with a magic, which is not plain Python, are not known."""
    with suppress(SyntaxError):
        names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
        return [name.id for name in names if isinstance(name.ctx, ast.Store)]
    return []


def writable(settings: Any) -> Any:
    """Return the settings once their output_dir is there; raise UserError if no record can be written into it."""
    try:
        Path(settings.output_dir).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=settings.output_dir):
            return settings
    except OSError as error:
        reason = f"cannot be written ({error.strerror}); choose another folder"
        raise UserError(f"output_dir {settings.output_dir!r} {reason}.") from None


NOT_SHOWN = re.compile(  # escape sequences with a text, others, then control letters and those that turn a line round
    r"(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f]).*?(?:\x07|\x1b\\|\x9c)|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]"
    r"|[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


class Unsupported(Exception):
    """The device or this package cannot run the mode. The run's status is `unsupported`."""


class Diverged(Exception):
    """Training broke down. The run's status is `diverged`."""


def shown_traceback(error: BaseException) -> str:
    """Return an error's traceback from the first frame that is not this package's."""
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename.startswith(str(Path(__file__).parent)):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


def printable(text: str) -> str:
    """Return a text without what a terminal would obey: it could change the title, the clipboard or earlier lines."""
    return NOT_SHOWN.sub("", text)


def error_line(error: BaseException) -> str:
    """Return the class of an error and the first line of its message, at most 400 characters, in whole sentences."""
    first_line = printable(str(error).strip().partition("\n")[0])
    line = f"{type(error).__name__}: {first_line}"
    sentences, full_stop, _ = line[:400].rpartition(". ")
    return f"{sentences}." if full_stop and len(line) > 400 else line[:400]


def nearest(name: str, names: Collection[str], count: int = 1) -> list[str]:
    """Return the names that are most like `name`, or begin with it."""
    near = difflib.get_close_matches(name, names, count, cutoff=0.6)
    return near or [one for one in names if one.startswith(name)][:count]


def did_you_mean(name: str, names: Collection[str], intro: str = "it has") -> str:
    """Return a hint that lists `names` after the words `intro`, and before them the nearest one."""
    known = f"{intro} {', '.join(names)}."
    return "".join(f"did you mean {near}? {known[0].upper()}{known[1:]}" for near in nearest(name, names)) or known


def said_of(error: ValidationError, what: str, known: Collection[str]) -> str:
    """Return the first error of pydantic in a sentence; `what` was given values, and has the `known` names."""
    first, *others = error.errors(include_url=False)
    name = "".join(map(str, first["loc"][:1]))  # nothing where there is no dict
    if first["type"] == "extra_forbidden":
        return f"{what} has no parameter {name}; {did_you_mean(name, sorted(known))}"
    if first["type"] == "missing":
        return f"{what} lacks {name}."
    place = first["loc"][:1]
    wanted = [one["msg"] for one in (first, *others) if one["loc"][:1] == place and one["input"] is first["input"]]
    words = re.sub(r"\b[A-Z]\w+ should", "it must", " or ".join(dict.fromkeys(wanted)))
    verb = "holds" if any(isinstance(place, int) for place in first["loc"]) else "is"
    return f"{name} {verb} {reprlib.repr(first['input'])}; {words}."
