import sys; sys.path[:0]=['.','docs']
import does_not_fit
from pathlib import Path
from docs.sheets import sheet_of
from mixed_precision_study.report.charts import chart_style, drawing_of
o=Path(sys.argv[1]).resolve()
print(does_not_fit.table_of(o)); print(does_not_fit.frontier_of(o)); print(does_not_fit.nothing_of(o))
with chart_style():
    f=does_not_fit.figures(o)
d=[drawing_of(one,f'fit{i}','fit') for i,one in enumerate(f)]
Path('lent/fit.svg').write_text(sheet_of(d,len(d)))
