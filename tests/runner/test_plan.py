"""The runs of a study: their precisions, their order, and what papermill gets."""

import itertools

import pytest
from conftest import EXPERIMENTS, NOTEBOOKS, refuses
from tiny_suite import entry, write_notebook, write_suite

from mixed_precision_study.runner.devices import Cards
from mixed_precision_study.runner.plan import USUAL_CARDS, check_overrides, parameters_of, plan
from mixed_precision_study.runner.studies import load_studies, parse_overrides
from mixed_precision_study.store.record import run_id_of

STUDIES = load_studies(NOTEBOOKS / "studies.yaml")
FOUR = ["fp32", "tf32", "amp_fp16", "amp_bf16"]


def notebooks_of(study):
    return {entry["notebook"] for entry in STUDIES[study]["runs"]}


def planned(tmp_path, study, *pairs, on_gpu=True, notebooks=NOTEBOOKS, cards=USUAL_CARDS):
    """Return the comparisons of a study with these -p options."""
    study = STUDIES[study] if isinstance(study, str) else study
    return plan(study, notebooks, tmp_path, parse_overrides(pairs), on_gpu, cards)[0]


@pytest.mark.parametrize("pairs, repeats", [([], 1), ([("repeats", "2")], 2)])
def test_without_repetitions_a_run_trains_all_precisions(tmp_path, pairs, repeats):
    study = {"runs": [{"notebook": name, "cpu": {}} for name in EXPERIMENTS]}
    comparisons = planned(tmp_path, study, *pairs, on_gpu=repeats == 1)
    assert [[run.parameters["repeat"] for run in runs] for runs in comparisons] == [
        [*range(repeats)]
    ] * len(EXPERIMENTS)
    for run in itertools.chain(*comparisons):
        assert [name for _, name in run.trainings.values()] == run.parameters["precisions"] == FOUR
        for precision, path in zip(FOUR, run.record_paths.values(), strict=True):
            assert (
                path == tmp_path / f"{run_id_of(run.notebook.stem, run.parameters, precision)}.json"
            )


@pytest.mark.parametrize(
    "study, pairs, repeats", [("reference", [], 4), ("quick", [("repeats", "5")], 5)]
)
def test_repetitions_are_processes_in_a_latin_square(tmp_path, study, pairs, repeats):
    for runs in planned(tmp_path, study, *pairs):
        assert [(run.order, len(run.trainings)) for run in runs] == [
            (place, 1) for place in range(len(runs))
        ]
        blocks = [
            list(block)
            for _, block in itertools.groupby(runs, lambda run: run.parameters["repeat"])
        ]
        assert [block[0].parameters["repeat"] for block in blocks] == list(range(repeats))
        # made alone
        assert blocks[-1] in planned(tmp_path, study, *pairs, ("repeat", str(repeats - 1)))
        firsts = [block[0].parameters["precisions"][0] for block in blocks[:4]]
        # each comes first once, and of three one comes first twice
        assert {*firsts} == {name for run in runs for name in run.parameters["precisions"]}


def trained(runs):
    """Return [(execution, precisions)] of the ways of runs, in their order."""
    return [
        (parameters["execution"], parameters["precisions"])
        for run in runs
        for parameters in (run.parameters | way for way in run.ways)
    ]


T4 = Cards(("tf32", "amp_bf16"), small=True)
EAGER, GRAPH = ["tf32", "amp_bf16", "amp_fp16", "fp32"], ["tf32", "amp_bf16", "amp_fp16"]


