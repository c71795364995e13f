/* What a driver reads from standard input: bytes, and int64 as they are in memory. An input that ends early ends the program. */
#ifndef INPUT_H
#define INPUT_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void get(void *to, size_t n) {
  if (n && fread(to, 1, n, stdin) != n) {
    fprintf(stderr, "the input ends early\n");
    exit(2);
  }
}

static int64_t number(void) {
  int64_t v;
  get(&v, sizeof v);
  return v;
}

#endif
