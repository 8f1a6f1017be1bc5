/* SPDX-License-Identifier: MIT
 *
 * The writer of GGUF against the format, byte by byte, and the table of tensor types.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "failing_malloc.h"

#include <gguf/gguf.h>

/* ---- types ------------------------------------------------------------------------------------------------------- */

static void type_table(void **state)
{
    (void)state;
    assert_string_equal(gguf_type_get(0)->name, "f32");
    assert_int_equal(gguf_type_get(8)->block, 32);
    assert_int_equal(gguf_type_get(8)->bytes, 34);
    assert_int_equal(gguf_type_get(14)->bytes, 210);
    assert_int_equal(gguf_type_get(40)->block, 64);
    assert_int_equal(gguf_type_get(42)->bytes, 18);
    static const uint32_t removed[] = {4, 5, 31, 32, 33, 36, 37, 38, 43, 99, UINT32_MAX};
    for (size_t i = 0; i < BASE_COUNT(removed); i++)
        assert_null(gguf_type_get(removed[i]));
    unsigned n = 0;
    for (uint32_t id = 0; id < 43; id++) {
        const struct gguf_type *t = gguf_type_get(id);
        if (!t)
            continue;
        n++;
        assert_int_equal(t->id, id);
        assert_ptr_equal(gguf_type_find(str_of(t->name)), t);
    }
    assert_int_equal(n, 43 - 8);
    assert_int_equal(gguf_type_find(STR("Q4_K"))->id, 12);
    assert_null(gguf_type_find(STR("q4_k_m")));
    assert_null(gguf_type_find(STR("")));
}

static void tensor_bytes(void **state)
{
    (void)state;
    const struct gguf_type *q8 = gguf_type_find(STR("q8_0")), *f16 = gguf_type_find(STR("f16"));
    uint64_t bytes = 7;
    assert_int_equal(gguf_tensor_bytes(q8, (uint64_t[]){64, 3}, 2, &bytes), 0);
    assert_int_equal(bytes, 2 * 34 * 3);
    assert_int_equal(gguf_tensor_bytes(f16, (uint64_t[]){5, 2, 3, 7}, 4, &bytes), 0);
    assert_int_equal(bytes, 5 * 2 * 3 * 7 * 2);
    assert_int_equal(gguf_tensor_bytes(f16, (uint64_t[]){5, 0}, 2, &bytes), 0);
    assert_int_equal(bytes, 0);
    bytes = 7;
    assert_int_equal(gguf_tensor_bytes(q8, (uint64_t[]){33}, 1, &bytes), -EINVAL);
    assert_int_equal(gguf_tensor_bytes(q8, (uint64_t[]){1ull << 63, 2}, 2, &bytes), -ERANGE);
    assert_int_equal(gguf_tensor_bytes(f16, (uint64_t[]){1ull << 32, 1ull << 32}, 2, &bytes), -ERANGE);
    assert_int_equal(gguf_tensor_bytes(f16, (uint64_t[]){1ull << 30, 1ull << 30, 16}, 3, &bytes), -ERANGE);
    assert_int_equal(bytes, 7);
}

/* ---- bytes --------------------------------------------------------------------------------------------------------- */

static void exact_bytes(void **state)
{
    (void)state;
    static const uint8_t wanted[] =
        "GGUF\3\0\0\0"
        "\2\0\0\0\0\0\0\0" /* tensors */
        "\4\0\0\0\0\0\0\0" /* pairs */
        "\1\0\0\0\0\0\0\0" "a" "\2\0\0\0" "\x34\x12"
        "\1\0\0\0\0\0\0\0" "b" "\7\0\0\0" "\1"
        "\1\0\0\0\0\0\0\0" "c" "\x8\0\0\0" "\2\0\0\0\0\0\0\0" "hi"
        "\1\0\0\0\0\0\0\0" "d" "\x9\0\0\0" "\x8\0\0\0" "\2\0\0\0\0\0\0\0" "\1\0\0\0\0\0\0\0" "x" "\0\0\0\0\0\0\0\0"
        "\2\0\0\0\0\0\0\0" "t1" "\2\0\0\0" "\3\0\0\0\0\0\0\0" "\2\0\0\0\0\0\0\0" "\0\0\0\0" "\0\0\0\0\0\0\0\0"
        "\2\0\0\0\0\0\0\0" "t2" "\1\0\0\0" "\x20\0\0\0\0\0\0\0" "\x8\0\0\0" "\x20\0\0\0\0\0\0\0";
    struct gguf_writer *w = gguf_writer_new();
    struct buf out = BUF_INIT(1 << 16);
    uint64_t data = 0;
    gguf_put_u16(w, "a", 0x1234);
    gguf_put_bool(w, "b", true);
    gguf_put_str(w, "c", STR("hi"));
    gguf_put_strs(w, "d", (struct str[]){STR("x"), STR("")}, 2);
    gguf_put_tensor(w, "t1", 0, (uint64_t[]){3, 2}, 2); /* 24 bytes */
    gguf_put_tensor(w, "t2", 8, (uint64_t[]){32}, 1);   /* 34 bytes */
    assert_int_equal(gguf_writer_header(w, &out, &data, NULL), 0);
    assert_int_equal(data, 32 + 64);
    size_t len = sizeof wanted - 1;
    assert_int_equal(out.len, (len + 31) / 32 * 32);
    assert_memory_equal(out.ptr, wanted, len);
    for (size_t i = len; i < out.len; i++)
        assert_int_equal(out.ptr[i], 0);
    buf_release(&out);
    gguf_writer_free(w);
}

