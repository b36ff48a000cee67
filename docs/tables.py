"""Write the generated parts of notebooks and documents: finder and parameters cells, badges and tables.

python docs/tables.py           rewrite what is stale
python docs/tables.py --check   change nothing; list what is stale and exit with 1
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from mixed_precision_study import __version__  # noqa: E402
from mixed_precision_study.analysis.bottleneck import find_bottleneck  # noqa: E402
from mixed_precision_study.analysis.conditions import flags_of  # noqa: E402
from mixed_precision_study.analysis.speedup import paired_ratio, paired_runs  # noqa: E402
from mixed_precision_study.analysis.verdict import interval_text  # noqa: E402
from mixed_precision_study.parameters import EXPERIMENTS, PRECISION_NAMES, parameters_cell  # noqa: E402
from mixed_precision_study.record import comparison_key, read_records  # noqa: E402

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

BADGES = re.compile(r"<!-- badges -->\n.*?<!-- /badges -->", re.DOTALL)
HEADLINE = re.compile(r"<!-- headline -->\n.*?<!-- /headline -->", re.DOTALL)
FIELDS = re.compile(r"<!-- fields -->\n.*?<!-- /fields -->", re.DOTALL)
CASES = re.compile(r"<!-- cases -->\n.*?<!-- /cases -->", re.DOTALL)
RUNS = re.compile(r"<!-- runs -->\n.*?<!-- /runs -->", re.DOTALL)
HEADLINE_PRECISIONS = ("fp32", "tf32", "amp_fp16", "amp_bf16")
MEND = "run: python docs/tables.py"
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}, "_kg_hide-input": True}  # Colab, Jupyter, Kaggle
FROM_REPOSITORY = """\
    source = "{source}"
    if subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", source]).returncode == 0:
        importlib.invalidate_caches()
        return source
"""


def repository_url(root):
    """Return (GitHub address, where it stands: "pyproject", "origin" or None); other hosts have no such badges."""
    settings = (
        tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        if (root / "pyproject.toml").exists()
        else {}
    )
    url = settings.get("project", {}).get("urls", {}).get("Repository")
    if url:
        return github_address(url), "pyproject"
    answer = subprocess.run(
        ["git", "-C", str(root), "remote", "get-url", "origin"], capture_output=True, text=True, check=False
    )
    url = github_address(answer.stdout)
    return url, "origin" if url else None


def github_address(text):
    """Return "https://github.com/OWNER/NAME" for any usual form of that address, else None."""
    found = re.search(r"github\.com[:/]([\w.-]+)/([\w.-]+?)(?:\.git)?/?$", text.strip())
    return f"https://github.com/{found[1]}/{found[2]}" if found else None


def badges(url, notebook):
    """Return the badge block of a notebook; it is empty where there is no address."""
    if not url:
        return "<!-- badges -->\n<!-- /badges -->"
    path = url.removeprefix("https://github.com/") + f"/blob/main/notebooks/{notebook}"
    colab, kaggle = "https://colab.research.google.com", "https://kaggle.com"
    line = (
        f"[![Open in Colab]({colab}/assets/colab-badge.svg)]({colab}/github/{path}) "
        f"[![Open in Kaggle]({kaggle}/static/images/open-in-kaggle.svg)]({kaggle}/kernels/welcome?src=https://github.com/{path})"
    )
    return f"<!-- badges -->\n{line}\n<!-- /badges -->"


def notebook_text(path, url):
    """Return the notebook at `path` with the finder, the parameters and the badges that it should have."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text = BADGES.sub(lambda _: badges(url, path.name), text)
        elif cell.get("id") == "finder":
            text, cell["metadata"] = finder(url), dict(FOLDED)
        elif cell.get("id") == "parameters" and path.stem in EXPERIMENTS:
            text = parameters_cell(EXPERIMENTS[path.stem])
        cell["source"] = text.splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def finder(url):
    """Return the source of the first cell; where there is a repository, pip gets the code from there at last."""
    text = (ROOT / "docs" / "finder.py").read_text(encoding="utf-8").rstrip("\n")
    if not url:
        return text
    install = FROM_REPOSITORY.format(source=f"git+{url}@v{__version__}")
    return text.replace("import sys\n", "import subprocess\nimport sys\n", 1).replace(
        "    sys.exit(", f"{install}    sys.exit("
    )


