"""The answer on records of every kind."""

import json

import made_up_records as made_up
import pytest
from conftest import ROOT
from drawn_reports import flat, write_all
from made_up_runs import gained

from mixed_precision_study.report import answer, sections
from mixed_precision_study.report.load import load
from mixed_precision_study.report.report import Report
from mixed_precision_study.report.section import Sentence, Table


def said(report):
    return "\n".join(part.text for part in answer.section(report).parts if isinstance(part, Sentence))


def said_in_table(report):
    (table,) = (part for part in answer.section(report).parts if isinstance(part, Table))
    return str(table.rows)


def judged(ratios, memory=None, **fields):
    """Return a report of one comparison with these ratios over fp32, {precision: ratio}, and GiB, {precision: GiB}."""
    names = ["fp32", *ratios]
    runs = {name: [] for name in answer.PRECISIONS}
    for name in names:
        seconds = [10.0 / ratios.get(name, 1.0)] * 3
        peak = {"peak_allocated_mib": 1024 * (memory or {}).get(name, 1.0), "data_on_device_mib": 0}
        run = flat(made_up.make("cifar_resnet", name))
        runs[name] = [run | {"epoch_seconds": seconds, **peak, "status": "ok"}]
    group = {"model": "resnet18", "device": "H200", "notebook": "cifar_resnet", "title": "resnet18"}
    group |= {"batch": "b128", "lines": ["resnet18"]}
    group |= {"settings": {}, "runs": runs, "data": "cifar10", "explaining": []}
    report = Report(comparisons=[group], every_group=[group], used=[run for one in runs.values() for run in one])
    for name, ratio in ratios.items():
        ends = {"low": 0.97 * ratio, "high": 1.03 * ratio, "low90": 0.975 * ratio, "high90": 1.025 * ratio}
        report.speedups[0, name, "fp32"] = gained(ratio, **{**ends, **fields})
    return report


def test_the_fastest_is_used():
    report = judged({"tf32": 1.5, "amp_fp16": 2.0})
    assert answer.recommended(report, 0) == "amp_fp16"


def test_of_two_that_are_as_fast_the_one_with_less_memory_is_used():
    report = judged({"tf32": 2.0, "amp_bf16": 1.99}, {"tf32": 4.0, "amp_bf16": 2.0})
    assert answer.recommended(report, 0) == "amp_bf16"
    assert answer.recommended(judged({"tf32": 1.99, "amp_bf16": 2.0}), 0) == "tf32"


def test_of_two_16_bit_modes_with_the_same_memory_the_faster_one_is_used():
    report = judged(
        {"tf32": 2.02, "amp_fp16": 1.99, "amp_bf16": 2.01}, {"tf32": 4.0, "amp_fp16": 2.01, "amp_bf16": 2.0}
    )
    assert answer.recommended(report, 0) == "amp_bf16"


@pytest.mark.parametrize(
    ("execution", "ratio", "used"),
    [("eager", 1.9, "amp_bf16"), ("eager", 1.6, "tf32"), ("cuda_graph", 1.9, "tf32"), ("cuda_graph", 1.99, "amp_bf16")],
)
def test_single_processes_in_eager_mode_are_as_fast_within_their_scatter(execution, ratio, used):
    report = judged({"tf32": 2.0, "amp_bf16": ratio}, {"tf32": 4.0, "amp_bf16": 2.0}, processes=1, low=None, high=None)
    report.comparisons[0]["settings"]["execution"] = f'"{execution}"'
    assert answer.recommended(report, 0) == used
    text = said(report)
    assert ("for its memory" in text) == (used == "amp_bf16")
    slower = round(100 * (1 - ratio / 2.0))
    assert (f"{slower}% slower than tf32, the fastest at 2.00x" in text) == (used == "amp_bf16" and slower > 0)


def test_where_tf32_is_as_fast_the_answer_says_that_amp_is_for_its_memory():
    text = said(judged({"tf32": 1.98, "amp_bf16": 2.0}, {"fp32": 4.0, "tf32": 4.0, "amp_bf16": 2.0}))
    assert "for its memory, 50% less than in tf32: it is 2.00x as fast as fp32 and not shown" in text
    text = said(judged({"tf32": 1.5, "amp_bf16": 2.0}, {"fp32": 4.0, "tf32": 4.0, "amp_bf16": 2.0}))
    assert "use amp\\_bf16: 2.00x as fast as fp32 with 50% less memory." in text


