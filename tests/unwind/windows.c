/* Unwinds to main out of a call of the digits network with the tables of Windows: from every instruction, by
   the trap flag, and from on_node. */
#include "digits.h"
#include <stdio.h>
#include <string.h>
#include <windows.h>

static ONNXC_ALIGNAS(DIGITS_WORKSPACE_ALIGN) unsigned char workspace[DIGITS_WORKSPACE_SIZE];
static unsigned char seen[1 << 22];
static volatile long sampled, lost, nodes;
static volatile int inside;

int main(void);

static int reaches_main(CONTEXT at) {
  DWORD64 base, begin = 0;
  RUNTIME_FUNCTION *own = RtlLookupFunctionEntry((DWORD64)main, &base, NULL);
  int depth;
  if (own) begin = base + own->BeginAddress;
  for (depth = 0; depth < 64 && at.Rip; depth++) {
    RUNTIME_FUNCTION *f = RtlLookupFunctionEntry(at.Rip, &base, NULL);
    if (f && base + f->BeginAddress == begin) return 1;
    if (f) {
      void *handler;
      DWORD64 frame;
      RtlVirtualUnwind(UNW_FLAG_NHANDLER, base, at.Rip, f, &at, &handler, &frame, NULL);
    } else {
      at.Rip = *(DWORD64 *)at.Rsp;
      at.Rsp += 8;
    }
  }
  return 0;
}

static LONG CALLBACK step(EXCEPTION_POINTERS *e) {
  CONTEXT *c = e->ContextRecord;
  if (e->ExceptionRecord->ExceptionCode != EXCEPTION_SINGLE_STEP) return EXCEPTION_CONTINUE_SEARCH;
  if (!inside) {
    c->EFlags &= ~0x100u;
    return EXCEPTION_CONTINUE_EXECUTION;
  }
  if (!seen[c->Rip % sizeof seen]) {
    seen[c->Rip % sizeof seen] = 1;
    sampled++;
    if (!reaches_main(*c)) {
      lost++;
      printf("lost at %#llx of the call\n", (unsigned long long)c->Rip);
    }
  }
  c->EFlags |= 0x100u;
  return EXCEPTION_CONTINUE_EXECUTION;
}

static int32_t on_node(void *user, uint32_t node, int32_t end) {
  CONTEXT here;
  (void)user;
  (void)node;
  (void)end;
  RtlCaptureContext(&here);
  nodes++;
  lost += !reaches_main(here);
  return 0;
}

int main(void) {
  static float image[DIGITS_IMAGE_LEN];
  static float logits[DIGITS_LOGITS_LEN];
  const void *in[1] = {image};
  void *out[1] = {logits};
  onnxc_exec exec;
  int status = 0;
  memset(&exec, 0, sizeof exec);
  exec.struct_size = sizeof exec;
  exec.on_node = on_node;
  status |= digits_model.call(in, out, NULL, NULL, NULL, workspace, &exec);
  AddVectoredExceptionHandler(1, step);
  inside = 1;
  __asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "cc", "memory");
  status |= digits_model.call(in, out, NULL, NULL, NULL, workspace, NULL);
  inside = 0;
  printf("status %d: %ld samples, %ld nodes, %ld lost\n", status, sampled, nodes, lost);
  return status != 0 || lost != 0 || nodes == 0 || sampled < 100;
}
