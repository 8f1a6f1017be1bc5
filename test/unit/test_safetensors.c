/* SPDX-License-Identifier: MIT
 *
 * Safetensors and its index: what is read, every prefix, every failing read and allocation. What must be refused, and why, is in the hostile corpus (test_gguf_reader).
 */
#include "memory_source.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "failing_malloc.h"

/* Length, JSON, and zeros as data. */
struct file {
    uint8_t bytes[4096];
    size_t len;
};

static void make(struct file *f, const char *json, size_t data)
{
    size_t n = strlen(json);
    assert_true(8 + n + data <= sizeof(f->bytes));
    memset(f, 0, sizeof(*f));
    for (size_t i = 0; i < 8; i++)
        f->bytes[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memcpy(f->bytes + 8, json, n);
    f->len = 8 + n + data;
}

static const char sound[] = "{\"__metadata__\":{\"format\":\"pt\",\"by\":\"hand\"},"
                            "\"model.b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[16,22]},"
                            "\"model.a\":{\"shape\":[2,2],\"data_offsets\":[0,16],\"dtype\":\"F32\"},"
                            "\"none\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[22,22]},"
                            "\"scalar\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[22,23]}}  ";

static void assert_str(struct str s, const char *want)
{
    if (!str_eq_c(s, want))
        fail_msg("got '%.*s', want '%s'", STR_ARG(s), want);
}

static void test_sound(void **state)
{
    (void)state;
    struct file f;
    struct memory_source m;
    struct gguf_st *s = NULL;
    struct err err = {.text = ""};
    make(&f, sound, 23);
    if (gguf_st_open(memory_source_init(&m, f.bytes, f.len, f.len), &s, &err) < 0)
        fail_msg("%s", err.text);
    const struct gguf_st_info *info = gguf_st_info(s);
    assert_int_equal(info->n_tensors, 4);
    assert_int_equal(info->n_unknown, 0);
    assert_int_equal(info->elements, 8);
    assert_int_equal(info->data_bytes, 23);
    assert_int_equal(info->header_bytes, 8 + sizeof(sound) - 1);
    assert_int_equal(gguf_st_whole(s, &err), 0);
    /* in the order of the data */
    const struct gguf_st_tensor *t = gguf_st_tensor(s, 0);
    assert_str(t->name, "model.a");
    assert_str(t->dtype, "F32");
    assert_int_equal(t->type->bits, 32);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->off, info->header_bytes);
    assert_int_equal(t->bytes, 16);
    assert_str(gguf_st_tensor(s, 1)->name, "model.b");
    assert_int_equal(gguf_st_tensor(s, 3)->elements, 1);
    assert_ptr_equal(gguf_st_find(s, STR("model.a")), t);
    assert_null(gguf_st_find(s, STR("model")));
    struct str key, value;
    assert_int_equal(info->n_metadata, 2);
    gguf_st_metadata(s, 1, &key, &value);
    assert_str(key, "by");
    assert_str(value, "hand");
    gguf_st_free(s);
}

static void test_kinds(void **state)
{
    (void)state;
    struct file f;
    struct memory_source m;
    struct gguf_st *s = NULL;
    struct gguf *g = NULL;
    struct err err = {.text = ""};
    enum gguf_file kind;
    /* a length whose first byte is that of a brace, as JSON begins with */
    char json[600] = "{}";
    memset(json + 2, ' ', 0x17b - 2);
    make(&f, json, 0);
    assert_int_equal(f.bytes[0], '{');
    assert_int_equal(gguf_sniff(memory_source_init(&m, f.bytes, f.len, f.len), &kind, &err), 0);
    assert_int_equal(kind, GGUF_FILE_SAFETENSORS);
    assert_int_equal(gguf_st_open(&m.src, &s, &err), 0);
    gguf_st_free(s);
    assert_int_equal(gguf_open(&m.src, &g, &err), -EMEDIUMTYPE);
    assert_string_equal(err.text, "a safetensors file, not a GGUF file");
    assert_int_equal(gguf_sniff(memory_source_init(&m, " \n{\"a\": {}}", 11, 11), &kind, &err), 0);
    assert_int_equal(kind, GGUF_FILE_JSON);
    assert_int_equal(gguf_st_open(&m.src, &s, &err), -EMEDIUMTYPE);
    assert_string_equal(err.text, "a JSON file, not a safetensors file");
}