@pytest.mark.parametrize(
    "pairs, cards, expected",
    [
        ([], USUAL_CARDS, [("eager", EAGER), ("cuda_graph", GRAPH)]),
        # a T4 or a V100: fp32 is the base of both ways
        ([], T4, [("eager", ["fp32", "amp_fp16"]), ("cuda_graph", ["fp32", "amp_fp16"])]),
        # what is asked for is planned, and its record says why it cannot be
        (
            [("precisions", "amp_bf16")],
            T4,
            [("eager", ["amp_bf16"]), ("cuda_graph", ["amp_bf16"])],
        ),
        # where ways become one, nothing is trained twice
        (
            [("execution", "compile"), ("channels_last", "true"), ("cudnn_benchmark", "true")],
            USUAL_CARDS,
            [("compile", EAGER)],
        ),
    ],
)
def test_one_process_trains_all_ways_in_the_order_of_the_study(tmp_path, pairs, cards, expected):
    for (run,) in planned(tmp_path, "quick", *pairs, cards=cards):
        assert trained([run]) == expected
        assert run.order == 0 and len(run.trainings) == sum(len(names) for _, names in expected)
        # what EfficientNet's graph reserves in fp32 is more than a T4 has
        small = cards.small and run.notebook.stem == "efficientnet_regression"
        assert (run.parameters["batch_size"] == 16) == small


def test_a_way_never_gets_algorithms_that_another_chose(tmp_path):
    """PyTorch keeps them for each layout, so a way that searches has a process of its own there."""
    for runs in planned(tmp_path, "quick", ("channels_last", "true")):
        convolves = runs[0].notebook.stem in ("cifar_resnet", "efficientnet_regression")
        assert len(runs) == 1 + convolves and len(runs[0].ways) == 2 - convolves
        found = {run.parameters["cudnn_benchmark"] for run in runs}
        assert found == ({False, True} if convolves else {True})
        assert sum(len(run.trainings) for run in runs) == 7
    for (run,) in planned(tmp_path, "quick-compiled"):
        assert [len(run.ways), len(run.trainings)] == [3, 10]


def test_a_training_among_ways_is_what_it_is_alone(tmp_path):
    quick = STUDIES["quick"]["runs"][-1]
    (((together,),)) = planned(tmp_path, {"runs": [quick]})
    alone = {key: quick[key] for key in ("notebook", "parameters")}
    for way, names in (("eager", FOUR), ("cuda_graph", GRAPH)):
        pairs = [("execution", way), ("precisions", ",".join(names))]
        ((run,),) = planned(tmp_path, {"runs": [alone]}, *pairs)
        assert {*run.trainings} < {*together.trainings}


def test_a_list_in_a_way_stands_for_a_way_with_each_value(tmp_path):
    (runs, _) = planned(tmp_path, "weights")
    assert [len(run.trainings) for run in runs] == [80] * 4
    ways = [runs[0].parameters | way for way in runs[0].ways]
    recipes = [(way["moments"], way["rounding"], *way["precisions"]) for way in ways]
    assert len(ways) == 64 and len({*recipes}) == 8
    assert [way["seed"] for way in ways[:8]] == [*range(8)]
    assert recipes.count(("fp32", "stochastic", "bf16_true")) == 8


def test_the_steps_of_a_ladder_are_mixed_and_go_to_one_device(tmp_path):
    comparisons = planned(tmp_path, "ladder")
    assert {runs[0].notebook.stem for runs in comparisons} == notebooks_of("ladder")
    for runs in comparisons:
        blocks = [
            [run for run in runs if run.parameters["repeat"] == number] for number in range(4)
        ]
        kinds = [
            {(run.parameters["precisions"][0], run.parameters["execution"]) for run in block}
            for block in blocks
        ]
        assert kinds[0] == kinds[1] == kinds[3] and len(kinds[0]) >= 5
        assert runs == sorted(runs, key=lambda run: run.parameters["repeat"])


