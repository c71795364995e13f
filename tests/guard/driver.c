/* Calls one of the linked models, argv[1], with every buffer against inaccessible memory. argv[2] is its weights file, or
   empty; argv[3] the seconds that a call may take. All numbers on the pipes are int64, little endian; a text is its length
   and its bytes.

   In, for each request: flags (1: send the outputs back); for each input its name; if it is a tensor its rank, dimensions,
   elements; else a value. Elements are a number of bytes and the bytes; of strings their number and that many texts.
   A value is ONNXC_NONE; or ONNXC_TENSOR, dtype, rank, dimensions, elements; or ONNXC_SEQUENCE, number, values; or
   ONNXC_MAP, key dtype, dtype, number of entries, keys as elements, values as elements.

   Out, for each request: a verdict (a status of the interface, or one of those below), a text, the number of calls, the
   length of the outputs and the outputs: for each dtype, rank, dimensions, elements; or a value.

   Each request is called with all buffers at the end of accessible memory, and again with all at its beginning, another
   content of fresh memory, and tasks that run in reverse order. Both must agree in every byte of the outputs. Sizes that
   the model computes are asked for with no room for them first. */
#include "values.h"

enum { SIGNAL = -1, DISTURBED = -2, NEGATIVE = -3, ABSURD = -4, TOO_LARGE = -5, UNKNOWN_STATUS = -6, DIFFERENT = -7, MISUSE = -8 };
#define LARGEST ((uint64_t)1 << 30)

struct input {
  int64_t rank, *dims;
  struct elements data;
  struct value value;
};

static void put(int64_t v) { fwrite(&v, 1, sizeof v, stdout); }

/* ---- the call ---- */

static void reversed(void *user, size_t n, onnxc_task_fn fn, void *task) {
  (void)user;
  while (n > 0) fn(task, --n);
}

struct result {
  int64_t verdict;
  char text[400];
  int64_t calls;
};

static void verdict(struct result *r, int64_t v, const char *text, ...) {
  va_list args;
  va_start(args, text);
  vsnprintf(r->text, sizeof r->text, text, args);
  va_end(args);
  r->verdict = v;
}

static long seconds = 20;
static const char *weights_file = "";

/* Bytes of an array, or UINT64_MAX if that is no number that anybody has. */
static uint64_t array_bytes(int32_t dtype, const int64_t *dims, int32_t rank) {
  uint64_t n = 1;
  for (int32_t d = 0; d < rank; d++) {
    if (dims[d] < 0) return UINT64_MAX;
    if (dims[d] && n > LARGEST * 8 / (uint64_t)dims[d]) return UINT64_MAX;
    n *= (uint64_t)dims[d];
  }
  return (n * (uint64_t)bits(dtype) + 7) / 8;
}

static void *weights(const onnxc_model *m, struct placement p) {
  if (!m->weights_size) return NULL;
  FILE *f = fopen(weights_file, "rb");
  if (!f || fseek(f, 0, SEEK_END)) {
    fprintf(stderr, "no weights\n");
    exit(2);
  }
  size_t n = (size_t)ftell(f);
  rewind(f);
  struct region *r = place(n, m->weights_align, p.end, p.fill, "the weights");
  if (fread(r->data, 1, n, f) != n) exit(2);
  fclose(f);
  seal(r);
  return r->data;
}

