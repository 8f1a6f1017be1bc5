/* SPDX-License-Identifier: MIT
 *
 * Lines of the kernel log that tell of engines' troubles: what kind, of which card, how often. A line is a record of /dev/kmsg ("PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;message") or a message by itself.
 */
#include "doctor_int.h"

#include <string.h>

static bool has(struct str s, const char *what)
{
    return str_find(s, str_of(what)) >= 0;
}

static bool hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

/* "0000:03:00.0", or "0000:03:00" as NVIDIA writes it, at the front. */
static bool address_at(struct str s, char out[HW_PCI])
{
    static const char form[] = "xxxx:xx:xx";
    if (s.len < sizeof form - 1)
        return false;
    for (size_t i = 0; i < sizeof form - 1; i++)
        if (form[i] == 'x' ? !hex(s.ptr[i]) : s.ptr[i] != form[i])
            return false;
    char function = s.len >= 12 && s.ptr[10] == '.' && s.ptr[11] >= '0' && s.ptr[11] <= '7' ? s.ptr[11] : '0';
    snprintf(out, HW_PCI, "%.10s.%c", s.ptr, function);
    return true;
}

static void find_address(struct str s, char out[HW_PCI])
{
    for (size_t i = 0; i + 10 <= s.len; i++)
        if ((i == 0 || !hex(s.ptr[i - 1])) && address_at((struct str){s.ptr + i, s.len - i}, out))
            return;
}

/* What is between before and after. */
static void take_between(struct str s, const char *before, char after, char *out, size_t size)
{
    ptrdiff_t at = str_find(s, str_of(before));
    if (at < 0)
        return;
    size_t from = (size_t)at + strlen(before);
    struct str rest = {s.ptr + from, s.len - from}, word = str_split(&rest, after);
    base_autobuf struct buf shown = BUF_INIT(512);
    buf_add_printable(&shown, word, size > 8 ? size - 8 : 0);
    if (buf_status(&shown) == 0 && shown.len && shown.len < size)
        memcpy(out, shown.ptr, shown.len + 1);
}

static bool number_after(struct str s, const char *before, char after, unsigned *ret)
{
    ptrdiff_t at = str_find(s, str_of(before));
    uint64_t v = 0;
    if (at < 0)
        return false;
    size_t from = (size_t)at + strlen(before);
    struct str rest = {s.ptr + from, s.len - from};
    if (str_to_u64(str_trim(str_split(&rest, after)), &v) < 0 || v > 9999)
        return false;
    *ret = (unsigned)v;
    return true;
}

static bool of_amdgpu(struct str s)
{
    return has(s, "amdgpu") || str_starts(s, STR("[drm"));
}

/* Kinds by words of the message; the first that fits counts. */
static bool kind_of(struct str s, enum klog_kind *ret)
{
    static const struct {
        const char *words[2];
        bool amdgpu;
        enum klog_kind kind;
    } table[] = {
        {{"Memory cgroup out of memory: Killed process"}, false, KLOG_OOM_GROUP},
        {{"Out of memory: Killed process"}, false, KLOG_OOM},
        {{"skipped device", "PCI rejects atomics"}, false, KLOG_ATOMICS},
        {{"PCIE atomic ops is not supported"}, false, KLOG_ATOMICS},
        {{"ring ", " timeout, signaled seq="}, true, KLOG_HANG},
        {{"device lost from bus"}, true, KLOG_LOST},
        {{"GPU reset end with ret = -"}, true, KLOG_LOST},
        {{"GPU Recovery Failed"}, true, KLOG_LOST},
        {{"GPU reset begin"}, true, KLOG_RESET},
        {{"ring reset"}, true, KLOG_RESET},
        {{"page fault (src_id:"}, true, KLOG_FAULT},
        {{"NVRM: Xid ("}, false, KLOG_XID},
        {{"NVRM: API mismatch"}, false, KLOG_MISMATCH},
        {{"PCIe Bus Error: severity=Correct"}, false, KLOG_LINK},
        {{"PCIe Bus Error: severity=Uncorrect"}, false, KLOG_LINK_FATAL},
        {{"[Hardware Error]: Machine check"}, false, KLOG_MACHINE},
        {{"[Hardware Error]:", "Uncorrected"}, false, KLOG_MACHINE},
    };
    for (size_t i = 0; i < BASE_COUNT(table); i++)
        if (has(s, table[i].words[0]) && (!table[i].words[1] || has(s, table[i].words[1])) && (!table[i].amdgpu || of_amdgpu(s))) {
            *ret = table[i].kind;
            return true;
        }
    return false;
}

