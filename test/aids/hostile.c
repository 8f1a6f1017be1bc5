/* SPDX-License-Identifier: MIT
 *
 * The hostile corpus: files that have broken readers of GGUF and safetensors, each with the verdict that `berth inspect` must give. Bytes are written here and nowhere kept.
 *
 *   hostile DIR    writes every file below DIR, and DIR/list: "PATH<tab>EXIT<tab>TEXT", where TEXT must be in what inspect says of PATH
 *
 * A case may have several files (split sets); the first one is inspected. A unit test includes this file for the table and replays the single files in memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILES_MAX 8

/* One file in the making: bytes, and a length that may go beyond them (a hole). */
struct made {
    char name[200];
    uint8_t *bytes;
    size_t len, cap;
    uint64_t size;
};
struct out {
    struct made file[FILES_MAX];
    size_t n;
    struct made *f; /* the current one */
};

/* Begins another file of the case. */
static void begin(struct out *o, const char *name)
{
    if (o->n == FILES_MAX)
        exit(3);
    o->f = &o->file[o->n++];
    *o->f = (struct made){.size = 0};
    (void)snprintf(o->f->name, sizeof(o->f->name), "%s", name);
}

static void put(struct out *o, const void *data, size_t n)
{
    struct made *f = o->f;
    if (n > f->cap - f->len) {
        f->cap = (f->cap + n) * 2;
        f->bytes = realloc(f->bytes, f->cap);
        if (!f->bytes)
            exit(3);
    }
    if (n)
        memcpy(f->bytes + f->len, data, n);
    f->len += n;
    if (f->size < f->len)
        f->size = f->len;
}

static void text(struct out *o, const char *s)
{
    put(o, s, strlen(s));
}

static void number(struct out *o, uint64_t v, size_t bytes)
{
    uint8_t b[8];
    for (size_t i = 0; i < bytes; i++)
        b[i] = (uint8_t)(v >> (8 * i));
    put(o, b, bytes);
}

static void u32(struct out *o, uint64_t v)
{
    number(o, v, 4);
}

static void u64(struct out *o, uint64_t v)
{
    number(o, v, 8);
}

static void zeros(struct out *o, size_t n)
{
    for (size_t i = 0; i < n; i++)
        number(o, 0, 1);
}

static void pad(struct out *o, size_t align)
{
    while (o->f->len % align)
        number(o, 0, 1);
}

/* A hole at the end: the file is so much longer than what was put. */
static void hole(struct out *o, uint64_t n)
{
    o->f->size = o->f->len + n;
}

static void cut(struct out *o, size_t n)
{
    o->f->len -= n;
    o->f->size = o->f->len;
}

/* ---- GGUF ---------------------------------------------------------------------------------------------------------- */

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 };

static void head(struct out *o, uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    text(o, "GGUF");
    u32(o, version);
    u64(o, n_tensors);
    u64(o, n_kv);
}

static void str(struct out *o, const char *s)
{
    u64(o, strlen(s));
    text(o, s);
}

static void key(struct out *o, const char *k, uint32_t type)
{
    str(o, k);
    u32(o, type);
}

static void kv_u32(struct out *o, const char *k, uint32_t v)
{
    key(o, k, U32);
    u32(o, v);
}

static void kv_u16(struct out *o, const char *k, uint32_t v)
{
    key(o, k, U16);
    number(o, v, 2);
}

static void kv_str(struct out *o, const char *k, const char *v)
{
    key(o, k, STRING);
    str(o, v);
}

static void kv_array(struct out *o, const char *k, uint32_t elem, uint64_t n)
{
    key(o, k, ARRAY);
    u32(o, elem);
    u64(o, n);
}

static void info(struct out *o, const char *name, uint32_t type, uint64_t off, uint32_t n_dims, uint64_t d0, uint64_t d1)
{
    uint64_t dims[] = {d0, d1, 1, 1};
    str(o, name);
    u32(o, n_dims);
    for (uint32_t i = 0; i < n_dims && i < 4; i++)
        u64(o, dims[i]);
    u32(o, type);
    u64(o, off);
}

/* The six keys that a small llama has. */
#define LLAMA_KEYS 6
static void llama(struct out *o)
{
    kv_str(o, "general.architecture", "llama");
    kv_str(o, "general.name", "Sound Model");
    kv_u32(o, "llama.block_count", 2);
    kv_u32(o, "llama.context_length", 4096);
    kv_u32(o, "llama.embedding_length", 64);
    kv_u32(o, "llama.attention.head_count", 4);
}

/* Two tensors of 256 bytes each and their data. */
static void two_tensors(struct out *o, size_t align)
{
    info(o, "token_embd.weight", 0, 0, 2, 8, 8);
    info(o, "blk.0.attn_k.weight", 0, 256, 2, 64, 1);
    pad(o, align);
    zeros(o, 512);
}

static void sound(struct out *o)
{
    head(o, 3, 2, LLAMA_KEYS);
    llama(o);
    two_tensors(o, 32);
}

static void sound_v2(struct out *o)
{
    head(o, 2, 2, LLAMA_KEYS);
    llama(o);
    two_tensors(o, 32);
}

static void sound_align(struct out *o)
{
    head(o, 3, 2, LLAMA_KEYS + 1);
    llama(o);
    kv_u32(o, "general.alignment", 256);
    two_tensors(o, 256);
}

static void sound_no_tensors(struct out *o)
{
    head(o, 3, 0, LLAMA_KEYS + 3);
    llama(o);
    kv_str(o, "tokenizer.ggml.model", "gpt2");
    kv_array(o, "tokenizer.ggml.tokens", STRING, 3);
    str(o, "a");
    str(o, "");
    str(o, "\xff\xfe");
    kv_array(o, "tokenizer.ggml.scores", F32, 3);
    zeros(o, 12);
}

static void sound_nothing(struct out *o)
{
    head(o, 3, 0, 0);
}

static void sound_trailing(struct out *o)
{
    sound(o);
    text(o, "some bytes behind the last tensor, which engines do not mind");
}

static void sound_dims(struct out *o)
{
    head(o, 3, 3, LLAMA_KEYS);
    llama(o);
    info(o, "scalar", 0, 0, 0, 0, 0);
    info(o, "none", 0, 32, 2, 0, 64);
    info(o, "some", 8, 32, 1, 64, 0);
    pad(o, 32);
    zeros(o, 32 + 68);
}

static void hollow(struct out *o)
{
    head(o, 3, 1, LLAMA_KEYS);
    llama(o);
    info(o, "token_embd.weight", 8, 0, 2, 8192, 128256);
    pad(o, 32);
    hole(o, UINT64_C(8192) / 32 * 34 * 128256);
}

/* ---- head ------------------------------------------------------------------------------------------------------------ */

#define HEAD_CASE(name, version, n_tensors, n_kv, more) \
    static void name(struct out *o) \
    { \
        head(o, version, n_tensors, n_kv); \
        hole(o, more); \
    }
