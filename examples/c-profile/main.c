/* Times every node of a compiled network from within the application: an object built with --trace calls on_node around each
   of them. C99 with the monotonic clock of POSIX. */
#define _POSIX_C_SOURCE 199309L
#include "digits.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CALLS 1000

static ONNXC_ALIGNAS(DIGITS_WORKSPACE_ALIGN) unsigned char workspace[DIGITS_WORKSPACE_SIZE];

/* One for each node of digits_model. A node that fused into a later one has no calls of its own. */
typedef struct row {
  uint32_t node;
  uint32_t calls;
  double seconds;
} row;

typedef struct profile {
  row *rows;
  double begin;
} profile;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Both calls come from the thread that called the model. To return anything but 0 would end the call. */
static int32_t on_node(void *user, uint32_t node, int32_t end) {
  profile *p = (profile *)user;
  const double t = now();
  if (!end) {
    p->begin = t;
  } else {
    p->rows[node].seconds += t - p->begin;
    p->rows[node].calls++;
  }
  return 0;
}

static int slowest_first(const void *a, const void *b) {
  const double x = ((const row *)a)->seconds, y = ((const row *)b)->seconds;
  return (x < y) - (x > y);
}

int main(void) {
  static float image[DIGITS_IMAGE_LEN], logits[DIGITS_LOGITS_LEN];
  const uint32_t n = digits_model.n_nodes;
  profile p = {NULL, 0};
  onnxc_exec exec = {0};
  double total = 0;
  uint32_t k;
  p.rows = (row *)calloc(n, sizeof(row));
  if (!p.rows) return 1;
  for (k = 0; k < n; k++) p.rows[k].node = k;
  for (k = 0; k < DIGITS_IMAGE_LEN; k++) image[k] = (float)(k % 17);
  exec.struct_size = sizeof exec;
  exec.user = &p;
  exec.on_node = on_node;
  for (k = 0; k < CALLS; k++) {
    const int32_t status = digits_infer_exec(image, logits, workspace, &exec);
    if (status != ONNXC_OK) {
      fprintf(stderr, "digits_infer_exec: %s\n", onnxc_status_string(status));
      free(p.rows);
      return 1;
    }
  }
  for (k = 0; k < n; k++) total += p.rows[k].seconds;
  qsort(p.rows, n, sizeof(row), slowest_first);
  printf("%-12s %-20s %10s %7s %6s\n", "operator", "node", "us a call", "kernels", "part");
  for (k = 0; k < n && p.rows[k].calls; k++) {
    const onnxc_node_info *node = &digits_model.nodes[p.rows[k].node];
    printf("%-12s %-20s %10.3f %7.0f %5.1f%%\n", node->op_type, node->name, 1e6 * p.rows[k].seconds / CALLS,
           (double)p.rows[k].calls / CALLS, 100 * p.rows[k].seconds / total);
  }
  free(p.rows);
  return 0;
}
