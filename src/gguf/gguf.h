/* SPDX-License-Identifier: MIT
 *
 * gguf: the GGUF container, little endian, read in versions 2 and 3 and written in 3; split sets of it; and safetensors with its index. No I/O: a reader asks a source for bytes, the writer appends to a buffer. Format facts of
 * GGUF: strings are u64 length + bytes; tensor offsets count from the start of the data section and are the running sum of sizes rounded up to the alignment (32).
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
void gguf_put_u64s(struct gguf_writer *w, const char *key, const uint64_t *v, size_t n);
void gguf_put_f32s(struct gguf_writer *w, const char *key, const float *v, size_t n);
void gguf_put_strs(struct gguf_writer *w, const char *key, const struct str *v, size_t n);
/* Declares the next tensor, in the order of its data. Names are unique, at most GGUF_NAME_MAX bytes. */
void gguf_put_tensor(struct gguf_writer *w, const char *name, uint32_t type, const uint64_t *dims, size_t n_dims);
/* Appends magic to padding, so that the data section starts at the end of what was appended (out must be empty). *ret_data_bytes is the length of the data section, the last tensor's padding included.
 * -EEXIST (a key or name twice), -EINVAL (a name or type), -ERANGE, -ENOMEM. */
int gguf_writer_header(struct gguf_writer *w, struct buf *out, uint64_t *ret_data_bytes, struct err *err) BASE_MUST_USE;

/* ---- reading -------------------------------------------------------------------------------------------------
 *
 * The header is walked once through a window; what is small is kept: keys, scalars, short strings and arrays, the tensor table. A vocabulary is walked and never built: it has its place in the file, and who wants it reads it
 * from there. Everything in a file is hostile until checked: a count is compared with the bytes that remain before memory is asked for, no sum wraps, nothing recurses, each limit has its name below. Errors tell what and at which byte.
 * A reader keeps pointing at its source, which must outlive it; one object is used by one thread at a time. */

#define GGUF_WINDOW (256u << 10)        /* bytes asked of a source at once: large enough that calls cost nothing, small enough to stay in the CPU's cache */
#define GGUF_MEMORY_MAX (128u << 20)    /* of one header: the tables below at their limits */
#define GGUF_KV_MAX 65536               /* real files: under 100 */
#define GGUF_TENSORS_MAX 262144         /* real files: under 3,000; experts kept apart in safetensors come to about 100,000 */
#define GGUF_KEY_MAX 65535              /* bytes of a key, as the format says */
#define GGUF_STRING_MAX (1u << 30)      /* bytes of a string and elements of an array, as the engine has it */
#define GGUF_ARRAY_MAX (1u << 30)
#define GGUF_ALIGN_MAX (16u << 20)      /* real files: 32; more than a huge page only serves to make sums wrap */
#define GGUF_TYPE_MAX 65535             /* an unknown tensor type up to this id may be a newer engine's; above it the file is damaged */
#define GGUF_KEEP_STRING 4096           /* of a string, so many bytes are kept */
#define GGUF_KEEP_ARRAY 16384           /* an array of numbers of so many bytes is kept: 512 layers of 8 bytes are 4096 */

/* Where bytes come from: a file (store), a URL's ranges (hub), memory (tests). */
struct gguf_source {
    /* Puts exactly len bytes from off into buf; off + len <= size always. 0, or a negative errno: -ENODATA when the bytes are not there any more. */
    int (*read)(void *ctx, uint64_t off, void *buf, size_t len, struct err *err);
    uint64_t size;
    void *ctx;
};

enum gguf_file { GGUF_FILE_GGUF, GGUF_FILE_SAFETENSORS, GGUF_FILE_JSON };
/* What a file is by its first bytes. -EMEDIUMTYPE for anything else, which is named with what to do: a web page, an LFS pointer, an archive, a pickle, text, zeros, a GGML file from before GGUF. */
int gguf_sniff(const struct gguf_source *src, enum gguf_file *ret, struct err *err) BASE_MUST_USE;

struct gguf_kv {
    struct str key;             /* terminated, UTF-8 */
    enum gguf_value_type type;
    enum gguf_value_type elem;  /* of an array, never GGUF_ARRAY */
    uint64_t n;                 /* elements of an array, bytes of a string, else 1 */
    uint64_t off, bytes;        /* the content's place in the file; the strings of an array have 8 bytes of length before each */
    union {
        uint64_t u;             /* unsigned types */
        int64_t i;              /* signed types */
        double f;
        bool b;
    } v;                        /* of a scalar */
    struct str kept;            /* a string, or its first GGUF_KEEP_STRING bytes (any bytes); an array of numbers of at most GGUF_KEEP_ARRAY bytes, as in the file; else empty */
};