HEAD_CASE(version_0, 0, 0, 0, 64)
HEAD_CASE(version_4, 4, 0, 0, 64)
HEAD_CASE(version_most, UINT32_MAX, 0, 0, 64)
HEAD_CASE(tensors_negative, 3, UINT64_MAX, 0, 64)
HEAD_CASE(tensors_2_63, 3, UINT64_C(1) << 63, 0, 64)
HEAD_CASE(tensors_2_62, 3, UINT64_C(1) << 62, 0, 64)
HEAD_CASE(tensors_2_32, 3, UINT32_MAX, 0, 64)
HEAD_CASE(tensors_wrap, 3, UINT64_MAX / 25 + 1, 0, 64)
HEAD_CASE(tensors_many, 3, 1000000, 0, 64 << 20)
HEAD_CASE(kv_negative, 3, 0, UINT64_MAX, 64)
HEAD_CASE(kv_2_63, 3, 0, UINT64_C(1) << 63, 64)
HEAD_CASE(kv_2_32, 3, 0, UINT32_MAX, 64)
HEAD_CASE(kv_wrap, 3, 0, UINT64_MAX / 14 + 1, 64)
HEAD_CASE(kv_many, 3, 0, 100000, 64 << 20)
HEAD_CASE(both_counts, 3, 2, 2, 60)
HEAD_CASE(first_key_zeros, 3, 0, 1, 64)

static void version_1(struct out *o)
{
    text(o, "GGUF");
    u32(o, 1);
    u32(o, 0); /* 32-bit counts and lengths */
    u32(o, 1);
    u32(o, 0);
    u32(o, 0);
}

static void big_endian(struct out *o)
{
    static const uint8_t be[] = {'G', 'G', 'U', 'F', 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1};
    put(o, be, sizeof(be));
    zeros(o, 200);
}

static void big_endian_magic(struct out *o)
{
    text(o, "FUGG");
    zeros(o, 200);
}

#define PREFIX_CASE(name, n) \
    static void name(struct out *o) \
    { \
        sound(o); \
        cut(o, o->f->len - (n)); \
    }
PREFIX_CASE(cut_0, 0)
PREFIX_CASE(cut_1, 1)
PREFIX_CASE(cut_3, 3)
PREFIX_CASE(cut_4, 4)
PREFIX_CASE(cut_8, 8)
PREFIX_CASE(cut_23, 23)
PREFIX_CASE(cut_key, 100)
PREFIX_CASE(cut_kvs, 200)

static void cut_table(struct out *o)
{
    sound(o);
    cut(o, 512 + 60);
}

static void cut_data_all(struct out *o)
{
    sound(o);
    cut(o, 512);
}

static void cut_data_one(struct out *o)
{
    sound(o);
    cut(o, 1);
}

/* ---- keys and values --------------------------------------------------------------------------------------------------- */

#define KEY_CASE(name, length) \
    static void name(struct out *o) \
    { \
        head(o, 3, 0, 1); \
        u64(o, length); \
        zeros(o, 80); \
    }
KEY_CASE(key_empty, 0)
KEY_CASE(key_long, 65536)
KEY_CASE(key_beyond, 81)
KEY_CASE(key_2_63, UINT64_C(1) << 63)
KEY_CASE(key_2_64, UINT64_MAX)
KEY_CASE(key_zeros, 12)

static void key_not_text(struct out *o)
{
    head(o, 3, 0, 1);
    key(o, "general.\xc3\x28", U32);
    u32(o, 1);
}

static void key_twice(struct out *o)
{
    head(o, 3, 2, LLAMA_KEYS + 1);
    llama(o);
    kv_u32(o, "llama.block_count", 3);
    two_tensors(o, 32);
}

#define TYPE_CASE(name, type) \
    static void name(struct out *o) \
    { \
        head(o, 3, 0, 1); \
        key(o, "a.b", type); \
        zeros(o, 64); \
    }
TYPE_CASE(value_type_13, 13)
TYPE_CASE(value_type_255, 255)
TYPE_CASE(value_type_negative, UINT32_MAX)

#define STRING_CASE(name, length, more) \
    static void name(struct out *o) \
    { \
        head(o, 3, 0, 1); \
        key(o, "a.b", STRING); \
        u64(o, length); \
        zeros(o, more); \
    }
STRING_CASE(string_2_64, UINT64_MAX, 64)
STRING_CASE(string_2_63, UINT64_C(1) << 63, 64)
STRING_CASE(string_wrap, UINT64_MAX - 46, 64)
STRING_CASE(string_over, (UINT64_C(1) << 30) + 1, 64)
STRING_CASE(string_most, UINT64_C(1) << 30, 64)
STRING_CASE(string_beyond, 65, 64)
STRING_CASE(string_short, UINT64_MAX, 0)

static void string_of_1_gib(struct out *o)
{
    head(o, 3, 0, 1);
    key(o, "a.b", STRING);
    u64(o, UINT64_C(1) << 30);
    hole(o, UINT64_C(1) << 30);
}

#define ARRAY_CASE(name, elem, count, more) \
    static void name(struct out *o) \
    { \
        head(o, 3, 0, 1); \
        kv_array(o, "a.b", elem, count); \
        zeros(o, more); \
    }
ARRAY_CASE(array_type_13, 13, 1, 64)
ARRAY_CASE(array_type_negative, UINT32_MAX, 1, 64)
ARRAY_CASE(array_2_64_u8, U8, UINT64_MAX, 64)
ARRAY_CASE(array_2_63_u8, U8, UINT64_C(1) << 63, 0)
ARRAY_CASE(array_wrap_u64, U64, UINT64_C(1) << 61, 64)
ARRAY_CASE(array_over, U8, (UINT64_C(1) << 30) + 1, 64)
ARRAY_CASE(array_beyond, U32, 17, 64)
ARRAY_CASE(strings_2_62, STRING, UINT64_C(1) << 62, 64)
ARRAY_CASE(strings_2_30, STRING, UINT64_C(1) << 30, 64)
ARRAY_CASE(strings_beyond, STRING, 9, 64)
ARRAY_CASE(array_of_arrays, ARRAY, 1, 64)

static void array_nested(struct out *o)
{
    head(o, 3, 0, 1);
    key(o, "a.b", ARRAY);
    for (int i = 0; i < 50000; i++) {
        u32(o, ARRAY);
        u64(o, 1);
    }
}

#define ELEMENT_CASE(name, length, more) \
    static void name(struct out *o) \
    { \
        head(o, 3, 0, 1); \
        kv_array(o, "tokenizer.ggml.tokens", STRING, 2); \
        str(o, "<s>"); \
        u64(o, length); \
        zeros(o, more); \
    }
ELEMENT_CASE(token_2_64, UINT64_MAX, 64)
ELEMENT_CASE(token_wrap, UINT64_MAX - 7, 64)
ELEMENT_CASE(token_2_31, UINT64_C(1) << 31, 64)
ELEMENT_CASE(token_beyond, 65, 64)

