/* Strings in, strings out: every call keeps them in its inputs and in its workspace. */
#include "greet.h"
#include <stdio.h>
#include <stdlib.h>

int main(void) {
  const onnxc_str names[2] = {{"w\303\266rld", 6}, {"you there", 3}};
  onnxc_str text[2], words[8];
  uint8_t is_long[2];
  int64_t words_dims[2] = {2, 4};
  uint64_t bytes;
  if (greet_workspace_size(2, &bytes)) return 1;
  void *workspace = aligned_alloc(64, (size_t)bytes);
  if (!workspace) return 2;
  const int32_t status = greet_infer(2, names, text, words, is_long, words_dims, workspace);
  if (status) {
    fprintf(stderr, "%s\n", onnxc_status_string(status));
    return 3;
  }
  for (int i = 0; i < 2; i++) printf("%.*s|", (int)text[i].len, text[i].data);
  for (int64_t i = 0; i < words_dims[0] * words_dims[1]; i++) printf("%.*s;", (int)words[i].len, words[i].data);
  printf("|%d%d\n", is_long[0], is_long[1]);
  free(workspace);
  return 0;
}
