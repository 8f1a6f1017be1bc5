/* SPDX-License-Identifier: MIT
 *
 * Reading GGUF: what is read is what was written, values of every type, arrays over the window's edge, every prefix and every failing read, split sets, and the hostile corpus in memory (exact allocations, so that a sanitizer sees
 * a byte too many).
 */
#include "memory_source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#include "failing_malloc.h"

#define HOSTILE_TABLE_ONLY
#include "../aids/hostile.c"

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

static struct gguf *open_or_die(const struct gguf_source *src)
{
    struct gguf *g = NULL;
    struct err err = {.text = ""};
    if (gguf_open(src, &g, &err) < 0)
        fail_msg("%s", err.text);
    return g;
}

static void assert_str(struct str s, const char *want)
{
    if (!str_eq_c(s, want))
        fail_msg("got '%.*s', want '%s'", STR_ARG(s), want);
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

static void test_sound(void **state)
{
    (void)state;
    struct out o;
    struct memory_source m;
    hostile_make(&(struct hostile){.name = "x", .make = sound}, &o);
    struct gguf *g = open_or_die(memory_source_init(&m, o.f->bytes, o.f->len, o.f->len));
    const struct gguf_info *info_of = gguf_info(g);
    assert_int_equal(info_of->version, 3);
    assert_int_equal(info_of->align, 32);
    assert_int_equal(info_of->n_kv, LLAMA_KEYS);
    assert_int_equal(info_of->n_tensors, 2);
    assert_int_equal(info_of->file_bytes, o.f->len);
    assert_int_equal(info_of->data_off % 32, 0);
    assert_int_equal(info_of->data_off, o.f->len - 512);
    assert_in_range(info_of->data_off - info_of->header_bytes, 0, 31);
    assert_int_equal(info_of->data_bytes, 512);
    assert_int_equal(info_of->elements, 128);
    assert_int_equal(info_of->end, o.f->len);
    assert_int_equal(info_of->faults, 0);
    assert_int_equal(gguf_whole(g, NULL), 0);
    assert_str(gguf_arch(g), "llama");
    uint64_t n = 0;
    assert_true(gguf_u64(gguf_find(g, "llama.context_length"), &n) && n == 4096);
    assert_true(gguf_u64(gguf_find_arch(g, "block_count"), &n) && n == 2);
    assert_null(gguf_find(g, "llama.context_lengt"));
    assert_null(gguf_find_arch(g, ""));
    struct str s;
    assert_true(gguf_str(gguf_find(g, "general.name"), &s));
    assert_str(s, "Sound Model");
    assert_str(gguf_kv(g, 0)->key, "general.architecture");
    const struct gguf_tensor *t = gguf_tensor(g, 1);
    assert_str(t->name, "blk.0.attn_k.weight");
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 64);
    assert_int_equal(t->dims[3], 1);
    assert_int_equal(t->bytes, 256);
    assert_int_equal(t->off, info_of->data_off + 256);
    assert_string_equal(t->type->name, "f32");
    gguf_free(g);
    hostile_release(&o);
}

static void every_type(struct out *o)
{
    head(o, 3, 0, 22);
    key(o, "u8", U8);
    number(o, 200, 1);
    key(o, "i8", I8);
    number(o, (uint64_t)-100, 1);
    key(o, "u16", U16);
    number(o, 60000, 2);
    key(o, "i16", I16);
    number(o, (uint64_t)-30000, 2);
    key(o, "u32", U32);
    number(o, 4000000000u, 4);
    key(o, "i32", I32);
    number(o, (uint64_t)-2000000000, 4);
    key(o, "f32", F32);
    number(o, 0x3fc00000, 4); /* 1.5 */
    key(o, "bool", BOOL);
    number(o, 1, 1);
    kv_str(o, "string", "text");
    key(o, "u64", U64);
    u64(o, UINT64_MAX);
    key(o, "i64", I64);
    u64(o, (uint64_t)INT64_MIN);
    key(o, "f64", F64);
    u64(o, UINT64_C(0xc004000000000000)); /* -2.5 */
    kv_array(o, "a.u8", U8, 2);
    number(o, 0xff07, 2);
    kv_array(o, "a.i8", I8, 1);
    number(o, 0xff, 1);
    kv_array(o, "a.i16", I16, 1);
    number(o, 0xfffe, 2);
    kv_array(o, "a.i32", I32, 2);
    u64(o, UINT64_C(0xfffffffd00000003));
    kv_array(o, "a.bool", BOOL, 3);
    number(o, 0x010001, 3);
    kv_array(o, "a.f32", F32, 1);
    number(o, 0x3fc00000, 4);
    kv_array(o, "a.u64", U64, 2);
    u64(o, UINT64_MAX);
    u64(o, 5);
    kv_array(o, "a.str", STRING, 2);
    str(o, "one");
    str(o, "");
    kv_array(o, "a.none", F64, 0);
    kv_array(o, "a.i64", I64, 1);
    u64(o, (uint64_t)-9);
}