static bool message(struct str s, struct klog_event *e)
{
    *e = (struct klog_event){.count = 1};
    if (!kind_of(s, &e->kind))
        return false;
    if (e->kind == KLOG_XID) {
        ptrdiff_t pci = str_find(s, STR("PCI:"));
        if (pci < 0 || !address_at((struct str){s.ptr + pci + 4, s.len - (size_t)pci - 4}, e->pci) || !number_after(s, "): ", ',', &e->xid))
            return false;
        take_between(s, "name=", ',', e->process, sizeof e->process);
    } else if (e->kind == KLOG_OOM || e->kind == KLOG_OOM_GROUP) {
        take_between(s, "(", ')', e->process, sizeof e->process);
    } else if (e->kind != KLOG_ATOMICS && e->kind != KLOG_MACHINE && e->kind != KLOG_MISMATCH) {
        find_address(s, e->pci);
    }
    base_autobuf struct buf shown = BUF_INIT(2048);
    buf_add_printable(&shown, s, 120);
    if (buf_status(&shown) == 0 && shown.len)
        snprintf(e->text, sizeof e->text, "%s", shown.ptr);
    return true;
}

static void add(struct klog_sum *s, const struct klog_event *e)
{
    size_t i = 0;
    while (i < s->n && (s->events[i].kind != e->kind || s->events[i].xid != e->xid || strcmp(s->events[i].pci, e->pci) != 0))
        i++;
    s->last = KLOG_EVENTS_MAX;
    if (i == KLOG_EVENTS_MAX) {
        s->more = true;
        return;
    }
    unsigned before = i < s->n ? s->events[i].count : 0;
    s->events[i] = *e;
    s->events[i].count = before == UINT32_MAX ? before : before + 1;
    s->n += i == s->n;
    if (e->kind == KLOG_HANG || e->kind == KLOG_FAULT)
        s->last = i;
}

/* The message of a record, and when it was. */
static struct str unpack(struct str line, uint64_t *ret_us)
{
    ptrdiff_t semicolon = str_find_char(line, ';');
    *ret_us = 0;
    if (semicolon <= 0 || line.ptr[0] < '0' || line.ptr[0] > '9')
        return line;
    struct str head = {line.ptr, (size_t)semicolon}, field;
    uint64_t v = 0;
    for (unsigned i = 0; i < 3; i++) {
        field = str_split(&head, ',');
        if (str_to_u64(field, &v) < 0)
            return line;
    }
    *ret_us = v;
    return (struct str){line.ptr + semicolon + 1, line.len - (size_t)semicolon - 1};
}

void klog_add(struct klog_sum *s, struct str text)
{
    if (s->n == 0)
        s->last = KLOG_EVENTS_MAX;
    while (text.ptr) {
        struct str line = str_split(&text, '\n');
        struct klog_event e;
        uint64_t at = 0;
        if (line.len == 0 || line.ptr[0] == ' ')
            continue; /* belongs to the record before */
        line = unpack(line, &at);
        if (message(line, &e)) {
            e.last_us = at;
            add(s, &e);
        } else if (s->last < s->n && of_amdgpu(line) && has(line, "rocess ") && has(line, " pid ")) {
            take_between(line, has(line, "information: process ") ? "information: process " : "Process ", ' ', s->events[s->last].process, sizeof s->events[0].process);
            s->last = KLOG_EVENTS_MAX;
        }
    }
}
