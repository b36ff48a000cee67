"""Bars, speed-up charts, marks of disturbed runs, and that no text lies on another."""

import made_up_records as made_up
import pytest
from drawn_reports import drawn, explore, overlapping, said_in, texts, write_all
from matplotlib.text import Text

from mixed_precision_study.analysis.conditions import at_power_limit, flags_of
from mixed_precision_study.report.style import CPU_WARNING
from mixed_precision_study.report.table import table_rows
from mixed_precision_study.report.verdicts import mark_of

ALWAYS = {"speedup", "time_and_memory"}
H200 = "resnet18 · cifar10, b128 · H200"


def test_disturbed_runs_are_marked_in_every_chart(everything):
    report, charts = everything
    curves = {"last_metrics"}  # of the loss scale no disturbed run is drawn
    drawn_runs = {
        name: figure for name, figure in charts.items() if name not in ("loss_scale", "several_gpus", "quality")
    }
    for name in set(drawn_runs) - curves:
        marked = [text for text in texts(charts[name]) if text.removesuffix(" (one process)").endswith("†")]
        assert len(marked) == 2, name
    for name in curves:
        assert sum("† amp_fp16" in text for text in texts(charts[name])) == 2, name
    assert all(any(text.startswith("† throttled") for text in texts(figure)) for figure in drawn_runs.values())
    assert [flags_of(record) for _, record in report.disturbed] == [["GPU shared with another process"]] * 2
    assert sum(at_power_limit(record) for _, record in report.timed) == 1  # that is no disturbance
    flags = {row["flags"] for row in table_rows(report)}
    assert flags == {None, "amp_fp16 GPU shared with another process"}
    number = [group["title"] for group in report.comparisons].index(H200)
    assert mark_of(report, number, "fp32") == ""


@pytest.mark.parametrize("made", ["everything", "pooled"])
def test_no_text_lies_on_another_and_legends_fit(made, request):
    for name, figure in request.getfixturevalue(made)[1].items():
        assert overlapping(figure) == [], name
        width = figure.get_figwidth() * figure.dpi
        assert all(legend.get_window_extent().x1 <= width for part in figure.subfigs for legend in part.legends), name


@pytest.mark.parametrize("made", ["everything", "pooled"])
def test_texts_have_nine_pixels_where_a_chart_is_800_pixels_wide(made, request):
    for name, figure in request.getfixturevalue(made)[1].items():
        for text in figure.findobj(Text):
            if text.get_visible() and text.get_text().strip():
                pixels = text.get_size() / 72 * 800 / figure.get_figwidth()
                assert pixels >= 9, (name, text.get_text(), text.get_size())


def test_the_cpu_is_charted_under_a_warning_and_not_judged():
    report, charts = drawn(made_up.write_cpu)
    assert report.on_cpu and set(charts) == {*ALWAYS, "last_metrics"}
    assert all(CPU_WARNING in texts(figure) for figure in charts.values())
    assert "not measured" in texts(charts["time_and_memory"])
    (row,) = table_rows(report)
    assert (row["verdict"], row["quality_verdict"], row["limit"]) == ("not judged: CPU", "not judged: CPU", None)
    assert row["verdict_text"].startswith("amp_bf16 ran on the CPU")
    said = "\n".join(said_in(name, report) for name in ("verdicts", "speedup_figure", "bottlenecks", "table"))
    for word in ("faster", "slower", "the same within", "takes **", "2.50x", "kernel launches"):
        assert word not in said


def test_all_runs_failed_still_gives_a_report(tmp_path):
    for status in ("oom", "timeout"):
        reason = "<i>$x$ and $y$</i>"
        write_all(tmp_path, made_up.make_failed("cifar_resnet", "fp32", status, reason, parameters={"model": status}))
    report, charts = explore(tmp_path)
    assert {"oom", "timeout"} <= set(texts(charts["time_and_memory"])) and set(charts) == ALWAYS
    assert [key[1:] for key in report.sentences] == [("fp32", "fp32")] * 2
    assert all(reason in sentence for sentence in report.sentences.values())
    assert table_rows(report) == []  # fp32 alone has nothing to be compared with