static void test_values(void **state)
{
    (void)state;
    struct out o;
    struct memory_source m;
    hostile_make(&(struct hostile){.name = "x", .make = every_type}, &o);
    struct gguf *g = open_or_die(memory_source_init(&m, o.f->bytes, o.f->len, o.f->len));
    static const struct {
        const char *key;
        uint64_t value;
    } unsigneds[] = {{"u8", 200}, {"u16", 60000}, {"u32", 4000000000u}, {"u64", UINT64_MAX}};
    static const struct {
        const char *key;
        double value;
    } reals[] = {{"f32", 1.5}, {"f64", -2.5}};
    static const struct {
        const char *key;
        int64_t value;
    } signeds[] = {{"i8", -100}, {"i16", -30000}, {"i32", -2000000000}, {"i64", INT64_MIN}};
    uint64_t n = 0;
    double d = 0;
    bool b = false;
    int64_t i = 0;
    struct str s;
    for (size_t k = 0; k < BASE_COUNT(unsigneds); k++)
        assert_true(gguf_u64(gguf_find(g, unsigneds[k].key), &n) && n == unsigneds[k].value);
    for (size_t k = 0; k < BASE_COUNT(reals); k++)
        assert_true(gguf_find(g, reals[k].key)->v.f == reals[k].value);
    for (size_t k = 0; k < BASE_COUNT(signeds); k++)
        assert_true(gguf_find(g, signeds[k].key)->v.i == signeds[k].value);
    assert_true(gguf_bool(gguf_find(g, "bool"), &b) && b);
    assert_true(gguf_str(gguf_find(g, "string"), &s));
    assert_str(s, "text");
    /* what is of another kind is not given */
    assert_false(gguf_u64(gguf_find(g, "i8"), &n));
    assert_false(gguf_u64(gguf_find(g, "bool"), &n) || gguf_u64(gguf_find(g, "f32"), &n) || gguf_u64(gguf_find(g, "string"), &n) || gguf_u64(NULL, &n));
    assert_false(gguf_bool(gguf_find(g, "u8"), &b) || gguf_bool(NULL, &b));
    assert_false(gguf_str(gguf_find(g, "a.str"), &s) || gguf_str(NULL, &s));
    /* arrays */
    assert_true(gguf_at_i64(gguf_find(g, "a.u8"), 1, &i) && i == 255);
    assert_false(gguf_at_i64(gguf_find(g, "a.u8"), 2, &i));
    assert_true(gguf_at_i64(gguf_find(g, "a.i8"), 0, &i) && i == -1);
    assert_true(gguf_at_i64(gguf_find(g, "a.i16"), 0, &i) && i == -2);
    assert_true(gguf_at_i64(gguf_find(g, "a.i32"), 0, &i) && i == 3);
    assert_true(gguf_at_i64(gguf_find(g, "a.i32"), 1, &i) && i == -3);
    assert_true(gguf_at_i64(gguf_find(g, "a.bool"), 2, &i) && i == 1);
    assert_true(gguf_at_i64(gguf_find(g, "a.i64"), 0, &i) && i == -9);
    assert_false(gguf_at_i64(gguf_find(g, "a.u64"), 0, &i)); /* does not fit */
    assert_true(gguf_at_i64(gguf_find(g, "a.u64"), 1, &i) && i == 5);
    assert_false(gguf_at_i64(gguf_find(g, "a.f32"), 0, &i) || gguf_at_i64(gguf_find(g, "a.str"), 0, &i) || gguf_at_i64(gguf_find(g, "a.none"), 0, &i) || gguf_at_i64(gguf_find(g, "u8"), 0, &i));
    assert_true(gguf_at_f64(gguf_find(g, "a.f32"), 0, &d) && d == 1.5);
    assert_true(gguf_at_f64(gguf_find(g, "a.i32"), 1, &d) && d == -3);
    assert_false(gguf_at_f64(gguf_find(g, "a.str"), 0, &d));
    assert_string_equal(gguf_value_type_name(gguf_find(g, "a.i64")->elem), "i64");
    gguf_free(g);
    hostile_release(&o);
}