/* The call with outputs of the sizes `room`; these become what the call says. Returns a status, or negative. */
static void call_once(const onnxc_model *m, const struct input *in, int64_t **room, struct placement p, uint64_t workspace, const void *blob, int tasks, struct result *res) {
  size_t first = n_regions;
  struct region *dims = place((size_t)m->n_dim_params * 8, 8, p.end, p.fill, "dim_params");
  struct region *inputs = place(m->n_inputs * sizeof(void *), 8, p.end, p.fill, "inputs[]");
  struct region *outputs = place(m->n_outputs * sizeof(void *), 8, p.end, p.fill, "outputs[]");
  struct region *lists = place(m->n_outputs * sizeof(void *), 8, p.end, p.fill, "out_dims[]");
  struct region **list = allocated(m->n_outputs * sizeof *list);
  struct region **out = allocated(m->n_outputs * sizeof *out);
  for (uint32_t i = 0; i < m->n_inputs; i++) {
    const onnxc_tensor_info *t = &m->inputs[i];
    char label[LABEL];
    snprintf(label, sizeof label, "input %.60s", t->name);
    const void *address;
    if (t->kind) {
      onnxc_value v = put_value(&in[i].value, p, label);
      struct region *r = place(sizeof v, 8, p.end, p.fill, "%s", label);
      memcpy(r->data, &v, sizeof v);
      seal(r);
      address = r->data;
    } else {
      for (int32_t d = 0; d < t->rank; d++)
        if (t->dims[d] < 0) memcpy(dims->data + (size_t)(-1 - t->dims[d]) * 8, &in[i].dims[d], 8);
      address = put_elements(&in[i].data, p, label);
    }
    memcpy(inputs->data + i * sizeof address, &address, sizeof address);
  }
  for (uint32_t k = 0; k < m->n_outputs; k++) {
    const onnxc_tensor_info *t = &m->outputs[k];
    const void *address;
    if (t->kind) {
      out[k] = place(sizeof(onnxc_value), 8, p.end, p.fill, "output %.60s", t->name);
    } else {
      int constant = 1;
      for (int32_t d = 0; d < t->rank; d++) constant &= t->dims[d] >= 0;
      out[k] = place((size_t)array_bytes(t->dtype, room[k], t->rank), alignment(t->dtype), p.end, p.fill, "output %.60s", t->name);
      if (!constant) {
        list[k] = place((size_t)t->rank * 8, 8, p.end, p.fill, "out_dims of %.60s", t->name);
        memcpy(list[k]->data, room[k], (size_t)t->rank * 8);
      }
    }
    address = out[k]->data;
    memcpy(outputs->data + k * sizeof address, &address, sizeof address);
    address = list[k] ? list[k]->data : NULL;
    memcpy(lists->data + k * sizeof address, &address, sizeof address);
  }
  struct region *ws = place((size_t)workspace, 64, p.end, p.fill, "the workspace");
  seal(dims);
  seal(inputs);
  seal(outputs);
  seal(lists);
  onnxc_exec exec;
  memset(&exec, 0, sizeof exec);
  exec.struct_size = sizeof exec;
  exec.parallel_for = reversed;
  exec.max_tasks = 3;
  res->calls++;
  caught_signal = 0;
  if (sigsetjmp(after_signal, 1) == 0) {
    alarm_in(seconds);
    int32_t s = m->call((const void *const *)inputs->data, (void *const *)outputs->data, (const int64_t *)dims->data, (int64_t *const *)lists->data, blob, ws->data, tasks ? &exec : NULL);
    alarm_in(0);
    verdict(res, s, "");
    if (s < 0 || s > 9) verdict(res, UNKNOWN_STATUS, "the call returns %d", s);
    const struct region *d = disturbed();
    if (d) verdict(res, DISTURBED, "a write beside %s of %zu bytes, with status %d", d->label, d->size, s);
    reply_length = 0;
    for (uint32_t k = 0; k < m->n_outputs; k++) {
      const onnxc_tensor_info *t = &m->outputs[k];
      if (list[k]) {
        int64_t *now = allocated((size_t)t->rank * 8);
        memcpy(now, list[k]->data, (size_t)t->rank * 8);
        for (int32_t x = 0; x < t->rank; x++)
          if (now[x] < 0) verdict(res, NEGATIVE, "dimension %d of output %.60s is %lld, with status %d", x, t->name, (long long)now[x], s);
        if (s == 0 && res->verdict == 0 && array_bytes(t->dtype, now, t->rank) > out[k]->size)
          verdict(res, MISUSE, "output %.60s is told to have more bytes than the %zu there was room for", t->name, out[k]->size);
        memcpy(room[k], now, (size_t)t->rank * 8);
        free(now);
      }
      if (res->verdict) continue;
      if (t->kind) {
        onnxc_value v;
        memcpy(&v, out[k]->data, sizeof v);
        append_value(&v);
      } else {
        int64_t n = 1;
        append_number(t->dtype);
        append_number(t->rank);
        for (int32_t x = 0; x < t->rank; x++) {
          append_number(room[k][x]);
          n *= room[k][x];
        }
        append_elements(t->dtype, out[k]->data, n);
      }
    }
  } else {
    alarm_in(0);
    res->verdict = SIGNAL;
    describe_fault(res->text, sizeof res->text);
  }
  free(list);
  free(out);
  release_from(first);
}