static void scalars(void **state)
{
    (void)state;
    static const uint8_t wanted[] =
        "\1\0\0\0\0\0\0\0" "a" "\4\0\0\0" "\xff\xff\xff\xff"
        "\1\0\0\0\0\0\0\0" "b" "\5\0\0\0" "\xfe\xff\xff\xff"
        "\1\0\0\0\0\0\0\0" "c" "\xa\0\0\0" "\1\2\3\4\5\6\7\x8"
        "\1\0\0\0\0\0\0\0" "d" "\6\0\0\0" "\0\0\x80\x3f"
        "\1\0\0\0\0\0\0\0" "e" "\x9\0\0\0" "\4\0\0\0" "\1\0\0\0\0\0\0\0" "\7\0\0\0"
        "\1\0\0\0\0\0\0\0" "f" "\x9\0\0\0" "\5\0\0\0" "\1\0\0\0\0\0\0\0" "\xff\xff\xff\xff"
        "\1\0\0\0\0\0\0\0" "g" "\x9\0\0\0" "\6\0\0\0" "\1\0\0\0\0\0\0\0" "\0\0\0\xc0"
        "\1\0\0\0\0\0\0\0" "h" "\x9\0\0\0" "\x8\0\0\0" "\0\0\0\0\0\0\0\0";
    struct gguf_writer *w = gguf_writer_new();
    struct buf out = BUF_INIT(1 << 16);
    uint64_t data = 9;
    gguf_put_u32(w, "a", UINT32_MAX);
    gguf_put_i32(w, "b", -2);
    gguf_put_u64(w, "c", 0x0807060504030201ull);
    gguf_put_f32(w, "d", 1.0f);
    gguf_put_u32s(w, "e", (uint32_t[]){7}, 1);
    gguf_put_i32s(w, "f", (int32_t[]){-1}, 1);
    gguf_put_f32s(w, "g", (float[]){-2.0f}, 1);
    gguf_put_strs(w, "h", NULL, 0);
    assert_int_equal(gguf_writer_header(w, &out, &data, NULL), 0);
    assert_int_equal(data, 0);
    assert_memory_equal(out.ptr + 24, wanted, sizeof wanted - 1);
    assert_int_equal(out.len % GGUF_ALIGN, 0);
    buf_release(&out);
    gguf_writer_free(w);
}

/* ---- what it refuses -------------------------------------------------------------------------------------------------- */

static int finish(struct gguf_writer *w, struct err *err)
{
    struct buf out = BUF_INIT(1 << 16);
    uint64_t data;
    int r = gguf_writer_header(w, &out, &data, err);
    buf_release(&out);
    gguf_writer_free(w);
    return r;
}

static void twice(void **state)
{
    (void)state;
    struct err err;
    struct gguf_writer *w = gguf_writer_new();
    gguf_put_u32(w, "key", 1);
    gguf_put_str(w, "key", STR("x"));
    gguf_put_u32(w, "key2", 1); /* the first failure sticks */
    assert_int_equal(finish(w, &err), -EEXIST);
    assert_string_equal(err.text, "key 'key' is there twice");
    w = gguf_writer_new();
    gguf_put_tensor(w, "t", 0, (uint64_t[]){1}, 1);
    gguf_put_tensor(w, "t", 1, (uint64_t[]){2}, 1);
    assert_int_equal(finish(w, &err), -EEXIST);
    assert_string_equal(err.text, "tensor 't' is there twice");
    /* a key and a tensor may have one name */
    w = gguf_writer_new();
    gguf_put_u32(w, "t", 1);
    gguf_put_tensor(w, "t", 0, (uint64_t[]){1}, 1);
    assert_int_equal(finish(w, &err), 0);
}

