/* SPDX-License-Identifier: MIT
 *
 * The journal's text. Whatever ends it early, a line cut by a crash or zeros where a line should be, costs only what the missing lines said: their segments are fetched again.
 */
#include "hub_int.h"

#include <errno.h>
#include <inttypes.h>

#define MAGIC "berth-journal 1 "

/* FNV-1a, 64 bits: against accidents, not against people, who could write to the file itself. */
static uint64_t sum_of(uint64_t sum, struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        sum = (sum ^ (uint8_t)s.ptr[i]) * 0x100000001b3u;
    return sum;
}
#define SUM_START 0xcbf29ce484222325u

/* Puts the sum behind what was added since `from`. */
static uint64_t seal(struct buf *out, size_t from, uint64_t sum)
{
    if (buf_status(out) < 0)
        return 0;
    sum = sum_of(sum, (struct str){out->ptr + from, out->len - from});
    buf_addf(out, "%016" PRIx64 "\n", sum);
    return sum;
}

void hub_journal_begin(struct hub_journal *j, struct buf *out)
{
    size_t from = out->len;
    buf_addf(out, MAGIC "%" PRIu64 " %s %s ", j->bytes, j->digest, j->etag);
    j->sum = seal(out, from, SUM_START);
}

void hub_journal_add(const struct hub_journal *j, uint64_t segment, uint64_t got, struct buf *out)
{
    size_t from = out->len;
    buf_addf(out, "%" PRIu64 " %" PRIu64 " ", segment, got);
    (void)seal(out, from, j->sum);
}

/* The next line without its sum and the space before it; false when it is cut short or its sum is wrong. */
static bool next_line(struct str text, size_t *at, uint64_t sum, struct str *ret, uint64_t *ret_sum)
{
    struct str rest = {text.ptr + *at, text.len - *at};
    ptrdiff_t end = str_find_char(rest, '\n');
    uint64_t said = 0;
    if (end < 17 || rest.ptr[end - 17] != ' ')
        return false;
    struct str digits = {rest.ptr + end - 16, 16};
    if (!hub_is_hex(digits, 16))
        return false;
    for (size_t i = 0; i < 16; i++)
        said = said << 4 | (uint64_t)(digits.ptr[i] <= '9' ? digits.ptr[i] - '0' : digits.ptr[i] - 'a' + 10);
    struct str line = {rest.ptr, (size_t)end - 16};
    if (sum_of(sum, line) != said)
        return false;
    *ret = (struct str){line.ptr, line.len - 1};
    *ret_sum = said;
    *at += (size_t)end + 1;
    return true;
}

static bool keep_word(struct str s, char *to, size_t size)
{
    if (!s.len || s.len >= size || memchr(s.ptr, '\0', s.len))
        return false;
    memcpy(to, s.ptr, s.len);
    to[s.len] = '\0';
    return true;
}

int hub_journal_open(struct str text, struct hub_journal *ret)
{
    struct hub_journal j = {.bytes = 0};
    struct str line;
    if (!next_line(text, &j.valid, SUM_START, &line, &j.sum) || !str_starts(line, STR(MAGIC)))
        return -EBADMSG;
    line = (struct str){line.ptr + sizeof MAGIC - 1, line.len - (sizeof MAGIC - 1)};
    struct str bytes = str_split(&line, ' '), digest = str_split(&line, ' ');
    if (str_to_u64(bytes, &j.bytes) < 0 || j.bytes > STORE_PAYLOAD_MAX || !(str_eq_c(digest, "-") || hub_is_hex(digest, 64) || hub_is_hex(digest, 40)) || !keep_word(digest, j.digest, sizeof j.digest) ||
        !keep_word(line, j.etag, sizeof j.etag))
        return -EBADMSG;
    *ret = j;
    return 0;
}

void hub_journal_read(struct str text, struct hub_journal *j, uint32_t *got, size_t n)
{
    struct str line;
    size_t at = j->valid;
    uint64_t sum, segment, bytes;
    while (next_line(text, &at, j->sum, &line, &sum)) {
        struct str first = str_split(&line, ' ');
        if (str_to_u64(first, &segment) < 0 || str_to_u64(line, &bytes) < 0 || segment >= n)
            break;
        uint64_t begin = segment * STORE_SEGMENT_BYTES, most = j->bytes - begin < STORE_SEGMENT_BYTES ? j->bytes - begin : STORE_SEGMENT_BYTES;
        if (bytes > most)
            break;
        got[segment] = (uint32_t)bytes;
        j->valid = at;
    }
}
