"""Writes compiler/ops/schema.txt: arity, types and attributes of every operator version, from the onnx package.

One line a version:  domain op since | inputs | outputs | types | attributes
  input/output  name:typevar, "?" after optional ones, "*" after variadic ones ("~" if of mixed types)
  types         typevar=t,t,...   (names of the ONNX textual syntax)
  attributes    name:kind, "!" after required ones

Operators outside of the onnx package follow by hand, after the documentation of ONNX Runtime (docs/ContribOperators.md).
"""
import sys
import onnx.defs


def ty(s):
    return s.replace("tensor(", "").replace(")", "") if s.startswith("tensor(") else s.replace(" ", "")


def formal(p):
    opt = p.option
    mark = "?" if opt == onnx.defs.OpSchema.FormalParameterOption.Optional else ""
    if opt == onnx.defs.OpSchema.FormalParameterOption.Variadic:
        mark = "*" if p.is_homogeneous else "~"
    return f"{p.name.replace(' ', '_')}:{ty(p.type_str)}{mark}"


Q = "int8,uint8"
UNARY = "X:T X_scale:float X_zero_point:T? Y_scale:float Y_zero_point:T?"
BINARY = "A:T A_scale:float A_zero_point:T? B:T B_scale:float B_zero_point:T? C_scale:float C_zero_point:T?"
WINDOW = "auto_pad:string ceil_mode:int channels_last:int count_include_pad:int kernel_shape:ints! pads:ints strides:ints"
CONTRIB = f"""\
DynamicQuantizeMatMul 1 | 3 A:T1 B:T2 b_scale:T1 b_zero_point:T2? bias:T1? | 1 Y:T1 | T1=float;T2={Q} |
MatMulIntegerToFloat 1 | 4 A:T1 B:T2 a_scale:T3 b_scale:T3 a_zero_point:T1? b_zero_point:T2? bias:T3? | 1 Y:T3 | T1={Q};T2={Q};T3=float,float16 |
MatMulNBits 1 | 3 A:T1 B:T2 scales:T1 zero_points:T3? g_idx:T4? bias:T1? | 1 Y:T1 | T1=bfloat16,float,float16;T2=uint8;T3=bfloat16,float,float16,uint8;T4=int32 | K:int! N:int! accuracy_level:int bits:int block_size:int!
QGemm 1 | 6 A:TA a_scale:T a_zero_point:TA B:TB b_scale:T b_zero_point:TB C:TC? y_scale:T? y_zero_point:TYZ? | 1 Y:TY | T=float;TA={Q};TB={Q};TC=int32;TYZ={Q};TY=float,{Q} | alpha:float transA:int transB:int
QLinearAdd 1 | 7 {BINARY} | 1 C:T | T={Q} |
QLinearAveragePool 1 | 4 {UNARY} | 1 Y:T | T={Q} | {WINDOW}
QLinearConcat 1 | 5 Y_scale:TF Y_zero_point:T8 inputs:TV~ | 1 Y:T8 | T8={Q};TF=float;TV=float,{Q} | axis:int!
QLinearGlobalAveragePool 1 | 5 X:T x_scale:float x_zero_point:T y_scale:float y_zero_point:T | 1 Y:T | T={Q} | channels_last:int
QLinearLeakyRelu 1 | 4 {UNARY} | 1 Y:T | T={Q} | alpha:float
QLinearMul 1 | 7 {BINARY} | 1 C:T | T={Q} |
QLinearSigmoid 1 | 4 {UNARY} | 1 Y:T | T={Q} |
QLinearSoftmax 1 | 5 X:T X_scale:float x_zero_point:T? y_scale:float y_zero_point:T | 1 Y:T | T={Q} | axis:int opset:int!
"""

lines = [f"com.microsoft {l}" for l in CONTRIB.splitlines()]
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
lines.sort()
with open(sys.argv[1] if len(sys.argv) > 1 else "compiler/ops/schema.txt", "w", encoding="utf-8") as f:
    f.write("\n".join(lines) + "\n")
