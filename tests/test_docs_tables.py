"""The badges and the generated tables: computed from records and settings, and kept in step with the documents."""

import json
import re
import shutil
import subprocess

import figures
import made_up_records as made_up
import pandas as pd
import pytest
import tables
from conftest import EXPERIMENTS, NOTEBOOKS, ROOT

from mixed_precision_study import __version__
from mixed_precision_study.record import NOT_WRITTEN, RunRecord, write_record

ALL = (*EXPERIMENTS, "summary")


@pytest.fixture
def copy(tmp_path):
    """A copy of the suite's notebooks, settings and README, which a test may spoil."""
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks", ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for folder in (*tables.EAGER_BATCHES, "quality-h100"):
        (tmp_path / "outputs" / folder).mkdir(parents=True)
        for path in (ROOT / "outputs" / folder).glob("*.json"):
            shutil.copy(path, tmp_path / "outputs" / folder / path.name)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def check(root):
    return tables.main(["--check"], root=root)


def write(root):
    return tables.main([], root=root)


def test_nothing_is_stale(copy, capsys):
    assert check(copy) == 0
    assert capsys.readouterr().err == ""


def test_a_stale_block_is_named_with_the_command_and_mended(copy, capsys):
    path = copy / "notebooks" / "cifar_resnet.ipynb"
    notebook = json.loads(path.read_text())
    cell = next(cell for cell in notebook["cells"] if "<!-- badges -->" in "".join(cell["source"]))
    place = next(number for number, line in enumerate(cell["source"]) if "<!-- badges -->" in line)
    cell["source"].insert(place + 1, "of yesterday\n")
    path.write_text(json.dumps(notebook))
    assert check(copy) == 1
    assert "notebooks/cifar_resnet.ipynb is stale; run: python docs/tables.py" in capsys.readouterr().err
    assert write(copy) == 0
    assert check(copy) == 0
    assert path.read_text() == (NOTEBOOKS / "cifar_resnet.ipynb").read_text()


def set_url(root, url):
    path = root / "pyproject.toml"
    path.write_text(path.read_text() + f'\n[project.urls]\nRepository = "{url}"\n')


def test_badges_come_from_pyproject(copy):
    set_url(copy, "https://github.com/someone/study")
    assert check(copy) == 1
    assert write(copy) == 0
    assert check(copy) == 0
    for name in ALL:
        text = (copy / "notebooks" / f"{name}.ipynb").read_text()
        assert f"colab.research.google.com/github/someone/study/blob/main/notebooks/{name}.ipynb" in text
        assert (
            f"kaggle.com/kernels/welcome?src=https://github.com/someone/study/blob/main/notebooks/{name}.ipynb" in text
        )
        assert name in (copy / "README.md").read_text().split("<!-- badges -->")[1]


def test_badges_from_the_origin_are_written_but_a_clone_without_them_is_not_stale(copy):
    subprocess.run(["git", "init", "-q", str(copy)], check=True)
    subprocess.run(["git", "-C", str(copy), "remote", "add", "origin", "git@github.com:a-b/c.d.git"], check=True)
    assert check(copy) == 0
    assert write(copy) == 0
    assert "github/a-b/c.d/blob/main" in (copy / "notebooks" / "summary.ipynb").read_text()
    assert check(copy) == 0


def test_without_an_address_the_text_says_how_to_upload(copy):
    assert tables.repository_url(copy) == (None, None)
    assert "Upload notebook" in (copy / "README.md").read_text()
    assert "colab.research" not in (copy / "notebooks" / "cifar_resnet.ipynb").read_text()


@pytest.mark.parametrize("cell", ["finder", "parameters"])
def test_a_stale_cell_is_named_and_mended(copy, cell, capsys):
    path = copy / "notebooks" / "lstm_language_model.ipynb"
    notebook = json.loads(path.read_text())
    found = next(one for one in notebook["cells"] if one["id"] == cell)
    found["source"][0] = found["source"][0].replace("auto", "synthetic").replace("Find", "Seek")
    path.write_text(json.dumps(notebook))
    assert check(copy) == 1
    assert "notebooks/lstm_language_model.ipynb is stale" in capsys.readouterr().err
    assert write(copy) == 0
    assert path.read_text() == (NOTEBOOKS / "lstm_language_model.ipynb").read_text()


def test_where_there_is_a_repository_pip_gets_the_code_from_there_at_last(copy):
    plain = tables.finder(None)
    assert "git+" not in plain
    assert plain == (ROOT / "docs" / "finder.py").read_text().rstrip()
    text = tables.finder("https://github.com/someone/study")
    compile(text, "finder", "exec")
    assert f'source = "git+https://github.com/someone/study@v{__version__}"' in text
    assert text.index("pip") > text.index("*.whl") and text.index("return source") < text.index("sys.exit(")
    set_url(copy, "https://github.com/someone/study")
    assert write(copy) == 0
    for name in ALL:
        notebook = json.loads((copy / "notebooks" / f"{name}.ipynb").read_text())
        (cell,) = [cell for cell in notebook["cells"] if cell.get("id") == "finder"]
        assert "".join(cell["source"]) == text