def rivals_of(report):
    """Return (used, rival, its ratio, by how many per cent the used one is slower, memory saved) of each model."""
    names = ("use", "rival", "rival_ratio", "slower", "saved_of_rival")
    return [tuple(getattr(one, name) for name in names) for one in answer.answers_of(report)]


def test_a_slower_precision_is_used_only_with_its_rival_and_how_much_slower_it_is():
    one = {"processes": 1, "low": None, "high": None}
    memory = {"fp32": 4.0, "tf32": 4.0, "amp_bf16": 3.0}
    assert rivals_of(judged({"tf32": 2.0, "amp_bf16": 1.7}, memory, **one)) == [
        ("amp_bf16", "tf32", 2.0, pytest.approx(15), pytest.approx(25))
    ]
    assert rivals_of(judged({"tf32": 1.1, "amp_bf16": 0.9}, **one)) == [
        ("fp32", "tf32", 1.1, pytest.approx(100 - 100 / 1.1), pytest.approx(0))
    ]
    assert rivals_of(judged({"tf32": 1.5, "amp_bf16": 2.0}, memory)) == [("amp_bf16", None, 1.0, None, None)]
    models = [judged({"tf32": 2.0, "amp_bf16": 1.7}, memory, **one) for _ in range(4)]
    whole = Report(every_group=[report.comparisons[0] for report in models])
    whole.comparisons = whole.every_group
    for number, report in enumerate(models):
        report.comparisons[0]["model"] = f"model{number}"
        whole.speedups |= {(number, *key[1:]): value for key, value in report.speedups.items()}
    assert "For 4 models tf32 was the fastest, at 2.00x: there amp\\_bf16 was 15% slower, but took 25%" in said(whole)


@pytest.mark.parametrize(("folder", "slower"), [("quick-h200", 1), ("scaling-h200", 4)])
def test_committed_answers_name_what_is_faster(folder, slower):
    report = load(ROOT / "outputs" / folder)
    found = [one for one in answer.answers_of(report) if one.slower]
    assert len(found) == slower
    assert all(one.rival in text and f"{one.slower:.0f}%" in text for one in found for text in [one.slower_text])


def both_ways(eager, graph, **fields):
    """Return a report of one training in eager mode and as one CUDA graph, each with these ratios over fp32."""
    reports = [judged(ratios, **fields) for ratios in (eager, graph)]
    whole = Report()
    for number, (report, execution) in enumerate(zip(reports, ("eager", "cuda_graph"), strict=True)):
        (group,) = report.comparisons
        group["settings"]["execution"] = f'"{execution}"'
        for run in (run for runs in group["runs"].values() for run in runs):
            run |= {"execution": execution, "gpu_uuid": execution}  # on two cards
        whole.comparisons.append(group)
        whole.every_group.append(group)
        whole.used += report.used
        whole.speedups |= {(number, *key[1:]): value for key, value in report.speedups.items()}
    return whole


def test_eager_mode_and_a_graph_are_both_told_the_graph_first():
    report = both_ways({"tf32": 1.5}, {"tf32": 2.0, "amp_fp16": 3.0})
    assert "For resnet18 as one CUDA graph use amp\\_fp16: 3.00x as fast as fp32" in said(report)
    assert "; in eager mode tf32, 1.50x." in said(report)
    assert [one.execution for one in answer.answers_of(report)] == ["eager", "cuda_graph"]
    slower = {"low": 0.80, "high": 0.90, "low90": 0.81, "high90": 0.89}
    report = both_ways({"tf32": 1.5}, {"amp_fp16": 3.0})
    report.speedups[0, "tf32", "fp32"] |= {"ratio": 0.85, **slower}
    assert "; in eager mode nothing is shown to be faster than fp32." in said(report)


