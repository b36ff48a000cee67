"""The parameters of the notebooks: which values are possible, and the sentence for one that is not."""

import difflib
import os
from pathlib import Path

from .errors import Stop

PRECISION_NAMES = ("fp32", "tf32", "amp_fp16", "amp_bf16", "o2_fp16", "o3_fp16")
COMPILE_MODES = {  # what torch.compile gets; PyTorch's other modes have CUDA graphs of their own
    "default": {},
    "coordinate-descent": {"options": {"coordinate_descent_tuning": True, "max_autotune_pointwise": True}},
    "max-autotune-no-cudagraphs": {"mode": "max-autotune-no-cudagraphs"},
}


def check_parameters(parameters, choices, own_models=None):
    """Return `parameters` with whole-number rates made floats; stop with one sentence at the first wrong value.

    `choices` maps names to their possible values; where `own_models` is given, timm's models are possible beside them.
    Numbers named in `minimum` below are checked against it.
    """
    minimum = {"batch_size": 1, "epochs": 1, "repeats": 1, "bptt": 1, "layers": 1, "units": 1}
    minimum |= {"image_height": 1, "image_width": 1, "max_steps": 0, "num_workers": 0, "seed": 0, "repeat": 0}
    minimum |= {"image_size": 1, "log_every": 0, "heads": 1, "generate_words": 0}
    checked = {
        name: float(value) if type(value) is int and name in ("lr", "memory_limit_gib") else value
        for name, value in parameters.items()
    }
    for name, value in checked.items():
        if name == "batch_size" and value == "max":
            continue
        if name == "memory_limit_gib" and not (type(value) in (int, float) and 0 <= value < float("inf")):
            raise Stop(f"memory_limit_gib is {value!r}; it must be a number of GiB, or 0 for the whole card.")
        if name in minimum and (type(value) is not int or value < minimum[name]):
            raise Stop(f"{name} is {value!r}; it must be a whole number of {minimum[name]} or more.")
        if name in ("lr", "clip") and (type(value) not in (int, float) or not 0 < value < float("inf")):
            raise Stop(f"{name} is {value!r}; it must be a number above 0.")
        if name == "dropout" and not (type(value) in (int, float) and 0 <= value < 1):
            raise Stop(f"dropout is {value!r}; it must be a number from 0 up to, but not including, 1.")
        if name in ("channels_last", "keep_batchnorm_fp32") and type(value) is not bool:
            raise Stop(f"{name} is {value!r}; it must be True or False.")
        if name in ("model", "csv_path", "data_dir", "output_dir") and type(value) is not str:
            raise Stop(f"{name} is {value!r}; it must be text in quotes.")
    choices = {**choices, "execution": ("eager", "compile", "cuda_graph", "compile_cuda_graph")}
    choices["compile_mode"] = tuple(COMPILE_MODES)
    for name, possible in choices.items():
        if checked[name] not in possible:
            raise Stop(f"{name} is {checked[name]!r}; possible are {', '.join(map(str, possible))}.")
    if own_models is not None and checked["model"] not in own_models:
        check_timm_model(checked["model"])
    names = checked["precisions"]
    known = isinstance(names, list) and names and all(name in PRECISION_NAMES for name in names)
    if not known or len(set(names)) < len(names):
        raise Stop(f"precisions is {names!r}; it must be a list with some of {', '.join(PRECISION_NAMES)}, each once.")
    scale = checked["loss_scale"]
    if scale != "dynamic" and (type(scale) not in (int, float) or not 0 < scale < float("inf")):
        raise Stop(f'loss_scale is {scale!r}; it must be "dynamic" or a number above 0.')
    return checked


def check_timm_model(name):
    """Stop with the nearest names where timm has no model of this one."""
    import timm

    names = timm.list_models()
    if name not in names:
        near = ", ".join(difflib.get_close_matches(name, names, n=5)) or "see timm.list_models()"
        raise Stop(f"model {name!r} is not in timm; the nearest names: {near}.")


def check_output_dir(output_dir):
    """Stop with one sentence where no record could be written."""
    try:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        probe = Path(output_dir) / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise Stop(f"output_dir {output_dir!r} cannot be written ({error.strerror}); choose another folder.") from None