static void strings_no_room(struct out *o)
{
    /* enough bytes for the count, but the last length is cut */
    head(o, 3, 0, 1);
    kv_array(o, "tokenizer.ggml.tokens", STRING, 4);
    str(o, "aaaaaaaaaaaaaaaaaaaaaaaa");
    str(o, "b");
    str(o, "c");
    u32(o, 1);
}

static void bad_align_value(struct out *o, uint32_t v)
{
    head(o, 3, 2, LLAMA_KEYS + 1);
    llama(o);
    kv_u32(o, "general.alignment", v);
    two_tensors(o, 32);
}

#define ALIGN_CASE(name, v) \
    static void name(struct out *o) \
    { \
        bad_align_value(o, v); \
    }
ALIGN_CASE(align_0, 0)
ALIGN_CASE(align_24, 24)
ALIGN_CASE(align_2_31, UINT32_C(1) << 31)
ALIGN_CASE(align_2_30, UINT32_C(1) << 30)
ALIGN_CASE(align_most, UINT32_MAX)

static void align_u64(struct out *o)
{
    head(o, 3, 2, LLAMA_KEYS + 1);
    llama(o);
    key(o, "general.alignment", U64);
    u64(o, 32);
    two_tensors(o, 32);
}

static void align_string(struct out *o)
{
    head(o, 3, 2, LLAMA_KEYS + 1);
    llama(o);
    kv_str(o, "general.alignment", "32");
    two_tensors(o, 32);
}

static void arch_number(struct out *o)
{
    head(o, 3, 0, 1);
    kv_u32(o, "general.architecture", 7);
}

static void arch_long(struct out *o)
{
    static char s[6000];
    memset(s, 'a', sizeof(s) - 1);
    head(o, 3, 0, 1);
    kv_str(o, "general.architecture", s);
}

/* ---- tensor table -------------------------------------------------------------------------------------------------------- */

/* A llama with one tensor info and so many bytes of data. */
static void one(struct out *o, const char *name, uint32_t type, uint64_t off, uint32_t n_dims, uint64_t d0, uint64_t d1, size_t data)
{
    head(o, 3, 1, LLAMA_KEYS);
    llama(o);
    info(o, name, type, off, n_dims, d0, d1);
    pad(o, 32);
    zeros(o, data);
}

#define ONE_CASE(name, tensor, type, off, n_dims, d0, d1) \
    static void name(struct out *o) \
    { \
        one(o, tensor, type, off, n_dims, d0, d1, 256); \
    }
ONE_CASE(name_64, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 0, 0, 1, 8, 0)
ONE_CASE(name_empty, "", 0, 0, 1, 8, 0)
ONE_CASE(name_not_text, "a\xff", 0, 0, 1, 8, 0)
ONE_CASE(dims_5, "a", 0, 0, 5, 8, 1)
ONE_CASE(dims_9, "a", 0, 0, 9, 8, 1)
ONE_CASE(dims_2_32, "a", 0, 0, UINT32_MAX, 8, 1)
ONE_CASE(dim_negative, "a", 0, 0, 1, UINT64_MAX, 0)
ONE_CASE(dim_2_63, "a", 0, 0, 1, UINT64_C(1) << 63, 0)
ONE_CASE(dims_wrap, "a", 0, 0, 2, UINT64_C(1) << 32, UINT64_C(1) << 32)
ONE_CASE(dims_wrap_stride, "a", 0, 0, 2, (UINT64_C(1) << 42) + 1, UINT64_C(1) << 22)
ONE_CASE(dims_wrap_zero, "a", 0, 0, 2, UINT64_C(1) << 63, 0)
ONE_CASE(bytes_wrap, "a", 28, 0, 1, UINT64_C(1) << 61, 0)
ONE_CASE(bytes_exabyte, "a", 0, 0, 2, UINT64_C(1) << 40, 1 << 18)
ONE_CASE(type_99, "a", 99, 0, 1, 8, 0)
ONE_CASE(type_43, "a", 43, 0, 1, 8, 0)
ONE_CASE(type_removed, "a", 4, 0, 1, 32, 0)
ONE_CASE(type_removed_31, "a", 31, 0, 1, 32, 0)
ONE_CASE(type_negative, "a", UINT32_MAX, 0, 1, 8, 0)
ONE_CASE(type_70000, "a", 70000, 0, 1, 8, 0)
ONE_CASE(block_33, "a", 8, 0, 1, 33, 0)
ONE_CASE(block_zero_rows, "a", 12, 0, 2, 100, 0)
ONE_CASE(offset_first, "a", 0, 32, 1, 8, 0)
ONE_CASE(offset_odd, "a", 0, 5, 1, 8, 0)
ONE_CASE(offset_past_end, "a", 0, UINT64_C(1) << 40, 1, 8, 0)
ONE_CASE(offset_2_64, "a", 0, UINT64_MAX - 31, 1, 8, 0)
ONE_CASE(size_past_end, "a", 0, 0, 1, 1024, 0)

static void name_2_64(struct out *o)
{
    head(o, 3, 1, 0);
    u64(o, UINT64_MAX);
    zeros(o, 64);
}

static void name_twice(struct out *o)
{
    head(o, 3, 2, LLAMA_KEYS);
    llama(o);
    info(o, "a", 0, 0, 1, 8, 0);
    info(o, "a", 0, 32, 1, 8, 0);
    pad(o, 32);
    zeros(o, 64);
}

static void pair(struct out *o, uint64_t first, uint64_t second, uint64_t elements)
{
    head(o, 3, 2, LLAMA_KEYS);
    llama(o);
    info(o, "a", 0, first, 1, elements, 0);
    info(o, "b", 0, second, 1, elements, 0);
    pad(o, 32);
    zeros(o, 512);
}

#define PAIR_CASE(name, first, second, elements) \
    static void name(struct out *o) \
    { \
        pair(o, first, second, elements); \
    }
PAIR_CASE(offset_overlap, 0, 0, 8)
PAIR_CASE(offset_inside, 0, 32, 16)
PAIR_CASE(offset_gap, 0, 96, 8)
PAIR_CASE(offset_order, 32, 0, 8)

/* Cumulative sizes: each tensor may be, their sum may not. */
static void sum_overflow(struct out *o)
{
    head(o, 3, 3, LLAMA_KEYS);
    llama(o);
    info(o, "a", 24, 0, 1, INT64_MAX - 31, 0);
    info(o, "b", 24, (UINT64_C(1) << 63) - 32, 1, INT64_MAX - 31, 0);
    info(o, "c", 24, UINT64_MAX - 63, 1, INT64_MAX - 31, 0);
    pad(o, 32);
    zeros(o, 64);
}

static void sum_just_below(struct out *o)
{
    head(o, 3, 2, LLAMA_KEYS);
    llama(o);
    info(o, "a", 24, 0, 1, INT64_MAX - 4095, 0);
    info(o, "b", 24, (UINT64_C(1) << 63) - 4096, 1, 4064, 0);
    pad(o, 32);
    zeros(o, 64);
}

