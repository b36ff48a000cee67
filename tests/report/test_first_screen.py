"""The first screen of cards that no committed page is of: old ones, and a CPU."""

import re

import made_up_records as made_up
import pytest
from drawn_reports import parts_of, read_all, rows_in, said_in

from mixed_precision_study.report import results, sections
from mixed_precision_study.report.charts import ratio_rows
from mixed_precision_study.report.section import Cards, Chart, File, Heading
from mixed_precision_study.report.tables import ON_CPU, bars_of
from mixed_precision_study.report.words import MEMORY_ONLY, NOT_TRIED

SECONDS = {"fp32": 9.0, "tf32": 6.0, "amp_fp16": 3.0, "amp_bf16": 4.0}
NOTEBOOKS = ("cifar_resnet", "lstm_language_model")


def runs(
    factor=1.0, way="eager", notebook="cifar_resnet", names=tuple(SECONDS), processes=3, **fields
):
    for name in names:
        for repeat in range(processes):
            values = {"repeat": repeat, "execution": way, **fields.get("parameters", {})}
            time = SECONDS[name] * (factor if name.startswith("amp") else 1) * (1 + 0.001 * repeat)
            given = {**fields, "parameters": values, "seconds": [time] * 3}
            yield made_up.make(notebook, name, **given)


def screen_of(found):
    section = sections.first_screen(found)
    cards = [one for part in parts_of(section, Cards) for one in part.cards]
    return section, parts_of(section, Heading)[0].title, cards


def test_a_card_names_both_formats_and_the_one_that_loses(tmp_path):
    """fp16 is faster, but loses; so the card shows the way that is fastest for bf16, and says
    what fp16 loses.
    """
    records = list(runs(2.5, names=("tf32", "amp_fp16", "amp_bf16")))  # 7.5 s and 10 s against 6 s
    _, _, (card,) = screen_of(read_all(tmp_path, *records))
    assert card["numbers"] == {"fp16": "0.80×", "bf16": "0.60×"}
    lost = made_up.over_seeds([-0.01, -0.011, -0.009, -0.01, -0.01], "amp_fp16")
    kept = made_up.over_seeds(
        [0.0, 0.0005, -0.0005, 0.0002, -0.0002], "amp_bf16", epoch_seconds=[4.0] * 3
    )
    _, _, (card,) = screen_of(read_all(tmp_path / "lost", *lost, *kept[1::2]))
    worse, fine = card["lines"][-1].split(" · ")
    assert "eager" in card["lines"][0] and worse.startswith("fp16: ") and "worse" in worse
    assert fine.startswith("bf16: ") and "no loss" in fine and fine.endswith("5 seeds")


def test_the_title_leaves_out_what_shared_its_gpu(tmp_path):
    names = ("tf32", "amp_fp16")  # 6 s and 3 s, beside another process 9 s
    beside = [*runs(3.0, notebook=NOTEBOOKS[0], names=names, gpu_shared=True)]
    alone = [*runs(notebook=NOTEBOOKS[1], names=names)]
    for name, records, told in (("both", beside + alone, "2.0"), ("one", beside, "0.7")):
        _, title, _ = screen_of(read_all(tmp_path / name, *records))
        assert f"fp16 AMP trains {told} times as fast" in title


def of_card(name, capability, **fields):
    """Return runs of each notebook on a card without TF32 and bf16, as quick makes them."""
    card = {**made_up.TURING, "gpu_name": name, "compute_capability": capability}
    given = {"names": ("fp32", "amp_fp16"), "processes": 1, "device": card, **fields}
    for notebook in NOTEBOOKS:
        yield from runs(notebook=notebook, **given)
        yield from runs(0.5, "cuda_graph", notebook, **given)


OLD_CARDS = {"Tesla T4": "7.5", "NVIDIA TITAN Xp": "6.1"}
UNCORED = {  # a GPU that is busy with arithmetic without Tensor Cores
    "gpu_busy_fraction": 0.99,
    "kernel_family_fractions": [["matmul", 0.9]],
    "tensor_core_fraction": 0.0,
}


@pytest.mark.parametrize("name", OLD_CARDS)
def test_a_card_without_tf32_and_bf16_is_compared_with_fp32(name, tmp_path):
    """Both ways stand on the screen, which says that the suite was not tried on such a card."""
    found = read_all(tmp_path, *of_card(name, OLD_CARDS[name]))
    section, title, cards = screen_of(found)
    assert title == "As a CUDA graph, fp16 AMP trains 6.0 times as fast as fp32"
    assert {card["numbers"]["fp16"] for card in cards} == {"6.00×"}
    assert {card["against"] for card in cards} == {"as fast as fp32"}
    assert NOT_TRIED in said_in(section)
    assert (MEMORY_ONLY in said_in(section)) == (OLD_CARDS[name] < "7")
    assert list(ratio_rows(bars_of(found)).row) == ["eager", "CUDA graph"] * 2


@pytest.mark.parametrize("name", OLD_CARDS)
def test_a_page_of_a_card_without_bf16_never_asks_for_it(name, tmp_path):
    """Nor for TF32, which only the note on energy names, because it holds for all cards."""
    found = read_all(tmp_path, *of_card(name, OLD_CARDS[name], **UNCORED))
    parts = [part for section in sections.sections_of(found) for part in section]
    shown = [part._repr_mimebundle_() for part in parts if not isinstance(part, File)]
    texts = [(one[0] if isinstance(one, tuple) else one)["text/plain"] for one in shown]
    asked = "\n".join(texts).replace(NOT_TRIED, "")
    assert "bf16" not in asked and "bfloat16" not in asked and "without Tensor Cores" in asked
    lines = [line for line in asked.splitlines() if "TF32" in line]
    assert all("where TF32 was not run" in line or "with TF32, or" in line for line in lines)
    assert ("fp16 AMP, where the card has" in asked) == (OLD_CARDS[name] >= "7")


def test_nothing_is_judged_on_a_cpu_and_made_up_data_come_first(tmp_path):
    found = read_all(tmp_path, *runs(names=("fp32", "amp_bf16"), device=made_up.CPU))
    section, title, cards = screen_of(found)
    assert title == sections.CPU and not cards and not results.sure_section(found).parts
    assert set(found.ratios.outcome) == {ON_CPU} and not re.search(
        r"\d×|times as fast", said_in(section)
    )
    (rows,) = rows_in(section)
    assert {row["worked"] for row in rows} == {"fp32, bf16"} and not parts_of(section, Chart)
    fake = {"synthetic": True, "dataset_used": "synthetic", "parameters": {"dataset": "auto"}}
    section, _, _ = screen_of(
        read_all(tmp_path / "fake", *runs(names=("fp32", "tf32"), processes=1, **fake))
    )
    assert said_in(section).strip().startswith("2 of 2 runs trained on made-up data")


def test_after_slow_eager_runs_the_command_for_a_graph_is_named(tmp_path):
    slow = read_all(tmp_path / "slow", *runs(2.5, gpu_busy_fraction=0.75))
    said = said_in(screen_of(slow)[0])
    assert "(at least 25% idle)" in said and "`python run_all.py quick`" in said
    busy = read_all(tmp_path / "busy", *runs(2.5, gpu_busy_fraction=0.85))
    assert "run_all.py quick" not in said_in(screen_of(busy)[0])
    fast = read_all(
        tmp_path / "fast",
        *runs(samples_per_epoch=3),
        *runs(0.5, "cuda_graph", samples_per_epoch=1),  # a shorter epoch is no faster
    )
    assert "execution cuda_graph" not in said_in(screen_of(fast)[0])
