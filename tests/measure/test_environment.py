"""Packages, device, software and host, and which code a run's hash covers."""

import json
import platform
import re
import types
from importlib.metadata import PackageNotFoundError
from unittest.mock import Mock

import torch
from conftest import refuses
from made_up_nvml import fake_nvml
from small_training import CPU, make_record

from mixed_precision_study.measure import environment
from mixed_precision_study.measure.environment import choose_device, describe_environment
from mixed_precision_study.store import commit
from mixed_precision_study.store.record import flat_record
from mixed_precision_study.store.variables import RUNNER_ENV


def test_the_host_is_described_and_not_named_and_may_lack_timm(monkeypatch):
    monkeypatch.setattr(environment, "version", Mock(side_effect=PackageNotFoundError("timm")))
    record = make_record()
    describe_environment(record, CPU)
    assert (record.commit, record.host_cpu) == (commit.suite_commit(), environment.cpu_model())
    assert (record.timm_version, record.torch_version) == (None, torch.__version__)
    assert (record.device_type, record.gpu_name) == ("cpu", None)
    assert record.host_cores and record.python_version and record.package_version
    assert re.fullmatch("[0-9a-f]{12}", record.host_id)
    assert platform.node() not in json.dumps(flat_record(record))


def test_the_host_is_told_by_its_name_and_its_gpus(monkeypatch):
    def identity():
        environment.host_identity.cache_clear()
        return environment.host_identity()

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


def test_a_gpu_is_described_by_pytorch_and_its_driver(monkeypatch):
    properties = types.SimpleNamespace(
        name="H200", uuid="ab", major=9, minor=1, total_memory=5 * 2**20
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    module = fake_nvml(
        monkeypatch,
        nvmlDeviceGetApplicationsClock=lambda handle: 1500,
        nvmlDeviceGetDefaultApplicationsClock=lambda handle: 1980,
    )
    record = make_record()
    describe_environment(record, torch.device("cuda"))
    assert (record.gpu_name, record.gpu_uuid, module.asked[-1]) == ("H200", "ab", "GPU-ab")
    assert (record.compute_capability, record.device_total_mib) == ("9.1", 5)
    clocks = record.application_clock_mhz, record.application_clock_mhz_default
    assert (record.driver_version, *clocks) == ("580.1", 1500, 1980)


def test_a_gpu_that_pytorch_cannot_use_stops_the_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")
    monkeypatch.delenv(RUNNER_ENV, raising=False)
    assert choose_device() == CPU
    monkeypatch.setenv(RUNNER_ENV, "1")
    with refuses("GPU-1"):
        choose_device()
    monkeypatch.setattr(torch, "__version__", "2.8.1")
    with refuses("too old"):
        choose_device()
