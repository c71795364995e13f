/* Complex numbers of the language in, the same out: the structs of the header lie in memory as they do. Compiles as C and as
   C++. */
#ifdef __cplusplus
#include <complex>
typedef std::complex<float> number;
#define RE(z) ((double)(z).real())
#define IM(z) ((double)(z).imag())
#else
#include <complex.h>
typedef float _Complex number;
#define RE(z) ((double)crealf(z))
#define IM(z) ((double)cimagf(z))
#endif
#include "spectrum.h"
#include <stdio.h>
#include <string.h>

int main(void) {
  static ONNXC_ALIGNAS(SPECTRUM_WORKSPACE_ALIGN) uint8_t workspace[SPECTRUM_WORKSPACE_SIZE + 1];
  const float parts[6] = {1, 2, 3, 4, 5, 6};
  const onnxc_complex128 ends[2] = {{0.5, -1}, {7, 8}};
  onnxc_complex128 all[4];
  number x[3], reversed[3];
  memcpy(x, parts, sizeof x);
  if (spectrum_infer(3, (const onnxc_complex64 *)x, ends, (onnxc_complex64 *)reversed, all, workspace)) return 1;
  for (int i = 0; i < 3; i++) printf("%g%+gi ", RE(reversed[i]), IM(reversed[i]));
  for (unsigned i = 0; i < SPECTRUM_ALL_LEN; i++) printf("%g%+gi ", all[i].re, all[i].im);
  printf("\n");
  return 0;
}