/* ---- values that have killed loaders: a header that is sound, for inspect ------------------------------------------------- */

static void with_u32(struct out *o, const char *k, uint32_t v)
{
    head(o, 3, 2, 3);
    kv_str(o, "general.architecture", "llama");
    kv_u32(o, "llama.context_length", 4096);
    kv_u32(o, k, v);
    two_tensors(o, 32);
}

#define VALUE_CASE(name, k, v) \
    static void name(struct out *o) \
    { \
        with_u32(o, k, v); \
    }
VALUE_CASE(blocks_0, "llama.block_count", 0)
VALUE_CASE(blocks_513, "llama.block_count", 513)
VALUE_CASE(blocks_most, "llama.block_count", UINT32_MAX)
VALUE_CASE(experts_most, "llama.expert_count", UINT32_MAX)
VALUE_CASE(nextn_most, "llama.nextn_predict_layers", UINT32_MAX)
VALUE_CASE(heads_0, "llama.attention.head_count", 0)

static void wrong_kinds(struct out *o)
{
    head(o, 3, 2, 8);
    kv_str(o, "general.architecture", "llama");
    kv_str(o, "general.file_type", "q8_0");
    kv_str(o, "llama.block_count", "many");
    kv_str(o, "llama.context_length", "4096");
    kv_u32(o, "general.name", 5);
    kv_array(o, "llama.attention.head_count_kv", U32, 3); /* not one a layer */
    zeros(o, 12);
    kv_array(o, "tokenizer.ggml.tokens", U32, 4);
    zeros(o, 16);
    kv_u32(o, "tokenizer.chat_template", 1);
    two_tensors(o, 32);
}

static void template_hostile(struct out *o)
{
    head(o, 3, 2, LLAMA_KEYS + 1);
    llama(o);
    kv_str(o, "tokenizer.chat_template", "{{ ''.__class__.__mro__[1].__subclasses__()[140].__init__.__globals__['sys'].modules['os'].popen('id').read() }}");
    two_tensors(o, 32);
}

static void name_escapes(struct out *o)
{
    head(o, 3, 2, 3);
    kv_str(o, "general.architecture", "lla\x1b]0;owned\x07ma");
    kv_str(o, "general.name", "\x1b[2J\x1b[31m\xe2\x80\xae evil \r\n");
    kv_u32(o, "\x1b[1mkey", 1);
    two_tensors(o, 32);
}

/* ---- joined ------------------------------------------------------------------------------------------------------------------ */

static void joined(struct out *o)
{
    sound(o);
    sound(o);
}

static void joined_unpadded(struct out *o)
{
    one(o, "a", 0, 0, 1, 5, 0, 20);
    sound(o);
}

static void joined_padded(struct out *o)
{
    one(o, "a", 0, 0, 1, 5, 0, 20);
    pad(o, 32);
    sound(o);
}

static void part(struct out *o, const char *name, uint32_t no, uint32_t count, uint32_t total, const char *tensor)
{
    begin(o, name);
    head(o, 3, 1, no == 0 ? LLAMA_KEYS + 3 : 3);
    if (no == 0)
        llama(o);
    kv_u16(o, "split.no", no);
    kv_u16(o, "split.count", count);
    key(o, "split.tensors.count", I32);
    u32(o, total);
    info(o, tensor, 0, 0, 1, 8, 0);
    pad(o, 32);
    zeros(o, 32);
}

/* ---- split sets; the first file's name is the case's ---------------------------------------------------------------------------- */

static void set_sound(struct out *o)
{
    o->n = 0;
    part(o, "m-00001-of-00003.gguf", 0, 3, 3, "a");
    part(o, "m-00002-of-00003.gguf", 1, 3, 3, "b");
    part(o, "m-00003-of-00003.gguf", 2, 3, 3, "c");
}

static void set_missing(struct out *o)
{
    o->n = 0;
    part(o, "m-00001-of-00003.gguf", 0, 3, 3, "a");
    part(o, "m-00003-of-00003.gguf", 2, 3, 3, "c");
}

static void set_no_first(struct out *o)
{
    o->n = 0;
    part(o, "m-00002-of-00002.gguf", 1, 2, 2, "b");
}

static void set_swapped(struct out *o)
{
    o->n = 0;
    part(o, "m-00001-of-00003.gguf", 0, 3, 3, "a");
    part(o, "m-00002-of-00003.gguf", 2, 3, 3, "c");
    part(o, "m-00003-of-00003.gguf", 1, 3, 3, "b");
}

static void set_foreign_count(struct out *o)
{
    o->n = 0;
    part(o, "m-00001-of-00002.gguf", 0, 2, 2, "a");
    part(o, "m-00002-of-00002.gguf", 1, 4, 4, "b");
}

static void set_foreign_total(struct out *o)
{
    o->n = 0;
    part(o, "m-00001-of-00002.gguf", 0, 2, 2, "a");
    part(o, "m-00002-of-00002.gguf", 1, 2, 9, "b");
}

static void set_foreign_alone(struct out *o)
{
    o->n = 0;
    part(o, "m-00001-of-00002.gguf", 0, 2, 3, "a");
    begin(o, "m-00002-of-00002.gguf");
    sound(o);
}

static void set_twice(struct out *o)
{
    o->n = 0;
    part(o, "m-00001-of-00002.gguf", 0, 2, 2, "a");
    part(o, "m-00002-of-00002.gguf", 1, 2, 2, "a");
}

static void set_total(struct out *o)
{
    o->n = 0;
    part(o, "m-00001-of-00002.gguf", 0, 2, 5, "a");
    part(o, "m-00002-of-00002.gguf", 1, 2, 5, "b");
}

static void set_page(struct out *o)
{
    o->n = 0;
    part(o, "m-00001-of-00002.gguf", 0, 2, 2, "a");
    begin(o, "m-00002-of-00002.gguf");
    text(o, "<!DOCTYPE html><html><body>Not found</body></html>");
}

static void set_cut(struct out *o)
{
    o->n = 0;
    part(o, "m-00001-of-00002.gguf", 0, 2, 2, "a");
    part(o, "m-00002-of-00002.gguf", 1, 2, 2, "b");
    cut(o, 10);
}

static void set_empty_part(struct out *o)
{
    o->n = 0;
    part(o, "m-00001-of-00002.gguf", 0, 2, 2, "a");
    begin(o, "m-00002-of-00002.gguf");
}

static void set_joined(struct out *o)
{
    o->n = 0;
    part(o, "m.gguf", 0, 2, 2, "a");
    struct out second = {.n = 0};
    part(&second, "x", 1, 2, 2, "b");
    put(o, second.f->bytes, second.f->len);
    free(second.f->bytes);
}

static void set_renamed(struct out *o)
{
    o->n = 0;
    part(o, "model.gguf", 0, 2, 2, "a");
}

static void set_most(struct out *o)
{
    o->n = 0;
    part(o, "m-00001-of-65535.gguf", 0, 65535, 65535, "a");
}

