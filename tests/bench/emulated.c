/* Calls the model `subject` with what stands on standard input, and writes its outputs to standard output. All numbers are int64,
   little endian: the calls, the dimension parameters; of each input its bytes and data; of each output its bytes and the
   dimensions that there is room for. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include "subject.h"
#include "../tools/input.h"

enum { MAX = 64 };

static void *room(uint64_t n) {
  void *p = aligned_alloc(64, (n + 127) / 64 * 64);
  if (!p) exit(3);
  return p;
}

int main(void) {
  const onnxc_model *m = &subject_model;
  static const void *inputs[MAX];
  static void *outputs[MAX];
  static int64_t params[MAX], dims[MAX][16], bytes[MAX], *out_dims[MAX];
  if (m->n_inputs > MAX || m->n_outputs > MAX || m->n_dim_params > MAX) return 2;
  int64_t calls = number();
  for (uint32_t i = 0; i < m->n_dim_params; i++) params[i] = number();
  for (uint32_t i = 0; i < m->n_inputs; i++) {
    int64_t n = number();
    void *p = room((uint64_t)n);
    get(p, (size_t)n);
    inputs[i] = p;
  }
  for (uint32_t k = 0; k < m->n_outputs; k++) {
    bytes[k] = number();
    outputs[k] = room((uint64_t)bytes[k]);
    for (int32_t d = 0; d < m->outputs[k].rank; d++) {
      dims[k][d] = number();
      if (m->outputs[k].dims[d] < 0) out_dims[k] = dims[k];
    }
  }
  uint64_t size = 0;
  int32_t status = m->workspace_for(params, &size);
  void *workspace = status ? NULL : room(size);
  while (!status && calls--) status = m->call(inputs, outputs, params, out_dims, NULL, workspace, NULL);
  if (status) {
    fprintf(stderr, "status %" PRId32 "\n", status);
    return 4;
  }
  for (uint32_t k = 0; k < m->n_outputs; k++) fwrite(outputs[k], 1, (size_t)bytes[k], stdout);
  return 0;
}
