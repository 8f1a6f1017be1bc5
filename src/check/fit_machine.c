/* SPDX-License-Identifier: MIT
 *
 * Machines of a plan. Declared devices are taken as declared, so that a plan comes out the same wherever it is made; on this machine what is found is compared with the declaration, and undeclared devices are those that the runtime's
 * back end would use.
 */
#include "check_int.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

void check_machine_note(struct check_plan *p, struct check_machine *m, const char *fmt, ...)
{
    base_autobuf struct buf text = BUF_INIT(4096);
    va_list ap;
    va_start(ap, fmt);
    buf_addv(&text, fmt, ap);
    va_end(ap);
    const char *kept = buf_status(&text) < 0 ? NULL : arena_dup(p->arena, buf_str(&text));
    if (kept && m->n_notes < CHECK_NOTES_MAX)
        m->notes[m->n_notes++] = kept;
}

/* ---- what is found here --------------------------------------------------------------------------------------------- */

static void add_own(struct check_plan_state *st, struct hw_reader *reader)
{
    for (size_t i = 0; i < st->options.n_own; i++) {
        uint64_t bytes[HW_DEVICES_MAX] = {0};
        bool known[HW_DEVICES_MAX] = {0};
        hw_process(reader, &st->hw, st->options.own[i], bytes, known);
        for (size_t d = 0; d < st->hw.n_devices; d++)
            if (known[d])
                st->own_devices[d] += bytes[d];
        struct os_mem mem;
        /* mapped weights are page cache, which is counted as available already */
        if (os_proc_mem(st->options.own[i], &mem) == 0)
            st->own_host += mem.rss_anon_bytes;
    }
}

/* What the fleet's own engines hold here, and the machine itself. */
static int read_hw(struct check_plan *p, struct err *err)
{
    struct check_plan_state *st = p->state;
    struct hw_reader *reader = NULL;
    if (st->hw_read)
        return 0;
    int r = hw_open(st->options.hw_root, &reader, err);
    if (r < 0)
        return r;
    r = hw_read(reader, &st->hw, err);
    if (r == 0) {
        add_own(st, reader);
        st->hw_read = true;
    }
    hw_close(reader);
    return r;
}

/* ---- which devices an undeclared host has --------------------------------------------------------------------------- */

static const struct {
    const char *words[3]; /* in package names */
    const char *library;
    enum hw_api api;
} backends[] = {
    {{"hip", "rocm"}, "libggml-hip.so", HW_ROCM},
    {{"cuda"}, "libggml-cuda.so", HW_CUDA},
    {{"vulkan"}, "libggml-vulkan.so", HW_VULKAN},
    {{"sycl"}, "libggml-sycl.so", HW_SYCL},
};

static bool packages_have(const struct fleet_runtime *rt, size_t backend)
{
    for (size_t i = 0; i < rt->n_packages; i++)
        for (size_t w = 0; w < BASE_COUNT(backends[0].words) && backends[backend].words[w]; w++)
            if (strstr(rt->packages[i], backends[backend].words[w]))
                return true;
    return false;
}

static bool folder_has(const char *root, size_t backend)
{
    static const char *const folders[] = {".", "bin", "lib", "build/bin", "usr/bin", "usr/lib", "usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/ggml/backends0"};
    for (size_t i = 0; i < BASE_COUNT(folders); i++) {
        base_autobuf struct buf path = BUF_INIT(8192);
        buf_addf(&path, "%s/%s/%s", root, folders[i], backends[backend].library);
        if (buf_status(&path) == 0 && access(path.ptr, F_OK) == 0)
            return true;
    }
    return false;
}

static bool runtime_api(const struct fleet_runtime *rt, enum hw_api *ret)
{
    for (size_t i = 0; i < BASE_COUNT(backends); i++) {
        bool has = rt->source == FLEET_SOURCE_DEBIAN   ? packages_have(rt, i)
                   : rt->source == FLEET_SOURCE_PATH   ? folder_has(rt->source_arg, i)
                   : rt->source == FLEET_SOURCE_SYSTEM ? folder_has("/", i)
                                                       : false; /* nobody has looked into it yet */
        if (has) {
            *ret = backends[i].api;
            return true;
        }
    }
    return false;
}

