/* SPDX-License-Identifier: MIT
 *
 * A journal of any bytes: no segment has more bytes than it can have, and what was taken is the same when it is written and read again.
 */
#include <hub/hub_int.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct str text = {(const char *)data, size};
    struct hub_journal j, again;
    uint32_t got[64] = {0}, second[64] = {0};
    if (hub_journal_open(text, &j) < 0)
        return 0;
    size_t n = store_segments(j.bytes);
    if (n > BASE_COUNT(got))
        n = BASE_COUNT(got);
    hub_journal_read(text, &j, got, n);
    if (j.valid > size)
        abort();
    struct buf out = BUF_INIT(1u << 20);
    hub_journal_begin(&j, &out);
    for (size_t i = 0; i < n; i++) {
        uint64_t left = j.bytes - i * STORE_SEGMENT_BYTES;
        if (got[i] > (left < STORE_SEGMENT_BYTES ? left : STORE_SEGMENT_BYTES))
            abort();
        if (got[i])
            hub_journal_add(&j, i, got[i], &out);
    }
    if (buf_status(&out) < 0 || hub_journal_open(buf_str(&out), &again) < 0)
        abort();
    hub_journal_read(buf_str(&out), &again, second, n);
    if (memcmp(got, second, sizeof got) != 0 || again.valid != out.len)
        abort();
    buf_release(&out);
    return 0;
}
