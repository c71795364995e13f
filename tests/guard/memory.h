/* Buffers between inaccessible pages, and calls that survive the signals of stray accesses. */
#ifndef GUARD_MEMORY_H
#define GUARD_MEMORY_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

enum { PAGE = 4096, GUARD = 1 << 20, MAX_REGIONS = 4096, LABEL = 80 };

struct region {
  char label[LABEL];
  uint8_t *map;    /* GUARD bytes, `pages` bytes, GUARD bytes */
  size_t pages;
  uint8_t *data;   /* the buffer, inside the pages */
  size_t size;
  uint8_t fill;    /* what the rest of the pages holds */
};

static struct region regions[MAX_REGIONS];
static size_t n_regions;

/* A buffer that ends (or, if not `end`, begins) at an inaccessible page. One whose size is no multiple of its alignment ends
   less than `align` bytes before the page. A buffer of no bytes lies in inaccessible memory. */
static struct region *place(size_t size, size_t align, int end, uint8_t fill, const char *label, ...) {
  if (n_regions == MAX_REGIONS) {
    fprintf(stderr, "too many buffers\n");
    exit(2);
  }
  struct region *r = &regions[n_regions++];
  va_list args;
  va_start(args, label);
  vsnprintf(r->label, LABEL, label, args);
  va_end(args);
  r->size = size;
  r->fill = fill;
  r->pages = (size + PAGE - 1) / PAGE * PAGE;
  r->map = mmap(NULL, r->pages + 2 * (size_t)GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (r->map == MAP_FAILED || (r->pages && mprotect(r->map + GUARD, r->pages, PROT_READ | PROT_WRITE))) {
    fprintf(stderr, "no memory for %s, %zu bytes\n", r->label, size);
    exit(3);
  }
  r->data = r->map + GUARD;
  if (end) r->data += (r->pages - size) / align * align;
  if (r->pages) memset(r->map + GUARD, fill, r->pages);
  return r;
}

/* From here on nobody may write to it. */
static void seal(struct region *r) {
  if (r->pages) mprotect(r->map + GUARD, r->pages, PROT_READ);
}

static void release_from(size_t first) {
  while (n_regions > first) {
    n_regions--;
    munmap(regions[n_regions].map, regions[n_regions].pages + 2 * (size_t)GUARD);
  }
}

/* The first region with a changed byte beside its buffer, or NULL. */
static const struct region *disturbed(void) {
  for (size_t i = 0; i < n_regions; i++) {
    const struct region *r = &regions[i];
    for (const uint8_t *p = r->map + GUARD; p < r->data; p++)
      if (*p != r->fill) return r;
    for (const uint8_t *p = r->data + r->size; p < r->map + GUARD + r->pages; p++)
      if (*p != r->fill) return r;
  }
  return NULL;
}

static sigjmp_buf after_signal;
static volatile int caught_signal;
static uint8_t *volatile fault_address;
static volatile int fault_writes; /* 1, 0, or -1: unknown */
static void *volatile fault_code;

static void on_signal(int number, siginfo_t *info, void *context) {
  const ucontext_t *c = context;
  fault_address = info->si_addr;
  fault_writes = -1;
  fault_code = NULL;
#if defined(__x86_64__)
  fault_writes = (int)(c->uc_mcontext.gregs[REG_ERR] >> 1 & 1);
  fault_code = (void *)c->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  fault_code = (void *)c->uc_mcontext.pc;
#elif defined(__riscv)
  fault_code = (void *)c->uc_mcontext.__gregs[0];
#endif
  caught_signal = number;
  siglongjmp(after_signal, 1);
}

static void catch_signals(void) {
  static uint8_t stack[1 << 16];
  stack_t alternative = {.ss_sp = stack, .ss_size = sizeof stack};
  sigaltstack(&alternative, NULL);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGALRM};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sigaction(numbers[i], &action, NULL);
}

static void alarm_in(long seconds) {
  struct itimerval t = {{0, 0}, {seconds, 0}};
  setitimer(ITIMER_REAL, &t, NULL);
}

/* What the last signal was about. */
static void describe_fault(char *text, size_t n) {
  if (caught_signal == SIGALRM) {
    snprintf(text, n, "hangs code=%p", fault_code);
    return;
  }
  const char *name = caught_signal == SIGSEGV ? "SIGSEGV" : caught_signal == SIGFPE ? "SIGFPE" : caught_signal == SIGBUS ? "SIGBUS" : caught_signal == SIGILL ? "SIGILL" : caught_signal == SIGTRAP ? "SIGTRAP" : "SIGABRT";
  int at = snprintf(text, n, "%s code=%p", name, fault_code);
  if ((caught_signal != SIGSEGV && caught_signal != SIGBUS) || at < 0 || (size_t)at >= n) return;
  text += at;
  n -= (size_t)at;
  const char *how = fault_writes == 1 ? "write" : fault_writes == 0 ? "read" : "access";
  for (size_t i = 0; i < n_regions; i++) {
    const struct region *r = &regions[i];
    const uint8_t *p = fault_address;
    if (p < r->map || p >= r->map + r->pages + 2 * (size_t)GUARD) continue;
    if (p < r->data)
      snprintf(text, n, " %s %zd bytes before %s of %zu bytes", how, r->data - p, r->label, r->size);
    else if (p < r->data + r->size)
      snprintf(text, n, " %s in %s, which is read-only", how, r->label);
    else
      snprintf(text, n, " %s %zd bytes behind the end of %s of %zu bytes", how, p - r->data - (ptrdiff_t)r->size, r->label, r->size);
    return;
  }
  snprintf(text, n, " %s at %p, which is near no buffer", how, (void *)fault_address);
}
#endif
