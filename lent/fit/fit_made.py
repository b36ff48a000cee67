"""Made-up GPU records of fit and its kin for a rehearsal: real skeletons of the CPU, made-up sizes. Nothing of it is committed.

    python fit_made.py FOLDER [STUDY ...]
"""
import copy, json, random, sys
sys.path[:0] = [".", "tests"]
from pathlib import Path
import made_up_fit
from made_up_fit import MIB, NOTEBOOKS, STUDIES, ledger_of, plan
from mixed_precision_study.store.record import new_record, write_json
out = Path(sys.argv[1]); names = sys.argv[2:] or ["fit", "fit-held-out", "fit-time"]
out.mkdir(parents=True, exist_ok=True)
skeletons = [json.loads(p.read_text()) for p in Path("lent/fit_cpu").glob("*.json")]
skeletons = [one for one in skeletons if one["run"]["status"] == "ok"]
random.seed(1)
AXIS = STUDIES["fit"]["axis"]
def nearest(notebook, settings, precision):
    alike = [one for one in skeletons if one["run"]["notebook"] == notebook]
    return max(alike, key=lambda one: (one["run"]["precision"] == precision) + sum(one["settings"].get(n) == settings.get(n) for n in AXIS))
count = 0
for name in names:
    for card, comparison in enumerate(plan(STUDIES[name], NOTEBOOKS, out, {}, on_gpu=True)[0]):
        for run in comparison:
            for run_id, (settings, precision) in run.trainings.items():
                record = new_record(run.notebook.stem, settings, precision, made_up_fit.GPU)
                given = ledger_of(settings, precision) if "batch_size" in settings and settings["batch_size"] else {}
                noise = random.gauss(1, 0.004)
                step = given["step_ms_median"] * noise
                steps = settings["max_steps"]
                record.fill(**given | {"step_ms_median": step, "epoch_seconds": [step * steps / 1000]}, status="ok", study=run.study)
                record.fill(model_title="ViT-B/16", steps_per_epoch=steps)
                if "width" in settings:
                    size = f"{settings['layers']} × {settings['width']}"
                    record.fill(model_title=f"GPT, {size}, context {settings['context']:,}")
                record.fill(dataset_used="synthetic", synthetic=True, data_title="made-up data", driver_version="580.159.04", host_cpu="Intel(R) Xeon(R) Processor", host_cores=64, torch_version="2.11.0+cu130", cuda_version="13.0", python_version="3.12.3", commit="0" * 40, host_id="abc")
                if name == "fit-quality":
                    record.fill(dataset_used="wikitext-2", synthetic=False)
                    record.fill(metric_margin=0.01, metric_margin_is_share=True, metric_name="bits per byte", metric_better="lower", metric=[2.0 + 0.002 * settings["seed"] + random.gauss(0, .001)], train_loss=[2.1])
                record.fill(batch_size_used=settings["batch_size"], samples_per_epoch=settings["batch_size"] * steps)
                record.fill(process_id=record.run_id, started_at="2026-11-29T12:00:00+00:00", finished_at="2026-11-29T12:00:20+00:00")
                new = json.loads(record.model_dump_json())
                # what the GPU record lacks is as in a real training of the CPU
                old = nearest(run.notebook.stem, settings, precision)
                def fill(a, b):
                    for key, value in b.items():
                        if isinstance(value, dict): fill(a.setdefault(key, {}) or a[key], value) if isinstance(a.get(key), dict) else None
                        elif a.get(key) is None and key not in ("block_seconds", "energy_joules", "reason", "profile_reason", "host_id"): a[key] = value
                for part in ("run", "measured", "quality"):
                    fill(new[part], old[part])
                new["machine"]["gpu_uuid"] = f"0000000{card % 4}-0000"
                new["settings"]["output_dir"] = "/tmp/fit"
                new["run"]["status"] = "ok"
                write_json(new, out / f"{record.run_id}.json"); count += 1
print(count, "records")
