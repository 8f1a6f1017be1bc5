/* SPDX-License-Identifier: MIT
 *
 * Files as sources for gguf: what is no regular file, a file that is cut short or replaced while it is read, and split sets found from any of their parts.
 */
#include <store/store.h>

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    (void)snprintf(folder, sizeof(folder), "/tmp/test_store_source_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    int tmp = os_open_dir("/tmp", NULL);
    int r = tmp < 0 ? tmp : os_remove_tree(tmp, folder + sizeof("/tmp/") - 1, NULL);
    close(tmp);
    return r;
}

/* folder/name, in a static place for each of two names. */
static const char *at(const char *name)
{
    static char paths[2][256];
    static unsigned next;
    char *p = paths[next++ % 2];
    (void)snprintf(p, sizeof(paths[0]), "%s/%s", folder, name);
    return p;
}

static void write_file(const char *name, const void *data, size_t len)
{
    int fd = open(at(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(os_write_all(fd, data, len, NULL), 0);
    close(fd);
}

static void test_source(void **state)
{
    (void)state;
    struct gguf_source s = {.size = 0};
    struct err err = {.text = ""};
    char got[8] = "";
    write_file("f", "0123456789", 10);
    assert_int_equal(store_source_open(at("f"), &s, &err), 0);
    assert_int_equal(s.size, 10);
    assert_int_equal(s.read(s.ctx, 3, got, 4, &err), 0);
    assert_memory_equal(got, "3456", 4);
    base_autobuf struct buf all = BUF_INIT(10);
    assert_int_equal(store_source_read(&s, &all, &err), 0);
    assert_string_equal(all.ptr, "0123456789");
    base_autobuf struct buf small = BUF_INIT(9);
    assert_int_equal(store_source_read(&s, &small, &err), -EFBIG);
    /* cut short under us: an error, no signal */
    assert_int_equal(truncate(at("f"), 5), 0);
    assert_int_equal(s.read(s.ctx, 3, got, 4, &err), -ENODATA);
    assert_string_equal(err.text, "the file was cut short at byte 5 while it was read");
    store_source_close(&s);
    assert_null(s.ctx);
    store_source_close(&s); /* harmless */
}

static void test_no_files(void **state)
{
    (void)state;
    struct gguf_source s = {.size = 0};
    struct err err = {.text = ""};
    assert_int_equal(store_source_open(at("nothing"), &s, &err), -ENOENT);
    assert_int_equal(store_source_open(folder, &s, &err), -EISDIR);
    assert_string_equal(err.text, "is a folder; name a file in it");
    assert_int_equal(mkfifo(at("pipe"), 0600), 0);
    assert_int_equal(store_source_open(at("pipe"), &s, &err), -EINVAL);
    assert_int_equal(store_source_open("/dev/null", &s, &err), -EINVAL);
    assert_string_equal(err.text, "is a device; name a file");
}

static void test_cut_while_open(void **state)
{
    (void)state;
    struct gguf_source s = {.size = 0};
    struct gguf *g = NULL;
    struct err err = {.text = ""};
    base_autobuf struct buf model = BUF_INIT(4 << 20);
    assert_int_equal(os_read_file(AT_FDCWD, "assets/tiny/berth-tiny-f16.gguf", &model, &err), 0);
    write_file("m.gguf", model.ptr, model.len);
    assert_int_equal(store_source_open(at("m.gguf"), &s, &err), 0);
    assert_int_equal(truncate(at("m.gguf"), 2000), 0);
    assert_int_equal(gguf_open(&s, &g, &err), -ENODATA);
    assert_non_null(strstr(err.text, "cut short at byte 2000"));
    store_source_close(&s);
}

/* ---- sets ------------------------------------------------------------------------------------------------------------ */

static void write_part(const char *name, uint16_t no, uint16_t count, const char *tensor)
{
    base_autobuf struct buf out = BUF_INIT(1 << 16);
    uint64_t dims[] = {8}, data = 0;
    struct gguf_writer *w = gguf_writer_new();
    assert_non_null(w);
    if (no == 0)
        gguf_put_str(w, "general.architecture", STR("llama"));
    gguf_put_u16(w, "split.no", no);
    gguf_put_u16(w, "split.count", count);
    gguf_put_i32(w, "split.tensors.count", count);
    gguf_put_tensor(w, tensor, 0, dims, 1);
    assert_int_equal(gguf_writer_header(w, &out, &data, NULL), 0);
    gguf_writer_free(w);
    for (uint64_t i = 0; i < data; i++)
        buf_add_char(&out, '\0');
    write_file(name, out.ptr, out.len);
}

static void test_weights(void **state)
{
    (void)state;
    struct store_weights w;
    struct err err = {.text = ""};
    write_part("m-00001-of-00003.gguf", 0, 3, "a");
    write_part("m-00002-of-00003.gguf", 1, 3, "b");
    write_part("m-00003-of-00003.gguf", 2, 3, "c");
    assert_int_equal(store_weights_open(at("m-00002-of-00003.gguf"), &w, &err), 0);
    assert_int_equal(w.verdict, 0);
    assert_int_equal(w.n, 3);
    assert_int_equal(w.given, 1);
    for (size_t i = 0; i < 3; i++) {
        char name[2] = {(char)('a' + i), '\0'};
        assert_true(str_eq_c(gguf_tensor(w.parts[i].g, 0)->name, name));
        assert_non_null(w.sources[i]->ctx);
    }
    store_weights_release(&w);

    assert_int_equal(unlink(at("m-00003-of-00003.gguf")), 0);
    assert_int_equal(store_weights_open(at("m-00001-of-00003.gguf"), &w, &err), 0);
    assert_int_equal(w.verdict, -EBADMSG);
    assert_int_equal(w.parts[2].state, GGUF_PART_MISSING);
    assert_null(w.parts[2].g);
    assert_non_null(strstr(w.why.text, "part 3 of 3 is missing"));
    store_weights_release(&w);

    /* what was asked for must be readable itself */
    assert_int_equal(store_weights_open(at("m-00003-of-00003.gguf"), &w, &err), -ENOENT);
    write_file("m-00003-of-00003.gguf", "", 0);
    assert_int_equal(store_weights_open(at("m-00003-of-00003.gguf"), &w, &err), -EMEDIUMTYPE);
    assert_int_equal(store_weights_open(at("m-00001-of-00003.gguf"), &w, &err), 0);
    assert_int_equal(w.parts[2].state, GGUF_PART_BAD);
    store_weights_release(&w);
}

static void test_single(void **state)
{
    (void)state;
    struct store_weights w;
    struct err err = {.text = ""};
    assert_int_equal(store_weights_open("assets/tiny/berth-tiny-q8_0.gguf", &w, &err), 0);
    assert_int_equal(w.n, 1);
    assert_int_equal(w.verdict, 0);
    assert_string_equal(w.parts[0].path, "assets/tiny/berth-tiny-q8_0.gguf");
    store_weights_release(&w);
    store_weights_release(&w); /* harmless */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_source), cmocka_unit_test(test_no_files), cmocka_unit_test(test_cut_while_open), cmocka_unit_test(test_weights), cmocka_unit_test(test_single),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
