/* SPDX-License-Identifier: MIT
 *
 * The scanner over any bytes; where the strict reader accepts the text as an object, both must agree about the member.
 */
#include <conf/conf.h>

#include <assert.h>
#include <errno.h>
#include <stdint.h>

/* Counts what a walk finds: -1 when it finds a fault. `enter`: values are walked through where they stand, down to a depth; else they are taken. */
static long walk(struct json_walk *w, unsigned enter)
{
    struct json_walk in;
    struct str key, value;
    long n = 0;
    int r;
    while ((r = json_walk_next(w, &key)) == 1) {
        char c = json_walk_peek(w);
        n++;
        if (enter && (c == '{' || c == '[')) {
            json_walk_enter(w, &in);
            if (walk(&in, enter - 1) < 0)
                return -1;
            json_walk_leave(w, &in);
        } else {
            if (json_walk_value(w, &value) < 0)
                return -1;
            assert(value.len > 0 && value.ptr >= w->text.ptr && value.ptr + value.len <= w->text.ptr + w->text.len);
        }
    }
    return r < 0 ? -1 : n;
}

static long walk_text(struct str text, unsigned enter)
{
    struct json_walk w;
    return json_walk_begin(&w, text) < 0 ? -1 : walk(&w, enter);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str text = {(const char *)data, size};
    size_t off = 0, len = 0;
    assert(json_scan_marks(text, 3) <= 3 && json_scan_marks(text, SIZE_MAX) <= size);
    int r = json_scan_member(text, "model", &off, &len, NULL);
    if (r == 0) {
        assert(off <= size && len <= size - off && len > 0);
        base_autobuf struct buf out = BUF_INIT(1 << 20);
        (void)!json_scan_string((struct str){text.ptr + off, len}, &out, NULL);
    }
    struct json *j = NULL;
    long n = walk_text(text, 0), within = walk_text(text, 8);
    assert(within < 0 || within == n); /* who enters sees faults that others pass over */
    if (json_parse(text, &j, NULL) == 0) {
        json_val member = json_get(json_root(j), "model");
        assert(!json_is_obj(json_root(j)) || (member != NULL) == (r == 0 || r == -EEXIST));
        assert((!json_is_obj(json_root(j)) && !json_is_arr(json_root(j))) || (n == within && n == (long)json_count(json_root(j))));
        json_free(j);
    }
    return 0;
}
