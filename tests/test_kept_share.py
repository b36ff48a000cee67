"""The plan's rules and the predictor's score on made-up trainings, whose answers are known."""

import itertools
import sys
import zipfile

import kept_share
import pandas as pd
import pytest
import stdlib_text

GPT, VIT = "transformer", "cifar_resnet"
RATES = [1e-5, 2e-5, 1e-4, 4e-4, 1e-3, 4e-3]
GAINS = dict(zip(RATES, [0.2, 0.5, 0.8, 0.9, 0.7, 0.1], strict=True))
CHOSEN = [2e-5, 1e-4, 4e-4, 1e-3]
TF32 = ("tf32", "as_weights", "nearest")
ARMS = [("bf16_true", moments, "nearest") for moments in ("as_weights", "fp32")]
KEPT = {2e-5: 0.1, 1e-4: 0.4, 4e-4: 0.7, 1e-3: 0.95}
TIMED = 6e-4  # of trainings that are timed, which make no cell
NOISE = (-0.01, 0.0, 0.01)


def table(folder, lines):
    """Write trainings.csv into a folder: (notebook, recipe, rate, seed, level, kept) each."""
    folder.mkdir()
    rows = []
    for notebook, recipe, rate, seed, level, kept in lines:
        named = dict(zip(("precision", "moments", "rounding"), recipe, strict=True))
        better = "lower" if notebook == GPT else "higher"
        metric = 3 - level if notebook == GPT else level
        row = {"notebook": notebook, "lr": rate, "seed": seed, "kept_update_fraction": kept}
        row |= {"metric": metric, "metric_better": better, "status": "ok", "identity": "{}"}
        rows.append(row | named)
    pd.DataFrame(rows).to_csv(folder / "trainings.csv", index=False)
    return folder


def pilot(folder):
    lines = []
    for notebook, rate, seed in itertools.product((GPT, VIT), [1e-12, *RATES], range(3)):
        level = 1 + GAINS.get(rate, 0)
        lines.append((notebook, TF32, rate, seed, level, None))
        lines.append((notebook, ARMS[0], rate, seed, level + NOISE[seed], 0.5))
    return table(folder, lines)


def counted(folder, worse, scatter=0.01):
    """Nearest rounding ends 0.5 lower where worse(notebook, moments, rate), else equal to TF32."""
    lines = []
    for notebook, rate, seed in itertools.product((GPT, VIT), CHOSEN, range(8)):
        lines.append((notebook, TF32, rate, seed, 2.0, None))
        for arm in ARMS:
            lost = 0.5 if worse(notebook, arm[1], rate) else 0.0
            level = 2 - lost + scatter * (seed - 3.5)
            lines.append((notebook, arm, rate, seed, level, KEPT[rate]))
    lines += [
        (notebook, arm, TIMED, 0, 1.0, 0.5) for notebook in (GPT, VIT) for arm in (TF32, *ARMS)
    ]
    return table(folder, lines)


def test_a_pilot_fixes_margin_rates_and_seeds(tmp_path):
    with zipfile.ZipFile(tmp_path / "pilot.zip", "w") as archive:
        archive.write(pilot(tmp_path / "pilot") / "trainings.csv", "trainings.csv")
    rows = kept_share.trainings_in([tmp_path / "pilot.zip"])
    for notebook, start in ((GPT, -2.0), (VIT, 1.0)):
        found = kept_share.pilot_of(rows[rows.notebook == notebook])
        assert found.start == pytest.approx(start) and found.rates == CHOSEN
        assert found.margin == pytest.approx(0.3) and found.gains == pytest.approx(GAINS)
        assert found.needed == kept_share.seeds_needed(0.01, 0.3) and found.power > 0.99


CASES = {  # (which cells are worse, scatter): (verdict, right by the share, by the rate)
    "by share": ((lambda _, moments, rate: KEPT[rate] < 0.5, 0.01), ("fails", 10, 10)),
    "one outcome": ((lambda *_: True, 0.01), None),
    "noise": ((lambda notebook, _, rate: notebook == GPT and rate < 2e-4, 1.0), None),
    "only the GPT": (
        (lambda notebook, _, rate: notebook == GPT and rate < 2e-4, 0.01),
        ("inconclusive", 6, 6),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_score_counts_decided_cells_that_were_not_fitted(case, tmp_path):
    (worse, scatter), wanted = CASES[case]
    folders = [pilot(tmp_path / "pilot"), counted(tmp_path / "counted", worse, scatter)]
    cells, score = cells_and_score(*folders)
    assert len(cells) == 16 and cells.fitted.sum() == 6
    assert (score and (score.verdict, score.kept, score.rate_alone)) == wanted


def cells_and_score(first, *others):
    rows = kept_share.trainings_in([first])
    found = []
    for notebook, one in kept_share.trainings_in(others).groupby("notebook"):
        fixed = kept_share.pilot_of(rows[rows.notebook == notebook])
        found.append(kept_share.cells_of(one, fixed).assign(notebook=notebook))
    return kept_share.scored(pd.concat(found, ignore_index=True))


def test_a_share_that_says_more_than_the_rate_holds(tmp_path, capsys, monkeypatch):
    """The ViT keeps other shares at the same rates, and by them it ends worse or not."""

    def shares(notebook, rate):
        share = KEPT.get(rate, 0.5)
        return share if notebook == GPT else 1.05 - share

    folder = counted(tmp_path / "counted", lambda notebook, _, rate: shares(notebook, rate) < 0.67)
    path = folder / "trainings.csv"
    rows = pd.read_csv(path)
    rows["kept_update_fraction"] = [
        shares(*one) if arm == "bf16_true" else None
        for *one, arm in zip(rows.notebook, rows.lr, rows.precision, strict=True)
    ]
    rows.to_csv(path, index=False)
    file = tmp_path / "cells.csv"
    arguments = ["kept_share.py", str(pilot(tmp_path / "pilot")), str(folder), "--csv", str(file)]
    monkeypatch.setattr("sys.argv", arguments)
    kept_share.main()
    cells = pd.read_csv(file)
    tested = cells[~cells.fitted]
    assert (tested.predicted == tested.outcome).all() and len(tested) == 10
    said = capsys.readouterr().out
    assert "verdict='holds'" in said and "always_worse=6, rate_alone=4" in said


def test_the_text_is_of_modules_in_an_order_of_their_names(tmp_path, monkeypatch):
    for name in ("a.py", "b/c.py", "b/test/d.py", "site-packages/e.py", "f.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x\r\n")
    # SHA-256 of "b/c.py" begins with da, and that of "a.py" with f0
    assert stdlib_text.modules_in(tmp_path) == [tmp_path / "b/c.py", tmp_path / "a.py"]
    monkeypatch.setattr(stdlib_text.sysconfig, "get_path", lambda _: tmp_path)
    monkeypatch.setattr(sys, "argv", ["stdlib_text.py", str(tmp_path / "out/text")])
    with pytest.raises(SystemExit, match="has 4 bytes alone"):
        stdlib_text.main()
    monkeypatch.setattr(stdlib_text, "SIZE", 3)
    stdlib_text.main()
    assert (tmp_path / "out/text").read_bytes() == b"x\nx"