def test_the_longest_families_of_kernels_stand_for_the_limit():
    families = [["elementwise", 0.5], ["layout change", 0.3], ["copy", 0.2]]
    record = {"gpu_busy_fraction": 0.99, "data_wait_fraction": 0.0, "kernel_family_fractions": families}
    cause = answer.cause_of({**judged({"tf32": 2.0}).used[0], **record})
    assert cause.endswith("elementwise 50%, layout change 30%")


def test_a_measured_gain_as_a_graph_refutes_that_kernels_are_the_limit():
    report = load(ROOT / "outputs" / "reference-h200")
    limits = {(one.model, one.execution): one.limit for one in answer.answers_of(report)}
    assert limits["tf_efficientnet_b0", "eager"].startswith("kernel launches: a CUDA graph is 1.25x (1.09 to 1.42)")
    assert "normalisation" in limits["tf_efficientnet_b0", "cuda_graph"]


def test_of_a_graph_alone_the_sentence_says_that_it_is_one():
    report = judged({"amp_fp16": 3.0})
    report.comparisons[0]["settings"]["execution"] = '"cuda_graph"'
    assert "For resnet18 as one CUDA graph use amp\\_fp16: 3.00x as fast as fp32" in said(report)


def test_a_ratio_that_cannot_be_told_is_no_figure_of_the_answer():
    memory = {"fp32": 4.0, "tf32": 4.0, "amp_bf16": 2.0}
    report = judged({"tf32": 1.3, "amp_bf16": 1.29}, memory)
    report.speedups[0, "amp_bf16", "fp32"] |= {"low": 0.95, "high": 1.52, "low90": 1.0, "high90": 1.4}
    text = said(report)
    assert "for its memory, 50% less than in tf32: it is not shown to be faster than fp32, but" in text
    assert "1.29x" not in text and "1% slower than tf32, the fastest at 1.30x" in text


def test_times_divide_to_the_ratio_and_memory_to_its_share():
    report = judged({"amp_fp16": 2.0}, {"fp32": 4.0, "amp_fp16": 3.0})
    for name, seconds in (("fp32", [10.0, 10.0, 40.0]), ("amp_fp16", [5.0, 20.0, 5.0])):
        report.comparisons[0]["runs"][name][0]["epoch_seconds"] = seconds
    (one,) = answer.answers_of(report)
    assert one.time.startswith("20.0 → 10.0 s; 2.00x")
    assert one.memory == "4.00 → 3.00 GiB (-25%)"


def test_memory_leaves_out_the_data_set():
    report = judged({"amp_fp16": 2.0}, {"fp32": 4.0, "amp_fp16": 3.0})
    for name in ("fp32", "amp_fp16"):
        report.comparisons[0]["runs"][name][0]["data_on_device_mib"] = 2048
    assert answer.answers_of(report)[0].memory == "2.00 → 1.00 GiB (-50%)"


def test_trust_names_intervals_quality_hosts_and_disturbed_runs():
    text = said(judged({"amp_fp16": 2.0}))
    assert "Every ratio over fp32 or tf32 has a 95% interval." in text
    assert "A loss of quality beyond the margin is ruled out for no model: that takes five seeds." in text
    assert "No ratio has an interval" in said(judged({"amp_fp16": 2.0}, processes=1))
    report = judged({"amp_fp16": 2.0})
    for run in report.used:
        run["host_id"] = "a"
    report.timed = [(0, run) for run in report.used]
    report.disturbed = report.timed[:1]
    report.disturbed[0][1].update(throttled=True, throttle_fractions=[["heat", 0.5]])
    assert "1 host. 1 of 2 runs were throttled: † marks them." in said(report)
    report.disturbed[0][1]["resumed_at_epochs"] = [3]
    assert "1 of 2 runs were throttled or went on in another process: † marks them." in said(report)
    report.used[1].update(throttled=True, throttle_fractions=[["power cap", 0.5]])
    assert "1 of 2 runs ran at the card's power limit. Under another limit ratios differ." in said(report)
    report.used[0]["host_cores"] = 2 * report.used[1]["host_cores"]  # machines made from one image share an identity
    assert "2 hosts." in said(report)
    report.used[1]["host_id"] = None
    assert "1 of 2 runs do not name their host." in said(report)
    report.used.append({**report.used[1], "status": "unsupported"})  # it ran nowhere
    assert "1 of 2 runs do not name their host." in said(report)


