"""Checkpoints: a long training that was ended goes on from its last one when the same run is started again."""

import copy
import time
from pathlib import Path

import torch

from ..measure.files import check_is_file, written_whole
from ..parameters import error_line
from ..record import RunRecord
from ..tasks.batches import mapped
from .step import Trainer, trained_tensors

KEPT = (  # fields of the record that a training fills in epoch by epoch
    *("epoch_seconds", "step_ms_all", "block_seconds", "data_wait_seconds_all", "train_loss", "training_log", "metric"),
    *("loss_scale_trace", "overflow_steps", "skipped_steps", "card_samples_all", "evaluation_seconds"),
    *("peak_allocated_mib", "peak_reserved_mib", "peak_allocated_with_warmup_mib", "peak_reserved_with_warmup_mib"),
    *("device_used_mib", "device_used_before_mib", "device_memory_reason", "ledger_slack_mib", "resumed_at_epochs"),
)
SAME = ("run_id", "code_hash", "torch_version", "gpu_name", "data_fingerprint")  # else the training begins anew


class Checkpoints:
    """Keeps the checkpoints of one run, beside its record.

    minutes: how much time lies between two of them, at least; 0: there are none.
    """

    def __init__(self, record: RunRecord, trainer: Trainer, folder: str | Path, minutes: float):
        self.record = record
        self.trainer = trainer
        self.path = Path(folder) / f"{record.run_id}.checkpoint"
        self.seconds = 60 * minutes
        self.last = time.monotonic()

    @property
    def identity(self) -> dict:
        return {name: str(getattr(self.record, name)) for name in SAME}

    def resume(self) -> int:
        """Load what an earlier process has left, and return how many epochs it had trained; 0 where it left nothing."""
        if not self.seconds or not self.path.exists():
            return 0
        begun = None
        try:
            check_is_file(self.path)
            kept = torch.load(self.path, map_location="cpu", weights_only=True)  # runs no code of the file
            if kept["identity"] != self.identity:
                differing = [name for name in SAME if kept["identity"].get(name) != self.identity[name]]
                raise ValueError(f"it is of another {', '.join(differing)}")
            begun = copy.deepcopy(mapped(self.state(), lambda leaf, _: leaf.cpu() if torch.is_tensor(leaf) else leaf))
            self.restore(kept)
        except Exception as error:
            if begun is not None:
                self.restore(begun)
            print(f"{self.path.name} is not used ({error_line(error)}). The training begins anew.")
            return 0
        done = len(self.record.epoch_seconds)
        self.record.resumed_at_epochs.append(done)
        print(f"{self.record.precision}: goes on after epoch {done}, from {self.path.name}.")
        return done

    def keep(self) -> None:
        """Write a checkpoint if the last one is old enough."""
        if self.seconds and time.monotonic() - self.last >= self.seconds:
            with written_whole(self.path) as path:
                torch.save(self.state(), path)
            self.last = time.monotonic()

    def remove(self) -> None:
        if self.seconds:
            self.path.unlink(missing_ok=True)

    def state(self) -> dict:
        trainer = self.trainer
        device = trainer.device
        return {
            "identity": self.identity,
            "record": {name: getattr(self.record, name) for name in KEPT},
            "tensors": [tensor.cpu() for tensor in trained_tensors(trainer)],
            "optimizer": trainer.optimizer.state_dict(),
            "scaler": trainer.scaler.state_dict(),
            "skipped": trainer.skipped_steps,
            "steps": trainer.steps,
            "updates": trainer.updates,
            "random": [torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None],
        }

    def restore(self, kept: dict) -> None:
        """Give a trainer and a record the state that was kept. What a CUDA graph reads keeps its address."""
        trainer = self.trainer
        with torch.no_grad():
            for tensor, value in zip(trained_tensors(trainer), kept["tensors"], strict=True):
                tensor.copy_(value)
        trainer.optimizer.load_state_dict(kept["optimizer"])
        if trainer.on_device:
            trainer.scaler.load(kept["scaler"], kept["skipped"])
        elif trainer.scaler.is_enabled():
            trainer.scaler.load_state_dict(kept["scaler"])
        trainer.steps, trainer.updates = kept["steps"], kept["updates"]
        torch.set_rng_state(kept["random"][0])
        if trainer.device.type == "cuda":
            torch.cuda.set_rng_state(kept["random"][1], trainer.device)
        for name in KEPT:
            setattr(self.record, name, kept["record"][name])
