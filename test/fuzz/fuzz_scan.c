/* SPDX-License-Identifier: MIT
 *
 * The scanner over any bytes; where the strict reader accepts the text as an object, both must agree about the member.
 */
#include <conf/conf.h>

#include <assert.h>
#include <stdint.h>

/* Counts what a walk finds: -1 when it finds a fault. */
static long walk(struct str text, unsigned depth, struct json_longs *longs)
{
    struct json_walk w;
    struct str key, value;
    long n = 0;
    int r = json_walk_begin(&w, text, longs);
    while (r >= 0 && (r = json_walk_next(&w, &key, &value)) == 1) {
        assert(value.len > 0 && value.ptr >= text.ptr && value.ptr + value.len <= text.ptr + text.len);
        n++;
        if (depth)
            (void)walk(value, depth - 1, longs);
    }
    return r < 0 ? -1 : n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str text = {(const char *)data, size};
    size_t off = 0, len = 0;
    int r = json_scan_member(text, "model", &off, &len, NULL);
    if (r == 0) {
        assert(off <= size && len <= size - off && len > 0);
        base_autobuf struct buf out = BUF_INIT(1 << 20);
        (void)!json_scan_string((struct str){text.ptr + off, len}, &out, NULL);
    }
    struct json *j = NULL;
    struct json_longs longs = {0};
    long n = walk(text, 8, NULL);
    assert(walk(text, 8, &longs) == n && walk(text, 8, &longs) == n);
    if (json_parse(text, &j, NULL) == 0) {
        json_val member = json_get(json_root(j), "model");
        assert(!json_is_obj(json_root(j)) || (member != NULL) == (r == 0));
        assert((!json_is_obj(json_root(j)) && !json_is_arr(json_root(j))) || n == (long)json_count(json_root(j)));
        json_free(j);
    }
    return 0;
}
