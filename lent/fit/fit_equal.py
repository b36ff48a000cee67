"""On a GPU: do remedies that change no arithmetic change no bit of a loss in eager mode?

    CUBLAS_WORKSPACE_CONFIG=:4096:8 python fit_equal.py      # from the root of the repository, < 60 s

PyTorch's deterministic algorithms are on, because attention and embeddings add gradients in another order each time otherwise.
"""
import contextlib
import io
import sys
import tempfile

sys.path[:0] = ["tests", "."]
import torch
from conftest import run_cells

SMALL = torch.cuda.is_available() is False
torch.use_deterministic_algorithms(True, warn_only=True)
GPT = {"dataset": "synthetic", "width": 64 if SMALL else 512, "layers": 4, "context": 32 if SMALL else 512, "batch_size": 4,
       "epochs": 1, "max_steps": 3 if SMALL else 20, "clip": 0.0, "precisions": ["fp32", "amp_bf16"] if SMALL else ["tf32", "amp_fp16", "amp_bf16"]}
VIT = {"dataset": "synthetic", "model": "vit_tiny_patch16_224", "batch_size": 4 if SMALL else 32, "epochs": 1, "max_steps": 2 if SMALL else 20,
       "optimizer": "adamw", "precisions": ["amp_bf16"]}
REMEDIES = [{}, {"checkpointing": 1}, {"checkpointing": 2}, {"offload": True}, {"optimizer_in_backward": True},
            {"optimizer_in_backward": True, "checkpointing": 1, "offload": True}]


def losses(notebook, **given):
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        records = run_cells(notebook, "run", **given, output_dir=folder)["records"]
    return {one.precision: one.status if one.status != "ok" else [*one.train_loss, *one.metric] for one in records}


bad = 0
for notebook, given in (("transformer", GPT), ("cifar_resnet", VIT)):
    usual = losses(notebook, **given)
    for remedy in REMEDIES:
        found = losses(notebook, **given, **remedy)
        for precision, values in found.items():
            same = values == usual[precision]
            # fp16's scaler lets steps wait for its check, so the optimizer in the backward pass is refused there
            bad += not same and values != "unsupported"
            print(notebook, precision, remedy, "equal to the bit" if same else f"{values} and not {usual[precision]}", flush=True)
print("bad:", bad)
