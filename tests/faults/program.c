/* Calls a model so that each of its checks fails, and prints what the fault says. C and C++. */
#include "pick.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ONNXC_ALIGNAS(64) static unsigned char memory[1 << 20];
static float x[2 * 3], y[3], z[2 * 3];
static int64_t at[2], total;

/* The guard behind a workspace of so many bytes. */
static int touched(uint64_t size) {
  size_t k;
  for (k = (size_t)size; k < sizeof memory; k++)
    if (memory[k] != 0xa5) return 1;
  return 0;
}

static uint64_t call(int64_t n, int64_t k, int64_t m, int64_t p, int64_t last, void *workspace, uint64_t size, const float *bias) {
  onnxc_fault fault;
  onnxc_exec exec;
  char text[256], small[8];
  size_t length;
  int32_t status;
  memset(&exec, 0, sizeof exec);
  memset(memory, 0xa5, sizeof memory);
  exec.struct_size = sizeof exec;
  exec.workspace_size = size;
  exec.fault = &fault;
  fault.check = UINT32_MAX;
  fault.workspace_size = 0;
  status = pick_infer_exec(n, k, m, p, x, bias, at, &last, z, &total, workspace, &exec);
  if (status == ONNXC_OK) {
    printf("ok %d %lld\n", fault.check == UINT32_MAX, (long long)total);
    return 0;
  }
  length = onnxc_fault_string(&pick_model, &fault, text, sizeof text);
  if (length != strlen(text) || fault.status != status || pick_model.checks[fault.check].n_values > ONNXC_VALUES) return 1;
  /* What does not fit is cut. */
  if (onnxc_fault_string(&pick_model, &fault, small, sizeof small) != length || strncmp(small, text, 7) != 0 || small[7] != 0) return 1;
  printf("%d %s%s\n", (int)status, text, workspace == memory && size && touched(size) ? " TOUCHED" : "");
  return fault.workspace_size;
}

/* An exec of the first versions ends before workspace_size: what follows is not looked at. */
static int old(void) {
  struct { size_t struct_size; void *user; void (*parallel_for)(void *, size_t, onnxc_task_fn, void *); size_t max_tasks;
           int32_t (*on_node)(void *, uint32_t, int32_t); uint64_t behind[2]; } exec;
  onnxc_exec view;
  const int64_t few = 10;
  memset(&exec, 0, sizeof exec);
  exec.struct_size = offsetof(onnxc_exec, workspace_size);
  exec.behind[0] = 1;
  exec.behind[1] = 8;
  memcpy(&view, &exec, sizeof view);
  return pick_infer_exec(2, 3, 4, 2, x, y, at, &few, z, &total, memory, &view);
}

int main(void) {
  uint64_t size, need;
  int rounds = 0;
  if (pick_workspace_size(2, 3, 3, 2, &size) != ONNXC_OK || size > sizeof memory) return 1;
  call(40, 3, 3, 2, 10, memory, size, y);
  call(2, 3, 4, 2, 10, memory, size, y);
  call(2, 3, 3, 2, 10, memory, size, NULL);
  call(2, 3, 3, 2, 10, memory + 1, size, y);
  call(2, 3, 3, 2, 10, NULL, size, y);
  at[1] = 7;
  call(2, 3, 3, 2, 10, memory, size, y);
  at[1] = 1;
  call(2, 3, 3, 2, 10, memory, 1, y);
  call(2, 3, 3, 2, 10, memory, size, y);
  /* More elements than the workspace holds: as often as it takes. */
  for (need = 1024; need; rounds++) {
    if (need > sizeof memory || rounds > 9) return 2;
    size = need;
    need = call(2, 3, 3, 2, 1000, memory, size, y);
  }
  printf("%d\n", old());
  return 0;
}
