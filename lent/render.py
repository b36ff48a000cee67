import sys,os
from markdown_it import MarkdownIt
css="body{font:16px/1.5 Helvetica,Arial,sans-serif;max-width:832px;margin:0 auto;padding:24px;color:#1f2328;background:#fff}table{border-collapse:collapse;display:block;overflow:auto}td,th{border:1px solid #d1d9e0;padding:6px 13px}pre{background:#f6f8fa;padding:16px;overflow:auto;font-size:85%}code{font-size:85%}img{max-width:100%}@media(prefers-color-scheme:dark){body{background:#0d1117;color:#f0f6fc}td,th{border-color:#3d444d}pre{background:#151b23}a{color:#4493f8}}"
for src in sys.argv[1:]:
    h=MarkdownIt('commonmark',{'html':True}).enable('table').render(open(src).read())
    open(os.path.join(os.path.dirname(src),'_r.html'),'w').write(f'<meta charset=utf-8><meta name=viewport content="width=device-width"><style>{css}</style>{h}')
