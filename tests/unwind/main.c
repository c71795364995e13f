/* Unwinds to main out of a call of the digits network: on x86-64 from every instruction, by the trap flag;
   elsewhere by a timer. Also from on_node. With an argument, the network is a shared library. */
#define _GNU_SOURCE
#include "digits.h"
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unwind.h>

static ONNXC_ALIGNAS(DIGITS_WORKSPACE_ALIGN) unsigned char workspace[DIGITS_WORKSPACE_SIZE];
static volatile sig_atomic_t inside;
static volatile long sampled, lost, nodes;

int main(int argc, char **argv);

static _Unwind_Reason_Code frame(struct _Unwind_Context *c, void *found) {
  if (_Unwind_FindEnclosingFunction((void *)(_Unwind_GetIP(c) - 1)) != (void *)main) return _URC_NO_REASON;
  *(int *)found = 1;
  return _URC_END_OF_STACK;
}

static int reaches_main(void) {
  int found = 0;
  _Unwind_Backtrace(frame, &found);
  return found;
}

#ifdef __x86_64__
#include <ucontext.h>
static unsigned char seen[1 << 22];

static void sample(int s, siginfo_t *i, void *context) {
  greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
  size_t at = (size_t)r[REG_RIP] % sizeof seen;
  (void)s;
  (void)i;
  if (!inside) {
    r[REG_EFL] &= ~0x100L;
  } else if (!seen[at]) {
    seen[at] = 1;
    sampled++;
    if (!reaches_main()) {
      lost++;
      printf("lost at %#lx of the call\n", (unsigned long)r[REG_RIP]);
    }
  }
}

static void start(void) {
  inside = 1;
  __asm__ volatile("sub $128, %%rsp; pushfq; orq $0x100, (%%rsp); popfq; add $128, %%rsp" ::: "cc", "memory");
}
#else
static void sample(int s, siginfo_t *i, void *context) {
  (void)s;
  (void)i;
  (void)context;
  if (inside) {
    sampled++;
    lost += !reaches_main();
  }
}

static void start(void) { inside = 1; }
#endif

static int32_t on_node(void *user, uint32_t node, int32_t end) {
  (void)user;
  (void)node;
  (void)end;
  nodes++;
  lost += !reaches_main();
  return 0;
}

int main(int argc, char **argv) {
  static float image[DIGITS_IMAGE_LEN];
  static float logits[DIGITS_LOGITS_LEN];
  const void *in[1] = {image};
  void *out[1] = {logits};
  struct sigaction action;
  onnxc_exec exec;
  int round, status = 0;
#ifdef SHARED
  void *library = dlopen(argv[1], RTLD_NOW);
  const onnxc_model *model = library ? (const onnxc_model *)dlsym(library, "digits_model") : NULL;
  if (argc != 2 || !model) return 3;
#else
  const onnxc_model *model = &digits_model;
  (void)argc;
  (void)argv;
#endif
  memset(&exec, 0, sizeof exec);
  exec.struct_size = sizeof exec;
  exec.on_node = on_node;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = sample;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  status |= model->call(in, out, NULL, NULL, NULL, workspace, &exec);
#ifdef __x86_64__
  sigaction(SIGTRAP, &action, NULL);
  for (round = 0; round < 1; round++) {
#else
  struct itimerval every = {{0, 500}, {0, 500}};
  sigaction(SIGALRM, &action, NULL);
  setitimer(ITIMER_REAL, &every, NULL);
  for (round = 0; sampled < 200 && round < 100000; round++) {
#endif
    start();
    status |= model->call(in, out, NULL, NULL, NULL, workspace, NULL);
    inside = 0;
  }
  printf("status %d: %ld samples, %ld nodes, %ld lost\n", status, sampled, nodes, lost);
  return status != 0 || lost != 0 || nodes == 0 || sampled < 100;
}