static void split_u32(struct out *o)
{
    head(o, 3, 0, 3);
    kv_u32(o, "split.no", 0);
    kv_u32(o, "split.count", 2);
    kv_u32(o, "split.tensors.count", 2);
}

static void split_no_beyond(struct out *o)
{
    o->n = 0;
    part(o, "m-00002-of-00002.gguf", 2, 2, 2, "a");
}

static void split_total_negative(struct out *o)
{
    o->n = 0;
    part(o, "m-00001-of-00002.gguf", 0, 2, UINT32_MAX, "a");
}

static void split_alone(struct out *o)
{
    head(o, 3, 0, 1);
    kv_u16(o, "split.count", 2);
}

/* ---- no models ------------------------------------------------------------------------------------------------------------------ */

#define TEXT_CASE(name, s) \
    static void name(struct out *o) \
    { \
        put(o, s, sizeof(s) - 1); \
    }
TEXT_CASE(page, "<!doctype html>\n<html class=\"\"><head><title>model.gguf</title>")
TEXT_CASE(page_late, "\xef\xbb\xbf\r\n  <html><body>login")
TEXT_CASE(page_xml, "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>")
TEXT_CASE(lfs, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 4683073536\n")
TEXT_CASE(json_error, "{\"error\":\"Repository not found\"}")
TEXT_CASE(json_other, "{\"model_type\": \"llama\"}")
TEXT_CASE(json_broken, "{\"weight_map\": {")
TEXT_CASE(not_found, "Entry not found")
TEXT_CASE(zip, "PK\003\004\x14\x00\x00\x00\x08\x00pytorch_model/data.pkl")
TEXT_CASE(gzip, "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03")
TEXT_CASE(zstd, "\x28\xb5\x2f\xfd\x24\x00\x01\x00\x00")
TEXT_CASE(xz, "\xfd" "7zXZ\x00\x00\x04")
TEXT_CASE(pickle, "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e")
TEXT_CASE(ggml_old, "lmgg\x00\x7d\x00\x00\x00\x10\x00\x00")
TEXT_CASE(ggjt, "tjgg\x03\x00\x00\x00\x00\x7d\x00\x00")
TEXT_CASE(elf, "\x7f" "ELF\x02\x01\x01\x00\x00\x00\x00\x00")
TEXT_CASE(noise, "\x93\x11\xfe\x07\x00\x00\xa5\x5a\x01\x02\x03")
TEXT_CASE(lower, "gguf\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")

static void nothing_but_zeros(struct out *o)
{
    zeros(o, 64);
    hole(o, 1 << 20);
}

/* ---- safetensors ------------------------------------------------------------------------------------------------------------------ */

static void st(struct out *o, const char *json, size_t data)
{
    u64(o, strlen(json));
    text(o, json);
    zeros(o, data);
}

#define ST_CASE(name, json, data) \
    static void name(struct out *o) \
    { \
        st(o, json, data); \
    }
#define ST_A "\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}"
ST_CASE(st_sound, "{\"__metadata__\":{\"format\":\"pt\"}," ST_A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[16,22]}}   ", 22)
ST_CASE(st_empty, "{}", 0)
ST_CASE(st_sub_byte, "{\"a\":{\"dtype\":\"F4\",\"shape\":[2,8],\"data_offsets\":[0,8]}}", 8)
ST_CASE(st_sub_byte_odd, "{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2)
ST_CASE(st_unknown, "{\"a\":{\"dtype\":\"Q9\",\"shape\":[2,2],\"data_offsets\":[0,16]}}", 16)
ST_CASE(st_not_json, "{\"a\":", 0)
ST_CASE(st_no_object, "{\"a\":5}", 0)
ST_CASE(st_twice, "{" ST_A "," ST_A "}", 16)
ST_CASE(st_member_twice, "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,16]}}", 16)
ST_CASE(st_member_unknown, "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16],\"x\":1}}", 16)
ST_CASE(st_no_dtype, "{\"a\":{\"shape\":[4],\"data_offsets\":[0,16]}}", 16)
ST_CASE(st_no_shape, "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", 16)
ST_CASE(st_no_range, "{\"a\":{\"dtype\":\"F32\",\"shape\":[4]}}", 16)
ST_CASE(st_range_one, "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0]}}", 16)
ST_CASE(st_range_backwards, "{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[16,0]}}", 16)
ST_CASE(st_range_negative, "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[-16,0]}}", 16)
ST_CASE(st_range_fraction, "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0.5,16.5]}}", 16)
ST_CASE(st_range_2_64, "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[18446744073709551599,18446744073709551615]}}", 16)
ST_CASE(st_range_shifted, "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[1000000,1000016]}}", 16)
ST_CASE(st_overlap, "{" ST_A ",\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[8,24]}}", 24)
ST_CASE(st_alias, "{" ST_A ",\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", 16)
ST_CASE(st_gap, "{" ST_A ",\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[32,48]}}", 48)
ST_CASE(st_short_range, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1000,1000],\"data_offsets\":[0,4]}}", 4)
ST_CASE(st_shape_wrap, "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0)
ST_CASE(st_shape_bytes_wrap, "{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]}}", 0)
ST_CASE(st_shape_negative, "{\"a\":{\"dtype\":\"F32\",\"shape\":[-4],\"data_offsets\":[0,16]}}", 16)
ST_CASE(st_dims_9, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,4],\"data_offsets\":[0,16]}}", 16)
ST_CASE(st_cut, "{" ST_A "}", 15)
ST_CASE(st_behind, "{" ST_A "}", 17)
ST_CASE(st_metadata_number, "{\"__metadata__\":{\"a\":1}}", 0)
ST_CASE(st_metadata_twice, "{\"__metadata__\":{},\"__metadata__\":{}}", 0)
ST_CASE(st_name_control, "{\"a\\u001b[2J\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,15]}}", 16)

#define ST_LENGTH_CASE(name, length, more) \
    static void name(struct out *o) \
    { \
        u64(o, length); \
        text(o, "{\"a\":1}"); \
        hole(o, more); \
    }
ST_LENGTH_CASE(st_length_2_64, UINT64_MAX, 64)
ST_LENGTH_CASE(st_length_wrap, UINT64_MAX - 4, 64)
ST_LENGTH_CASE(st_length_over, (32 << 20) + 1, 64 << 20)
ST_LENGTH_CASE(st_length_beyond, 100, 64)
ST_LENGTH_CASE(st_length_0, 0, 64)

static void st_deep(struct out *o)
{
    enum { DEEP = 100000 };
    u64(o, 5 + DEEP);
    text(o, "{\"a\":");
    for (int i = 0; i < DEEP; i++)
        text(o, "[");
}

static void st_long_name(struct out *o)
{
    static char json[2000];
    int n = snprintf(json, sizeof(json), "{\"%01100d\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", 0);
    if (n > 0)
        st(o, json, 16);
}

