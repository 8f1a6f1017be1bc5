/* SPDX-License-Identifier: MIT
 *
 * A doctor's report as JSON.
 */
#include "doctor_text_int.h"

#include <errno.h>
#include <string.h>

static const char *const ports[] = {[HW_PORT_UNKNOWN] = NULL, [HW_PORT_ENDPOINT] = "card", [HW_PORT_ROOT] = "root", [HW_PORT_UP] = "up", [HW_PORT_DOWN] = "down", [HW_PORT_INTEGRATED] = "integrated", [HW_PORT_OTHER] = "other"};

static void add_hop(struct json_out *o, const struct hw_hop *h)
{
    char id[16];
    json_out_obj(o, NULL);
    json_out_cstr(o, "pci", h->pci);
    snprintf(id, sizeof id, "%04x:%04x", h->vendor_id, h->device_id);
    json_out_cstr(o, "id", id);
    json_out_cstr(o, "port", ports[h->port]);
    json_out_u64(o, "gen", h->gen);
    json_out_u64(o, "width", h->width);
    json_out_u64(o, "max_gen", h->max_gen);
    json_out_u64(o, "max_width", h->max_width);
    if (h->config) {
        json_out_u64(o, "target_gen", h->target_gen);
        json_out_obj(o, "atomics");
        json_out_bool(o, "routes", h->routes);
        json_out_bool(o, "completes32", h->completes32);
        json_out_bool(o, "completes64", h->completes64);
        json_out_bool(o, "requests", h->requests);
        json_out_bool(o, "blocks", h->blocks);
        json_out_end(o);
    }
    json_out_end(o);
}

static void add_way(struct json_out *o, const struct hw_way *w)
{
    static const char *const verdicts[] = {[HW_ATOMICS_UNKNOWN] = NULL, [HW_ATOMICS_THROUGH] = "through", [HW_ATOMICS_STOPPED] = "stopped"};
    struct hw_span s;
    size_t at = 0;
    enum hw_atomics a = hw_way_atomics(w, &at);
    if (hw_way_narrowest(w, &s)) {
        json_out_obj(o, "narrowest");
        json_out_cstr(o, "at", w->hops[s.at + 1].pci);
        json_out_u64(o, "width", s.width);
        json_out_u64(o, "gen", s.can_gen);
        json_out_u64(o, "bytes_s", s.bytes_s);
        json_out_end(o);
    }
    json_out_cstr(o, "atomics", verdicts[a]);
    if (a == HW_ATOMICS_STOPPED)
        json_out_cstr(o, "atomics_stop_at", w->hops[at].pci);
    json_out_arr(o, "way");
    for (size_t i = 0; i < w->n; i++)
        add_hop(o, &w->hops[i]);
    json_out_end(o);
}

static void add_names(struct json_out *o, const struct hw *h, size_t i)
{
    json_out_arr(o, "engines");
    for (int api = HW_ROCM; api <= HW_SYCL; api++) {
        char name[HW_ENGINE_NAME];
        bool sure = false;
        if (hw_engine_name(h, i, (enum hw_api)api, name, &sure))
            json_out_cstr(o, NULL, name);
    }
    json_out_end(o);
}

static void add_device(struct json_out *o, const struct doctor_report *r, size_t i)
{
    static const char *const vendors[] = {[HW_AMD] = "amd", [HW_NVIDIA] = "nvidia", [HW_INTEL] = "intel"};
    const struct hw_device *d = &r->hw.devices[i];
    const struct hw_card *c = &r->cards[i];
    char identity[HW_IDENTITY];
    json_out_obj(o, NULL);
    json_out_cstr(o, "pci", d->pci);
    json_out_cstr(o, "name", *c->model ? c->model : d->name);
    json_out_cstr(o, "vendor", vendors[d->vendor]);
    json_out_cstr(o, "driver", *d->driver ? d->driver : NULL);
    json_out_cstr(o, "driver_version", *d->driver_version ? d->driver_version : NULL);
    json_out_cstr(o, "gfx", *c->gfx ? c->gfx : NULL);
    json_out_cstr(o, "vbios", *c->vbios ? c->vbios : NULL);
    json_out_bool(o, "shared", d->shared);
    json_out_bool(o, "memory_known", d->memory_known);
    json_out_u64(o, "memory_bytes", d->total_bytes);
    json_out_u64(o, "free_bytes", d->free_bytes);
    json_out_u64(o, "vram_bytes", d->vram_total_bytes);
    json_out_u64(o, "vram_used_bytes", d->vram_used_bytes);
    json_out_u64(o, "gtt_bytes", d->gtt_total_bytes);
    json_out_u64(o, "visible_bytes", c->visible_bytes);
    json_out_u64(o, "bar_bytes", c->bar_bytes);
    json_out_u64(o, "power_cap_w", c->power_cap_uw / 1000000);
    json_out_u64(o, "power_max_w", c->power_max_uw / 1000000);
    json_out_obj(o, "firmware");
    for (size_t k = 0; k < c->n_firmware; k++)
        json_out_cstr(o, c->firmware[k].name, c->firmware[k].version);
    json_out_end(o);
    json_out_cstr(o, "identity", hw_identity(d, identity));
    add_names(o, &r->hw, i);
    add_way(o, &r->ways[i]);
    json_out_end(o);
}

int doctor_json(const struct doctor_report *r, const char *host, struct buf *out)
{
    struct json_out *o = json_out_new();
    const struct hw_host *h = &r->hw.host;
    if (!o)
        return -ENOMEM;
    json_out_obj(o, NULL);
    json_out_cstr(o, "host", host);
    json_out_cstr(o, "worst", doctor_level_text(doctor_worst(r)));
    json_out_obj(o, "machine");
    json_out_cstr(o, "cpu", h->cpu);
    json_out_u64(o, "threads", h->threads);
    json_out_u64(o, "cores", h->cores);
    json_out_u64(o, "memory_bytes", h->total_bytes);
    json_out_u64(o, "available_bytes", h->available_bytes);
    json_out_cstr(o, "kernel", h->kernel);
    json_out_end(o);
    json_out_arr(o, "devices");
    for (size_t i = 0; i < r->hw.n_devices; i++)
        add_device(o, r, i);
    json_out_end(o);
    json_out_arr(o, "findings");
    for (size_t i = 0; i < r->n; i++) {
        const struct doctor_finding *f = &r->findings[i];
        json_out_obj(o, NULL);
        json_out_cstr(o, "level", doctor_level_text(f->level));
        json_out_cstr(o, "topic", f->topic);
        json_out_cstr(o, "where", f->where);
        json_out_cstr(o, "what", f->what);
        json_out_cstr(o, "why", f->why);
        json_out_cstr(o, "todo", f->todo);
        json_out_end(o);
    }
    json_out_end(o);
    json_out_end(o);
    int code = json_out_finish(o, true, out);
    json_out_free(o);
    return code;
}
