/* Continues a text with a compiled language model, byte by byte.

       talk [PROMPT [BYTES [TEMPERATURE [SEED]]]]

   The caches of the model lie in `state` and stay there (--alias): a call stores what its bytes add, behind the `past`
   positions that are in use. When they are full, they are filled anew with the last half of the text. */
#include "llm.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CAPACITY = LLM_PAST_MAX };

static float state[6][LLM_PRESENT_0_KEY_LEN];
static float logits[LLM_LOGITS_LEN];

static double random_number(uint64_t *seed) {
  *seed ^= *seed << 13;
  *seed ^= *seed >> 7;
  *seed ^= *seed << 17;
  return (double)(*seed >> 11) / 9007199254740992.0;
}

/* A byte by its probability; the likeliest one at temperature 0. */
static int choose(double temperature, uint64_t *seed) {
  double sum = 0.0, p[LLM_LOGITS_LEN];
  int best = 0;
  for (int i = 1; i < (int)LLM_LOGITS_LEN; i++) {
    if (logits[i] > logits[best]) best = i;
  }
  if (temperature <= 0.0) return best;
  for (int i = 0; i < (int)LLM_LOGITS_LEN; i++) sum += p[i] = exp((double)(logits[i] - logits[best]) / temperature);
  sum *= random_number(seed);
  for (int i = 0; i < (int)LLM_LOGITS_LEN; i++) {
    sum -= p[i];
    if (sum < 0.0) return i;
  }
  return best;
}

/* Takes `n` bytes behind `past` ones; the logits of the next byte. */
static int32_t step(int64_t n, int64_t past, const uint8_t *text, void *workspace) {
  return llm_infer(n, past, text, state[0], state[1], state[2], state[3], state[4], state[5], logits, state[0], state[1], state[2],
                   state[3], state[4], state[5], workspace);
}

int main(int argc, char **argv) {
  const char *prompt = argc > 1 ? argv[1] : "The compiler ";
  const long bytes = argc > 2 ? strtol(argv[2], NULL, 10) : 400;
  const double temperature = argc > 3 ? strtod(argv[3], NULL) : 0.5;
  uint64_t seed = (argc > 4 ? strtoull(argv[4], NULL, 10) : 1) * 2654435769u + 1;
  uint8_t text[CAPACITY];
  const size_t length = strlen(prompt);
  int64_t past = (int64_t)length;
  int32_t rc;
  void *workspace;
  if (length < 1 || length >= CAPACITY) {
    fprintf(stderr, "a prompt has from 1 to %d bytes\n", CAPACITY - 1);
    return 1;
  }
  /* One size that is enough for a prompt and for single bytes. */
  workspace = aligned_alloc(LLM_WORKSPACE_ALIGN, (LLM_WORKSPACE_MAX_SIZE + 63) / 64 * 64);
  if (workspace == NULL) {
    fprintf(stderr, "no memory\n");
    return 1;
  }
  memcpy(text, prompt, length);
  fputs(prompt, stdout);
  rc = step(past, 0, text, workspace);
  for (long i = 0; i < bytes && rc == ONNXC_OK; i++) {
    text[past] = (uint8_t)choose(temperature, &seed);
    putchar(text[past]);
    fflush(stdout);
    rc = step(1, past, text + past, workspace);
    if (++past == CAPACITY && rc == ONNXC_OK) {
      past = CAPACITY / 2;
      memmove(text, text + CAPACITY - past, (size_t)past);
      rc = step(past, 0, text, workspace);
    }
  }
  putchar('\n');
  free(workspace);
  if (rc != ONNXC_OK) {
    fprintf(stderr, "llm_infer: %s\n", onnxc_status_string(rc));
    return 1;
  }
  return 0;
}
