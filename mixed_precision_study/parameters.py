"""The parameters that every experiment has, those that a notebook declares, and the errors that a
person can mend.

A notebook declares parameters of its own in its parameters cell, with names, types and defaults.
The notebook and run_all.py read that cell by one function, declared_by(), so both compute the same
run from it. An error is one sentence that says what to do. This module does not need PyTorch.
"""

import ast
import difflib
import functools
import os
import re
import reprlib
import tempfile
import traceback
from collections.abc import Collection
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    ValidationInfo,
    create_model,
)

from .measure.packages import UserError as UserError  # which needs no package
from .store.variables import PLANNED_ENV

Precision = Literal[
    "fp32", "tf32", "amp_fp16", "amp_bf16", "o2_fp16", "o3_fp16", "bf16_true", "fp8"
]
Execution = Literal["eager", "compile", "cuda_graph", "compile_cuda_graph"]
# parameters that say how large a model and its batch are
SIZES = ("model", "image_size", "batch_size", "context", "width", "layers", "vocabulary")
CompileMode = Literal["default", "coordinate-descent", "max-autotune-no-cudagraphs"]
# what an Experiment reads anew for each training, so one process can train several values
OfATraining = Literal[
    "precisions",
    "channels_last",
    "execution",
    "compile_mode",
    "cudnn_benchmark",
    "scaler",
    "rounding",
    "moments",
    "loss_scale",
    "keep_batchnorm_fp32",
    "fused",
    "seed",
    "clip",
    "loss_chunks",
    "checkpointing",
    "memory_budget",
    "offload",
    "optimizer_in_backward",
    "adapters",
    "micro_batches",
]
# what torch.compile gets; PyTorch's other modes have CUDA graphs of their own
COMPILE_MODES: dict[str, dict] = {
    "default": {},
    "coordinate-descent": {
        "options": {"coordinate_descent_tuning": True, "max_autotune_pointwise": True}
    },
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
}
NEAR = 0.9  # from this likeness to a common parameter on, a name is taken for a slip
MAX_NUMBER = 1e300  # products and sums of larger ones are infinite, or cannot be converted to float


def number_in(value: Any, info: ValidationInfo) -> Any:
    """Return the number of a text that a person gave, because YAML reads 1e-3 as text."""
    with suppress(ValueError):
        return float(value) if info.context and isinstance(value, str) else value
    return value


def words_in(value: Any, info: ValidationInfo) -> Any:
    """Return the words of a text that a person gave, between its commas."""
    if info.context and isinstance(value, str):
        return [word.strip() for word in value.split(",")]
    return value


# and no half of a surrogate pair
Text = Annotated[str, Field(max_length=2_000, pattern=r"^[^\x00]*$")]
Integer = Annotated[int, Field(gt=-(2**63), lt=2**63)]
Whole = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=1, lt=2**63)]
FromZero = Annotated[float, Field(ge=0, le=MAX_NUMBER), BeforeValidator(number_in)]
AboveZero = Annotated[float, Field(gt=0, le=MAX_NUMBER), BeforeValidator(number_in)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
BatchSize = Count | Literal["max"]
Share = Annotated[float, Field(ge=0, lt=1), BeforeValidator(number_in)]
EachOnce = AfterValidator(lambda words: list(dict.fromkeys(words)))
Precisions = Annotated[list[Precision], Field(min_length=1), BeforeValidator(words_in), EachOnce]


class Parameters(BaseModel):
    """Values that have been checked.

    A whole number does for a float, but no other type for another.
    """

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )


class Common(Parameters):
    """What every experiment has."""

    dataset: Text = "own"
    """name of the data"""
    model: Text = "own"
    """name of the model"""
    precisions: Precisions = ["fp32", "tf32", "amp_fp16", "amp_bf16"]
    """also o2_fp16, o3_fp16, bf16_true, fp8"""
    batch_size: BatchSize = 1
    """samples per step"""
    epochs: Count = 3
    """passes through the training data"""
    max_steps: Whole = 0
    """steps per epoch, and evaluation batches, at most; 0 for all"""
    lr: AboveZero = 0.1
    """learning rate of SGD"""
    loss_scale: AboveZero | Literal["dynamic"] = "dynamic"
    """for fp16: "dynamic", or a fixed number such as 128"""
    execution: Execution = "eager"
    """or "compile", "cuda_graph" (a step in one launch), "compile_cuda_graph" (both)"""
    memory_limit_gib: FromZero = 0.0
    """GiB of the GPU that PyTorch may take; 0 for the whole GPU"""
    seed: Seed = 0
    """of weights"""
    data_dir: Text = "data"
    """folder of the data sets, for downloads and decoded images"""
    output_dir: Text = "outputs"
    """folder for the run records"""
    compile_mode: CompileMode = "default"
    """coordinate-descent, max-autotune-no-cudagraphs"""
    cudnn_benchmark: bool = True
    """cuDNN times its algorithms at each new shape; PyTorch does not by default"""
    scaler: Literal["pytorch", "device"] = "pytorch"
    """or "device": no step waits to read about overflows"""
    rounding: Literal["nearest", "stochastic", "kahan", "fp32_copy"] = "nearest"
    """of bf16_true; all but "nearest" keep small updates"""
    moments: Literal["as_weights", "fp32", "bf16", "8bit"] = "as_weights"
    """type of the optimizer's state; "8bit" needs torchao"""
    memory_budget: Share = 0.0
    """share of the activations that a compiled step may keep; 0: it decides"""
    offload: bool = False
    """activations wait in the host's memory"""
    optimizer_in_backward: bool = False
    """each gradient is used and freed at once; without clip"""
    adapters: Whole = 0
    """rank of LoRA's adapters by peft, which alone are trained; 0: all weights"""
    micro_batches: Count = 1
    """parts of a batch, whose gradients are added up"""
    init_from: Text = ""
    """file of weights in data_dir to begin with, as save_to writes it"""
    save_to: Text = ""
    """beginning of a file name in data_dir for the trained weights; "" writes none"""
    repeat: Whole = 0
    """number of this repetition, which run_all.py sets; only the first one explains"""


class OwnExperiment(Common):
    """What compare() and an Experiment with a dict of parameters have besides."""

    batch_size: Count = 1
    """samples per step"""
    clip: FromZero = 0.0
    """largest norm of the gradient; 0: it is not clipped"""
    accumulate: Count = 1
    """batches of a step, whose gradients are averaged"""
    channels_last: bool = False
    """NHWC memory layout, which Tensor Cores prefer for convolutions"""


@functools.cache
def timm_models() -> list[str]:
    """Return the models of timm by its source, because loading it takes many seconds; nothing
    where there is none.
    """
    package = find_spec("timm")
    if package is None:
        return []
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for path in Path(str(package.origin)).parent.glob("models/*.py")
    )
    return re.findall(r"^@register_model\s+def (\w+)", text, re.MULTILINE)


def in_timm(name: str) -> str:
    """Return the name of a model of timm, or of the suite's WideResNet; raise UserError at
    another one.
    """
    names = timm_models()
    if names and name not in (*names, "wide_resnet28_10"):
        near = ", ".join(nearest(name, names, 5)) or "see timm.list_models()"
        raise UserError(f"model {name!r} is not in timm; the nearest names: {near}.")
    return name


TimmModel = Annotated[Text, AfterValidator(in_timm)]
PLAIN = {
    "bool": bool,
    "int": Integer,
    "list": list,
    "dict": dict,
    "str": Text,
    "float": Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER), BeforeValidator(number_in)],
}
NARROW = {
    "AboveZero": AboveZero,
    "Count": Count,
    "FromZero": FromZero,
    "Share": Share,
    "TimmModel": TimmModel,
    "Whole": Whole,
}


def assignments(source: str) -> dict[str, tuple[ast.expr | None, str]]:
    """Return {name: (value, annotation)} of a cell's assignments, in the two forms of annotation
    that papermill reads.

    These are `name: int = 2` and `name = 2  # type: int`. A value that is not known beforehand is
    None, and so are all values of a cell with a magic, which is not plain Python and assigns
    nothing.
    """
    values: dict[str, tuple] = {}
    with suppress(SyntaxError):
        tree, lines = ast.parse(source), source.splitlines()
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                values[node.id] = None, ""
        for line in tree.body:
            match line:
                case ast.AnnAssign(target=ast.Name(id=name)):
                    values[name] = line.value, ast.unparse(line.annotation).strip("'")
                case ast.Assign(targets=[ast.Name(id=name)], end_lineno=int(end)):
                    comment = re.search(r"#\s*type:\s*(\S+)", lines[end - 1])
                    values[name] = line.value, comment[1] if comment else ""
    return values


