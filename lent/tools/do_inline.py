import ast,sys
def inline(path, name, near):
    src=open(path).read(); t=ast.parse(src)
    lines=src.splitlines(keepends=True)
    off=[0]
    for l in lines: off.append(off[-1]+len(l.encode()))
    raw=src.encode()
    for fn in ast.walk(t):
        if not isinstance(fn,ast.FunctionDef) or not (fn.lineno<=near<=fn.end_lineno): continue
        for a in ast.walk(fn):
            if isinstance(a,ast.Assign) and abs(a.lineno-near)<=3 and isinstance(a.targets[0],ast.Name) and a.targets[0].id==name:
                uses=[n for n in ast.walk(fn) if isinstance(n,ast.Name) and n.id==name and isinstance(n.ctx,ast.Load)]
                assert len(uses)==1,(path,name,len(uses))
                u=uses[0]
                seg=ast.get_source_segment(src,a.value)
                if not isinstance(a.value,(ast.Call,ast.Name,ast.Attribute,ast.List,ast.Dict,ast.ListComp,ast.Subscript,ast.JoinedStr,ast.Constant,ast.Tuple)) : seg="("+seg+")"
                if isinstance(a.value,ast.Tuple) and not seg.startswith("("): seg="("+seg+")"
                us=off[u.lineno-1]+u.col_offset; ue=off[u.end_lineno-1]+u.end_col_offset
                as_=off[a.lineno-1]; ae=off[a.end_lineno]
                raw2=raw[:us]+seg.encode()+raw[ue:]
                raw2=raw2[:as_]+raw2[ae:]
                open(path,'w').write(raw2.decode()); return
    raise SystemExit(f"not found {path} {name}")
for spec in sys.argv[1:]:
    p,n,l=spec.split(":"); inline("mixed_precision_study/"+p,n,int(l))
