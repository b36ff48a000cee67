"""Made-up runs of a comparison whose answers are known, for the tests of the judgement."""

from pathlib import Path

import numpy as np
import yaml

from mixed_precision_study.store.record import flat_record, new_record

CASES = yaml.safe_load((Path(__file__).parent / "judge/cases.yaml").read_text())
PARAMETERS = {
    "dataset": "cifar10",
    "model": "resnet18",
    "batch_size": 128,
    "seed": 0,
    "repeats": 1,
    "repeat": 0,
    "epochs": 2,
    "execution": "eager",
    "channels_last": False,
    "precisions": ["fp32"],
}
ON_GPU = {"status": "ok", "device_type": "cuda", "gpu_uuid": "GPU-1", "epoch_seconds": [4.0, 4.0]}


def flat(precision="amp_fp16", parameters=None, **fields):
    """Return the record of a run on a GPU as it is read back: its fields and settings."""
    values = {**PARAMETERS, **(parameters or {})}
    return flat_record(new_record("cifar_resnet", values, precision, {**ON_GPU, **fields}))


def setting(record, **changes):
    """Return the record with other settings."""
    return {**record, "settings": {**record["settings"], **changes}}


def timed(blocks, precision="amp_fp16", parameters=None, **fields):
    """Return the record of a run with these times, an array (epochs, blocks) of seconds."""
    blocks = np.asarray(blocks, float)
    times = {"epoch_seconds": blocks.sum(1).tolist(), "block_seconds": blocks.ravel().tolist()}
    return flat(precision, {"epochs": len(blocks), **(parameters or {})}, **times, **fields)


def compared(ratio, repetitions=1, epochs=3, blocks=8, noise=0.02, between=0.0, seed=0):
    """Return pairs of noisy runs of which the first is `ratio` times as fast.

    `noise` is the standard deviation of a block, `between` that of whole repetitions, both as parts
    of the ratio. What slows both runs of a pair alike, as the clock does, is there too: pairing
    must take it out.
    """
    draw = np.random.default_rng(seed).normal
    size = (epochs, blocks)
    pairs = []
    for repetition in range(repetitions):
        shift = np.exp(draw(0, between))
        common = np.exp(draw(0, 0.05, size))
        own = common * np.exp(draw(0, noise, size))
        base = common * ratio * shift * np.exp(draw(0, noise, size))
        number = {"repeat": repetition}
        pairs.append((timed(own, "amp_fp16", number), timed(base, "fp32", number)))
    return pairs


# Names and shares of kernel time in which convolution, matmul and attention have 0.7 together.
DENSE = [
    ["convolution", 0.4],
    ["matmul", 0.2],
    ["normalisation", 0.2],
    ["attention", 0.1],
    ["elementwise", 0.1],
]
SPARSE = [
    ["elementwise", 0.4],
    ["convolution", 0.25],
    ["normalisation", 0.2],
    ["optimizer", 0.1],
    ["copy", 0.05],
]


def profiled(families=DENSE, busy=0.95, precision="amp_fp16", parameters=None, **fields):
    """Return the record of a run whose kernels were looked at."""
    figures = {
        "kernel_family_fractions": families,
        "gpu_busy_fraction": busy,
        "tensor_core_fraction": 0.6,
        **fields,
    }
    return flat(precision, parameters, **figures)


def gained(ratio=2.0, low=1.9, high=2.1, seconds=60.0, processes=3, **fields):
    """Return what paired_ratio returns, with these values.

    The 90% interval is the 95% one but for a tenth.
    """
    unknown = dict.fromkeys(("low90", "high90", "p", "smallest", "unlike", "untrained", "lost"))
    found = {
        "ratio": ratio,
        "low": low,
        "high": high,
        "seconds": seconds,
        "processes": processes,
        "seeds": 1,
        "median_ratio": ratio,
        "apart": False,
        "differences": [],
        **unknown,
    }
    if low is not None:
        found |= {"low90": low + 0.1 * (ratio - low), "high90": high - 0.1 * (high - ratio)}
        found["smallest"] = high / ratio - 1
        found["p"] = 0.5 if low <= 1 <= high else 0.01
    return {**found, **fields}


HOT = {
    "throttled": True,
    "throttle_fractions": [["power cap", 0.4], ["heat", 0.05], ["idle", 0.04]],
}