/* ---- indexes of safetensors; the first file's name is the case's ------------------------------------------------------------------------ */

static void index_with(struct out *o, const char *json)
{
    o->n = 0;
    begin(o, "model.safetensors.index.json");
    text(o, json);
}

static void index_sound(struct out *o)
{
    index_with(o, "{\"metadata\":{\"total_size\":22},\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\"}}");
    begin(o, "x.safetensors");
    st(o, "{" ST_A "}", 16);
    begin(o, "y.safetensors");
    st(o, "{\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]}}", 6);
}

static void index_total(struct out *o)
{
    index_with(o, "{\"metadata\":{\"total_size\":99},\"weight_map\":{\"a\":\"x.safetensors\"}}");
    begin(o, "x.safetensors");
    st(o, "{" ST_A "}", 16);
}

static void index_missing(struct out *o)
{
    index_with(o, "{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"y.safetensors\"}}");
    begin(o, "x.safetensors");
    st(o, "{" ST_A "}", 16);
}

static void index_lacks(struct out *o)
{
    index_with(o, "{\"weight_map\":{\"a\":\"x.safetensors\",\"b\":\"x.safetensors\"}}");
    begin(o, "x.safetensors");
    st(o, "{" ST_A "}", 16);
}

static void index_foreign(struct out *o)
{
    index_with(o, "{\"weight_map\":{\"a\":\"x.safetensors\"}}");
    begin(o, "x.safetensors");
    st(o, "{" ST_A ",\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[16,22]}}", 22);
}

static void index_climbs(struct out *o)
{
    index_with(o, "{\"weight_map\":{\"a\":\"../../../etc/passwd\"}}");
}

static void index_absolute(struct out *o)
{
    index_with(o, "{\"weight_map\":{\"a\":\"/etc/passwd\"}}");
}

static void index_twice(struct out *o)
{
    index_with(o, "{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"y.safetensors\"}}");
}

static void index_empty(struct out *o)
{
    index_with(o, "{\"weight_map\":{}}");
}

/* ---- the table ------------------------------------------------------------------------------------------------------------------------------ */

struct hostile {
    const char *name; /* of the file, or of the folder when make() begins files of its own */
    void (*make)(struct out *o);
    int exit;         /* of berth inspect */
    const char *says; /* in its output or errors */
};

#define G(f, exit, says) {#f ".gguf", f, exit, says}
#define S(f, exit, says) {#f ".safetensors", f, exit, says}
#define SET(f, exit, says) {#f, f, exit, says}

