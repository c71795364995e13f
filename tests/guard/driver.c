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
#include "memory.h"
#include "cases.h"

enum { SIGNAL = -1, DISTURBED = -2, NEGATIVE = -3, ABSURD = -4, TOO_LARGE = -5, UNKNOWN_STATUS = -6, DIFFERENT = -7, MISUSE = -8 };
enum { MOST_RETRIES = 16 };
#define LARGEST ((uint64_t)1 << 30)

struct elements {
  int32_t dtype;
  size_t bytes;     /* of numbers: of `data`; of strings: of the structs */
  uint8_t *data;    /* numbers; bytes of all strings */
  size_t text;      /* of strings: bytes of `data` */
  int64_t *lengths; /* of strings */
};

struct value {
  int64_t kind, dtype, key_dtype, n; /* n: rank, items or entries */
  int64_t *dims;
  struct elements data, keys;
  struct value *items;
};

struct input {
  int64_t rank, *dims;
  struct elements data;
  struct value value;
};

/* ---- what comes in ---- */

static int get_or_end(void *to, size_t n) {
  size_t have = n ? fread(to, 1, n, stdin) : 0;
  if (have == 0 && n) return 0;
  if (have != n) {
    fprintf(stderr, "the input ends early\n");
    exit(2);
  }
  return 1;
}

static void *allocated(size_t n) {
  void *p = calloc(n ? n : 1, 1);
  if (!p) exit(3);
  return p;
}

static void get(void *to, size_t n) {
  if (n && !get_or_end(to, n)) {
    fprintf(stderr, "the input ends early\n");
    exit(2);
  }
}

static int64_t number(void) {
  int64_t v;
  get(&v, sizeof v);
  return v;
}

static int64_t *numbers(int64_t n) {
  int64_t *p = allocated((size_t)n * sizeof *p);
  get(p, (size_t)n * sizeof *p);
  return p;
}

static struct elements get_elements(int32_t dtype) {
  struct elements e = {.dtype = dtype};
  if (dtype != ONNXC_STR) {
    e.bytes = (size_t)number();
    e.data = allocated(e.bytes);
    get(e.data, e.bytes);
    return e;
  }
  size_t n = (size_t)number(), room = 0;
  e.bytes = n * sizeof(onnxc_str);
  e.lengths = allocated(n * sizeof *e.lengths);
  for (size_t i = 0; i < n; i++) {
    e.lengths[i] = number();
    size_t len = (size_t)e.lengths[i];
    if (e.text + len > room) {
      room = 2 * (e.text + len);
      e.data = realloc(e.data, room);
      if (!e.data) exit(3);
    }
    get(e.data + e.text, len);
    e.text += len;
  }
  return e;
}

static struct value get_value(void) {
  struct value v = {.kind = number()};
  switch (v.kind) {
  case ONNXC_TENSOR:
    v.dtype = number();
    v.n = number();
    v.dims = numbers(v.n);
    v.data = get_elements((int32_t)v.dtype);
    break;
  case ONNXC_SEQUENCE:
    v.n = number();
    v.items = allocated((size_t)v.n * sizeof *v.items);
    for (int64_t i = 0; i < v.n; i++) v.items[i] = get_value();
    break;
  case ONNXC_MAP:
    v.key_dtype = number();
    v.dtype = number();
    v.n = number();
    v.keys = get_elements((int32_t)v.key_dtype);
    v.data = get_elements((int32_t)v.dtype);
    break;
  default: break;
  }
  return v;
}

static void free_elements(struct elements *e) {
  free(e->data);
  free(e->lengths);
}

static void free_value(struct value *v) {
  for (int64_t i = 0; v->items && i < v->n; i++) free_value(&v->items[i]);
  free(v->dims);
  free(v->items);
  free_elements(&v->data);
  free_elements(&v->keys);
}

/* ---- where it lies ---- */

struct placement {
  int end;
  uint8_t fill;
};

static int bits(int32_t dtype) {
  switch (dtype) {
  case 25: case 26: return 2;
  case 21: case 22: case 23: return 4;
  case 4: case 5: case 10: case 16: return 16;
  case 1: case 6: case 12: return 32;
  case 7: case 11: case 13: case 14: return 64;
  case ONNXC_STR: case 15: return 128;
  default: return 8;
  }
}

/* Alignment of an element: complex numbers have that of their parts. */
static size_t alignment(int32_t dtype) {
  switch (dtype) {
  case 14: return 4;
  case 15: case ONNXC_STR: return 8;
  default: return bits(dtype) < 8 ? 1 : (size_t)bits(dtype) / 8;
  }
}