/* Collects what gguf_each_str gives. */
struct collected {
    char text[256];
    uint64_t stop_after;
};

static bool collect(void *ctx, uint64_t i, struct str s)
{
    struct collected *c = ctx;
    size_t n = strlen(c->text);
    (void)snprintf(c->text + n, sizeof(c->text) - n, "%" PRIu64 "=%.*s;", i, STR_ARG(s));
    return i + 1 < c->stop_after;
}

static void test_each_str(void **state)
{
    (void)state;
    struct out o;
    struct memory_source m;
    hostile_make(&(struct hostile){.name = "x", .make = sound_no_tensors}, &o);
    struct gguf *g = open_or_die(memory_source_init(&m, o.f->bytes, o.f->len, o.f->len));
    struct collected c = {.stop_after = 100};
    assert_int_equal(gguf_each_str(g, gguf_find(g, "tokenizer.ggml.tokens"), 100, collect, &c, NULL), 0);
    assert_string_equal(c.text, "0=a;1=;2=\xff\xfe;");
    c = (struct collected){.stop_after = 100};
    assert_int_equal(gguf_each_str(g, gguf_find(g, "tokenizer.ggml.tokens"), 1, collect, &c, NULL), 0);
    assert_string_equal(c.text, "0=a;");
    c = (struct collected){.stop_after = 2};
    assert_int_equal(gguf_each_str(g, gguf_find(g, "tokenizer.ggml.tokens"), 100, collect, &c, NULL), 0);
    assert_string_equal(c.text, "0=a;1=;");
    assert_int_equal(gguf_each_str(g, gguf_find(g, "tokenizer.ggml.scores"), 1, collect, &c, NULL), -EINVAL);
    assert_int_equal(gguf_each_str(g, NULL, 1, collect, &c, NULL), -EINVAL);
    gguf_free(g);
    hostile_release(&o);
}

/* A header over several windows: strings of all lengths lie across each edge, one is longer than a window, a large array of numbers is stepped over without being read. */
static void large(struct out *o)
{
    static char filler[GGUF_WINDOW * 2];
    head(o, 3, 1, 5);
    kv_str(o, "general.architecture", "llama");
    kv_array(o, "tokens", STRING, 3001);
    for (unsigned i = 0; i < 3000; i++) {
        u64(o, i % 701);
        put(o, filler, i % 701);
    }
    u64(o, sizeof(filler));
    put(o, filler, sizeof(filler));
    kv_array(o, "scores", F32, 500000);
    for (int i = 0; i < 3; i++)
        put(o, filler, sizeof(filler));
    put(o, filler, 2000000 - 3 * sizeof(filler));
    key(o, "long", STRING);
    u64(o, sizeof(filler));
    put(o, filler, sizeof(filler));
    kv_u32(o, "last", 7);
    info(o, "t", 0, 0, 1, 8, 0);
    pad(o, 32);
    zeros(o, 32);
}

static void test_window(void **state)
{
    (void)state;
    struct out o;
    struct memory_source m;
    hostile_make(&(struct hostile){.name = "x", .make = large}, &o);
    struct gguf *g = open_or_die(memory_source_init(&m, o.f->bytes, o.f->len, o.f->len));
    uint64_t n = 0;
    struct str s;
    assert_true(o.f->len > 12 * GGUF_WINDOW);
    assert_true(gguf_u64(gguf_find(g, "last"), &n) && n == 7);
    assert_int_equal(gguf_find(g, "tokens")->n, 3001);
    assert_int_equal(gguf_find(g, "scores")->bytes, 2000000);
    assert_int_equal(gguf_find(g, "scores")->kept.len, 0);
    assert_int_equal(gguf_find(g, "long")->kept.len, GGUF_KEEP_STRING);
    assert_false(gguf_str(gguf_find(g, "long"), &s));
    assert_int_equal(gguf_whole(g, NULL), 0);
    /* the numbers and the long strings were stepped over */
    assert_true(m.bytes_read < o.f->len - 1900000);
    gguf_free(g);
    hostile_release(&o);
}

