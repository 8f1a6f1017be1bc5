/* SPDX-License-Identifier: MIT
 *
 * The reader of a payload file's manifest. The digest at the end is put there for the fuzzer, which could not find it; what is taken must come out the same when it is written.
 */
#include <store/store_int.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct segments g;
    struct err err;
    struct os_sha256 h;
    uint8_t digest[OS_SHA256_BYTES];
    struct buf text = BUF_INIT(64u << 20), again = BUF_INIT(64u << 20);
    if (segments_parse((struct str){(const char *)data, size}, &g, &err) == 0)
        segments_release(&g);
    os_sha256_init(&h);
    os_sha256_update(&h, data, size);
    os_sha256_final(&h, digest);
    buf_add(&text, data, size);
    buf_add(&text, digest, sizeof digest);
    if (segments_parse(buf_str(&text), &g, &err) == 0) {
        segments_text(&g.m, &g.stamp, g.path, &again);
        if (!str_eq(buf_str(&text), buf_str(&again)))
            abort();
        segments_release(&g);
    }
    buf_release(&text);
    buf_release(&again);
    return 0;
}
