/* SPDX-License-Identifier: MIT
 *
 * The way between a card and the CPU, bridge by bridge: what each link has negotiated and could, which one is the limit, and whether atomic operations come through. The kernel tells links to everybody; the rest is in
 * configuration space, which only root may read.
 */
#include "hw_int.h"

#include <string.h>

#define BUS "sys/bus/pci/devices"

static void read_hop(const struct hw_reader *r, struct hw_hop *h)
{
    uint64_t id = 0;
    if (text_u64(r, &id, BUS "/%s/vendor", h->pci))
        h->vendor_id = (uint16_t)id;
    if (text_u64(r, &id, BUS "/%s/device", h->pci))
        h->device_id = (uint16_t)id;
    h->gen = pci_generation(r, h->pci, "current_link_speed");
    h->width = pci_width(r, h->pci, "current_link_width");
    h->max_gen = pci_generation(r, h->pci, "max_link_speed");
    h->max_width = pci_width(r, h->pci, "max_link_width");
}

/* The folder's path names the port at the CPU first. */
static void read_way(const struct hw_reader *r, const char *pci, struct hw_way *w)
{
    char target[HW_PATH_MAX];
    struct str place = pci_place(r, pci, target, sizeof target), rest = place;
    size_t all = 0, i = 0;
    while (rest.ptr)
        all += pci_address(str_split(&rest, '/'));
    w->cut = all > HW_HOPS_MAX;
    w->n = w->cut ? HW_HOPS_MAX : all;
    for (rest = place; rest.ptr;) {
        struct str part = str_split(&rest, '/');
        if (!pci_address(part) || ++i + w->n <= all)
            continue; /* of a way that is too long the card's end is kept */
        struct hw_hop *h = &w->hops[all - i];
        snprintf(h->pci, sizeof h->pci, STR_FMT, STR_ARG(part));
        read_hop(r, h);
    }
}

bool hw_ways(struct hw_reader *r, const struct hw *h, struct hw_way ret[HW_DEVICES_MAX])
{
    memset(ret, 0, sizeof *ret * HW_DEVICES_MAX);
    for (size_t i = 0; i < h->n_devices; i++)
        read_way(r, h->devices[i].pci, &ret[i]);
    return h->n_devices && pcilib_read(r, ret, h->n_devices);
}

static unsigned least(unsigned a, unsigned b)
{
    return a == 0 ? b : b == 0 || a < b ? a : b;
}

bool hw_way_span(const struct hw_way *w, size_t i, struct hw_span *ret)
{
    if (i + 1 >= w->n)
        return false;
    const struct hw_hop *near = &w->hops[i], *far = &w->hops[i + 1];
    *ret = (struct hw_span){.at = i, .gen = least(near->gen, far->gen), .width = least(near->width, far->width), .can_gen = least(near->max_gen, far->max_gen), .can_width = least(near->max_width, far->max_width)};
    /* who tells its target keeps to it, asleep or not */
    unsigned gen = far->config && far->target_gen ? least(ret->can_gen, far->target_gen) : ret->can_gen;
    ret->bytes_s = hw_link_bytes_s(gen, ret->width);
    return true;
}

bool hw_way_narrowest(const struct hw_way *w, struct hw_span *ret)
{
    struct hw_span s;
    bool any = false;
    for (size_t i = 0; hw_way_span(w, i, &s); i++)
        if (s.bytes_s && (!any || s.bytes_s <= ret->bytes_s)) {
            *ret = s;
            any = true;
        }
    return any;
}

enum hw_atomics hw_way_atomics(const struct hw_way *w, size_t *ret_at)
{
    if (w->cut || w->n < 2)
        return HW_ATOMICS_UNKNOWN;
    for (size_t i = 0; i < w->n; i++)
        if (!w->hops[i].config)
            return HW_ATOMICS_UNKNOWN;
    for (size_t i = w->n; i-- > 0;) {
        const struct hw_hop *h = &w->hops[i];
        bool passes = true;
        if (h->port == HW_PORT_ROOT)
            passes = h->completes32 && h->completes64 && !h->blocks;
        else if (h->port == HW_PORT_UP || h->port == HW_PORT_DOWN)
            passes = h->routes && !h->blocks;
        else if (h->port == HW_PORT_ENDPOINT)
            passes = i > 0 || h->requests;
        else if (h->port != HW_PORT_INTEGRATED)
            passes = false; /* a bridge to the older bus knows none */
        if (!passes) {
            *ret_at = i;
            return HW_ATOMICS_STOPPED;
        }
    }
    return HW_ATOMICS_THROUGH;
}

bool hw_file(const struct hw_reader *r, const char *path, struct buf *out)
{
    return os_read_file(r->root, path, out, NULL) == 0;
}

int hw_root(const struct hw_reader *r)
{
    return r->root;
}
