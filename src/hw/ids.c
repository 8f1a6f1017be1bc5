/* SPDX-License-Identifier: MIT
 *
 * Product names from the list of PCI ids that distributions carry: lines "1002  Maker", under them "\t7551  Product", under these two tabs. Read in pieces up to the last maker that is wanted; without the list a product
 * is called by its numbers. Where the list has "Chip [Product name]", people know the part in brackets.
 */
#include "hw_int.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_BYTES 512

/* Four hex digits at the front. */
static bool id_at(struct str s, unsigned *ret)
{
    unsigned v = 0;
    if (s.len < 6 || s.ptr[4] != ' ')
        return false;
    for (size_t i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef", *at = s.ptr[i] ? strchr(digits, s.ptr[i]) : NULL;
        if (!at)
            return false;
        v = v << 4 | (unsigned)(at - digits);
    }
    *ret = v;
    return true;
}

static void take_name(struct hw_device *d, struct str name)
{
    ptrdiff_t open = str_find_char(name, '[');
    if (open >= 0 && str_ends(name, STR("]")))
        name = (struct str){name.ptr + open + 1, name.len - (size_t)open - 2};
    base_autobuf struct buf shown = BUF_INIT((size_t)HW_TEXT * 4);
    buf_add_printable(&shown, name, sizeof d->name - 1);
    if (buf_status(&shown) == 0 && shown.len && shown.len < sizeof d->name)
        snprintf(d->name, sizeof d->name, "%s", shown.ptr);
}

static bool wanted(const struct hw *h, unsigned vendor)
{
    for (size_t i = 0; i < h->n_devices; i++)
        if (h->devices[i].vendor_id == vendor)
            return true;
    return false;
}

/* One line; *vendor is the maker whose lines these are. */
static void take_line(struct hw *h, struct str line, unsigned *vendor)
{
    unsigned id = 0;
    if (line.len && line.ptr[0] != '\t') {
        if (id_at(line, &id))
            *vendor = id;
        return;
    }
    struct str rest = {line.ptr + 1, line.len ? line.len - 1 : 0};
    if (!wanted(h, *vendor) || !id_at(rest, &id))
        return;
    for (size_t i = 0; i < h->n_devices; i++)
        if (!*h->devices[i].name && h->devices[i].vendor_id == *vendor && h->devices[i].device_id == id)
            take_name(&h->devices[i], str_trim((struct str){rest.ptr + 4, rest.len - 4}));
}

static void read_list(int fd, struct hw *h)
{
    base_autobuf struct buf b = BUF_INIT((size_t)64 << 10);
    unsigned vendor = 0;
    for (;;) {
        char *room = buf_room(&b, (size_t)16 << 10);
        ssize_t n = room ? read(fd, room, (size_t)16 << 10) : -1;
        if (n <= 0)
            return;
        buf_grew(&b, (size_t)n);
        struct str rest = buf_str(&b);
        ptrdiff_t end;
        while ((end = str_find_char(rest, '\n')) >= 0) {
            take_line(h, (struct str){rest.ptr, (size_t)end}, &vendor);
            rest = (struct str){rest.ptr + end + 1, rest.len - (size_t)end - 1};
        }
        if (rest.len > LINE_MAX_BYTES)
            return; /* no such list */
        buf_drop_front(&b, b.len - rest.len);
    }
}

void ids_names(const struct hw_reader *r, struct hw *h)
{
    static const char *const lists[] = {"usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids"};
    bool missing = false;
    for (size_t i = 0; i < h->n_devices; i++)
        missing |= !*h->devices[i].name;
    for (size_t i = 0; missing && i < BASE_COUNT(lists); i++) {
        os_autoclose int fd = openat(r->root, lists[i], O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            continue;
        read_list(fd, h);
        break;
    }
    for (size_t i = 0; i < h->n_devices; i++)
        if (!*h->devices[i].name)
            snprintf(h->devices[i].name, sizeof h->devices[i].name, "%04x:%04x", h->devices[i].vendor_id, h->devices[i].device_id);
}