static const struct hostile hostile_cases[] = {
    /* sound, odd as they are */
    G(sound, 0, "Sound Model"),
    G(sound_v2, 0, "GGUF v2"),
    G(sound_align, 0, "Sound Model"),
    G(sound_no_tensors, 0, "no tensors"),
    G(sound_nothing, 0, "no tensors"),
    G(sound_trailing, 0, "60 B behind the last tensor"),
    G(sound_dims, 0, "65 parameters"),
    G(hollow, 0, "1.05 B parameters"),
    /* what a file is */
    G(cut_0, 1, "an empty file"),
    G(cut_1, 1, "ends at byte 1, inside its magic number"),
    G(cut_3, 1, "ends at byte 3, inside its magic number"),
    G(cut_4, 1, "ends at byte 4, inside the magic number and version"),
    G(cut_8, 1, "ends at byte 8, inside the first 24 bytes"),
    G(cut_23, 1, "ends at byte 23, inside the first 24 bytes"),
    G(version_0, 1, "version 0 (at byte 4) does not exist"),
    G(version_1, 1, "GGUF version 1 (at byte 4)"),
    G(version_4, 1, "GGUF version 4 (at byte 4); versions 2 and 3 are known"),
    G(version_most, 1, "GGUF version 4294967295"),
    G(big_endian, 1, "big-endian GGUF file (its version reads as 50331648"),
    G(big_endian_magic, 1, "big-endian GGUF file (its magic is reversed)"),
    G(page, 1, "a web page, no model"),
    G(page_late, 1, "a web page, no model"),
    G(page_xml, 1, "a web page, no model"),
    G(lfs, 1, "a pointer of Git LFS, which stands for a file of 4683073536 bytes"),
    G(json_error, 1, "what a server answered instead of the file: 'Repository not found'"),
    G(json_other, 1, "a JSON file without 'weight_map'"),
    G(json_broken, 1, "broken JSON"),
    G(not_found, 1, "text, no model: 'Entry not found'"),
    G(zip, 1, "a zip archive"),
    G(gzip, 1, "compressed by gzip"),
    G(zstd, 1, "compressed by zstd"),
    G(xz, 1, "compressed by xz"),
    G(pickle, 1, "a Python pickle"),
    G(ggml_old, 1, "a GGML file from before GGUF"),
    G(ggjt, 1, "a GGML file from before GGUF"),
    G(elf, 1, "a program or library"),
    G(noise, 1, "it begins with the bytes 93 11 fe 07"),
    G(lower, 1, "it begins with the bytes 67 67 75 66"),
    G(nothing_but_zeros, 1, "zeros at its beginning"),
    /* counts */
    G(tensors_negative, 1, "claims -1 tensors at byte 8"),
    G(tensors_2_63, 1, "claims -9223372036854775808 tensors at byte 8"),
    G(tensors_2_62, 1, "claims 4611686018427387904 tensors at byte 8"),
    G(tensors_2_32, 1, "claims 4294967295 tensors at byte 8"),
    G(tensors_wrap, 1, "tensors at byte 8, of at least 25 bytes each, but only 64 bytes follow"),
    G(tensors_many, 1, "claims 1000000 tensors at byte 8; at most 262144"),
    G(kv_negative, 1, "claims -1 metadata keys at byte 16"),
    G(kv_2_63, 1, "claims -9223372036854775808 metadata keys"),
    G(kv_2_32, 1, "claims 4294967295 metadata keys at byte 16"),
    G(kv_wrap, 1, "metadata keys at byte 16, of at least 14 bytes each, but only 64 bytes follow"),
    G(kv_many, 1, "claims 100000 metadata keys at byte 16; at most 65536"),
    G(both_counts, 1, "claims 2 metadata keys at byte 16, of at least 14 bytes each, but only 10 bytes follow"),
    G(first_key_zeros, 1, "key 1 of 1 at byte 24 claims a length of 0"),
    /* keys and values */
    G(cut_key, 1, "claims 6 metadata keys at byte 16, of at least 14 bytes each, but only 26 bytes follow"),
    G(cut_kvs, 1, "ends at byte 200, inside "),
    G(key_empty, 1, "claims a length of 0"),
    G(key_long, 1, "claims a length of 65536"),
    G(key_beyond, 1, "inside a key that begins at byte 32"),
    G(key_2_63, 1, "claims a length of 9223372036854775808"),
    G(key_2_64, 1, "claims a length of 18446744073709551615"),
    G(key_zeros, 1, "key 1 of 1 at byte 24 is no text"),
    G(key_not_text, 1, "is no text: 'general.\\xc3('"),
    G(key_twice, 1, "key 'llama.block_count' is there twice"),
    G(value_type_13, 1, "'a.b' at byte 35 has type 13"),
    G(value_type_255, 1, "has type 255"),
    G(value_type_negative, 1, "has type 4294967295"),
    G(string_2_64, 1, "the string of 'a.b' at byte 39 claims 18446744073709551615 bytes"),
    G(string_2_63, 1, "claims 9223372036854775808 bytes"),
    G(string_wrap, 1, "claims 18446744073709551569 bytes"),
    G(string_over, 1, "claims 1073741825 bytes"),
    G(string_most, 1, "inside a string that begins at byte 47"),
    G(string_beyond, 1, "inside a string that begins at byte 47"),
    G(string_short, 1, "claims 18446744073709551615 bytes"),
    G(string_of_1_gib, 0, "no tensors"),
    G(array_type_13, 1, "the array 'a.b' at byte 39 has elements of type 13"),
    G(array_type_negative, 1, "has elements of type 4294967295"),
    G(array_2_64_u8, 1, "the array 'a.b' at byte 39 claims 18446744073709551615 elements"),
    G(array_2_63_u8, 1, "claims 9223372036854775808 elements"),
    G(array_wrap_u64, 1, "claims 2305843009213693952 elements"),
    G(array_over, 1, "claims 1073741825 elements"),
    G(array_beyond, 1, "has 17 elements of at least 4 bytes, but only 64 bytes follow"),
    G(strings_2_62, 1, "claims 4611686018427387904 elements"),
    G(strings_2_30, 1, "has 1073741824 elements of at least 8 bytes, but only 64 bytes follow"),
    G(strings_beyond, 1, "has 9 elements of at least 8 bytes, but only 64 bytes follow"),
    G(array_of_arrays, 1, "is an array of arrays"),
    G(array_nested, 1, "is an array of arrays"),
    G(token_2_64, 1, "array 'tokenizer.ggml.tokens': a string at byte 80 claims 18446744073709551615 bytes"),
    G(token_wrap, 1, "claims 18446744073709551608 bytes"),
    G(token_2_31, 1, "claims 2147483648 bytes"),
    G(token_beyond, 1, "array 'tokenizer.ggml.tokens': the file ends at byte 152"),
    G(strings_no_room, 1, "inside an array of strings that begins at byte"),
    G(align_0, 1, "general.alignment at byte"),
    G(align_24, 1, "is 24; it must be a power of two"),
    G(align_2_31, 1, "is 2147483648; it must be a power of two up to"),
    G(align_2_30, 1, "is 1073741824; it must be a power of two up to"),
    G(align_most, 1, "is 4294967295; it must be"),
    G(align_u64, 1, "has type u64; engines want u32"),
    G(align_string, 1, "has type string; engines want u32"),
    G(arch_number, 1, "general.architecture at byte"),
    G(arch_long, 1, "general.architecture at byte"),
    /* tensor table */
    G(cut_table, 1, "inside "),
    G(name_64, 1, "claims 64 bytes; it must be 1 to 63"),
    G(name_empty, 1, "claims 0 bytes; it must be 1 to 63"),
    G(name_2_64, 1, "claims 18446744073709551615 bytes; it must be 1 to 63"),
    G(name_not_text, 1, "is no text: 'a\\xff'"),
    G(name_twice, 1, "tensor 'a' is there twice"),
    G(dims_5, 1, "claims 5 dimensions"),
    G(dims_9, 1, "claims 9 dimensions"),
    G(dims_2_32, 1, "claims 4294967295 dimensions"),
    G(dim_negative, 1, "claims dimension 0 of 18446744073709551615"),
    G(dim_2_63, 1, "claims dimension 0 of 9223372036854775808"),
    G(dims_wrap, 1, "claims dimension 1 of 4294967296, which makes more elements than can be counted"),
    G(dims_wrap_stride, 1, "claims dimension 1 of 4194304, which makes more elements than can be counted"),
    G(dims_wrap_zero, 1, "claims dimension 0 of 9223372036854775808"),
    G(bytes_wrap, 1, "more bytes than can be counted"),
    G(bytes_exabyte, 1, "bytes are missing"),
    G(type_99, 0, "type 99"),
    G(type_43, 0, "type 43"),
    G(type_removed, 0, "q4_2 (removed from ggml)"),
    G(type_removed_31, 0, "q4_0_4_4 (removed from ggml)"),
    G(type_negative, 1, "has type -1, which no engine can have"),
    G(type_70000, 1, "has type 70000, which no engine can have"),
    G(block_33, 1, "has rows of 33 elements, no multiple of the 32 in a block of q8_0"),
    G(block_zero_rows, 1, "has rows of 100 elements"),
    G(offset_first, 1, "begins at byte 32 of the data; behind the one before it must be 0"),
    G(offset_odd, 1, "begins at byte 5 of the data, no multiple of the alignment 32"),
    G(offset_past_end, 1, "so there is a gap"),
    G(offset_2_64, 1, "so there is a gap"),
    G(offset_overlap, 1, "inside what belongs to the one before (up to 32)"),
    G(offset_inside, 1, "inside what belongs to the one before (up to 64)"),
    G(offset_gap, 1, "must be 32, so there is a gap"),
    G(offset_order, 1, "begins at byte 32 of the data; behind the one before it must be 0"),
    G(sum_overflow, 1, "more bytes than can be counted"),
    G(sum_just_below, 1, "more bytes than can be counted"),
    /* data */
    G(size_past_end, 1, "inside the data of tensor 'a' (1 of 1): 3.75 KiB of"),
    G(cut_data_all, 1, "inside the data of tensor 'token_embd.weight' (1 of 2): 512 B of"),
    G(cut_data_one, 1, "inside the data of tensor 'blk.0.attn_k.weight' (2 of 2): 1 B of"),
    G(joined, 1, "a second GGUF file begins at byte"),
    G(joined_unpadded, 1, "a second GGUF file begins at byte"),
    G(joined_padded, 1, "a second GGUF file begins at byte"),
    /* values */
    G(blocks_0, 0, "llama"),
    G(blocks_513, 0, "513 layers"),
    G(blocks_most, 0, "4,294,967,295 layers"),
    G(experts_most, 0, "4,294,967,295 experts"),
    G(nextn_most, 0, "llama"),
    G(heads_0, 0, "llama"),
    G(wrong_kinds, 0, "llama"),
    G(template_hostile, 0, "chat template"),
    G(name_escapes, 0, "\\x1b[2J"),
    /* split sets */
    SET(set_sound, 0, "3 parts"),
    SET(set_missing, 1, "part 2 of 3 is missing"),
    SET(set_no_first, 1, "part 1 of 2 is missing"),
    SET(set_swapped, 1, "says that it is part 3 (split.no 2, which counts from 0), not 2"),
    SET(set_foreign_count, 1, "says that it is of a set of 4 parts, not 2"),
    SET(set_foreign_total, 1, "says that all parts have 9 tensors; part 1 says 2"),
    SET(set_foreign_alone, 1, "is a model of its own (no split.count), not part 2 of 2"),
    SET(set_twice, 1, "has the tensor 'a', which part 1 has too"),
    SET(set_total, 1, "split.tensors.count says 5 tensors, the 2 parts have 2"),
    SET(set_page, 1, "a web page, no model"),
    SET(set_cut, 1, "inside the data of tensor 'b'"),
    SET(set_empty_part, 1, "an empty file"),
    SET(set_joined, 1, "a second GGUF file begins at byte"),
    SET(set_renamed, 1, "is part 1 of 2 of a split set, but engines find the parts by their names"),
    SET(set_most, 1, "65535 parts"),
    G(split_u32, 1, "split.count at byte"),
    SET(split_no_beyond, 1, "split.no is 2 (it counts from 0) of 2 parts"),
    SET(split_total_negative, 1, "split.tensors.count says -1 tensors"),
    G(split_alone, 1, "split.count is 2 but the key split.no is missing"),
    /* safetensors */
    S(st_sound, 0, "7 parameters"),
    S(st_empty, 0, "no tensors"),
    S(st_sub_byte, 0, "16 parameters"),
    S(st_sub_byte_odd, 1, "has 3 elements of F4 but a range of 2 bytes"),
    S(st_unknown, 0, "Q9"),
    S(st_not_json, 1, "is no JSON"),
    S(st_no_object, 1, "is no object"),
    S(st_twice, 1, "tensor 'a' is twice in the header"),
    S(st_member_twice, 1, "has 'dtype' twice"),
    S(st_member_unknown, 1, "has the unknown member 'x'"),
    S(st_no_dtype, 1, "has no 'dtype'"),
    S(st_no_shape, 1, "has no array 'shape'"),
    S(st_no_range, 1, "has no 'data_offsets' of two whole numbers"),
    S(st_range_one, 1, "has no 'data_offsets' of two whole numbers"),
    S(st_range_backwards, 1, "has the range 16 to 0"),
    S(st_range_negative, 1, "has no 'data_offsets' of two whole numbers"),
    S(st_range_fraction, 1, "has no 'data_offsets' of two whole numbers"),
    S(st_range_2_64, 1, "has the range 18446744073709551599 to 18446744073709551615"),
    S(st_range_shifted, 1, "which leaves a gap after byte"),
    S(st_overlap, 1, "before byte"),
    S(st_alias, 1, "before byte"),
    S(st_gap, 1, "which leaves a gap after byte"),
    S(st_short_range, 1, "has 1000000 elements of F32 but a range of 4 bytes"),
    S(st_shape_wrap, 1, "makes more elements than can be counted"),
    S(st_shape_bytes_wrap, 1, "elements of F64 but a range of 0 bytes"),
    S(st_shape_negative, 1, "is no whole number"),
    S(st_dims_9, 1, "has 9 dimensions"),
    S(st_cut, 1, "1 B of"),
    S(st_behind, 1, "what follows belongs to no tensor"),
    S(st_metadata_number, 1, "'a' in '__metadata__' of the header is no string"),
    S(st_metadata_twice, 1, "the header has '__metadata__' twice"),
    S(st_name_control, 1, "tensor 'a\\x1b[2J' in the header"),
    S(st_length_2_64, 1, "claims 18446744073709551615 bytes at byte 0"),
    S(st_length_wrap, 1, "claims 18446744073709551611 bytes at byte 0"),
    S(st_length_over, 1, "claims 33554433 bytes at byte 0"),
    S(st_length_beyond, 1, "inside its safetensors header of 100 bytes"),
    S(st_length_0, 1, "is no JSON"),
    S(st_deep, 1, "nested more than"),
    S(st_long_name, 1, "has a name of 1100 bytes"),
    SET(index_sound, 0, "2 parts"),
    SET(index_total, 1, "total_size says 99 bytes"),
    SET(index_missing, 1, "y.safetensors"),
    SET(index_lacks, 1, "has no tensor 'b', which the index says is in it"),
    SET(index_foreign, 1, "has the tensor 'b', which the index does not say is in it"),
    SET(index_climbs, 1, "has no plain file name"),
    SET(index_absolute, 1, "has no plain file name"),
    SET(index_twice, 1, "tensor 'a' is twice in weight_map"),
    SET(index_empty, 1, "weight_map has no tensor"),
};