/* The runtime of the first service here that puts layers on devices. */
static const struct fleet_runtime *device_runtime(const struct check_plan *p, const struct fleet_host *h)
{
    for (size_t i = 0; i < p->fleet->n_services; i++) {
        const struct fleet_service *s = &p->fleet->services[i];
        if (s->host == h && s->shape.gpu_layers_set && s->shape.gpu_layers > 0)
            return s->runtime;
    }
    return NULL;
}

static void add_found(struct check_plan *p, struct check_machine *m, size_t i, enum hw_api api)
{
    const struct check_plan_state *st = p->state;
    const struct hw_device *d = &st->hw.devices[i];
    char name[HW_ENGINE_NAME], identity[HW_IDENTITY];
    bool sure = false;
    if (m->n_devices == FIT_DEVICES_MAX || !hw_engine_name(&st->hw, i, api, name, &sure))
        return;
    if (!d->memory_known) {
        check_machine_note(p, m, "%s (%s): its memory cannot be read: declare it under devices", name, d->name);
        return;
    }
    if (!sure)
        check_machine_note(p, m, "%s is taken for the card at %s: the engine's own order may differ, declare the devices to be sure", name, d->pci);
    uint64_t free = d->free_bytes + st->own_devices[i];
    m->devices[m->n_devices] = (struct fit_device){
        .name = arena_dup(p->arena, str_of(name)), .backend = fit_backend_of(name), .total_bytes = d->total_bytes, .free_bytes = free < d->total_bytes ? free : d->total_bytes,
        .floor_bytes = m->host->floor_bytes, .link_bytes_s = d->link.bytes_s, .shared = d->shared};
    m->hardware[m->n_devices] = arena_dup(p->arena, str_of(hw_identity(d, identity)));
    m->card[m->n_devices] = (int)i;
    m->n_devices++;
}

static int find_devices(struct check_plan *p, struct check_machine *m, struct err *err)
{
    const struct fleet_runtime *rt = device_runtime(p, m->host);
    enum hw_api api;
    m->live = true;
    if (!rt || !m->here)
        return 0;
    if (!runtime_api(rt, &api)) {
        check_machine_note(p, m, "which devices runtime '%s' uses is not known: declare the host's devices", rt->name);
        return 0;
    }
    int r = read_hw(p, err);
    for (size_t i = 0; r == 0 && i < p->state->hw.n_devices; i++)
        add_found(p, m, i, api);
    for (size_t i = 0; r == 0 && i < m->n_devices; i++)
        if (!m->devices[i].name || !m->hardware[i])
            return err_nomem(err);
    return r;
}

/* ---- declared ones -------------------------------------------------------------------------------------------------- */

/* The card behind a declared device on this machine, or -1. */
static int found_as(const struct check_plan *p, const struct fleet_device *d)
{
    bool sure = false;
    if (!p->state->hw_read)
        return -1;
    return d->pci ? hw_find_pci(&p->state->hw, d->pci) : hw_find_engine(&p->state->hw, d->name, &sure);
}

static void compare_with_found(struct check_plan *p, struct check_machine *m, size_t i, const struct hw_device *found, uint64_t own)
{
    struct fit_device *d = &m->devices[i];
    char free_text[UNITS_TEXT], total_text[UNITS_TEXT];
    if (!found->memory_known)
        return;
    uint64_t free = found->free_bytes + own;
    d->shared = d->shared || found->shared;
    if (found->total_bytes < d->total_bytes)
        check_machine_note(p, m, "%s is declared with %s and has %s", d->name, units_show_bytes(d->total_bytes, free_text), units_show_bytes(found->total_bytes, total_text));
    if (p->state->options.now)
        d->free_bytes = free < d->total_bytes ? free : d->total_bytes;
    else if (free < d->total_bytes && found->total_bytes - found->total_bytes / 16 > free)
        check_machine_note(p, m, "others hold some of %s at this moment: %s are free; --now plans with that", d->name, units_show_bytes(free, free_text));
}

