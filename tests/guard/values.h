/* Elements, sequences, optionals and maps: read from a pipe, placed against inaccessible memory, written to a reply. */
#ifndef GUARD_VALUES_H
#define GUARD_VALUES_H
#include "memory.h"
#include "cases.h"
#include "../tools/input.h"

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
#endif
