"""No text from a parameter, a record or a download is executed, as a program or as part of a
page.
"""

import itertools
import json
from html.parser import HTMLParser

import made_up_records as made_up
from conftest import NOTEBOOKS, ROOT, read_json
from drawn_reports import write_all
from nbconvert import HTMLExporter  # as JupyterLab writes it, which escapes less than our own page
from nbconvert.filters import markdown2html
from nested import changed, flaw
from notebook_outputs import papermill

from mixed_precision_study.store.reading import read_records
from mixed_precision_study.store.record import flat_record, record_of

EFFECTIVE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
)


class Effects(HTMLParser):
    """What of a page would call alert(): elements with a script, handlers of events, and links."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.text = ""
        self.inside = ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.inside = tag if tag in ("script", "style") else ""
        for name, value in attributes:  # a heading's id and the link to it call nothing
            if (
                "alert(" in (value or "")
                and name not in ("alt", "title", "id")
                and not value.startswith("#")
            ):
                self.found.append(f"<{tag} {name}={value!r}>")

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside and "alert(" in data:
            self.found.append(f"<{self.inside}>{data}")
        elif not self.inside:
            self.text += data


NEEDED = {"precision", "status", "metric_better"}  # with another value a record is not used at all
DECIDING = NEEDED | {
    "notebook",
    "device_type",
    "dataset_used",
    "model",
    "batch_size",
    "loader",
    "execution",
}


def with_markup(value, name):
    """Return a value of a record with markup after every text in it."""
    if isinstance(value, list):
        return [with_markup(item, name) for item in value]
    call = f"alert('{name.replace('_', '-')}')"
    markup = f"<script>{call}</script><img src=x onerror={call}>[x](javascript:{call})"
    return f"{value}{markup}" if isinstance(value, str) else value


def spoil(folder, kept):
    """Put markup into every text field of every record below `folder`, but for those in `kept`."""
    for path in folder.rglob("*.json"):
        value = read_json(path)
        if "run" in value:
            probes = value["measured"]["time"]["batch_probes"] or [
                [256, "ok", 1.0, 1.0],
                [512, "oom", 1.0, None],
            ]
            fields = json.loads(
                json.dumps(flat_record(record_of(changed(value, batch_probes=probes))))
            )
            settings, given = fields.pop("settings"), {}
            for name, one in {**fields, **settings}.items():
                if name not in kept:
                    spoilt = with_markup("" if one is None else one, name)
                    given |= {} if flaw(changed(value, **{name: spoilt})) else {name: spoilt}
            path.write_text(json.dumps(changed(value, **given)), encoding="utf-8")


def test_no_text_of_a_record_takes_effect_in_the_report(tmp_path):
    """Half of the records have markup in every text; the others keep what decides a comparison."""
    assert all(
        Effects(str(markdown2html(one))).found for one in EFFECTIVE
    )  # else it proved nothing
    # "dynamic" with markup is refused
    names, scale = ("fp32", "tf32", "amp_fp16", "amp_bf16"), {"loss_scale": 128.0}
    runs = [
        made_up.make("cifar_resnet", precision, parameters={"model": model, "seed": seed, **scale})
        for model, precision, seed in itertools.product(
            ("resnet18", "wide_resnet28_10"), names, range(3)
        )
    ]
    runs.append(made_up.make("cifar_resnet", "o3_fp16", metric=[0.1, 0.1, 0.1], parameters=scale))
    runs.append(
        made_up.make_failed(
            "cifar_resnet", "o2_fp16", "oom", "CUDA out of memory", parameters=scale
        )
    )
    for half, kept in (("every", NEEDED), ("most", DECIDING)):
        write_all(tmp_path / half, *runs)
        spoil(tmp_path / half, kept)
    done = papermill(NOTEBOOKS / "summary.ipynb", tmp_path, {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert len(read_records(tmp_path)[0]) == 2 * len(runs)
    effects = Effects(HTMLExporter().from_filename(tmp_path / "out.ipynb")[0])
    assert effects.found == []
    for name in ("metric-name", "kernel-family-fractions", "reason"):
        for before in ("<script>", "onerror=", "(javascript:"):
            assert f"{before}alert('{name}')" in effects.text