def run(precision, seconds, **facts):
    """Return the record of a process of a ladder's ResNet-18, in seconds an epoch."""
    settings = {"execution": "eager", "channels_last": False, "batch_size": 128, "epochs": 6, "seed": 0, "repeat": 0}
    names = {"notebook": "cifar_resnet", "model": "resnet18", "status": "ok", "device_type": "cuda", "gpu_uuid": "u"}
    where = {"gpu_name": "T4", "torch_version": "2.9", "peak_allocated_mib": 512, "data_on_device_mib": 256}
    learned = {"metric": [0.5], "metric_name": "accuracy", "metric_better": "higher", "skipped_steps": 0}
    known = {**settings, **names, **where, **learned, "precision": precision, **facts}
    return {**known, "epoch_seconds": [seconds] * known["epochs"]}


def ladder(processes=3):
    graph = {"execution": "compile_cuda_graph", "channels_last": True}
    records = []
    for repeat in range(processes):
        records.append(run("fp32", 4.0, repeat=repeat))
        records.append(run("tf32", 2.0 + repeat / 100, repeat=repeat))
        records.append(run("amp_bf16", [1.0, 4.0, 9.0][repeat], repeat=repeat, peak_allocated_mib=384))
        records.append(run("amp_bf16", 1.0, repeat=repeat, **graph))
    return records


def test_the_headline_is_computed_from_the_records_of_a_ladder():
    (row,) = [line for line in figures.headline([ladder()]).splitlines() if line.startswith("| ResNet-18")]
    cells = [cell.strip() for cell in row.split("|")[2:-1]]
    assert cells[:2] == ["T4", "4.00"]
    assert cells[2] == "1.99x (1.97 to 2.01)"
    assert cells[3].startswith("bf16 1.21x (") and cells[3].endswith("inconclusive")
    assert cells[4] == "-"  # no graph of fp32
    assert cells[5] == "-50%"  # of the peak without the data set
    assert len(cells) == 6


def test_the_headline_has_the_quality_of_whole_trainings_on_its_card():
    head, _, row, _, *items = figures.headline([ladder()], trained=graphs(6)).splitlines()
    assert head.endswith("| AMP's quality |") and row.endswith("| fp16 equivalent (n = 6), margin 0.2 points |")
    assert items[1].startswith("- Quality: the last metric") and "In tf32" not in items[1]
    tf32 = [run("tf32", 1.0, seed=seed, metric=[0.9], execution="cuda_graph") for seed in range(3)]
    assert "In tf32: ResNet-18 not judged (n = 3)." in figures.headline([ladder()], trained=[*graphs(6), *tf32])
    other = [{**one, "gpu_name": "NVIDIA H9"} for one in graphs(6)]
    assert figures.headline([ladder()], trained=other).splitlines()[2].endswith("| - |")
    assert "uality" not in figures.headline([ladder()])


def test_the_headline_compares_graphs_with_graphs_and_names_the_faster_amp_mode():
    seconds = {"fp32": 4.0, "amp_bf16": 2.0, "amp_fp16": 1.0}
    graphs = [run(name, value, execution="cuda_graph") for name, value in seconds.items()]
    (row,) = [line for line in figures.headline([[*ladder(), *graphs]]).splitlines() if line.startswith("| ResNet-18")]
    assert row.split("|")[6].strip() == "fp16 4.00x (one process)"


def test_an_outcome_that_does_not_stand_among_all_ratios_is_marked(monkeypatch):
    monkeypatch.setattr(figures, "MANY_RATIOS", 0)  # so that few are corrected, too
    rows = {}
    for seconds in ([1.0, 1.1, 1.2], [1.0, 1.0001, 1.0002]):  # alone both are faster
        amp = [run("amp_fp16", value, repeat=repeat) for repeat, value in enumerate(seconds)]
        base = [run("fp32", 1.4, repeat=repeat) for repeat in range(3)]
        tf32 = [run("tf32", 1.4 + value, repeat=repeat) for repeat, value in enumerate([0, 0.01, 0.02])]
        graphs = [one | {"execution": "cuda_graph"} for one in [*amp, *base]]
        (row,) = [line for line in figures.headline([[*base, *tf32, *amp, *graphs]]).splitlines() if "ResNet" in line]
        rows[seconds[1]] = row.split("|")[5].strip()
    assert rows[1.1].endswith(")\\*")
    assert rows[1.0001].endswith(")")