def test_what_did_not_train_is_not_recommended():
    report = judged({"tf32": 1.5, "amp_fp16": 3.0})
    report.speedups[0, "amp_fp16", "fp32"]["untrained"] = "amp_fp16 did not train"
    assert answer.recommended(report, 0) == "tf32"
    report.speedups[0, "tf32", "fp32"]["untrained"] = "tf32 did not train"
    (one,) = answer.answers_of(report)
    assert one.use is None and one.why_not == "no precision trained"


def test_one_process_is_never_called_faster():
    report = judged({"amp_fp16": 2.0}, processes=1)
    (one,) = answer.answers_of(report)
    assert one.use == "amp_fp16" and one.judged == "one process"
    assert "faster" not in said(report) + str(answer.row_of(one))


def test_one_seed_is_never_called_equivalent():
    (one,) = answer.answers_of(judged({"amp_fp16": 2.0}))
    assert "equivalent" not in one.quality


@pytest.mark.parametrize(
    ("chance", "words"), [(968.0, "neither has learned much; a guess reaches 968"), (None, "is not known")]
)
def test_a_short_training_is_told_beside_what_a_guess_reaches(chance, words):
    report = judged({"amp_fp16": 2.0})
    for runs in report.comparisons[0]["runs"].values():
        for run in runs:
            run |= {"metric": [443.0, 800.0], "metric_name": "perplexity", "metric_better": "lower"}
            run["chance_metric"] = chance
    (one,) = answer.answers_of(report)
    assert one.quality.startswith("perplexity 800 → 800: ") and one.quality.endswith(words)


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_one_precision_alone_recommends_nothing(tmp_path, precision):
    write_all(tmp_path, made_up.make("cifar_resnet", precision))
    (one,) = answer.answers_of(load(tmp_path))
    assert one.use is None and "fp32" in one.why_not


def test_where_all_failed_the_answer_says_so(tmp_path):
    failed = [made_up.make_failed("cifar_resnet", name, "oom", "no room") for name in ("fp32", "amp_fp16")]
    write_all(tmp_path, *failed)
    report = load(tmp_path)
    (one,) = answer.answers_of(report)
    assert one.use is None and "none of the 2 runs" in one.why_not
    assert "No precision can be recommended" in said(report)


def test_on_a_cpu_nothing_is_judged(tmp_path):
    made_up.write_cpu(tmp_path)
    report = load(tmp_path)
    assert all(one.use is None for one in answer.answers_of(report))
    assert not [part for part in answer.section(report).parts if isinstance(part, Table)]


@pytest.mark.parametrize("write", ["second_gpu", "batches", "ladder", "scaling", "sweep", "published", "many"])
def test_every_kind_of_folder_has_a_title_and_an_answer(tmp_path, write):
    getattr(made_up, f"write_{write}")(tmp_path)
    report = load(tmp_path)
    text = said(report)
    heading = answer.section(report).parts[0]
    assert (heading.level, " on " in heading.title) == (1, True) and "**Answer.**" in text
    answer_line = next(line for line in text.splitlines() if line.startswith("**Answer.**"))
    assert 1 <= answer_line.replace("**Answer.**", "").count(". ") + 1 <= 4


def test_made_up_data_are_the_first_sentence(tmp_path):
    asked, found = {"parameters": {"dataset": "auto"}}, {"synthetic": True, "dataset_used": "synthetic"}
    runs = [made_up.make("cifar_resnet", name, **asked, **found) for name in ("fp32", "tf32")]
    rest = asked | made_up.NOT_STARTED
    failed = made_up.make_failed("cifar_resnet", "amp_fp16", "unsupported", "no GPU", **rest)
    write_all(tmp_path, *runs, failed)
    sentences = [part.text for part in answer.section(load(tmp_path)).parts if isinstance(part, Sentence)]
    assert sentences[1].startswith("**2 of 2 runs trained on made-up data, because the real data were neither found")
    assert sentences[2].startswith("**Answer.**")
    assert "made-up" not in said(judged({"tf32": 1.5}))