def parameter_type(annotation: str, common: Any, value: Any) -> Any:
    """Return the type of a parameter by its annotation, else by its `common` declaration, else
    by its value.
    """
    if annotation.startswith("Literal["):
        words = annotation.removeprefix("Literal[")
        return Literal[tuple(re.findall(r"[^\s,'\"\]][^,'\"\]]*", words))]
    if annotation in NARROW:
        return NARROW[annotation]
    if common:
        return Annotated[common.annotation, Field(), *common.metadata]
    return PLAIN.get(annotation) or PLAIN.get(type(value).__name__) or JsonValue


def declared_by(
    notebook: str, source: str, values: dict, base: type[Common] = Common
) -> type[Common]:
    """Return what a parameters cell declares: the parameters of `base`, and those that the cell
    adds or narrows.

    `values` are the defaults of the names that `source` assigns. A model without a name bears that
    of the notebook. Raise UserError at a name of the cell's own that is nearly that of a common
    parameter.
    """
    annotations = {name: annotation for name, (_, annotation) in assignments(source).items()}
    fields: dict[str, Any] = {"model": (Text, Field(notebook, description="name of the model"))}
    for name, value in values.items():
        if name not in base.model_fields and (
            slip := difflib.get_close_matches(name, base.model_fields, 1, NEAR)
        ):
            raise UserError(f"{notebook} has no parameter {name}; did you mean {slip[0]}?")
        if name.startswith("_") or hasattr(BaseModel, name):
            raise UserError(
                f"{notebook} cannot have a parameter {name}, because pydantic needs that name; "
                "rename it."
            )
        fields[name] = (
            parameter_type(annotations.get(name, ""), base.model_fields.get(name), value),
            value,
        )
    return create_model("Declared", __base__=base, **fields)


def parameters_cell(declared: type[Parameters], without: Collection[str]) -> str:
    """Return declared parameters as Python: one literal a line, with its help as the comment."""
    return "\n".join(
        f"{name} = {field.default!r}  # {field.description}"
        for name, field in declared.model_fields.items()
        if name not in without
    )


def checked(notebook: str, given: dict, declared: type[Parameters]) -> Any:
    """Return the values given for a notebook, completed with the defaults.

    Raise UserError at the first wrong one.
    """
    try:
        return declared.model_validate(given, context="given by a person")
    except ValidationError as error:
        raise UserError(said_of(error, notebook, declared.model_fields)) from None


class Planned(BaseModel):
    """What run_all.py has planned for the notebook that this process runs."""

    parameters: dict[str, Any]  # all of them
    # names of those that the parameters cell, the study, -p or run_all.py itself sets
    given: list[str]
    # which parameters are other ones in each way that this process trains, one way after the other
    ways: list[dict[str, Any]] = [{}]


def planned() -> Planned | None:
    """Return what run_all.py has planned for this process, or None in a notebook run by hand."""
    text = os.environ.get(PLANNED_ENV)
    return Planned.model_validate_json(text) if text else None


def planned_ways() -> list[dict[str, Any]]:
    """Return the ways that this process trains, each as the parameters that differ in it."""
    plan = planned()
    return plan.ways if plan else [{}]


def check_parameters(notebook: str, namespace: dict) -> Any:
    """Return the checked parameters of a notebook as attributes; raise UserError at the first wrong
    one.

    `namespace` is the notebook's globals(). Only names count that the last parameters cell assigns,
    which is known by `precisions`, or the cell that papermill adds after it; the cells run so far
    are in `In`.
    """
    source, added = "", set[str]()
    for cell in namespace.get("In", ()):
        if cell.startswith(ADDED):
            added |= assignments(cell).keys()
        elif "precisions" in assignments(cell):
            source, added = cell, set()  # the parameters cell, perhaps run once more
    if not source:
        raise UserError(
            "the parameters cell was not run; it must assign precisions in plain Python."
        )
    names = assignments(source).keys()
    values = {name: namespace[name] for name in (*names, *added) if name in namespace}
    defaults = {name: values[name] for name in names if name in values}
    settings = checked(notebook, values, declared_by(notebook, source, defaults))
    if plan := planned():
        check_plan(plan, vars(settings))
    return writable(settings)


def check_plan(plan: Planned, given: dict) -> None:
    """Raise UserError where a value contradicts what run_all.py has planned, but for the folder,
    which it sets.
    """
    for key, value in given.items():
        if key in plan.given and key != "output_dir" and value != plan.parameters[key]:
            raise UserError(
                f"run_all.py has planned {plan.parameters[key]!r}, "
                f"and {key}={value!r} contradicts it; "
                f"assign {key} in the parameters cell and pass {key}={key}."
            )


