import sys, json, contextlib, io; sys.path[:0]=['.','tests']
from pathlib import Path
import shutil, random
from mixed_precision_study.runner.plan import plan
from mixed_precision_study.runner.budget import within_limit
from mixed_precision_study.runner.devices import Cards
from mixed_precision_study.parameters import UserError
from made_up_fit import STUDIES, NOTEBOOKS
base=Path('lent/made/fit')
def case(label, limit, edit=None, cards=None, own=None, **given):
    place=Path('lent/made/case'); shutil.rmtree(place,ignore_errors=True); shutil.copytree(base,place)
    folder=Path('lent/made/own'); shutil.rmtree(folder,ignore_errors=True); folder.mkdir()
    for p in list(place.glob('*.json')):
        r=json.loads(p.read_text())
        if edit:
            r=edit(r)
            if r is None: p.unlink(); continue
            p.write_text(json.dumps(r))
    if own: own(place, folder)
    study=STUDIES['fit']|{'measured':str(place)}
    kw={'cards':cards} if cards else {}
    try:
        cs=plan(STUDIES['fit'],NOTEBOOKS,folder,{'memory_limit_gib':limit,**given},True,**kw)[0]
        within_limit(cs,study,folder,limit)
    except UserError as e: print('   UserError:',e)
    except Exception as e: print('   !!',repr(e))
for label,args in {
 'below every peak':dict(limit=0.1),'huge':dict(limit=1000.),
 'between':dict(limit=3.5),
 'non-monotonic budgets':dict(limit=3.5,edit=lambda r:(r['measured']['ledger'].__setitem__('ledger_activations_mib',r['measured']['ledger']['ledger_activations_mib']+2000*(r['settings']['memory_budget']==0.3)),r)[1]),
 'no compiled ones of the short GPT':dict(limit=3.5,edit=lambda r: None if r['settings'].get('context')==1024 and r['settings']['execution']=='compile' else r),
 'no ViT at all':dict(limit=3.5,edit=lambda r: None if r['run']['notebook']=='cifar_resnet' else r),
 'a T4':dict(limit=12,cards=Cards(('tf32','amp_bf16'),True)),
 'batch 64':dict(limit=12,batch_size=64),'batch 1':dict(limit=12,batch_size=1),'batch max':dict(limit=12,batch_size='max'),
 'context 2048':dict(limit=3.5,context=2048) ,
 'no ledgers':dict(limit=3.5,edit=lambda r:(r['measured']['ledger'].__setitem__('ledger_activations_mib',None),r)[1]),
 'all failed':dict(limit=3.5,edit=lambda r:(r['run'].__setitem__('status','oom'),r)[1]),
}.items():
    print(label); case(label,**args)