def test_the_subject_of_a_study_follows_the_answer(tmp_path):
    made_up.write_ladder(tmp_path)
    report = load(tmp_path)
    assert answer.kind_of(report) == "ladder"
    assert sections.in_order(report)[:2] == [sections.answer, sections.ladder]


def test_one_line_says_what_a_folder_lacks():
    line = sections.absent_line([sections.ladder, sections.energy]).parts
    assert [part.text for part in line] == ["Not in this folder: a ladder, energy."]
    assert sections.absent_line([]).parts == []


def test_trust_names_steps_of_a_ladder_without_an_interval(tmp_path):
    made_up.write_ladder(tmp_path)
    assert "1 of 14 steps of the ladders has none." in said(load(tmp_path))
    records = {path: json.loads(path.read_text()) for path in tmp_path.rglob("*.json")}
    larger = [path for path, record in sorted(records.items()) if record.get("batch_size") == 512]
    for path in larger[1:]:  # one process is left of the last step
        path.unlink()
    assert "2 of 14 steps of the ladders have none." in said(load(tmp_path))


def test_the_row_of_a_model_says_that_its_epochs_were_cut():
    report = judged({"tf32": 1.5})
    report.comparisons[0]["settings"]["max_steps"] = "1000"
    (one,) = answer.answers_of(report)
    assert one.settings == "resnet18 · 1,000 steps an epoch"


def with_metric(report, metrics, number=0):
    """Return the report with these last metrics, {precision: [one for each seed]}."""
    runs = report.comparisons[number]["runs"]
    for name, values in metrics.items():
        runs[name] = [runs[name][0] | {"seed": seed, "metric": [value]} for seed, value in enumerate(values)]
    return report


def test_a_mode_without_fp32_weights_is_recommended_only_where_it_is_shown_to_be_as_good():
    report = with_metric(judged({"bf16_true": 2.0, "amp_bf16": 1.8}), {"fp32": [0.9], "bf16_true": [0.897]})
    assert answer.recommended(report, 0) == "amp_bf16"
    lost = "bf16\\_true for resnet18: 2.00x (1.94 to 2.06) over fp32, but accuracy 0.900 → 0.897"
    assert f"**Left out, though faster.** {lost}" in said(report)
    for last in ([0.9], [0.95], [0.9] * 4):  # too few seeds
        report = with_metric(judged({"bf16_true": 2.0, "amp_bf16": 1.8}), {"fp32": [0.9] * 4, "bf16_true": last})
        assert answer.recommended(report, 0) == "amp_bf16"
        assert "too few to judge" in said(report)
    scattered = [0.9, 0.901, 0.8995, 0.9, 0.9]
    report = with_metric(judged({"bf16_true": 2.0, "amp_bf16": 1.8}), {"fp32": [0.9] * 5, "bf16_true": scattered})
    assert answer.recommended(report, 0) == "bf16_true"
    assert "Left out" not in said(report) and "equivalent, 5 seeds" in said_in_table(report)
    runs = report.comparisons[0]["runs"]["bf16_true"]
    runs.append(runs[0] | {"seed": 5, "status": "diverged"})
    assert answer.recommended(report, 0) == "amp_bf16"
    report = with_metric(judged({"bf16_true": 2.0}), {"fp32": [0.9, 0.901, 0.902], "bf16_true": [0.95, 0.952, 0.949]})
    assert answer.recommended(report, 0) == "bf16_true"  # better


def test_where_all_faster_modes_lose_quality_fp32_is_left():
    report = with_metric(judged({"bf16_true": 2.0}), {"fp32": [0.9], "bf16_true": [0.8]})
    assert answer.recommended(report, 0) == "fp32"
    assert "bf16\\_true for resnet18: 2.00x" in said(report)


def test_other_modes_lose_quality_only_beyond_the_scatter_of_their_seeds():
    fp32 = [0.90, 0.91, 0.92]
    scattered = with_metric(judged({"amp_fp16": 2.0}), {"fp32": fp32, "amp_fp16": [0.89, 0.91, 0.89]})
    assert answer.recommended(scattered, 0) == "amp_fp16"
    worse = with_metric(judged({"amp_fp16": 2.0}), {"fp32": fp32, "amp_fp16": [0.85, 0.861, 0.87]})
    assert answer.recommended(worse, 0) == "fp32"
    small = with_metric(judged({"amp_fp16": 2.0}), {"fp32": fp32, "amp_fp16": [0.899, 0.909, 0.919]})
    assert answer.recommended(small, 0) == "amp_fp16"  # worse in every seed, but within the margin


