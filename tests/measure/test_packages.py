"""Packages that are missing."""

import subprocess
from unittest.mock import Mock

from conftest import refuses

from mixed_precision_study.measure import packages
from mixed_precision_study.measure.packages import require_packages


def test_missing_packages_are_installed_or_named(monkeypatch):
    monkeypatch.setitem(packages.NAMES_FOR_PIP, "no_such_module", "x")
    called, modules = [], ["no_such_module", "torch", "none_either"]
    with refuses("pip install x none_either"):
        require_packages(modules)
    monkeypatch.setenv("COLAB_RELEASE_TAG", "1")
    monkeypatch.setattr(subprocess, "run", lambda command, check: called.append(command[1:]))
    require_packages(modules)
    assert called == [["-m", "pip", "install", "-q", "x", "none_either"]]
    failed = subprocess.CalledProcessError(1, "pip")
    for error in (failed, FileNotFoundError("no Python")):
        monkeypatch.setattr(subprocess, "run", Mock(side_effect=error))
        with refuses("pip install x"):
            require_packages(modules)