/* ---- what fails ------------------------------------------------------------------------------------------------------ */

static void test_prefixes(void **state)
{
    (void)state;
    struct out o;
    hostile_make(&(struct hostile){.name = "x", .make = sound}, &o);
    for (size_t n = 0; n < o.f->len; n++) {
        struct memory_source m;
        struct gguf *g = NULL;
        struct err err = {.text = ""};
        uint8_t *exact = malloc(n ? n : 1);
        assert_non_null(exact);
        memcpy(exact, o.f->bytes, n);
        int r = gguf_open(memory_source_init(&m, exact, n, n), &g, &err);
        if (r == 0) {
            assert_true(n >= gguf_info(g)->header_bytes);
            assert_int_equal(gguf_whole(g, &err), -ENODATA);
            assert_int_equal(gguf_info(g)->missing_bytes, o.f->len - n);
        } else {
            assert_true(n == 0 ? r == -EMEDIUMTYPE : r == -ENODATA);
            assert_true(err.code == r && err.text[0]);
        }
        gguf_free(g);
        free(exact);
    }
    hostile_release(&o);
}

/* Each byte of the header changed: accepted or refused, never a crash, and what is accepted can be walked. */
static void test_flips(void **state)
{
    (void)state;
    struct out o;
    hostile_make(&(struct hostile){.name = "x", .make = every_type}, &o);
    static const uint8_t to[] = {0, 1, 0x7f, 0x80, 0xff};
    for (size_t n = 4; n < o.f->len; n++)
        for (size_t k = 0; k < BASE_COUNT(to); k++) {
            struct memory_source m;
            struct gguf *g = NULL;
            uint8_t was = o.f->bytes[n];
            o.f->bytes[n] = to[k];
            if (gguf_open(memory_source_init(&m, o.f->bytes, o.f->len, o.f->len), &g, NULL) == 0)
                for (size_t i = 0; i < gguf_info(g)->n_kv; i++) {
                    const struct gguf_kv *kv = gguf_kv(g, i);
                    assert_true(kv->off <= o.f->len && kv->bytes <= o.f->len - kv->off);
                }
            gguf_free(g);
            o.f->bytes[n] = was;
        }
    hostile_release(&o);
}

static void test_failing_reads(void **state)
{
    (void)state;
    struct out o;
    hostile_make(&(struct hostile){.name = "x", .make = large}, &o);
    long most = 0;
    for (long n = 0;; n++) {
        struct memory_source m;
        struct gguf *g = NULL;
        struct err err = {.text = ""};
        const struct gguf_source *src = memory_source_init(&m, o.f->bytes, o.f->len, o.f->len);
        m.fail_at = n;
        int r = gguf_open(src, &g, &err);
        gguf_free(g);
        if (r == 0) {
            most = n;
            break;
        }
        assert_int_equal(r, -EIO);
        assert_non_null(strstr(err.text, "a read that fails"));
    }
    assert_in_range(most, 5, 40); /* few reads: windows, not fields */
    hostile_release(&o);
}

static void test_no_memory(void **state)
{
    (void)state;
#if FAILING_MALLOC
    struct out o;
    hostile_make(&(struct hostile){.name = "x", .make = every_type}, &o);
    bool failed = true;
    for (long n = 0; failed; n++) {
        struct memory_source m;
        struct gguf *g = NULL;
        memory_source_init(&m, o.f->bytes, o.f->len, o.f->len);
        failing_arm(n);
        int r = gguf_open(&m.src, &g, NULL);
        gguf_free(g);
        assert_int_equal(failing_disarm(&failed), 0);
        assert_int_equal(r, failed ? -ENOMEM : 0);
    }
    hostile_release(&o);
#else
    skip();
#endif
}

/* ---- the hostile corpus ------------------------------------------------------------------------------------------------- */