/* Makes a case's files. A case of one file is in o->file[0] under the case's name. */
static void hostile_make(const struct hostile *h, struct out *o)
{
    *o = (struct out){.n = 0};
    begin(o, h->name);
    h->make(o);
}

static void hostile_release(struct out *o)
{
    for (size_t i = 0; i < o->n; i++)
        free(o->file[i].bytes);
    o->n = 0;
}

#ifndef HOSTILE_TABLE_ONLY
static int write_file(int dirfd, const struct made *f)
{
    int fd = openat(dirfd, f->name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return -1;
    ssize_t n = f->len ? write(fd, f->bytes, f->len) : 0;
    int r = n == (ssize_t)f->len ? ftruncate(fd, (off_t)f->size) : -1;
    return close(fd) == 0 ? r : -1;
}

static int write_case(int dirfd, const struct hostile *h, FILE *list)
{
    struct out o;
    hostile_make(h, &o);
    bool is_set = strcmp(o.file[0].name, h->name) != 0;
    int at = dirfd;
    if (is_set) {
        if (mkdirat(dirfd, h->name, 0755) != 0 && errno != EEXIST)
            return -1;
        at = openat(dirfd, h->name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    int r = at < 0 ? -1 : 0;
    for (size_t i = 0; r == 0 && i < o.n; i++)
        r = write_file(at, &o.file[i]);
    if (r == 0 && fprintf(list, "%s%s%s\t%d\t%s\n", is_set ? h->name : "", is_set ? "/" : "", o.file[0].name, h->exit, h->says) < 0)
        r = -1;
    if (is_set && at >= 0)
        close(at);
    hostile_release(&o);
    return r;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        (void)fprintf(stderr, "hostile: needs one word: the folder to write to\n");
        return 2;
    }
    if (mkdir(argv[1], 0755) != 0 && errno != EEXIST) {
        perror(argv[1]);
        return 1;
    }
    int dirfd = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int fd = dirfd < 0 ? -1 : openat(dirfd, "list", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    FILE *list = fd < 0 ? NULL : fdopen(fd, "w");
    if (!list) {
        perror(argv[1]);
        return 1;
    }
    size_t n = sizeof(hostile_cases) / sizeof(hostile_cases[0]);
    for (size_t i = 0; i < n; i++)
        if (write_case(dirfd, &hostile_cases[i], list) != 0) {
            perror(hostile_cases[i].name);
            return 1;
        }
    if (fclose(list) != 0) {
        perror("list");
        return 1;
    }
    close(dirfd);
    printf("%zu cases\n", n);
    return 0;
}
#endif