def test_the_headline_has_a_line_for_each_card_and_a_dash_for_what_was_not_measured():
    other = [run("fp32", 3.0, gpu_name="NVIDIA H9 80GB", epochs=2), run("amp_bf16", 1.5, gpu_name="NVIDIA H9 80GB")]
    first, second = figures.headline([ladder(), other]).splitlines()[2:4]
    assert first.startswith("| ResNet-18") and first.split("|")[2].strip() == "T4"
    cells = [cell.strip() for cell in second.split("|")[1:-1]]
    assert cells == ["", "H9", "3.00", "-", "bf16 2.00x (one process)", "-", "+0%"]


def test_the_headline_of_one_process_gives_numbers_alone():
    (row,) = [line for line in figures.headline([ladder(1)]).splitlines() if line.startswith("| ResNet-18")]
    assert "2.00x (one process)" in row and "faster" not in row
    assert "None yet" in figures.headline([[]])


def test_runs_that_did_not_end_well_are_in_no_ratio():
    records = [one if one["repeat"] else {**one, "status": "failed"} for one in ladder()]
    assert "two processes" in figures.headline([records])


def test_the_steps_of_a_ladder_are_compared_with_the_one_before():
    rows = [line for line in figures.ladder_table(ladder()).splitlines() if line.startswith("| ")]
    steps = {row.split("|")[1].strip(): [cell.strip() for cell in row.split("|")[2:-1]] for row in rows[1:]}
    assert list(steps) == ["fp32", "tf32", "amp_bf16", "+ one CUDA graph"]
    assert steps["fp32"][1:3] == ["", ""]
    assert steps["tf32"][1] == steps["tf32"][2]
    assert steps["+ one CUDA graph"][1].startswith("4.00x") and steps["+ one CUDA graph"][2].startswith("3.30x")


def test_a_published_speed_up_is_that_of_the_same_gpu_model_and_batch():
    names = ["card", "year", "model", "batch", "precision", "quantity", "value", "value_baseline"]
    rows = [("T4", 8, "o2_fp16", "time", 4, 10), ("T4", 8, "amp_fp16", "time", 5, 10)]
    rows += [("T4", 8, "amp_fp16", "memory", 500, 1000), ("T4", 16, "amp_fp16", "time", 9, 9)]
    rows += [("V100", 8, "amp_fp16", "card memory", 1, 2)]
    articles = pd.DataFrame([(card, 2019, "m", *row) for card, *row in rows], columns=names).assign(baseline="fp32")
    assert figures.articles_list(articles) == "- T4, 2019: 2.00x, memory -50% (m, batch 8, amp_fp16)"


def test_the_list_of_fields_has_every_field_of_a_record():
    lines = tables.fields_list(ROOT / "mixed_precision_study" / "record.py").splitlines()
    names = [name for line in lines for name in re.findall(r"`(\w+)`", line.split(": ")[0])]
    left_out = [name for name in RunRecord.__dataclass_fields__ if name not in names]
    assert names == [name for name in RunRecord.__dataclass_fields__ if name not in left_out]
    assert all(name.endswith("_reason") or name in NOT_WRITTEN for name in left_out) and len(names) > 100
    assert all(line.startswith("- `") and line.partition(": ")[2] for line in lines)


def test_the_document_of_measurements_is_kept_in_step(copy, capsys):
    shutil.copytree(ROOT / "tests" / "built_cases", copy / "tests" / "built_cases")
    (copy / "docs").mkdir()
    (copy / "mixed_precision_study").mkdir()
    shutil.copy(ROOT / "mixed_precision_study" / "record.py", copy / "mixed_precision_study" / "record.py")
    document = copy / "docs" / "measurements.md"
    document.write_text("Before.\n<!-- fields -->\n<!-- /fields -->\n<!-- cases -->\nold\n<!-- /cases -->\nAfter.\n")
    assert check(copy) == 1
    assert "docs/measurements.md is stale; run: python docs/tables.py" in capsys.readouterr().err
    assert write(copy) == 0
    assert check(copy) == 0
    text = document.read_text()
    assert text.startswith("Before.\n<!-- fields -->\n- `overflow_steps`: ")
    assert text.endswith("<!-- /cases -->\nAfter.\n")
    for path in (copy / "tests" / "built_cases").glob("*.json"):
        assert f"| {path.stem} | " in text
    path = copy / "mixed_precision_study" / "record.py"
    path.write_text(path.read_text().replace("# whole GPU, timed epochs", "# of everything"))
    assert write(copy) == 0
    assert "- `energy_joules`: of everything\n" in document.read_text()


