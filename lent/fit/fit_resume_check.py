import sys, json; sys.path[:0]=['.','tests']
from pathlib import Path
from mixed_precision_study.runner.plan import plan
from mixed_precision_study.runner.studies import load_studies
from mixed_precision_study.runner.batch import jobs_of
from mixed_precision_study.runner.devices import Device
out=Path('lent/made/resume'); out.mkdir(exist_ok=True)
import shutil
src=sorted(Path('lent/made/fit').glob('*.json'))
for p in src[:40]: shutil.copy(p,out)
a=load_studies(Path('notebooks/studies.yaml')); b=load_studies(Path('lent/fit_split.yaml'))
ids={}
for label,st in (("own",a),("split",b)):
    for name in ("fit","fit-held-out","fit-quality"):
        cs=plan(st[name],Path('notebooks'),out,{},True)[0]
        ids[label,name]={r for c in cs for run in c for r in run.trainings}
        devices=[Device(i,f"gpu{i}",f"GPU-other{i}","NVIDIA H200") for i in range(4)]
        jobs=jobs_of(cs,devices)
        print(label,name,len(cs),"comparisons", sum(len(j.to_do) for j in jobs),"to do on another machine")
        if name=="fit":
            same=[Device(0,"gpu0","GPU-00000000-0000","NVIDIA H200")]
            print("   on its first card:", sum(len(j.to_do) for j in jobs_of(cs,same)))
            assert a[name]["about"]==b[name]["about"] , (a[name]["about"],b[name]["about"])
            print([j.to_do[0].title[-60:] for j in jobs][:6])
for name in ("fit","fit-held-out","fit-quality"): assert ids["own",name]==ids["split",name]
