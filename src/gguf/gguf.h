/* SPDX-License-Identifier: MIT
 *
 * gguf: the GGUF container, little endian, version 3. No I/O: the writer hands bytes to a function. Format facts: strings are u64 length + bytes; tensor offsets count from the start
 * of the data section and are the running sum of sizes rounded up to the alignment (32).
 */
#pragma once

#include <base/base.h>

#define GGUF_NAME_MAX 63  /* bytes of a tensor name */
#define GGUF_DIMS_MAX 4
#define GGUF_ALIGN 32

enum gguf_value_type { GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64 };

/* One tensor type of ggml. */
struct gguf_type {
    uint32_t id;
    const char *name;      /* "q8_0" */
    uint32_t block, bytes; /* elements and bytes of one block */
};
/* NULL for ids that do not exist or were removed. */
const struct gguf_type *gguf_type_get(uint32_t id);
const struct gguf_type *gguf_type_find(struct str name);
/* Bytes of a tensor: dims[0] / block * bytes * dims[1] * ... -EINVAL (dims[0] no multiple of the block), -ERANGE. */
int gguf_tensor_bytes(const struct gguf_type *t, const uint64_t *dims, size_t n_dims, uint64_t *ret) BASE_MUST_USE;

/* ---- writing --------------------------------------------------------------------------------------------- */

/* Collects metadata and tensor infos, then gives the header. Copies all it is told. Failures stick and come out of gguf_writer_header. */
struct gguf_writer;
struct gguf_writer *gguf_writer_new(void) BASE_MUST_USE;
struct gguf_writer *gguf_writer_free(struct gguf_writer *w);
void gguf_put_u16(struct gguf_writer *w, const char *key, uint16_t v);
void gguf_put_u32(struct gguf_writer *w, const char *key, uint32_t v);
void gguf_put_i32(struct gguf_writer *w, const char *key, int32_t v);
void gguf_put_u64(struct gguf_writer *w, const char *key, uint64_t v);
void gguf_put_f32(struct gguf_writer *w, const char *key, float v);
void gguf_put_bool(struct gguf_writer *w, const char *key, bool v);
void gguf_put_str(struct gguf_writer *w, const char *key, struct str v);
void gguf_put_u32s(struct gguf_writer *w, const char *key, const uint32_t *v, size_t n);
void gguf_put_i32s(struct gguf_writer *w, const char *key, const int32_t *v, size_t n);
void gguf_put_f32s(struct gguf_writer *w, const char *key, const float *v, size_t n);
void gguf_put_strs(struct gguf_writer *w, const char *key, const struct str *v, size_t n);
/* Declares the next tensor, in the order of its data. Names are unique, at most GGUF_NAME_MAX bytes. */
void gguf_put_tensor(struct gguf_writer *w, const char *name, uint32_t type, const uint64_t *dims, size_t n_dims);
/* Appends magic to padding, so that the data section starts at the end of what was appended (out must be empty). *ret_data_bytes is the length of the data section, the last tensor's padding included.
 * -EEXIST (a key or name twice), -EINVAL (a name or type), -ERANGE, -ENOMEM. */
int gguf_writer_header(struct gguf_writer *w, struct buf *out, uint64_t *ret_data_bytes, struct err *err) BASE_MUST_USE;