@pytest.mark.parametrize("text", ["https://example.org/a/b.git", "/some/folder/b", "", "git@gitlab.com:a/b.git"])
def test_other_hosts_have_no_such_badges(text):
    assert tables.github_address(text) is None


def graphs(seeds, offset=0.0):
    """Return graphs of ResNet-18 in fp32 and fp16 over seeds; fp16's accuracy differs by `offset`."""
    facts = {"execution": "cuda_graph", "host_cpu": "Intel(R) Xeon(R) Processor", "host_cores": 16}
    records = []
    for seed in range(seeds):
        last = 0.9 + seed / 1000
        records.append(run("fp32", 3.0, seed=seed, metric=[last], **facts))
        records.append(run("amp_fp16", 1.0, seed=seed, metric=[last + offset], peak_allocated_mib=384, **facts))
    return records


def test_the_table_of_quality_sets_all_seeds_beside_the_first_four():
    records = graphs(6, 0.001)
    records[1]["metric"] = [0.9]  # fp16, seed 0
    cells = figures.quality_table(records).splitlines()[-1].strip("| ").split(" | ")
    assert cells[:3] == ["ResNet-18", "amp_fp16", "6"]
    assert cells[3:6] == ["+0.08 points (+0.05 to +0.12)", "0.2 points", "equivalent"]
    assert cells[6] == "+0.08 points (+0.02 to +0.13), inconclusive"
    assert figures.quality_table(records[:6]).splitlines()[-1].endswith("| - |")  # three seeds are no pilot
    assert len(figures.quality_table(graphs(6)[::2]).splitlines()) == 2  # fp32 alone


def test_the_sentence_on_a_model_has_time_memory_quality_n_card_and_host():
    lines = figures.referee_sentences(graphs(3), graphs(6, -0.01)).splitlines()
    assert lines[0] == (
        "- **ResNet-18, CIFAR-10, batch 128**: on an T4, as a graph, amp_fp16 is 3.00x as fast as fp32,"
        " takes 50% less memory, and its accuracy is worse."
    )
    assert lines[-1] == (
        "| ResNet-18, amp_fp16 | 3.000x (3.000 to 3.000, n = 3) | - | T4, Intel Xeon, 16 cores"
        " | -1.00 points (-1.00 to -1.00), n = 6 | 0.2 points |"
    )
    lines = figures.referee_sentences(graphs(3), []).splitlines()
    assert lines[0].endswith("takes 50% less memory, and its quality is not measured yet.")
    assert lines[-1].endswith("| - | - |")
    text = figures.referee_sentences(graphs(1), [])
    assert "amp_fp16 is 3.00x (one process) as fast as fp32" in text and "| 3.00x (one process) |" in text
    lines = figures.referee_sentences(graphs(3), graphs(6, 0.0001)).splitlines()
    assert lines[0].endswith("and its accuracy is within 0.2 points of fp32's.")
    assert "| +0.01 points (" in lines[-1]
    assert figures.referee_sentences([], graphs(6)) == ""


def test_times_in_the_table_of_runs_are_of_those_that_heat_did_not_slow():
    hot = run("fp32", 9.0, seed=1, throttled=True, throttle_fractions=[["thermal, software", 0.9]])
    records = [{**one, "loss_scale": "dynamic", "dataset_used": "cifar10"} for one in (run("fp32", 4.0), hot)]
    assert "| 4.00 s, 0.250 GiB, 50.0% (n = 2, 1 timed) |" in figures.runs_table(records)


def test_the_quality_of_formats_is_told_with_their_numbers_of_seeds():
    records = graphs(6) + [{**run("amp_bf16", 1.0, seed=seed), "metric": [0.5]} for seed in range(3)]
    assert figures.quality_cell(figures.RESNET, records) == (
        "fp16 equivalent (n = 6), bf16 worse (n = 3), margin 0.2 points"
    )
    assert figures.quality_cell(figures.LSTM, records) == "-"
    both = graphs(6) + [{**one, "precision": "amp_bf16"} for one in graphs(6)[1::2]]
    assert figures.outcomes_of(figures.RESNET, figures.AMP, both) == "fp16 and bf16 equivalent (n = 6)"


def test_the_checks_of_the_meter_are_counted_over_all_records(tmp_path):
    for folder, error in (("one", 0.0005), ("two", -0.03), ("three", None), ("batches-h100", 0.5)):
        record = made_up.make("cifar_resnet", "fp32", seconds=[10.0, 10.0], block_seconds=[5.0, 5.0, 5.0, 5.002])
        record.ledger_error_fraction = error
        write_record(record, tmp_path / folder)
    first, second = figures.meter_list(tmp_path).splitlines()
    assert "at most 2.0 ms an epoch apart, 6 epochs" in first
    assert "at most 0.1% apart in 1 of 2 runs" in second and "3.0% in the worst" in second