/* workspace_for, the first call without room for sizes that the model computes, and as many as it then takes. */
static void call_all(const onnxc_model *m, const struct input *in, struct placement p, int tasks, struct result *res) {
  size_t first = n_regions;
  struct region *dims = place((size_t)m->n_dim_params * 8, 8, p.end, p.fill, "dim_params");
  for (uint32_t i = 0; i < m->n_inputs; i++)
    for (int32_t d = 0; !m->inputs[i].kind && d < m->inputs[i].rank; d++)
      if (m->inputs[i].dims[d] < 0) memcpy(dims->data + (size_t)(-1 - m->inputs[i].dims[d]) * 8, &in[i].dims[d], 8);
  int64_t *params = allocated((size_t)m->n_dim_params * 8);
  if (m->n_dim_params) memcpy(params, dims->data, (size_t)m->n_dim_params * 8);
  seal(dims);
  struct region *size = place(8, 8, p.end, p.fill, "the word for workspace_for");
  uint64_t workspace = 0;
  int64_t **room = allocated(m->n_outputs * sizeof *room);
  caught_signal = 0;
  if (sigsetjmp(after_signal, 1) == 0) {
    alarm_in(seconds);
    int32_t s = m->workspace_for((const int64_t *)dims->data, (uint64_t *)size->data);
    alarm_in(0);
    verdict(res, s, s ? "workspace_for" : "");
    if (s == 0) memcpy(&workspace, size->data, 8);
    if (s == 0 && workspace >= (uint64_t)1 << 60) verdict(res, ABSURD, "workspace_for asks for %llu bytes", (unsigned long long)workspace);
    if (s < 0 || s > 9) verdict(res, UNKNOWN_STATUS, "workspace_for returns %d", s);
    const struct region *d = disturbed();
    if (d) verdict(res, DISTURBED, "workspace_for writes beside %s", d->label);
  } else {
    alarm_in(0);
    res->verdict = SIGNAL;
    strcpy(res->text, "workspace_for: ");
    describe_fault(res->text + strlen(res->text), sizeof res->text - strlen(res->text));
  }
  if (res->verdict < 0) goto done;
  if (workspace > LARGEST) {
    verdict(res, TOO_LARGE, "workspace of %llu bytes", (unsigned long long)workspace);
    goto done;
  }
  int64_t refused = res->verdict;
  for (uint32_t k = 0; k < m->n_outputs; k++) {
    const onnxc_tensor_info *t = &m->outputs[k];
    room[k] = allocated(t->kind ? 0 : (size_t)t->rank * 8);
    for (int32_t d = 0; !t->kind && d < t->rank; d++) room[k][d] = t->dims[d] >= 0 ? t->dims[d] : t->dims[d] == INT64_MIN || refused ? 0 : params[-1 - t->dims[d]];
    if (!t->kind && !refused && array_bytes(t->dtype, room[k], t->rank) > LARGEST) {
      verdict(res, TOO_LARGE, "output %.60s", t->name);
      goto done;
    }
  }
  const void *blob = weights(m, p);
  /* Each call may tell the sizes of one output more. */
  for (uint32_t n = 0; n < m->n_outputs + 4; n++) {
    int more = 0;
    int64_t **before = allocated(m->n_outputs * sizeof *before);
    for (uint32_t k = 0; k < m->n_outputs; k++) {
      size_t bytes = m->outputs[k].kind ? 0 : (size_t)m->outputs[k].rank * 8;
      before[k] = allocated(bytes);
      if (bytes) memcpy(before[k], room[k], bytes);
    }
    call_once(m, in, room, p, workspace, blob, tasks, res);
    for (uint32_t k = 0; k < m->n_outputs; k++) {
      const onnxc_tensor_info *t = &m->outputs[k];
      for (int32_t d = 0; !t->kind && d < t->rank; d++) more |= room[k][d] > before[k][d];
      free(before[k]);
      if (res->verdict == ONNXC_E_CAPACITY && !refused && !t->kind && array_bytes(t->dtype, room[k], t->rank) > LARGEST) verdict(res, TOO_LARGE, "output %.60s", t->name);
    }
    free(before);
    if (refused && res->verdict == 0) verdict(res, MISUSE, "the call succeeds where workspace_for returns %lld", (long long)refused);
    /* Where no size became larger, it is the workspace that is too small. */
    if (refused || res->verdict != ONNXC_E_CAPACITY || !more) goto done;
  }
done:
  for (uint32_t k = 0; k < m->n_outputs; k++) free(room[k]);
  free(room);
  free(params);
  release_from(first);
}