/* What a program would say of a single file: 0, or the first thing that is wrong. */
static int judge(const struct gguf_source *src, struct err *err)
{
    enum gguf_file kind;
    struct gguf_st *s = NULL;
    struct gguf_part p = {.path = NULL};
    struct gguf_index x;
    int r = gguf_sniff(src, &kind, err);
    if (r < 0)
        return r;
    if (kind == GGUF_FILE_GGUF) {
        r = gguf_open(src, &p.g, err);
        if (r == 0)
            r = gguf_set_check(&p, 1, err);
        gguf_free(p.g);
    } else if (kind == GGUF_FILE_SAFETENSORS) {
        r = gguf_st_open(src, &s, err);
        if (r == 0)
            r = gguf_st_whole(s, err);
        gguf_st_free(s);
    } else {
        base_autobuf struct buf text_of = BUF_INIT(1 << 20);
        char *room = buf_room(&text_of, (size_t)src->size);
        assert_non_null(room);
        assert_int_equal(src->read(src->ctx, 0, room, (size_t)src->size, err), 0);
        buf_grew(&text_of, (size_t)src->size);
        r = gguf_index_parse(buf_str(&text_of), &x, err);
        if (r == 0)
            gguf_index_release(&x);
    }
    return r;
}

static void test_hostile(void **state)
{
    (void)state;
    size_t replayed = 0;
    for (size_t i = 0; i < BASE_COUNT(hostile_cases); i++) {
        const struct hostile *h = &hostile_cases[i];
        struct out o;
        struct memory_source m;
        struct err err = {.text = ""};
        hostile_make(h, &o);
        if (o.n != 1 || strcmp(o.file[0].name, h->name) != 0) {
            hostile_release(&o);
            continue; /* several files: the command line's test has them */
        }
        uint8_t *exact = malloc(o.f->len ? o.f->len : 1);
        assert_non_null(exact);
        if (o.f->len)
            memcpy(exact, o.f->bytes, o.f->len);
        int r = judge(memory_source_init(&m, exact, o.f->len, o.f->size), &err);
        free(exact);
        hostile_release(&o);
        if ((r < 0) != (h->exit != 0))
            fail_msg("%s: got %d '%s', want exit %d '%s'", h->name, r, err.text, h->exit, h->says);
        if (r < 0 && !strstr(err.text, h->says))
            fail_msg("%s: got '%s', want '%s'", h->name, err.text, h->says);
        if (r < 0 && (err.code != r || strchr(err.text, '\n') || strchr(err.text, '\x1b')))
            fail_msg("%s: '%s' is no clean line of code %d", h->name, err.text, r);
        replayed++;
    }
    assert_true(replayed >= 150);
}

/* ---- split sets ---------------------------------------------------------------------------------------------------------- */

static void test_split_names(void **state)
{
    (void)state;
    static const struct {
        const char *file, *prefix;
        uint32_t no, count; /* count 0: no such name */
    } cases[] = {
        {"m-00001-of-00003.gguf", "m", 1, 3},
        {"a-b.c-00012-of-00345.gguf", "a-b.c", 12, 345},
        {"model-00002-of-00004.safetensors", "model", 2, 4},
        {"m-00003-of-00003.gguf", "m", 3, 3},
        {"m-00004-of-00003.gguf", NULL, 0, 0},
        {"m-00000-of-00003.gguf", NULL, 0, 0},
        {"m-1-of-3.gguf", NULL, 0, 0},
        {"-00001-of-00003.gguf", NULL, 0, 0},
        {"00001-of-00003.gguf", NULL, 0, 0},
        {"m-00001-of-00003.bin", NULL, 0, 0},
        {"m-00001-of-00003.gguf.part", NULL, 0, 0},
        {"m-0000a-of-00003.gguf", NULL, 0, 0},
        {"m-00001_of-00003.gguf", NULL, 0, 0},
        {"", NULL, 0, 0},
        {".gguf", NULL, 0, 0},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct gguf_split_name n = {.count = 0};
        assert_int_equal(gguf_split_name(str_of(cases[i].file), &n), cases[i].count != 0);
        if (!cases[i].count)
            continue;
        assert_str(n.prefix, cases[i].prefix);
        assert_int_equal(n.no, cases[i].no);
        assert_int_equal(n.count, cases[i].count);
        base_autobuf struct buf again = BUF_INIT(256);
        gguf_split_file(&again, &n, n.no);
        assert_string_equal(again.ptr, cases[i].file);
    }
}