def stale_files(root, check=False):
    """Yield (path, text it should have) of every notebook and document that is not as it should be.

    Where the address is only that of the clone's origin, `check` also accepts files without badges: whoever clones the
    repository has changed nothing.
    """
    url, found_in = repository_url(root)
    addresses = (url, None) if check and found_in == "origin" else (url,)
    paths = sorted((root / "notebooks").glob("*.ipynb"))
    for path in paths:
        texts = [notebook_text(path, address) for address in addresses]
        if path.read_text(encoding="utf-8") not in texts:
            yield path, texts[0]
    readme = root / "README.md"
    if readme.exists():
        now = readme.read_text(encoding="utf-8")
        blocks = [readme_badges(address, [path.name for path in paths]) for address in addresses]
        texts = [BADGES.sub(lambda _, block=block: block, now) for block in blocks]
        table = headline(read_records(root / "outputs" / "reference")[0])
        texts = [HEADLINE.sub(lambda _: table, text) for text in texts]
        if now not in texts:
            yield readme, texts[0]

    published = root / "outputs" / "published"
    tables = {
        root / "docs" / "measurements.md": {
            FIELDS: lambda: fields_table(root / "mixed_precision_study" / "record.py"),
            CASES: lambda: cases_table(root / "tests" / "built_cases"),
        },
        published / "README.md": {RUNS: lambda: runs_table(read_records(published)[0])},
    }
    for path in (path for path in tables if path.exists()):
        now = text = path.read_text(encoding="utf-8")
        for block, make in tables[path].items():
            text = block.sub(lambda _, make=make: make(), text)
        if now != text:
            yield path, text


def fields_table(path):
    """Return the table of the record's fields: name, and the comment beside it in record.py."""
    lines = ["| field | meaning |", "|---|---|"]
    for text in path.read_text(encoding="utf-8").splitlines():
        if found := re.match(r"    (\w+): (?:str|int|float|bool|list|dict)\b.*?#\s*(.*)", text):
            lines.append(f"| `{found[1]}` | {found[2]} |")
    return "\n".join(["<!-- fields -->", *lines, "<!-- /fields -->"])


def cases_table(folder):
    """Return the table of the built cases: what was run, what it must be called, and what an H200 measured."""
    lines = ["| case | run | must be called | known because | measured |", "|---|---|---|---|---|"]
    for name, case in yaml.safe_load((folder / "cases.yaml").read_text(encoding="utf-8")).items():
        record = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        settings = ", ".join(f"{key} {value}" for key, value in case["parameters"].items())
        measured = find_bottleneck(record)[1] if record["status"] == "ok" else record["reason"].partition(". ")[0]
        measured = "; ".join([*flags_of(record), measured])
        lines.append(
            f"| {name} | {case['precision']}, {settings} | {case['expected']} | {case['because']} | {measured} |"
        )
    return "\n".join(["<!-- cases -->", *lines, "<!-- /cases -->"])


def readme_badges(url, notebooks):
    """Return the README's block: a line with badges for every notebook, or one sentence where there is no address."""
    if not url:
        line = "Upload one notebook: on Colab with *File > Upload notebook*, on Kaggle with *File > Import Notebook*."
        return f"<!-- badges -->\n{line}\n<!-- /badges -->"
    lines = [f"- `{name}` {badges(url, name).splitlines()[1]}" for name in notebooks]
    return "\n".join(["<!-- badges -->", *lines, "<!-- /badges -->"])


def headline(records):
    """Return the README's first table: seconds per epoch and peak GiB of every GPU comparison in the reference run."""
    rows, cards = {}, set()
    for record in records:
        if record["status"] == "ok" and record["gpu_name"] and record["precision"] in HEADLINE_PRECISIONS:
            rows.setdefault(comparison_key(record), {}).setdefault(record["precision"], []).append(record)
            cards.add(
                f"{record['gpu_name']}, driver {record['driver_version']}, CUDA {record['cuda_version']}, "
                f"cuDNN {record['cudnn_version']}, PyTorch {record['torch_version']}, timm {record['timm_version']}"
            )
    lines = [f"| training, one epoch | {' | '.join(f'`{name}`' for name in HEADLINE_PRECISIONS)} |", "|---" * 5 + "|"]
    lines += [headline_row(row) for row in rows.values()]  # one comparison each
    reading = "n: timed epochs. Time: median; in brackets how many times as fast as fp32, with its 95% interval if it"
    reading += " has three processes."
    lines += ["", f"Measured on {'; '.join(sorted(cards))}. {reading}" if cards else "None yet."]
    return "\n".join(["<!-- headline -->", *lines, "<!-- /headline -->"])