def test_a_next_step_does_not_lose_quality():
    report = both_ways({"amp_bf16": 1.2}, {"amp_bf16": 3.0, "bf16_true": 4.0})
    for run in (run for group in report.comparisons for runs in group["runs"].values() for run in runs):
        run["gpu_uuid"] = "one card"
    assert "amp_bf16 as one CUDA graph" in answer.next_measured(report, 0, "amp_bf16")[0]  # bf16_true: one seed
    with_metric(report, {"fp32": [0.9] * 3, "amp_bf16": [0.85, 0.851, 0.852]}, number=1)
    assert answer.next_measured(report, 0, "fp32") is None


def test_of_two_settings_that_with_more_ratios_is_told(tmp_path):
    other_card = {**made_up.H200, "gpu_uuid": "GPU-9"}
    for lr, device in ((0.1, other_card), (0.2, made_up.H200)):
        parameters = {"lr": lr}
        for name, seconds, own in (("fp32", 6.0, made_up.H200), ("amp_fp16", 3.0, device)):
            run = made_up.make("cifar_resnet", name, seconds=[seconds] * 3, device=own, parameters=parameters)
            made_up.write_record(run, tmp_path)
    (told,) = answer.answers_of(load(str(tmp_path)))
    assert "lr=0.2" in told.settings and told.use == "amp_fp16"


def test_a_next_step_without_fp32_weights_must_have_learned():
    report = both_ways({"tf32": 1.2}, {"bf16_true": 4.0})
    for run in (run for group in report.comparisons for runs in group["runs"].values() for run in runs):
        run["gpu_uuid"] = "one card"
    with_metric(report, {"fp32": [0.9] * 5, "bf16_true": [0.9] * 5}, number=1)
    assert "bf16_true as one CUDA graph" in answer.next_measured(report, 0, "fp32")[0]
    with_metric(report, {"fp32": [0.1]})  # at chance, as the two that are equivalent
    with_metric(report, {"fp32": [0.1] * 5, "bf16_true": [0.1] * 5}, number=1)
    assert answer.next_measured(report, 0, "fp32") is None


def test_quality_is_told_of_equal_seeds_and_worse_quality_is_named():
    lower = [0.899, 0.8975, 0.899, 0.8975, 0.8985, 0.1]  # the sixth has no fp32
    report = with_metric(judged({"amp_fp16": 2.0}), {"fp32": [0.9] * 5, "amp_fp16": lower})
    (told,) = answer.answers_of(report)
    assert told.quality == "accuracy 0.900 → 0.898 (worse, 5 seeds)"
    assert "2.00x as fast as fp32 with the same memory, but accuracy 0.900 → 0.898 (worse, 5 seeds)." in said(report)
    assert "worse" not in said(judged({"amp_fp16": 2.0}))


def test_nothing_is_shown_by_seeds_of_which_one_diverged():
    report = with_metric(judged({"amp_fp16": 2.0}), {"fp32": [0.9] * 5, "amp_fp16": [0.9] * 5})
    assert "A loss of quality beyond the margin is ruled out for resnet18" in said(report)
    runs = report.comparisons[0]["runs"]
    runs["amp_fp16"].append(runs["amp_fp16"][0] | {"seed": 5, "status": "diverged"})
    (told,) = answer.answers_of(report)
    assert told.quality == "accuracy 0.900 → 0.900 (cannot be told, because 1 run diverged, 5 seeds)"
    assert "A loss of quality beyond the margin is ruled out for no model" in said(report)


@pytest.mark.parametrize(("processes", "words"), [(1, "single processes"), (2, "of one or two processes")])
def test_ratios_without_an_interval_are_told_with_how_many_processes_they_have(processes, words):
    none = dict.fromkeys(("low", "high", "low90", "high90"))
    report = judged({"amp_fp16": 2.0}, processes=processes, **none)
    assert f"These are {words}: in eager mode two differ by up to a third." in said(report)
