/* Calls one of the linked models, argv[1], with what stands on standard input, and writes what it gives. All numbers are
   int64, little endian.
   In: the number of inputs; of each its bytes, data. Of each output its rank, dimensions (what there is room for), bytes.
   Out: the status; of each output its type, rank, dimensions, data. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "cases.h"
#include "../tools/input.h"

enum { MAX = 2048 };

static void put(int64_t v) { fwrite(&v, 1, sizeof v, stdout); }

static void *room(uint64_t n) {
  void *p = aligned_alloc(64, (n + 127) / 64 * 64);
  if (!p) exit(3);
  memset(p, 255, (n + 127) / 64 * 64);
  return p;
}

int main(int argc, char **argv) {
  const onnxc_model *m = NULL;
  for (size_t i = 0; argc == 2 && i < sizeof cases / sizeof *cases; i++)
    if (!strcmp(cases[i].name, argv[1])) m = cases[i].model;
  if (!m) {
    fprintf(stderr, "no such case\n");
    return 2;
  }
  static const void *inputs[MAX];
  static void *outputs[MAX];
  static int64_t dims[MAX][16], *out_dims[MAX], bytes[MAX];
  if (number() != m->n_inputs || m->n_inputs > MAX || m->n_outputs > MAX || m->n_dim_params) {
    fprintf(stderr, "the model has %u inputs, %u outputs, %u dimension parameters\n", m->n_inputs, m->n_outputs, m->n_dim_params);
    return 2;
  }
  for (uint32_t i = 0; i < m->n_inputs; i++) {
    int64_t n = number();
    void *p = room((uint64_t)n);
    get(p, (size_t)n);
    inputs[i] = p;
  }
  for (uint32_t k = 0; k < m->n_outputs; k++) {
    const onnxc_tensor_info *t = &m->outputs[k];
    int64_t rank = number();
    get(dims[k], (size_t)rank * 8);
    bytes[k] = number();
    outputs[k] = room((uint64_t)bytes[k]);
    out_dims[k] = NULL;
    for (int32_t d = 0; d < t->rank; d++)
      if (t->dims[d] < 0) out_dims[k] = dims[k];
    if (!out_dims[k])
      for (int32_t d = 0; d < t->rank; d++) dims[k][d] = t->dims[d];
  }
  uint64_t size = 0;
  int32_t status = m->workspace_for(NULL, &size);
  if (!status) status = m->call(inputs, outputs, NULL, out_dims, NULL, room(size), NULL);
  put(status);
  for (uint32_t k = 0; k < m->n_outputs; k++) {
    const onnxc_tensor_info *t = &m->outputs[k];
    put(t->dtype);
    put(t->rank);
    for (int32_t d = 0; d < t->rank; d++) put(dims[k][d]);
    fwrite(outputs[k], 1, (size_t)bytes[k], stdout);
  }
  return 0;
}
