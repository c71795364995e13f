//! The one table of diagnostic codes: `onnxc explain E0203` and the tests read it.

/// A diagnostic code; its number and help text are in [`TABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code(pub u16);

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "E{:04}", self.0)
    }
}

macro_rules! codes {
    ($($name:ident = $num:literal, $title:literal, $help:literal;)*) => {
        $(#[doc = $title] pub const $name: Code = Code($num);)*
        /// Every code: number, constant's name, title, explanation.
        pub const TABLE: &[(Code, &str, &str, &str)] = &[$(($name, stringify!($name), $title, $help)),*];
    };
}

codes! {
    NOT_A_MODEL = 1, "the file is not an ONNX model", "The bytes do not decode as one onnx.ModelProto, or \
        lack the fields every model has. Check that the file is complete and that it is a model, not test \
        data or text.";
    IR_VERSION = 2, "the IR version is missing or not known", "onnxc reads IR versions 1 to 14. Re-export \
        the model or convert it with onnx.version_converter.";
    OPSET_IMPORT = 3, "an operator set import is missing, repeated or not known", "Every domain a node uses \
        needs exactly one opset_import entry.";
    GRAPH_INVALID = 4, "the graph breaks a rule of the ONNX IR", "Names must be defined once and before \
        their use, and every required field must be present. `onnx.checker.check_model` finds the same \
        faults.";
    TENSOR_INVALID = 5, "a stored tensor is broken", "Its data does not fit its type and shape.";
    EXTERNAL_DATA = 6, "external data can not be used", "External files must lie inside the model's folder \
        and hold the bytes that the model names.";
    FUNCTION_INVALID = 7, "a model-local function is broken", "Functions must not call themselves, and \
        attribute references need a value.";
    TYPE_INVALID = 8, "a declared type is broken or contradicts the operators", "The declared type of an \
        input or output must be complete and must agree with what the graph computes.";
    TEXT_SYNTAX = 9, "the model text does not parse", "The ONNX textual syntax is described in \
        docs/Syntax.md of the ONNX project.";
    TOO_DEEP = 10, "nesting is too deep", "Messages nest at most 100 levels deep.";
    UNKNOWN_FIELD = 11, "the file holds what ONNX does not define", "Fields with numbers or wire types that \
        onnx.proto does not have are skipped, as protobuf specifies, and names that are not UTF-8 are taken as \
        they are, shown with \\xNN for such bytes. Neither comes from an exporter: the file may be damaged.";
    NEWER_FEATURE = 12, "the model uses what its IR version does not have yet", "onnxc honours it. Other \
        runtimes may not: set ir_version to the version that introduced the feature.";
    NO_EFFECT = 13, "a part of the model has no effect", "The rows name it. What remains is compiled as if \
        it were not there.";
    OP_UNSUPPORTED = 101, "operators are not supported", "docs/operators.md lists what is supported. A \
        model-local function of the same name is used instead if the model has one.";
    OP_ARITY = 102, "wrong number of inputs or outputs", "The operator's specification says how many it \
        takes.";
    OP_ATTRIBUTE = 103, "an attribute is missing, unknown or has a wrong value", "The operator's \
        specification at the imported opset lists its attributes.";
    OP_TYPE = 104, "an operand has a type that the operator does not take", "The operator's specification \
        lists the allowed types.";
    OP_SHAPE = 105, "the operands' shapes do not fit", "The rows name the operands with the shapes that \
        inference found for them. Look at the node in the model, or print the graph with its shapes: onnxc \
        model.onnx --emit graph -o -.";
    OP_FEATURE = 106, "this use of the operator is not supported yet", "It is valid ONNX; onnxc refuses it \
        rather than compute something else.";
    DYNAMIC_VALUE = 107, "a value that decides a shape is only known at run time", "Make it an initializer, \
        or bind the dimensions it comes from with --dim.";
    TYPE_UNSUPPORTED = 108, "a type is not supported", "Inputs and outputs are tensors, sequences and \
        optionals of tensors, and maps from int64 or strings to numbers.";
    DIM_OPTION = 201, "a --dim option does not fit the model", "Use --dim N=4 or --dim 'N<=32' with a \
        dimension name that the model has.";
    DIM_OVERFLOW = 202, "a size does not fit 63 bits", "Bound the dimensions with --dim 'N<=...'.";
    NAME_CLASH = 203, "two names become the same identifier", "The second one gets a suffix, x_2. Give it a \
        name of your own with --rename 'a/b=x'; two names must not get the same.";
    OPTION = 204, "an option does not fit", "See `onnxc --help`.";
    TARGET = 205, "the target is not supported", "See `onnxc --help` for the list of targets and CPU levels.";
    WEIGHTS_SIZE = 206, "the weights are too large to embed", "Use --weights file.";
    WEIGHTS_FILE = 207, "a weights file is damaged or is none", "--weights-from and --fits take a file that \
        onnxc wrote with --weights file, whole and by the same version.";
    WEIGHTS_FIT = 208, "the weights do not fit what was compiled", "`onnxc weights` replaces values, not \
        code: model, flags and compiler must be those of the object, and what the compiler made part of the \
        code must not change. The rows say what differs. Compile the object again, or keep that value.";
    LIMIT = 210, "a limit of the compiler is exceeded", "The rows say what was found and what the limit is; \
        `onnxc explain limits` lists all limits. They keep the time and memory of the compiler in \
        proportion to the model's file.";
    VERIFY_FAILED = 301, "outputs differ from the reference", "The rows name the tensor and the largest \
        difference.";
    RUN_INPUT = 302, "an input does not fit the model", "The rows name the type and shape that the model \
        expects.";
    RUN_STATUS = 303, "the compiled model returned an error", "See the status in the title.";
}

/// True for findings about the command line: exit code 2.
pub fn is_usage(code: Code) -> bool {
    matches!(code, OPTION | TARGET | DIM_OPTION)
}

/// Looks a code up by its printed form, `E0203`.
pub fn find(text: &str) -> Option<&'static (Code, &'static str, &'static str, &'static str)> {
    TABLE.iter().find(|(c, ..)| c.to_string().eq_ignore_ascii_case(text))
}
