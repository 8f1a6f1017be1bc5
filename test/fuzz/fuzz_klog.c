/* SPDX-License-Identifier: MIT
 *
 * Lines of the kernel log: what comes out is printable and bounded, and the same text in two pieces at a line's end says the same.
 */
#include <assert.h>
#include <doctor/doctor_int.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned all(const struct klog_sum *s)
{
    unsigned n = 0;
    for (size_t i = 0; i < s->n; i++)
        n += s->events[i].count;
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct klog_sum whole, parts;
    struct str text = {(const char *)data, size};
    memset(&whole, 0, sizeof whole);
    memset(&parts, 0, sizeof parts);
    klog_add(&whole, text);
    assert(whole.n <= KLOG_EVENTS_MAX);
    for (size_t i = 0; i < whole.n; i++) {
        const struct klog_event *e = &whole.events[i];
        assert(e->kind < KLOG_KINDS && e->count > 0 && (e->kind == KLOG_XID || e->xid == 0));
        assert(memchr(e->text, 0, sizeof e->text) && memchr(e->process, 0, sizeof e->process) && memchr(e->pci, 0, sizeof e->pci));
        for (const char *p = e->text; *p; p++)
            assert((unsigned char)*p >= 0x20);
    }
    while (text.ptr)
        klog_add(&parts, str_split(&text, '\n'));
    assert(parts.n == whole.n && all(&parts) == all(&whole));
    return 0;
}
