"""Writes compiler/ops/schema.txt: arity, types and attributes of every operator version, from the onnx package, and
from the onnxruntime package those of com.microsoft (and SimplifiedLayerNormalization, which it puts into ai.onnx).

One line a version:  domain op since | inputs | outputs | types | attributes
  input/output  name:typevar, "?" after optional ones, "*" after variadic ones ("~" if of mixed types)
  types         typevar=t,t,...   (names of the ONNX textual syntax)
  attributes    name:kind, "!" after required ones
"""
import sys
import onnx.defs
import onnxruntime.capi.onnxruntime_pybind11_state as runtime


def ty(s):
    return s.replace("tensor(", "").replace(")", "") if s.startswith("tensor(") else s.replace(" ", "")


def formal(p):
    opt = p.option
    mark = "?" if opt == onnx.defs.OpSchema.FormalParameterOption.Optional else ""
    if opt == onnx.defs.OpSchema.FormalParameterOption.Variadic:
        mark = "*" if p.is_homogeneous else "~"
    return f"{p.name.replace(' ', '_')}:{ty(p.type_str)}{mark}"


lines = []
for s in onnx.defs.get_all_schemas_with_history():
    # Version 18 of GroupNormalization was withdrawn, but exporters had written it.
    if s.deprecated and (s.name, s.since_version) != ("GroupNormalization", 18):
        continue
    types = ";".join(f"{t.type_param_str}={','.join(sorted(ty(x) for x in t.allowed_type_strs))}" for t in s.type_constraints)
    attrs = " ".join(sorted(f"{a.name}:{str(a.type).split('.')[-1].lower()}{'!' if a.required else ''}" for a in s.attributes.values()))
    lines.append(
        f"{s.domain or 'ai.onnx'} {s.name} {s.since_version} | {s.min_input} {' '.join(map(formal, s.inputs))} | "
        f"{s.min_output} {' '.join(map(formal, s.outputs))} | {types} | {attrs}".rstrip()
    )


def foreign(s):
    """A line of an operator that only ONNX Runtime defines; its schemas are objects of another kind."""
    def mark(p):
        option = str(p.option).split(".")[-1].split(":")[0]
        return {"Optional": "?", "Variadic": "*" if p.isHomogeneous else "~"}.get(option, "")

    def formals(l):
        return " ".join(f"{p.name.replace(' ', '_')}:{ty(p.typeStr)}{mark(p)}" for p in l)
    types = ";".join(f"{t.type_param_str}={','.join(sorted(ty(x) for x in t.allowed_type_strs))}" for t in s.type_constraints)
    attrs = " ".join(sorted(f"{n}:{str(a.type).split('.')[-1].lower()}{'!' if a.required else ''}" for n, a in s.attributes.items()))
    return f"{s.domain or 'ai.onnx'} {s.name} {s.since_version} | {s.min_input} {formals(s.inputs)} | {s.min_output} {formals(s.outputs)} | {types} | {attrs}".rstrip()


FOREIGN = {("", "SimplifiedLayerNormalization")}
for s in runtime.get_all_operator_schema():
    if not s.deprecated and (s.domain == "com.microsoft" or (s.domain, s.name) in FOREIGN):
        lines.append(foreign(s))
lines.sort()
with open(sys.argv[1] if len(sys.argv) > 1 else "compiler/ops/schema.txt", "w", encoding="utf-8") as f:
    f.write("\n".join(lines) + "\n")
