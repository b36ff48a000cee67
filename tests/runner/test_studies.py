"""studies.yaml against the notebooks it names: every entry can be planned as it stands, with and without a GPU."""

import itertools
from pathlib import Path

import pytest
from conftest import NOTEBOOKS, ROOT

from mixed_precision_study.runner import cli
from mixed_precision_study.runner.plan import check_values, notebook_defaults, plan
from mixed_precision_study.runner.studies import load_studies, parse_overrides

STUDIES = load_studies(NOTEBOOKS / "studies.yaml")
ENTRIES = [(name, number, entry) for name, study in STUDIES.items() for number, entry in enumerate(study["runs"], 1)]


def test_there_are_entries_and_a_default_study():
    assert len(ENTRIES) >= 6
    assert "quick" in STUDIES
    assert "full" in STUDIES
    assert all(study.get("description") for study in STUDIES.values())


@pytest.mark.parametrize("name, number, entry", ENTRIES, ids=[f"{name}-{number}" for name, number, _ in ENTRIES])
def test_entry_names_a_notebook_and_its_parameters(name, number, entry):
    defaults = notebook_defaults(NOTEBOOKS / f"{entry['notebook']}.ipynb")
    for part in ("parameters", "sweep", "cpu"):
        assert set(entry.get(part, ())) <= set(defaults), part
    for on_gpu in (True, False) if "cpu" in entry else (True,):
        comparisons, left_out = plan({"runs": [entry]}, NOTEBOOKS, ROOT / "outputs", {}, on_gpu)
        assert comparisons
        assert not left_out


@pytest.mark.parametrize("on_gpu", [True, False])
def test_quick_compares_the_four_precisions_in_every_experiment(on_gpu):
    comparisons, left_out = plan(STUDIES["quick"], NOTEBOOKS, ROOT / "outputs", {}, on_gpu)
    assert not left_out
    assert {runs[0].notebook.stem for runs in comparisons} == {
        "cifar_resnet",
        "efficientnet_regression",
        "lstm_language_model",
    }
    for runs in comparisons:
        assert [run.precision for run in runs] == ["fp32", "tf32", "amp_fp16", "amp_bf16"]


ARTICLES = [  # what each article did: study, what is the same in all its runs, what is varied
    ("rtx-titan-dpn", {"model": "dpn92", "epochs": 1, "log_every": 50, "loss_scale": 128.0}, {
        "batch_size": [128, 256, 512, 640], "precision": ["fp32", "o2_fp16"]}),
    ("rtx-titan-dpn", {"model": "dpn92", "batch_size": 512, "precision": "o2_fp16"}, {
        "loss_scale": [64.0, 128.0, 256.0]}),
    ("rtx-titan-dpn", {"model": "dpn92", "batch_size": 640, "memory_limit_gib": 24}, {
        "precision": ["fp32", "o2_fp16"]}),
    ("titan-rtx-resnet", {"model": "resnet18", "batch_size": 128, "epochs": 50}, {
        "precision": ["fp32", "amp_fp16", "o2_fp16"]}),
    ("titan-rtx-resnet", {"model": "resnet50", "batch_size": 512, "epochs": 50}, {
        "precision": ["fp32", "amp_fp16", "o2_fp16"]}),
    ("fastai-cifar100", {"dataset": "cifar100", "image_size": 64}, {
        "model": ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"], "precision": ["fp32", "amp_fp16"]}),
    ("fastai-cifar100", {"dataset": "cifar100", "batch_size": "max"}, {"precision": ["fp32", "amp_fp16"]}),
    ("word-language-model", {"dataset": "wikitext-2", "epochs": 30}, {
        "model": ["rnn_tanh", "rnn_relu", "gru", "lstm", "transformer"], "precision": ["fp32", "amp_fp16"]}),
    ("efficientnet-3090-v100", {"batch_size": 32, "image_height": 384, "image_width": 512, "lr": 1e-3, "epochs": 1}, {
        "precision": ["fp32", "amp_fp16"]}),
    ("colab-wide-resnet", {"model": "wide_resnet28_10", "dropout": 0.3, "epochs": 10, "schedule": "warmup"}, {
        "precision": ["fp32", "amp_fp16", "o2_fp16", "o3_fp16"]}),
    ("colab-wide-resnet", {"batch_size": 512, "num_workers": 2}, {
        "loader": ["workers", "gpu"], "precision": ["fp32", "amp_fp16", "o2_fp16", "o3_fp16"]}),
]  # fmt: skip


@pytest.mark.parametrize(("study", "same", "varied"), ARTICLES)
def test_a_study_of_an_article_has_every_run_of_it(study, same, varied):
    comparisons, _ = plan(STUDIES[study], NOTEBOOKS, ROOT / "outputs", {}, on_gpu=True)
    planned = [{**run.parameters, "precision": run.precision} for runs in comparisons for run in runs]
    for values in itertools.product(*varied.values()):
        wanted = (same | dict(zip(varied, values, strict=True))).items()
        assert any(wanted <= {name: run.get(name) for name, _ in wanted}.items() for run in planned), dict(wanted)


@pytest.mark.parametrize(
    ("study", "name", "value", "sentence"),
    [
        ("quick", "batch_size", "-1", 'batch_size is -1; it must be "max" or a whole number of 1 or more'),
        ("quick", "dataset", "mnist", "dataset is 'mnist'; possible are auto,"),
        ("quick", "repeats", "0", "repeats is 0; it must be a whole number of 1 or more"),
        ("quick", "execution", "fast", "execution is 'fast'; possible are eager, compile, cuda_graph"),
        ("layout", "model", "tf_efficientnet_b99", "'tf_efficientnet_b99' is not in timm; the nearest names: tf_eff"),
    ],
)
def test_a_value_that_a_notebook_refuses_stops_the_batch_before_it_starts(study, name, value, sentence, capsys):
    assert cli.main([study, "--gpus", "none", "-p", name, value, "--output-dir", "new"]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not Path("new").exists()


def test_every_planned_run_of_every_study_is_accepted():
    plans = [plan(study, NOTEBOOKS, Path("new"), {}, on_gpu)[0] for study in STUDIES.values() for on_gpu in (1, 0)]
    assert all(comparisons for comparisons in plans[::2])
    check_values([comparison for comparisons in plans for comparison in comparisons])


def test_repetitions_of_the_experiments_alternate():
    overrides = parse_overrides([("repeats", "2")])
    for on_gpu in (True, False):
        comparisons, _ = plan(STUDIES["quick"], NOTEBOOKS, Path("new"), overrides, on_gpu)
        assert len(comparisons) == 3
        forth = ["fp32", "tf32", "amp_fp16", "amp_bf16"]
        for runs in comparisons:
            assert [run.precision for run in runs] == [*forth, *reversed(forth)]
            assert [run.parameters["repeat"] for run in runs] == [0] * 4 + [1] * 4
            assert {run.parameters["repeats"] for run in runs} == {1}
    check_values(comparisons)