static struct input *get_inputs(const onnxc_model *m) {
  struct input *in = allocated(m->n_inputs * sizeof *in);
  if ((uint64_t)number() != m->n_inputs) {
    fprintf(stderr, "the model has %u inputs\n", m->n_inputs);
    exit(2);
  }
  for (uint32_t i = 0; i < m->n_inputs; i++) {
    const onnxc_tensor_info *t = &m->inputs[i];
    size_t n = (size_t)number();
    char *name = allocated(n + 1);
    get(name, n);
    if (strcmp(name, t->name)) {
      fprintf(stderr, "input %u is %s, not %s\n", i, t->name, name);
      exit(2);
    }
    free(name);
    if (t->kind) {
      in[i].value = get_value();
      continue;
    }
    in[i].rank = number();
    in[i].dims = numbers(in[i].rank);
    in[i].data = get_elements(t->dtype);
    for (int32_t d = 0; d < t->rank; d++)
      if (in[i].rank != t->rank || (t->dims[d] >= 0 && t->dims[d] != in[i].dims[d])) {
        fprintf(stderr, "input %s has other dimensions\n", t->name);
        exit(2);
      }
  }
  return in;
}

int main(int argc, char **argv) {
  const onnxc_model *m = NULL;
  for (size_t i = 0; argc == 4 && i < sizeof cases / sizeof *cases; i++)
    if (!strcmp(cases[i].name, argv[1])) m = cases[i].model;
  if (!m) {
    fprintf(stderr, "no such model\n");
    return 2;
  }
  weights_file = argv[2];
  seconds = atol(argv[3]);
  catch_signals();
  int64_t flags;
  while (get_or_end(&flags, sizeof flags)) {
    struct input *in = get_inputs(m);
    struct result res = {0}, again = {0};
    call_all(m, in, (struct placement){1, 0xa5}, 0, &res);
    size_t n = res.verdict == 0 ? reply_length : 0;
    uint8_t *kept = allocated(n);
    if (n) memcpy(kept, reply, n);
    if (res.verdict >= 0) {
      call_all(m, in, (struct placement){0, 0x5a}, 1, &again);
      if (again.verdict != res.verdict)
        verdict(&res, again.verdict < 0 ? again.verdict : DIFFERENT, "%s (the second call; the first returned %lld)", again.text, (long long)res.verdict);
      else if (n && (reply_length != n || memcmp(kept, reply, n)))
        verdict(&res, DIFFERENT, "other outputs with other memory and tasks");
      res.calls += again.calls;
    }
    put(res.verdict);
    put((int64_t)strlen(res.text));
    fwrite(res.text, 1, strlen(res.text), stdout);
    put(res.calls);
    n = res.verdict == 0 && flags & 1 ? n : 0;
    put((int64_t)n);
    fwrite(kept, 1, n, stdout);
    fflush(stdout);
    free(kept);
    for (uint32_t i = 0; i < m->n_inputs; i++) {
      free(in[i].dims);
      free_elements(&in[i].data);
      free_value(&in[i].value);
    }
    free(in);
  }
  return 0;
}
