"""Packages, device, software and host, and which code a run's hash covers."""

import itertools
import json
import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError
from unittest.mock import Mock

import pytest
import torch
from small_training import CPU, make_record

from mixed_precision_study.measure import environment, packages
from mixed_precision_study.measure.environment import choose_device, describe_environment
from mixed_precision_study.measure.packages import require_packages
from mixed_precision_study.parameters import UserError
from mixed_precision_study.store import commit
from mixed_precision_study.store.record import flat_record
from mixed_precision_study.store.variables import RUNNER_ENV


def test_missing_packages_are_installed_on_colab_and_elsewhere_named_with_the_command(monkeypatch):
    monkeypatch.setitem(packages.NAMES_FOR_PIP, "no_such_module", "x")
    called, modules = [], ["no_such_module", "torch", "none_either"]
    with pytest.raises(UserError, match="pip install x none_either"):
        require_packages(modules)
    monkeypatch.setenv("COLAB_RELEASE_TAG", "1")
    monkeypatch.setattr(subprocess, "run", lambda command, check: called.append(command[1:]))
    require_packages(modules)
    assert called == [["-m", "pip", "install", "-q", "x", "none_either"]]
    failed = subprocess.CalledProcessError(1, "pip")
    for error in (failed, FileNotFoundError("no Python")):
        monkeypatch.setattr(subprocess, "run", Mock(side_effect=error))
        with pytest.raises(UserError, match="pip install x"):
            require_packages(modules)


def test_the_host_is_described_and_not_named_and_may_lack_timm(monkeypatch, tmp_path):
    def identity():
        environment.host_identity.cache_clear()
        return environment.host_identity()

    monkeypatch.setattr(environment, "version", Mock(side_effect=PackageNotFoundError("timm")))
    record = make_record()
    describe_environment(record, CPU)
    assert record.commit == commit.suite_commit()
    # the package lies in no clone
    monkeypatch.setattr("mixed_precision_study.store.commit.ROOT", tmp_path)
    assert commit.suite_commit() is None
    monkeypatch.setenv("MIXED_PRECISION_COMMIT", "abc")  # from the runner
    assert commit.suite_commit() == "abc"
    assert (record.timm_version, record.torch_version) == (None, torch.__version__)
    assert (record.device_type, record.gpu_name) == ("cpu", None)
    assert (
        record.host_cpu and record.host_cores and record.python_version and record.package_version
    )
    assert re.fullmatch("[0-9a-f]{12}", record.host_id)
    assert platform.node() not in json.dumps(flat_record(record))
    found = {identity()}
    monkeypatch.setattr(platform, "node", lambda: "another")
    found.add(identity())
    for gpus in (["GPU-2", "GPU-1"], ["GPU-3"]):  # machines of one image have one name
        monkeypatch.setattr(
            environment, "installed_gpus", lambda gpus=gpus: [(0, uuid, "H100") for uuid in gpus]
        )
        found.add(identity())
    assert len(found) == 4
    environment.host_identity.cache_clear()


def test_a_gpu_from_run_all_that_pytorch_cannot_use_and_an_old_pytorch_stop_the_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    monkeypatch.delenv(RUNNER_ENV, raising=False)
    assert choose_device() == CPU
    monkeypatch.setenv(RUNNER_ENV, "1")
    with pytest.raises(UserError, match="GPU-1"):
        choose_device()
    monkeypatch.setattr(torch, "__version__", "2.8.1")
    with pytest.raises(UserError, match="too old"):
        choose_device()


def test_the_hash_covers_the_notebook_without_its_parameters_and_what_measures(
    tmp_path, monkeypatch
):
    """A text cell may be tagged like the parameters."""
    cells = [
        {
            "cell_type": "markdown",
            "id": "words",
            "metadata": {"tags": ["parameters"]},
            "source": ["no code"],
        }
    ]
    for name, tags, source in (
        ("first", ["parameters"], ["x = 1\n"]),
        ("second", [], ["y = x + 1\n", "z = y"]),
    ):
        cells.append(
            {"cell_type": "code", "id": name, "metadata": {"tags": tags}, "source": source}
        )
    small = tmp_path / "small.ipynb"
    small.write_text(json.dumps({"cells": cells}))
    assert list(commit.code_cells(small)) == [
        ("first", "x = 1\n", True),
        ("second", "y = x + 1\nz = y", False),
    ]
    package, text = tmp_path / "package", small.read_text()
    monkeypatch.setattr(commit, "PACKAGE", package)
    apart = (
        "runner/plan.py",
        "report/charts.py",
        "judge/verdict.py",
        "diagnosis/waits.py",
        "notes.txt",
    )
    hashes = []
    for name in ("train/step.py", "measure/nvml.py", *apart, "train/step.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(f"changed = {len(hashes)}")
        # however coarse the clock of the file system is
        os.utime(package / name, ns=(len(hashes), len(hashes)))
        hashes.append(commit.hash_of(small))
    (package / "train/step.py").rename(package / "train/learning.py")
    hashes.append(commit.hash_of(small))
    for old, new in (("x = 1", "x = 2"), ("y = x + 1", "y = x + 2")):
        small.write_text(text.replace(old, new))
        hashes.append(commit.hash_of(small))
    assert [len(one) for one in hashes] == [12] * len(hashes)
    assert [a != b for a, b in itertools.pairwise(hashes)] == [
        True,
        *[False] * 5,
        True,
        True,
        False,
        True,
    ]
    known = commit.package_hash(commit.package_state())
    monkeypatch.setattr(commit.json, "dumps", None)  # a file that was not written is not read again
    assert commit.package_hash(commit.package_state()) == known