struct gguf_tensor {
    struct str name;              /* terminated, UTF-8, 1..GGUF_NAME_MAX bytes */
    uint32_t type_id;
    const struct gguf_type *type; /* NULL: a type that is unknown here */
    uint32_t n_dims;
    uint64_t dims[GGUF_DIMS_MAX]; /* those beyond n_dims are 1 */
    uint64_t elements;
    uint64_t off;                 /* in the file */
    uint64_t bytes;               /* without padding; unknown type: up to the next tensor or the end of the file */
    uint64_t info_off;            /* where the table says all this */
};

/* Faults that leave the header readable; an engine would refuse the file. */
enum gguf_fault {
    GGUF_CUT = 1,    /* the data ends before the last tensor does: the file is not complete */
    GGUF_JOINED = 2, /* another GGUF file begins behind this one's data: parts were joined with cat */
    GGUF_UNKNOWN = 4 /* tensors of unknown type */
};

struct gguf_info {
    uint32_t version, align;
    uint64_t file_bytes;
    uint64_t header_bytes;  /* magic to the end of the tensor table */
    uint64_t data_off;      /* where data begins */
    uint64_t data_bytes;    /* of all tensors, without padding */
    uint64_t end;           /* where the last tensor ends */
    uint64_t elements;      /* of all tensors */
    size_t n_kv, n_tensors, n_unknown;
    unsigned faults;        /* of enum gguf_fault */
    uint64_t missing_bytes; /* GGUF_CUT */
    uint64_t joined_off;    /* GGUF_JOINED */
};

struct gguf;
/* -EMEDIUMTYPE (as gguf_sniff), -ENOTSUP (big-endian, version 1 or over 3), -ENODATA (ends inside the header), -EBADMSG (anything that the format forbids), -E2BIG (over a limit above), -ENOMEM, and what the source says. */
int gguf_open(const struct gguf_source *src, struct gguf **ret, struct err *err) BASE_MUST_USE;
struct gguf *gguf_free(struct gguf *g);
const struct gguf_info *gguf_info(const struct gguf *g);
/* 0 when the file is whole and every type is known; else says the first fault: -ENODATA (cut), -EBADMSG (joined), -ENOTSUP (unknown type). */
int gguf_whole(const struct gguf *g, struct err *err) BASE_MUST_USE;

const struct gguf_kv *gguf_kv(const struct gguf *g, size_t i);         /* i < n_kv, in file order */
const struct gguf_tensor *gguf_tensor(const struct gguf *g, size_t i); /* i < n_tensors, in file order */
const struct gguf_kv *gguf_find(const struct gguf *g, const char *key);                /* NULL: not there */
/* general.architecture; empty when there is none. */
struct str gguf_arch(const struct gguf *g);
/* The key "<architecture>.<rest>". */
const struct gguf_kv *gguf_find_arch(const struct gguf *g, const char *rest);

/* Scalars and elements of kept arrays. All accept NULL and are false when the value is of another kind or does not fit. */
bool gguf_u64(const struct gguf_kv *kv, uint64_t *ret); /* any integer >= 0 */
bool gguf_bool(const struct gguf_kv *kv, bool *ret);
bool gguf_str(const struct gguf_kv *kv, struct str *ret); /* a string that is kept whole */
bool gguf_at_i64(const struct gguf_kv *kv, uint64_t i, int64_t *ret); /* an integer or bool */
bool gguf_at_f64(const struct gguf_kv *kv, uint64_t i, double *ret);
/* Calls fn for the first `most` elements of an array of strings, of each at most GGUF_KEEP_STRING bytes. fn returns false to stop. -EINVAL when kv is no such array. */
int gguf_each_str(const struct gguf *g, const struct gguf_kv *kv, uint64_t most, bool (*fn)(void *ctx, uint64_t i, struct str s), void *ctx, struct err *err) BASE_MUST_USE;
const char *gguf_value_type_name(enum gguf_value_type t); /* "u32" */
/* "q4_2 (removed from ggml)" for an id that ggml had once, "unknown" for others. */
const char *gguf_type_past(uint32_t id);

/* ---- split sets ---------------------------------------------------------------------------------------------------- */

#define GGUF_PARTS_MAX 512 /* each is an open file; real sets: under 200 */

