import ast,glob
for f in sorted(glob.glob('mixed_precision_study/**/*.py',recursive=True)):
    src=open(f).read(); lines=src.splitlines(); t=ast.parse(src)
    for fn in ast.walk(t):
        if not isinstance(fn,(ast.FunctionDef,)): continue
        names={}
        for n in ast.walk(fn):
            if isinstance(n,ast.Name): names.setdefault(n.id,[]).append(n)
        def blocks(node):
            for field in ('body','orelse','finalbody'):
                b=getattr(node,field,None)
                if isinstance(b,list): yield b
        for node in ast.walk(fn):
            for b in blocks(node):
                for a,c in zip(b,b[1:]):
                    if isinstance(a,ast.Assign) and len(a.targets)==1 and isinstance(a.targets[0],ast.Name):
                        v=a.targets[0].id
                        if len(names.get(v,[]))==2 and isinstance(c,(ast.Return,ast.Assign,ast.Expr)):
                            used=[n for n in ast.walk(c) if isinstance(n,ast.Name) and n.id==v]
                            if used and a.end_lineno-a.lineno<=0 and c.end_lineno-c.lineno<=1:
                                print(f"{f[23:]}:{a.lineno}: {lines[a.lineno-1].strip()}  ||  {' '.join(x.strip() for x in lines[c.lineno-1:c.end_lineno])}")
