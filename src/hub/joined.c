/* SPDX-License-Identifier: MIT
 *
 * A repair of a file that was joined of parts which the hub has one by one: a damaged segment is fetched as the ranges of the parts that it is made of, and proven as a whole. Such files are few, so one request follows the other.
 */
#include "hub_int.h"

#include <errno.h>
#include <inttypes.h>

/* Bytes from..to of the whole, appended to out. */
static int get_range(struct hub *h, const struct hub_want *parts, size_t n_parts, uint64_t from, uint64_t to, struct buf *out, struct err *err)
{
    uint64_t begin = 0;
    int r = 0;
    for (size_t i = 0; r == 0 && i < n_parts && begin < to; begin += parts[i++].bytes) {
        uint64_t end = begin + parts[i].bytes, first = from > begin ? from : begin, last = to < end ? to : end, total;
        char resolved[HUB_URL_MAX] = "";
        size_t before = out->len;
        if (first >= last)
            continue;
        r = hub_get_part(h, parts[i].url, resolved, first - begin, last - begin - 1, out, &total, err);
        if (r == 0 && (total != parts[i].bytes || out->len - before != last - first))
            r = err_set(err, -ESTALE, "the server has %" PRIu64 " bytes, %" PRIu64 " are expected: it was changed upstream", total, parts[i].bytes);
    }
    return r;
}

static int repair_segment(struct hub *h, const struct hub_want *parts, size_t n_parts, const struct store_manifest *m, uint64_t segment, int fd, uint64_t *bytes, struct err *err)
{
    base_autobuf struct buf data = BUF_INIT((size_t)STORE_SEGMENT_BYTES + 1);
    uint64_t from = segment * STORE_SEGMENT_BYTES, n = m->bytes - from < STORE_SEGMENT_BYTES ? m->bytes - from : STORE_SEGMENT_BYTES;
    for (unsigned tries = 0; tries < REPAIR_TRIES; tries++) {
        buf_clear(&data);
        int r = get_range(h, parts, n_parts, from, from + n, &data, err);
        if (r < 0)
            return r;
        *bytes += data.len;
        if (repair_proves(m, (size_t)segment, (const uint8_t *)data.ptr))
            return hub_write_at(fd, data.ptr, data.len, from, parts[0].path, err);
    }
    return err_set(err, -EBADMSG, "the server's bytes from %" PRIu64 " on are not those of the file: it was changed upstream, or the server is damaged", from);
}

int hub_repair_joined(struct hub *h, const struct hub_want *parts, size_t n_parts, const struct store_manifest *m, const uint64_t *segments, size_t n, int fd, uint64_t *ret_bytes, struct err *err)
{
    uint64_t sum = 0;
    bool fits = true;
    int r = 0;
    *ret_bytes = 0;
    for (size_t i = 0; fits && i < n_parts; i++)
        fits = size_add(sum, parts[i].bytes, &sum);
    if (!fits || sum != m->bytes)
        return err_set(err, -EINVAL, "the parts are not those of the file");
    for (size_t i = 0; r == 0 && i < n; i++)
        r = segments[i] < store_segments(m->bytes) ? repair_segment(h, parts, n_parts, m, segments[i], fd, ret_bytes, err) : err_set(err, -EINVAL, "a segment behind the end of the file");
    return r;
}