/* "PREFIX-00002-of-00006.gguf", also ".safetensors". */
struct gguf_split_name {
    struct str prefix, suffix; /* views of the name */
    uint32_t no, count;        /* as named: no counts from 1 */
};
/* False for a name of another form. */
bool gguf_split_name(struct str file, struct gguf_split_name *ret);
/* Appends the name of part no (from 1) of n's set. */
void gguf_split_file(struct buf *out, const struct gguf_split_name *n, uint32_t no);

struct gguf_split {
    uint32_t no, count; /* no counts from 0 */
    uint64_t tensors;   /* of the whole set */
};
/* 1 when g is a part of a set of several, 0 when it is a model of its own; -EBADMSG for split keys of another type than the engine wants, or that contradict each other. */
int gguf_split(const struct gguf *g, struct gguf_split *ret, struct err *err) BASE_MUST_USE;

enum gguf_part_state {
    GGUF_PART_OK,
    GGUF_PART_MISSING, /* no such file */
    GGUF_PART_BAD,     /* unreadable, cut short, joined */
    GGUF_PART_FOREIGN  /* a sound file that does not belong here */
};
struct gguf_part {
    char *path;
    struct gguf *g;  /* NULL: missing or unreadable */
    enum gguf_part_state state;
    struct err why;  /* unless GGUF_PART_OK */
};
/* Proves that parts[i], found under the name of part i + 1, belong together and are complete. A part that the caller has marked keeps its mark; the others get one. 0, or -EBADMSG with the first part that is wrong and what to do;
 * -ENOMEM. n == 1 may be a file of its own. */
int gguf_set_check(struct gguf_part *parts, size_t n, struct err *err) BASE_MUST_USE;

/* ---- safetensors --------------------------------------------------------------------------------------------------------- */

#define GGUF_ST_HEADER_MAX (32u << 20) /* bytes of JSON; the largest real one has 14 MB, and a tree of JSON takes up to ten times its text */
#define GGUF_ST_DIMS_MAX 8
#define GGUF_ST_NAME_MAX 1024

/* One element type of safetensors. */
struct gguf_st_type {
    const char *name; /* "BF16" */
    uint32_t bits;
};
struct gguf_st_tensor {
    struct str name, dtype;          /* terminated */
    const struct gguf_st_type *type; /* NULL: unknown here */
    uint32_t n_dims;
    uint64_t dims[GGUF_ST_DIMS_MAX]; /* slowest first, as written */
    uint64_t elements;
    uint64_t off, bytes;             /* in the file */
};
struct gguf_st_info {
    uint64_t file_bytes, header_bytes, data_bytes, elements;
    size_t n_tensors, n_unknown, n_metadata;
    uint64_t missing_bytes; /* > 0: the file is cut short */
};
struct gguf_st;
/* Refuses what the reference reader refuses, duplicate keys, and ranges that overlap, leave gaps, or differ from shape times type. Codes as gguf_open; -ENODATA only when the header itself is cut. */
int gguf_st_open(const struct gguf_source *src, struct gguf_st **ret, struct err *err) BASE_MUST_USE;
struct gguf_st *gguf_st_free(struct gguf_st *s);
const struct gguf_st_info *gguf_st_info(const struct gguf_st *s);
/* 0, or -ENODATA when the file is cut short. */
int gguf_st_whole(const struct gguf_st *s, struct err *err) BASE_MUST_USE;
const struct gguf_st_tensor *gguf_st_tensor(const struct gguf_st *s, size_t i); /* in the order of the data */
const struct gguf_st_tensor *gguf_st_find(const struct gguf_st *s, struct str name); /* NULL: not there */
/* The i-th pair of __metadata__. */
void gguf_st_metadata(const struct gguf_st *s, size_t i, struct str *ret_key, struct str *ret_value);

/* model.safetensors.index.json: which file has which tensor. */
struct gguf_index {
    struct arena *arena;
    const char *const *files; /* sorted, each a plain file name */
    size_t n_files;
    struct gguf_index_tensor {
        struct str name;
        uint32_t file;
    } *tensors;               /* sorted by name */
    size_t n_tensors;
    uint64_t total_bytes;     /* metadata.total_size; 0 when not given */
};
/* -EMEDIUMTYPE for JSON without weight_map, such as what a server answers instead of a file; -EBADMSG for names twice, file names with a folder, no tensor. */
int gguf_index_parse(struct str text, struct gguf_index *ret, struct err *err) BASE_MUST_USE;
void gguf_index_release(struct gguf_index *x);
/* The tensors of file number `file` are exactly those of s; -EBADMSG names the first that is not. */
int gguf_index_check(const struct gguf_index *x, uint32_t file, const struct gguf_st *s, struct err *err) BASE_MUST_USE;
