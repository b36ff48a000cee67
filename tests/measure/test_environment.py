"""Packages, device, software and host."""

import json
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest
import torch
from conftest import NOTEBOOKS
from small_training import CPU, make_record

from mixed_precision_study import RUNNER_ENV
from mixed_precision_study.measure import environment
from mixed_precision_study.measure.commit import suite_commit
from mixed_precision_study.measure.environment import choose_device, describe_environment, require_packages
from mixed_precision_study.parameters import UserError
from mixed_precision_study.record import flat_record


def test_packages_missing_elsewhere_than_on_colab_stop_with_the_command(monkeypatch):
    for modules, command in (({"ipykernel": environment}, " %pip install x"), ({"ipykernel": None}, " pip install x")):
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module) if module else monkeypatch.delitem(sys.modules, name)
        with pytest.raises(UserError) as caught:
            require_packages({"no_such_module": "x", "torch": "torch"})
        assert str(caught.value).endswith(command)
    called = []
    monkeypatch.setenv("COLAB_RELEASE_TAG", "1")
    monkeypatch.setattr(subprocess, "run", lambda command, check: called.append(command[1:]))
    require_packages({"no_such_module": "x", "torch": "torch"})
    assert called == [["-m", "pip", "install", "-q", "x"]]


def test_timm_is_asked_for_only_where_it_is_used(monkeypatch):
    asking = {path.stem for path in NOTEBOOKS.glob("*.ipynb") if "IMAGE_PACKAGES" in path.read_text(encoding="utf-8")}
    assert asking == {"cifar_resnet", "efficientnet_regression"}
    assert "timm" not in environment.EXPERIMENT_PACKAGES and "timm" in environment.IMAGE_PACKAGES

    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(environment, "version", absent)
    record = make_record()
    describe_environment(record, CPU)
    assert record.timm_version is None and record.python_version
    assert (record.torch_version, record.device_type, record.gpu_name) == (torch.__version__, "cpu", None)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no such limit")
def test_the_hosts_cores_are_those_that_the_process_may_use():
    allowed, record = os.sched_getaffinity(0), make_record()
    os.sched_setaffinity(0, {min(allowed)})
    try:
        describe_environment(record, CPU)
    finally:
        os.sched_setaffinity(0, allowed)
    assert record.host_cores == 1


def test_the_host_is_described_and_not_named(monkeypatch):
    def identity():
        environment.host_identity.cache_clear()
        return environment.host_identity()

    record = make_record()
    describe_environment(record, CPU)
    assert record.host_cpu and record.package_version
    assert re.fullmatch("[0-9a-f]{12}", record.host_id)
    assert platform.node() not in json.dumps(flat_record(record))
    found = {identity()}
    monkeypatch.setattr(platform, "node", lambda: "another")
    found.add(identity())
    for gpus in (["GPU-2", "GPU-1"], ["GPU-3"]):  # machines of one image have one name
        monkeypatch.setattr(environment, "installed_gpus", lambda gpus=gpus: [(0, uuid, "H100") for uuid in gpus])
        found.add(identity())
    assert len(found) == 4
    environment.host_identity.cache_clear()


def test_the_commit_comes_from_the_runner(monkeypatch, tmp_path):
    monkeypatch.setattr("mixed_precision_study.measure.commit.ROOT", tmp_path)  # the package lies in no clone
    assert suite_commit() is None
    monkeypatch.setenv("MIXED_PRECISION_COMMIT", "abc")
    assert suite_commit() == "abc"


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