static int declared_devices(struct check_plan *p, struct check_machine *m, struct err *err)
{
    const struct fleet_host *h = m->host;
    struct err ignored;
    m->declared = true;
    m->live = p->state->options.now && m->here;
    if (h->n_devices > FIT_DEVICES_MAX)
        return err_set(err, -E2BIG, "host '%s' has %zu devices, and llama.cpp uses at most %d: leave some out", h->name, h->n_devices, FIT_DEVICES_MAX);
    /* a machine that cannot be read is planned as declared */
    if (m->here && read_hw(p, &ignored) < 0)
        check_machine_note(p, m, "this machine cannot be read: %s", ignored.text);
    for (size_t i = 0; i < h->n_devices; i++) {
        const struct fleet_device *d = &h->devices[i];
        char identity[HW_IDENTITY];
        m->devices[i] = (struct fit_device){.name = d->name, .backend = fit_backend_of(d->name), .total_bytes = d->memory_bytes, .free_bytes = d->memory_bytes, .floor_bytes = h->floor_bytes,
                                            .bandwidth_bytes_s = d->bandwidth_bytes_s, .link_bytes_s = d->link_bytes_s, .shared = d->shared == FLEET_YES};
        m->n_devices++;
        int k = m->here ? found_as(p, d) : -1;
        m->card[i] = k;
        if (k < 0)
            continue;
        compare_with_found(p, m, i, &p->state->hw.devices[k], p->state->own_devices[k]);
        m->hardware[i] = arena_dup(p->arena, str_of(hw_identity(&p->state->hw.devices[k], identity)));
        if (!m->hardware[i])
            return err_nomem(err);
    }
    return 0;
}

/* ---- the host's own memory ------------------------------------------------------------------------------------------ */

static int host_memory(struct check_plan *p, struct check_machine *m, struct err *err)
{
    const struct fleet_host *h = m->host;
    const struct hw_host *found = &p->state->hw.host;
    char identity[HW_IDENTITY];
    m->memory = (struct fit_host){.total_bytes = h->memory_bytes, .free_bytes = h->memory_bytes, .floor_bytes = h->floor_bytes, .bandwidth_bytes_s = h->bandwidth_bytes_s, .repack = true};
    m->memory_known = h->memory_bytes > 0;
    if (m->here) {
        int r = read_hw(p, err);
        if (r < 0 && !m->memory_known)
            return r;
    }
    if (m->here && p->state->hw_read) {
        m->memory.repack = found->avx2;
        m->hardware[m->n_devices] = arena_dup(p->arena, str_of(hw_host_identity(found, identity)));
        if (!m->hardware[m->n_devices])
            return err_nomem(err);
        uint64_t free = found->available_bytes + p->state->own_host;
        if (free > found->total_bytes)
            free = found->total_bytes;
        if (!m->memory_known || p->state->options.now) {
            m->memory.total_bytes = m->memory_known ? h->memory_bytes : found->total_bytes;
            m->memory.free_bytes = free < m->memory.total_bytes ? free : m->memory.total_bytes;
            m->memory_known = true;
        }
    }
    if (!m->memory_known)
        m->memory.total_bytes = m->memory.free_bytes = FIT_BYTES_MAX;
    return 0;
}

int check_machine_init(struct check_plan *p, struct check_machine *m, const struct fleet_host *h, struct err *err)
{
    *m = (struct check_machine){.host = h, .here = check_is_here(h)};
    int r = h->n_devices ? declared_devices(p, m, err) : find_devices(p, m, err);
    if (r == 0)
        r = host_memory(p, m, err);
    if (r < 0)
        return r;
    m->hardware_known = true;
    for (size_t d = 0; d <= m->n_devices; d++)
        m->hardware_known = m->hardware_known && m->hardware[d];
    return 0;
}