static void refused(void **state)
{
    (void)state;
    char name[GGUF_NAME_MAX + 2];
    memset(name, 'n', sizeof name);
    name[GGUF_NAME_MAX + 1] = '\0';
    const struct {
        const char *name;
        uint32_t type;
        uint64_t dims[5];
        size_t n_dims;
        int code;
    } cases[] = {
        {"", 0, {1}, 1, -EINVAL},
        {name, 0, {1}, 1, -EINVAL},
        {name + 1, 0, {1}, 1, 0},
        {"bad\xff", 0, {1}, 1, -EINVAL},
        {"t", 4, {1}, 1, -EINVAL},
        {"t", 43, {1}, 1, -EINVAL},
        {"t", 0, {1}, 0, -EINVAL},
        {"t", 0, {1, 1, 1, 1, 1}, 5, -EINVAL},
        {"t", 8, {33}, 1, -EINVAL},
        {"t", 0, {1ull << 62, 4}, 2, -ERANGE},
        {"t", 0, {UINT64_MAX}, 1, -ERANGE},
        {"t", 24, {INT64_MAX}, 1, -ERANGE},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        struct gguf_writer *w = gguf_writer_new();
        struct err err = {0};
        gguf_put_tensor(w, cases[i].name, cases[i].type, cases[i].dims, cases[i].n_dims);
        int r = finish(w, &err);
        if (r != cases[i].code)
            fail_msg("case %zu gave %d '%s'", i, r, err.text);
    }
    struct gguf_writer *w = gguf_writer_new();
    gguf_put_u32(w, "", 1);
    assert_int_equal(finish(w, NULL), -EINVAL);
    /* sums do not wrap either */
    w = gguf_writer_new();
    gguf_put_tensor(w, "a", 24, (uint64_t[]){1ull << 62}, 1);
    gguf_put_tensor(w, "b", 24, (uint64_t[]){1ull << 62}, 1);
    assert_int_equal(finish(w, NULL), -ERANGE);
    /* nor does the header outgrow where it goes */
    w = gguf_writer_new();
    struct buf small = BUF_INIT(40);
    uint64_t data;
    gguf_put_str(w, "key", STR("a string that is long enough not to fit"));
    assert_int_equal(gguf_writer_header(w, &small, &data, NULL), -ERANGE);
    buf_release(&small);
    gguf_writer_free(w);
    assert_null(gguf_writer_free(NULL));
}

static void many_names(void **state)
{
    (void)state;
    struct gguf_writer *w = gguf_writer_new();
    struct err err = {0};
    for (unsigned i = 0; i < 5000; i++) {
        char name[32];
        snprintf(name, sizeof name, "blk.%u.weight", i);
        gguf_put_tensor(w, name, 0, (uint64_t[]){1}, 1);
    }
    struct buf out = BUF_INIT(1 << 20);
    uint64_t data;
    assert_int_equal(gguf_writer_header(w, &out, &data, &err), 0);
    assert_int_equal(data, 5000 * 32);
    buf_release(&out);
    gguf_put_tensor(w, "blk.4711.weight", 0, (uint64_t[]){1}, 1);
    assert_int_equal(finish(w, &err), -EEXIST);
}

static void no_memory(void **state)
{
    (void)state;
#if !FAILING_MALLOC
    skip();
#else
    bool failed = true;
    long n = 0;
    for (; failed && n < 1000; n++) {
        failing_arm(n);
        struct gguf_writer *w = gguf_writer_new();
        int r = -ENOMEM;
        if (w) {
            gguf_put_str(w, "a", STR("b"));
            gguf_put_tensor(w, "t", 0, (uint64_t[]){4}, 1);
            r = finish(w, NULL);
        }
        long live = failing_disarm(&failed);
        assert_int_equal(live, 0);
        assert_int_equal(r, failed ? -ENOMEM : 0);
    }
    assert_in_range(n, 6, 999);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(type_table), cmocka_unit_test(tensor_bytes), cmocka_unit_test(exact_bytes), cmocka_unit_test(scalars),
        cmocka_unit_test(twice),      cmocka_unit_test(refused),      cmocka_unit_test(many_names),  cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
