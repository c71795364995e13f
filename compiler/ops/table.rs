// The operator table: one line registers a family; `Variant = file;` with a struct of the variant's name in the file.
ops! {
    Unary = unary;
    Binary = binary;
    Select = select;
    Cast = cast;
    View = view;
    Shape = shape;
    Fill = fill;
    Permute = permute;
    Slice = slice;
    Concat = concat;
    Gather = gather;
    Reduce = reduce;
    Softmax = softmax;
    Normalize = normalize;
    MatMul = matmul;
    Conv = conv;
    Pool = pool;
    Recurrent = recurrent;
    Cumulate = cumulate;
    Mark = mark;
    ReverseSequence = reverse;
    Loss = loss;
    TopK = topk;
    Einsum = einsum;
    Det = det;
}
