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

from mixed_precision_study.measure import environment
from mixed_precision_study.measure.commit import suite_commit
from mixed_precision_study.measure.environment import describe_environment, require_packages
from mixed_precision_study.parameters import UserError
from mixed_precision_study.record import flat_record

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))


def test_packages_missing_elsewhere_than_on_colab_stop_with_the_command(monkeypatch):
    with pytest.raises(UserError, match="no-such-package"):
        require_packages({"no_such_module": "no-such-package", "torch": "torch"})
    called = []
    monkeypatch.setenv("COLAB_RELEASE_TAG", "1")
    monkeypatch.setattr(subprocess, "run", lambda command, check: called.append(command))
    require_packages({"no_such_module": "no-such-package"})
    assert called[0][-1] == "no-such-package"


def test_a_notebook_is_told_to_install_for_its_own_kernel(monkeypatch):
    for modules, command in (({"ipykernel": environment}, " %pip install x"), ({"ipykernel": None}, " pip install x")):
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module) if module else monkeypatch.delitem(sys.modules, name)
        with pytest.raises(UserError) as caught:
            require_packages({"no_such_module": "x"})
        assert str(caught.value).endswith(command)


def test_timm_is_asked_for_only_where_it_is_used(monkeypatch):
    cells = {
        path.stem: json.dumps([cell["source"] for cell in json.loads(path.read_text())["cells"]]) for path in PATHS
    }
    assert {name for name, text in cells.items() if "IMAGE_PACKAGES" in text} == {
        "cifar_resnet",
        "efficientnet_regression",
    }
    assert "timm" not in environment.EXPERIMENT_PACKAGES and "timm" in environment.IMAGE_PACKAGES

    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(environment, "version", absent)
    record = make_record()
    describe_environment(record, CPU)
    assert record.timm_version is None and record.python_version


def test_the_environment_is_described():
    record = make_record()
    describe_environment(record, CPU)
    assert record.torch_version == torch.__version__
    assert record.device_type == "cpu"
    assert record.gpu_name is None


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
    record, other = make_record(), make_record()
    environment.host_identity.cache_clear()
    describe_environment(record, CPU)
    assert record.host_cpu and record.package_version
    assert re.fullmatch("[0-9a-f]{12}", record.host_id)
    monkeypatch.setattr(platform, "node", lambda: "another")
    environment.host_identity.cache_clear()
    describe_environment(other, CPU)
    assert other.host_id != record.host_id
    assert platform.node() not in json.dumps(flat_record(other))
    monkeypatch.setattr(environment, "installed_gpus", lambda: [(0, "GPU-2", "H100"), (1, "GPU-1", "H100")])
    environment.host_identity.cache_clear()
    first = environment.host_identity()
    monkeypatch.setattr(environment, "installed_gpus", lambda: [(0, "GPU-3", "H100")])  # of the same image
    environment.host_identity.cache_clear()
    assert len({first, environment.host_identity(), other.host_id}) == 3
    environment.host_identity.cache_clear()


def test_the_commit_comes_from_the_runner(monkeypatch, tmp_path):
    monkeypatch.setattr("mixed_precision_study.measure.commit.ROOT", tmp_path)  # the package lies in no clone
    assert suite_commit() is None
    monkeypatch.setenv("MIXED_PRECISION_COMMIT", "abc")
    assert suite_commit() == "abc"
