/* Reads handwritten digits with a compiled network and compares with what they are. C99; no library but stdio. */
#include "digits.h"
#include "samples.h"
#include <stdio.h>

/* Everything the call writes besides its output. One per thread that runs the model. */
static ONNXC_ALIGNAS(DIGITS_WORKSPACE_ALIGN) unsigned char workspace[DIGITS_WORKSPACE_SIZE];

static int best(const float *v, int n) {
  int k, b = 0;
  for (k = 1; k < n; k++)
    if (v[k] > v[b]) b = k;
  return b;
}

int main(void) {
  int k, wrong = 0;
  for (k = 0; k < SAMPLES; k++) {
    float image[DIGITS_IMAGE_LEN], logits[DIGITS_LOGITS_LEN];
    size_t i;
    int digit;
    int32_t status;
    for (i = 0; i < DIGITS_IMAGE_LEN; i++) image[i] = (float)samples[k].pixels[i];
    status = digits_infer(image, logits, workspace);
    if (status != ONNXC_OK) {
      fprintf(stderr, "digits_infer: %s\n", onnxc_status_string(status));
      return 1;
    }
    digit = best(logits, (int)DIGITS_LOGITS_LEN);
    printf("image %d: %d (score %5.1f)%s\n", k, digit, (double)logits[digit], digit == samples[k].label ? "" : "  WRONG");
    wrong += digit != samples[k].label;
  }
  printf("%d of %d right\n", SAMPLES - wrong, SAMPLES);
  return wrong != 0;
}