def test_swept_seeds_are_numbered_and_run_once(tmp_path):
    one = {
        "notebook": "cifar_resnet",
        "parameters": {"precisions": "fp32, tf32"},
        "sweep": {"seed": [0, 7]},
    }
    more = {**one, "parameters": {"precisions": ["tf32", "amp_fp16"], "lr": "1e-1"}}
    runs = [run for runs in planned(tmp_path, {"runs": [one, more]}) for run in runs]
    found = [
        (run.parameters["seed"], run.parameters["repeat"], run.parameters["precisions"])
        for run in runs
    ]
    assert sorted(found) == [
        *[(0, 0, ["amp_fp16"]), (0, 0, ["fp32", "tf32"])],
        *[(7, 1, ["amp_fp16"]), (7, 1, ["fp32", "tf32"])],
    ]
    # half of the second entry runs already
    assert sum(run.minutes for run in runs) == pytest.approx(1.5)
    ((run,),) = planned(tmp_path, {"runs": [one]}, ("seed", "7"))
    assert run.minutes == pytest.approx(0.5)


def test_a_foreign_notebook_declares_what_its_cell_assigns(tmp_path):
    folder = write_suite(tmp_path, {"tiny": [entry()]})
    study = {"runs": [entry(lr="1e-2", batch_size="max", loss_scale=8)]}
    ((run,),) = planned(tmp_path, study, on_gpu=False, notebooks=folder)
    assert [run.parameters[name] for name in ("lr", "batch_size", "loss_scale")] == [
        0.01,
        "max",
        8.0,
    ]
    # its own, and common ones
    assert run.parameters.items() > {"mode": "ok", "epochs": 3, "repeat": 0}.items()
    for wrong in ({"lr": "x"}, {"channels_last": 1}, {"mode": 3}, {"moed": "ok"}):
        with refuses(next(iter(wrong))):
            planned(tmp_path, {"runs": [entry(**wrong)]}, on_gpu=False, notebooks=folder)
    ((first, second),) = planned(tmp_path, study, ("repeats", "2"), on_gpu=False, notebooks=folder)
    assert (first.parameters["repeat"], second.parameters["repeat"]) == (0, 1)
    assert set(run.given) == {*parameters_of(folder / "tiny.ipynb")[1], "repeat"}


@pytest.mark.parametrize(
    "source", ["for x in y: pass", "model = 1 +", "model = f()", "%time\nlr = 1"]
)
def test_a_notebook_without_plain_parameters_stops(tmp_path, source):
    write_notebook(tmp_path / "own.ipynb", source)
    with refuses("own"):
        planned(tmp_path, {"runs": [{"notebook": "own"}]}, notebooks=tmp_path)


def test_an_option_goes_to_all_notebooks_that_know_it_or_to_one(tmp_path):
    planned_runs = planned(tmp_path, "quick", ("lstm_language_model.seed", "7"), ("seed", "3"))
    assert {runs[0].notebook.stem: runs[0].parameters["seed"] for runs in planned_runs} == {
        **dict.fromkeys(notebooks_of("quick"), 3),
        "lstm_language_model": 7,
    }


@pytest.mark.parametrize(
    "name, said",
    {
        "bacth_size": "did you mean batch_size?",
        "cifar_resnt.lr": "did you mean cifar_resnet.lr?",
        "cifar_resnet.modle": "did you mean cifar_resnet.model?",
        "cifar_resnet.bptt": "cifar_resnet.bptt",
        "cifar_resnet.repeats": "cifar_resnet.repeats",
        "cifar_resnet.repeat": "cifar_resnet.repeat",
    }.items(),
)
def test_an_option_that_none_of_the_notebooks_knows_stops(name, said):
    check_overrides(
        [STUDIES["quick"]], NOTEBOOKS, {"bptt": 5, "repeats": 2, "lstm_language_model.bptt": 5}
    )
    with refuses(said):
        check_overrides([STUDIES["quick"]], NOTEBOOKS, {name: 1})


@pytest.mark.parametrize(
    "pair", [("batch_size", "-1"), ("repeats", "0"), ("repeat", "4"), ("model", "resnet18")]
)
def test_a_value_that_a_notebook_refuses_stops_all(tmp_path, pair):
    with refuses(f"{pair[0]} is "):
        planned(tmp_path, "quick", pair)