def own_parameters(name: str, given: dict) -> Any:
    """Return the parameters of an experiment of one's own, completed with the defaults and checked.

    Names that no experiment has are the reader's own. Under run_all.py what it has planned counts,
    also for what is not given here. Raise UserError where a value that is given contradicts what
    was planned.
    """
    if plan := planned():
        check_plan(plan, given)
        given = plan.parameters | given | {"output_dir": plan.parameters["output_dir"]}
    return writable(checked(name, given, declared_by(name, "", given, OwnExperiment)))


def writable(settings: Any) -> Any:
    """Return the settings once their output_dir is there; raise UserError if no record can be
    written into it.
    """
    try:
        Path(settings.output_dir).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=settings.output_dir):
            return settings
    except OSError as error:
        raise UserError(
            f"output_dir {settings.output_dir!r} cannot be written ({error.strerror}); "
            "choose another folder."
        ) from None


ADDED = "# Parameters\n"  # the first line of the cell that papermill adds
# escape sequences with a text, others, then control letters and those that turn a line round
NOT_SHOWN = re.compile(
    r"(?:\x1b[]PX^_]|[\x90\x98\x9d-\x9f]).*?(?:\x07|\x1b\\|\x9c)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]"
    r"|[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)


class Unsupported(Exception):
    """The device or this package cannot run the mode. The run's status is `unsupported`."""


class Failed(Exception):
    """A training is no result, and the message says in one sentence why.

    The run's status is `failed`.
    """


class Diverged(Exception):
    """Training broke down. The run's status is `diverged`."""


def shown_traceback(error: BaseException) -> str:
    """Return an error's traceback from the first frame that is not this package's."""
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename.startswith(str(Path(__file__).parent)):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


def printable(text: str) -> str:
    """Return a text without what a terminal would obey: it could change the title, the clipboard
    or earlier lines.
    """
    return NOT_SHOWN.sub("", text)


def error_line(error: BaseException) -> str:
    """Return the class of an error and the first line of its message, at most 400 characters, in
    whole sentences.
    """
    first_line = printable(str(error).strip().partition("\n")[0])
    line = f"{type(error).__name__}: {first_line}"
    sentences, full_stop, _ = line[:400].rpartition(". ")
    return f"{sentences}." if full_stop and len(line) > 400 else line[:400]


def nearest(name: str, names: Collection[str], count: int = 1) -> list[str]:
    """Return the names that are most like `name`, or begin with it."""
    near = difflib.get_close_matches(name, names, count)
    return near or [word for word in names if word.startswith(name)][:count]


def sized(notebook: str, settings: dict) -> str:
    """Return a notebook with its model's size in words of run_all.py, as "gpt -p layers 12"."""
    words = [f"-p {name} {settings[name]}" for name in SIZES if name in settings]
    return " ".join([notebook, *words])


def did_you_mean(name: str, names: Collection[str], intro: str = "it has") -> str:
    """Return a hint that lists `names` after the words `intro`, and before them the nearest one."""
    known = f"{intro} {', '.join(names)}"
    near = nearest(name, names)
    return f"did you mean {near[0]}? ({known})" if near else f"{known}."


def said_of(
    error: ValidationError, what: str, known: Collection[str], sections: Collection[str] = ()
) -> str:
    """Return the first error of pydantic in a sentence; `what` was given values, and has the
    `known` names.

    `sections` are names that only lead to the one that is wrong.
    """
    errors = error.errors(include_url=False)
    first = errors[0]
    place = first["loc"]
    name = next((part for part in place if part not in sections), place[-1])
    if first["type"] == "extra_forbidden":
        return f"{what} has no parameter {name}; {did_you_mean(str(name), sorted(known))}"
    if first["type"] == "missing":
        return f"{what} lacks {name}."
    wanted = [
        problem["msg"]
        for problem in errors
        if name in problem["loc"] and problem["input"] is first["input"]
    ]
    words = re.sub(r"\b[A-Z]\w+ should", "it must", " or ".join(dict.fromkeys(wanted)))
    verb = "holds" if any(isinstance(part, int) for part in place) else "is"
    return f"{name} {verb} {reprlib.repr(first['input'])}; {words}."