def headline_row(row):
    """Return a line of the table from {precision: records of every seed}."""
    one = next(iter(row.values()))[0]
    times = {name: [time for run in runs for time in run["epoch_seconds"]] for name, runs in row.items()}
    counts = sorted({len(seconds) for seconds in times.values()})
    layout = ", channels_last" if one.get("channels_last") else ""
    name = f"{one['model']} on {one['dataset_used']}, batch {one['batch_size']}{layout}"
    cells = [f"{name} (n = {' or '.join(map(str, counts))})"]
    for precision in HEADLINE_PRECISIONS:
        if precision not in row:
            cells.append("-")
            continue
        seconds = statistics.median(times[precision])
        gain = paired_ratio(paired_runs(row[precision], row.get("fp32", []))) if precision != "fp32" else None
        faster = f" ({gain['ratio']:.2f}x, {interval_text(gain)})" if gain else ""
        cells.append(f"{seconds:.2f} s{faster}, {max(r['peak_allocated_mib'] for r in row[precision]) / 1024:.2f} GiB")
    return f"| {' | '.join(cells)} |"


def runs_table(records):
    """Return the table of the published experiments: of each comparison what every precision came to."""
    rows = {}
    for record in records:
        rows.setdefault(comparison_key(record), {})[record["precision"]] = record
    present = [name for name in PRECISION_NAMES if any(name in row for row in rows.values())]
    lines = [
        f"| training | epochs | {' | '.join(f'`{name}`' for name in present)} |",
        "|---" * (2 + len(present)) + "|",
    ]
    runs = [next(iter(row.values())) for row in rows.values()]
    named = [(run_label(run), run["epochs"], row) for run, row in zip(runs, rows.values(), strict=True)]
    for name, epochs, row in sorted(named, key=lambda one: one[:2]):
        cells = [run_figures(row[precision]) if precision in row else "" for precision in present]
        lines.append(f"| {name} | {epochs} | {' | '.join(cells)} |")
    return "\n".join(["<!-- runs -->", *lines, "<!-- /runs -->"])


def run_label(record):
    """Return what was trained and how, where that is not the notebook's default."""
    size = "largest batch" if record["batch_size"] == "max" else f"batch {record['batch_size']}"
    parts = [f"{record['model']} on {record['dataset_used']}", size]
    parts += [record["execution"]] if record["execution"] != "eager" else []
    parts += ["channels_last"] if record.get("channels_last") else []
    parts += ["batch normalisation in fp32"] if record.get("keep_batchnorm_fp32") else []
    parts += [f"loss scale {record['loss_scale']:,.10g}"] if record["loss_scale"] != "dynamic" else []
    parts += [f"{record['memory_limit_gib']:g} GiB at most"] if record["memory_limit_gib"] else []
    parts += [f"{record['image_size']} pixels"] if record.get("image_size", 32) != 32 else []
    return ", ".join(parts + ["two loader workers"] * (record.get("loader") == "workers"))


def run_figures(record):
    """Return median seconds per epoch, peak memory and the last metric of a run, or how it ended."""
    if record["status"] != "ok":
        return "out of memory" if record["status"] == "oom" else record["status"]
    seconds, memory = statistics.median(record["epoch_seconds"]), record["peak_allocated_mib"] / 1024
    last = record["metric"][-1]
    last = f"{last:.1%}" if record["metric_name"] == "accuracy" else f"{last:,.0f}" if last >= 1000 else f"{last:#.4g}"
    size = f"{record['batch_size_used']:,}: " if record["batch_size"] == "max" else ""
    return f"{size}{f'{seconds:#.3g}'.rstrip('.')} s, {f'{memory:#.3g}'.rstrip('.')} GiB, {last}"


def main(arguments=None, root=ROOT):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 when something is stale")
    check, failed = parser.parse_args(arguments).check, False
    for path, text in stale_files(root, check=check):
        if check:
            failed = True
            print(f"{path.relative_to(root)} is stale; {MEND}", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"{path.relative_to(root)} rewritten")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