static const void *put_elements(const struct elements *e, struct placement p, const char *label) {
  if (e->dtype != ONNXC_STR) {
    struct region *r = place(e->bytes, alignment(e->dtype), p.end, p.fill, "%s", label);
    if (e->bytes) memcpy(r->data, e->data, e->bytes);
    seal(r);
    return r->data;
  }
  struct region *text = place(e->text, 1, p.end, p.fill, "text of %s", label);
  if (e->text) memcpy(text->data, e->data, e->text);
  seal(text);
  struct region *r = place(e->bytes, alignment(ONNXC_STR), p.end, p.fill, "%s", label);
  const uint8_t *at = text->data;
  for (size_t i = 0; i < e->bytes / sizeof(onnxc_str); i++) {
    onnxc_str s = {.data = e->lengths[i] ? (const char *)at : (const char *)1, .len = e->lengths[i]};
    memcpy(r->data + i * sizeof s, &s, sizeof s);
    at += e->lengths[i];
  }
  seal(r);
  return r->data;
}

static onnxc_value put_value(const struct value *v, struct placement p, const char *label) {
  onnxc_value out;
  memset(&out, 0, sizeof out);
  out.kind = (int32_t)v->kind;
  out.dtype = (int32_t)v->dtype;
  out.key_dtype = (int32_t)v->key_dtype;
  if (v->kind == ONNXC_TENSOR) {
    struct region *dims = place((size_t)v->n * 8, 8, p.end, p.fill, "dims in %s", label);
    if (v->n) memcpy(dims->data, v->dims, (size_t)v->n * 8);
    seal(dims);
    out.rank = (int32_t)v->n;
    out.dims = (const int64_t *)dims->data;
    out.data = put_elements(&v->data, p, label);
  } else if (v->kind == ONNXC_SEQUENCE) {
    struct region *items = place((size_t)v->n * sizeof out, 8, p.end, p.fill, "items of %s", label);
    for (int64_t i = 0; i < v->n; i++) {
      onnxc_value item = put_value(&v->items[i], p, label);
      memcpy(items->data + (size_t)i * sizeof item, &item, sizeof item);
    }
    seal(items);
    out.len = v->n;
    out.items = (const onnxc_value *)items->data;
  } else if (v->kind == ONNXC_MAP) {
    out.len = v->n;
    out.keys = put_elements(&v->keys, p, label);
    out.data = put_elements(&v->data, p, label);
  }
  return out;
}

/* ---- what goes out ---- */

static uint8_t *reply;
static size_t reply_length, reply_room;

static void append(const void *p, size_t n) {
  if (reply_length + n > reply_room) {
    reply_room = 2 * (reply_length + n);
    reply = realloc(reply, reply_room);
    if (!reply) exit(3);
  }
  if (n) memcpy(reply + reply_length, p, n);
  reply_length += n;
}

static void append_number(int64_t v) { append(&v, sizeof v); }

/* Elements in dense bytes: those of strings are the texts. */
static void append_elements(int32_t dtype, const void *data, int64_t n) {
  if (dtype != ONNXC_STR) {
    size_t bytes = ((size_t)n * (size_t)bits(dtype) + 7) / 8;
    append_number((int64_t)bytes);
    append(data, bytes);
    return;
  }
  append_number(n);
  for (int64_t i = 0; i < n; i++) {
    onnxc_str s;
    memcpy(&s, (const uint8_t *)data + (size_t)i * sizeof s, sizeof s);
    append_number(s.len);
    append(s.data, (size_t)s.len);
  }
}

static void append_value(const onnxc_value *v) {
  append_number(v->kind);
  switch (v->kind) {
  case ONNXC_TENSOR: {
    int64_t n = 1;
    append_number(v->dtype);
    append_number(v->rank);
    for (int32_t d = 0; d < v->rank; d++) {
      append_number(v->dims[d]);
      n *= v->dims[d];
    }
    append_elements(v->dtype, v->data, n);
    break;
  }
  case ONNXC_SEQUENCE:
    append_number(v->len);
    for (int64_t i = 0; i < v->len; i++) append_value(&v->items[i]);
    break;
  case ONNXC_MAP:
    append_number(v->key_dtype);
    append_number(v->dtype);
    append_number(v->len);
    append_elements(v->key_dtype, v->keys, v->len);
    append_elements(v->dtype, v->data, v->len);
    break;
  default: break;
  }
}

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
  for (int n = 0; n < MOST_RETRIES; n++) {
    uint64_t before = 0, after = 0;
    for (uint32_t k = 0; k < m->n_outputs; k++) before += m->outputs[k].kind ? 0 : array_bytes(m->outputs[k].dtype, room[k], m->outputs[k].rank);
    call_once(m, in, room, p, workspace, blob, tasks, res);
    if (refused && res->verdict == 0) verdict(res, MISUSE, "the call succeeds where workspace_for returns %lld", (long long)refused);
    if (refused || res->verdict != ONNXC_E_CAPACITY) goto done;
    for (uint32_t k = 0; k < m->n_outputs; k++) {
      uint64_t bytes = m->outputs[k].kind ? 0 : array_bytes(m->outputs[k].dtype, room[k], m->outputs[k].rank);
      if (bytes > LARGEST) {
        verdict(res, TOO_LARGE, "output %.60s", m->outputs[k].name);
        goto done;
      }
      after += bytes;
    }
    if (after <= before) goto done; /* It is the workspace that is too small. */
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
