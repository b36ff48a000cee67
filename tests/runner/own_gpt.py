"""A small GPT in a notebook of one's own, beside its studies file: all that a new experiment is."""

import yaml
from tiny_suite import write_notebook

PARAMETERS = """
precisions: list = ["fp32", "amp_bf16"]
batch_size: int = 8  # texts per step
epochs: int = 2
max_steps: int = 0
lr: float = 0.05
seed: int = 0
output_dir: str = "outputs"
layers: Count = 2  # of the Transformer
width: Count = 32
"""
MODEL = """
import torch

generator = torch.Generator().manual_seed(seed)
texts = [torch.randint(64, (batch_size, 17), generator=generator) for _ in range(6)]


class Gpt(torch.nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        block = dict(nhead=2, dim_feedforward=4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.words = torch.nn.Embedding(64, width)
        self.places = torch.nn.Parameter(torch.zeros(16, width))
        self.blocks = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(width, **block), layers)
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, words):
        mask = torch.nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        hidden = self.blocks(self.words(words) + self.places, mask=mask, is_causal=True)
        return self.norm(hidden) @ self.words.weight.T


def make_model():
    return Gpt(width, layers)


def compute_loss(model, batch):
    logits = model(batch[:, :-1]).flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits.float(), batch[:, 1:].flatten())


def evaluate(model, batches):
    return sum(compute_loss(model, one).item() for one in batches) / 2
"""
COMPARE = """
from mixed_precision_study import compare
from mixed_precision_study.experiment import Metric

loss = Metric("loss", "lower", 4.16)
held_out = {"evaluate": evaluate, "eval_batches": texts[4:], "metric": loss}
records = compare("gpt", make_model, texts[:4], compute_loss, precisions=precisions, epochs=epochs,
                  max_steps=max_steps, lr=lr, seed=seed, output_dir=output_dir, layers=layers, width=width, **held_out)
"""
DATA = """
from mixed_precision_study.experiment import Experiment, Metric, preflight
from mixed_precision_study.tasks.batches import TrainingData


class Texts(TrainingData):
    used, sample_unit, eval_samples, train_samples = "made-up text", "texts", 16, 32

    def steps_per_epoch(self, size):
        return min(4, settings.max_steps or 4)

    def train_batches(self, epoch, dtype, size):
        return (one.to(gpu.device) for one in texts[: self.steps_per_epoch(size)])

    def eval_batches(self, dtype, size):
        return (one.to(gpu.device) for one in texts[4:])
"""
EXPERIMENT = """
def with_state(model, batch, hidden):
    return compute_loss(model, batch), None

loss = Metric("loss", "lower", 4.16)
records = Experiment("gpt", settings, Texts(), make_model, with_state, evaluate, loss, gpu=gpu).run()
"""
CHECKED = """
from mixed_precision_study.parameters import check_parameters
settings = check_parameters("gpt", globals())
gpu = preflight(settings)
"""
GIVEN = """
from types import SimpleNamespace
given = dict(precisions=precisions, batch_size=batch_size, epochs=epochs, max_steps=max_steps, lr=lr, seed=seed)
from mixed_precision_study.parameters import own_parameters
settings = own_parameters("gpt", {**given, "output_dir": output_dir, "layers": layers, "width": width})
gpu = preflight(settings)
"""
IMPORTS = "from mixed_precision_study.parameters import Count"
DOORS = {
    "compare": (MODEL, COMPARE),
    "check_parameters": (MODEL, DATA, CHECKED, EXPERIMENT),
    "Experiment": (MODEL, DATA, GIVEN, EXPERIMENT),
}


def write_gpt(folder, door, **entry):
    """Write the notebook, through one of DOORS, and a studies file with the one study `own`;
    return that file.
    """
    write_notebook(folder / "gpt.ipynb", PARAMETERS, *DOORS[door], before=IMPORTS)
    runs = [{"notebook": "gpt", "cpu": {"max_steps": 2}, **entry}]
    (folder / "studies.yaml").write_text(
        yaml.safe_dump({"own": {"description": "A small GPT.", "runs": runs}})
    )
    return folder / "studies.yaml"
