/* SPDX-License-Identifier: MIT
 *
 * The event splitter over any bytes: in one piece and in pieces that follow from the bytes it must find the same events, and lose no byte.
 */
#include <http/http.h>

#include <assert.h>
#include <stdint.h>

static uint64_t mix(uint64_t sum, struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        sum = (sum ^ (unsigned char)s.ptr[i]) * UINT64_C(1099511628211);
    return (sum ^ s.len) * UINT64_C(1099511628211);
}

static uint64_t run(const uint8_t *data, size_t size, bool pieces)
{
    struct http_sse s;
    struct http_sse_event e;
    uint64_t sum = 14695981039346656037u;
    size_t at = 0;
    http_sse_init(&s, 256);
    while (at < size) {
        size_t n = pieces ? (size_t)1 + data[at] % 13 : size - at, used = 0;
        if (n > size - at)
            n = size - at;
        int r = http_sse_feed(&s, (struct str){(const char *)data + at, n}, &used, &e);
        assert(r >= 0 && used > 0 && used <= n && (r == 1 || used == n));
        at += used;
        if (r == 1) {
            assert(e.data.len < 256 && e.name.len < HTTP_SSE_NAME_MAX && (e.has_data || !e.data.len));
            sum = mix(mix(sum, e.name), e.data) + e.has_data + 2u * e.cut;
        }
    }
    sum += http_sse_between(&s);
    http_sse_release(&s);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t whole = run(data, size, false), parts = run(data, size, true);
    assert(whole == parts);
    return 0;
}