/* The parts of a case, opened from memory under their places. */
struct rig {
    struct out o;
    struct memory_source m[FILES_MAX];
    struct gguf_part parts[FILES_MAX];
};

static int rig_check(struct rig *r, void (*make)(struct out *o), size_t n, struct err *err)
{
    memset(r, 0, sizeof(*r));
    hostile_make(&(struct hostile){.name = "x", .make = make}, &r->o);
    assert_int_equal(r->o.n, n);
    for (size_t i = 0; i < n; i++) {
        r->parts[i].path = r->o.file[i].name;
        r->parts[i].g = open_or_die(memory_source_init(&r->m[i], r->o.file[i].bytes, r->o.file[i].len, r->o.file[i].len));
    }
    return gguf_set_check(r->parts, n, err);
}

static void rig_release(struct rig *r)
{
    for (size_t i = 0; i < r->o.n; i++)
        gguf_free(r->parts[i].g);
    hostile_release(&r->o);
}

static void test_set_sound(void **state)
{
    (void)state;
    static struct rig r;
    struct err err = {.text = ""};
    assert_int_equal(rig_check(&r, set_sound, 3, &err), 0);
    struct gguf_split s = {0};
    assert_int_equal(gguf_split(r.parts[2].g, &s, NULL), 1);
    assert_int_equal(s.no, 2);
    assert_int_equal(s.count, 3);
    assert_int_equal(s.tensors, 3);
    rig_release(&r);
}

static void test_set_foreign(void **state)
{
    (void)state;
    static struct rig r;
    struct err err = {.text = ""};
    assert_int_equal(rig_check(&r, set_swapped, 3, &err), -EBADMSG);
    assert_int_equal(r.parts[0].state, GGUF_PART_OK);
    assert_int_equal(r.parts[1].state, GGUF_PART_FOREIGN);
    assert_int_equal(r.parts[2].state, GGUF_PART_FOREIGN);
    assert_non_null(strstr(err.text, "part 2 of 3, m-00002-of-00003.gguf: says that it is part 3"));
    rig_release(&r);
    assert_int_equal(rig_check(&r, set_twice, 2, &err), -EBADMSG);
    assert_int_equal(r.parts[0].state, GGUF_PART_OK);
    assert_int_equal(r.parts[1].state, GGUF_PART_FOREIGN);
    rig_release(&r);
    assert_int_equal(rig_check(&r, set_foreign_total, 2, &err), -EBADMSG);
    assert_int_equal(r.parts[1].state, GGUF_PART_FOREIGN);
    assert_string_equal(r.parts[1].why.text, "says that all parts have 9 tensors; part 1 says 2: it belongs to another set");
    rig_release(&r);
}

static void test_set_marks(void **state)
{
    (void)state;
    static struct rig r;
    struct err err = {.text = ""};
    assert_int_equal(rig_check(&r, set_sound, 3, &err), 0);
    /* a part that the caller could not open keeps its mark; the rest is judged */
    r.parts[1].g = gguf_free(r.parts[1].g);
    r.parts[1].state = GGUF_PART_MISSING;
    assert_int_equal(gguf_set_check(r.parts, 3, &err), -EBADMSG);
    assert_string_equal(err.text, "part 2 of 3 is missing: m-00002-of-00003.gguf; fetch it");
    assert_int_equal(r.parts[1].state, GGUF_PART_MISSING);
    assert_int_equal(r.parts[2].state, GGUF_PART_OK);
    rig_release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound),      cmocka_unit_test(test_values),        cmocka_unit_test(test_each_str),   cmocka_unit_test(test_window),     cmocka_unit_test(test_prefixes),    cmocka_unit_test(test_flips),
        cmocka_unit_test(test_failing_reads), cmocka_unit_test(test_no_memory), cmocka_unit_test(test_hostile),    cmocka_unit_test(test_split_names), cmocka_unit_test(test_set_sound), cmocka_unit_test(test_set_foreign),
        cmocka_unit_test(test_set_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