static void test_prefixes(void **state)
{
    (void)state;
    struct file f;
    make(&f, sound, 23);
    for (size_t n = 9; n < f.len; n++) {
        struct memory_source m;
        struct gguf_st *s = NULL;
        struct err err = {.text = ""};
        uint8_t *exact = malloc(n);
        assert_non_null(exact);
        memcpy(exact, f.bytes, n);
        int r = gguf_st_open(memory_source_init(&m, exact, n, n), &s, &err);
        if (r == 0) {
            assert_int_equal(gguf_st_whole(s, &err), -ENODATA);
            assert_int_equal(gguf_st_info(s)->missing_bytes, f.len - n);
        } else {
            assert_int_equal(r, -ENODATA);
            assert_non_null(strstr(err.text, "inside its safetensors header"));
        }
        gguf_st_free(s);
        free(exact);
    }
}

static void test_failing(void **state)
{
    (void)state;
    struct file f;
    make(&f, sound, 23);
    int r = -1;
    for (long n = 0; r < 0; n++) {
        struct memory_source m;
        struct gguf_st *s = NULL;
        memory_source_init(&m, f.bytes, f.len, f.len);
        m.fail_at = n;
        r = gguf_st_open(&m.src, &s, NULL);
        assert_true(r == 0 || r == -EIO);
        gguf_st_free(s);
    }
#if FAILING_MALLOC
    bool failed = true;
    for (long n = 0; failed; n++) {
        struct memory_source m;
        struct gguf_st *s = NULL;
        memory_source_init(&m, f.bytes, f.len, f.len);
        failing_arm(n);
        r = gguf_st_open(&m.src, &s, NULL);
        gguf_st_free(s);
        assert_int_equal(failing_disarm(&failed), 0);
        assert_true(failed ? r == -ENOMEM || r == 0 : r == 0); /* a block that could not shrink is no failure */
    }
#endif
}

/* ---- the index ----------------------------------------------------------------------------------------------------- */

static const char an_index[] = "{\"metadata\":{\"total_size\":1.4486e2},\"weight_map\":{\"b\":\"y.safetensors\",\"c\":\"x.safetensors\",\"a\":\"y.safetensors\"}}";

static void test_index(void **state)
{
    (void)state;
    struct gguf_index x;
    struct err err = {.text = ""};
    if (gguf_index_parse(STR(an_index), &x, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(x.n_files, 2);
    assert_string_equal(x.files[0], "x.safetensors");
    assert_string_equal(x.files[1], "y.safetensors");
    assert_int_equal(x.n_tensors, 3);
    assert_str(x.tensors[0].name, "a");
    assert_int_equal(x.tensors[0].file, 1);
    assert_int_equal(x.tensors[2].file, 0);
    assert_int_equal(x.total_bytes, 144);
    /* against files */
    struct file f;
    struct memory_source m;
    struct gguf_st *s = NULL;
    make(&f, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}", 2);
    assert_int_equal(gguf_st_open(memory_source_init(&m, f.bytes, f.len, f.len), &s, &err), 0);
    assert_int_equal(gguf_index_check(&x, 1, s, &err), 0);
    assert_int_equal(gguf_index_check(&x, 0, s, &err), -EBADMSG);
    assert_string_equal(err.text, "has no tensor 'c', which the index says is in it: file and index are not of one model");
    gguf_st_free(s);
    gguf_index_release(&x);
    gguf_index_release(&x); /* harmless */
}

static void test_index_no_memory(void **state)
{
    (void)state;
#if FAILING_MALLOC
    bool failed = true;
    for (long n = 0; failed; n++) {
        struct gguf_index x;
        failing_arm(n);
        int r = gguf_index_parse(STR(an_index), &x, NULL);
        if (r == 0)
            gguf_index_release(&x);
        assert_int_equal(failing_disarm(&failed), 0);
        assert_true(failed ? r == -ENOMEM || r == 0 : r == 0);
    }
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound), cmocka_unit_test(test_kinds), cmocka_unit_test(test_prefixes), cmocka_unit_test(test_failing), cmocka_unit_test(test_index), cmocka_unit_test(test_index_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
