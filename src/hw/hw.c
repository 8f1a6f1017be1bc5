/* SPDX-License-Identifier: MIT
 *
 * One machine put together from its sources, and what its parts are called: by an engine, and in the ledger.
 */
#include "hw_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

int hw_open(const char *root, struct hw_reader **ret, struct err *err)
{
    struct hw_reader *r = calloc(1, sizeof *r);
    if (!r)
        return err_nomem(err);
    r->root = open(root ? root : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r->root < 0) {
        int code = err_sys(err, -errno, "cannot open '%s'", root ? root : "/");
        free(r);
        return code;
    }
    snprintf(r->path, sizeof r->path, "%s", root ? root : "/"); /* one that is too long has no configuration space */
    r->here = !root || strcmp(root, "/") == 0;
    *ret = r;
    return 0;
}

struct hw_reader *hw_close(struct hw_reader *r)
{
    if (r) {
        if (r->has_nvml)
            nvml_unload(&r->nvml);
        os_closep(&r->root);
        free(r);
    }
    return NULL;
}

static void read_memory(const struct hw_reader *r, const struct hw_host *host, struct hw_device *d, bool whole)
{
    if (d->vendor == HW_AMD)
        amdgpu_memory(r, host, d);
    else if (d->vendor == HW_NVIDIA && r->has_nvml)
        nvml_fill(&r->nvml, host, d, whole);
}

/* Looking for the library takes longer than reading the whole machine: only where a card needs it. */
static void open_nvml(struct hw_reader *r, const struct hw *h)
{
    for (size_t i = 0; r->here && !r->has_nvml && i < h->n_devices; i++)
        if (h->devices[i].vendor == HW_NVIDIA) {
            r->has_nvml = nvml_load(&r->nvml);
            return;
        }
}

int hw_read(struct hw_reader *r, struct hw *ret, struct err *err)
{
    struct hw *h = calloc(1, sizeof *h);
    if (!h)
        return err_nomem(err);
    int result = host_read(r, &h->host, err);
    if (result == 0)
        result = pci_devices(r, h, err);
    if (result == 0)
        open_nvml(r, h);
    for (size_t i = 0; result == 0 && i < h->n_devices; i++) {
        struct hw_device *d = &h->devices[i];
        d->shared = d->vendor == HW_INTEL && str_starts(str_of(d->pci), STR("0000:00:")); /* Intel's integrated ones sit in the root complex */
        read_memory(r, &h->host, d, true);
    }
    if (result == 0) {
        amdgpu_kfd(r, h);
        ids_names(r, h);
        *ret = *h;
    }
    free(h);
    return result;
}

int hw_update(struct hw_reader *r, struct hw *h, struct err *err)
{
    int result = host_memory(r, &h->host, err);
    for (size_t i = 0; result == 0 && i < h->n_devices; i++)
        read_memory(r, &h->host, &h->devices[i], false);
    return result;
}

void hw_process(struct hw_reader *r, const struct hw *h, pid_t pid, uint64_t ret[HW_DEVICES_MAX], bool known[HW_DEVICES_MAX])
{
    for (size_t i = 0; i < HW_DEVICES_MAX; i++) {
        ret[i] = 0;
        known[i] = false;
        if (i >= h->n_devices)
            continue;
        const struct hw_device *d = &h->devices[i];
        if (d->vendor == HW_AMD)
            known[i] = amdgpu_process(r, d, pid, &ret[i]);
        else if (d->vendor == HW_NVIDIA)
            known[i] = r->has_nvml && nvml_process(&r->nvml, d, pid, &ret[i]);
    }
}

/* ---- names -------------------------------------------------------------------------------------------------------------------------- */

static const char *const prefixes[] = {[HW_ROCM] = "ROCm", [HW_CUDA] = "CUDA", [HW_VULKAN] = "Vulkan", [HW_SYCL] = "SYCL"};

static bool sees(enum hw_api api, const struct hw_device *d)
{
    switch (api) {
    case HW_ROCM:
        return d->vendor == HW_AMD;
    case HW_CUDA:
        return d->vendor == HW_NVIDIA;
    case HW_SYCL:
        return d->vendor == HW_INTEL;
    default:
        return true;
    }
}

static bool has_topology(const struct hw *h)
{
    for (size_t i = 0; i < h->n_devices; i++)
        if (h->devices[i].kfd_order)
            return true;
    return false;
}

/* The place of device i among those that the interface sees. ROCm goes by its topology and sees nothing beside it; the others go by PCI address as long as nothing speaks against it. */
bool hw_engine_name(const struct hw *h, size_t i, enum hw_api api, char ret[HW_ENGINE_NAME], bool *ret_sure)
{
    unsigned before = 0, others = 0;
    bool equal = true, topology = api == HW_ROCM && has_topology(h);
    if (i >= h->n_devices || !sees(api, &h->devices[i]))
        return false;
    const struct hw_device *d = &h->devices[i];
    if (topology && !d->kfd_order)
        return false;
    for (size_t k = 0; k < h->n_devices; k++) {
        const struct hw_device *o = &h->devices[k];
        if (k == i || !sees(api, o))
            continue;
        others++;
        equal &= o->vendor_id == d->vendor_id && o->device_id == d->device_id;
        before += k < i;
    }
    snprintf(ret, HW_ENGINE_NAME, "%s%u", prefixes[api], topology ? d->kfd_order - 1 : before);
    *ret_sure = topology || (h->n_more == 0 && (others == 0 || equal));
    return true;
}

int hw_find_engine(const struct hw *h, const char *engine_name, bool *ret_sure)
{
    char name[HW_ENGINE_NAME];
    bool sure;
    for (size_t api = 0; api < BASE_COUNT(prefixes); api++)
        for (size_t i = 0; i < h->n_devices; i++)
            if (hw_engine_name(h, i, (enum hw_api)api, name, &sure) && strcmp(name, engine_name) == 0) {
                *ret_sure = sure;
                return (int)i;
            }
    return -1;
}

int hw_find_pci(const struct hw *h, const char *pci)
{
    bool shortened = strlen(pci) == sizeof "03:00.0" - 1;
    for (size_t i = 0; i < h->n_devices; i++) {
        const char *own = h->devices[i].pci;
        if (strcasecmp(own, pci) == 0 || (shortened && strncmp(own, "0000:", 5) == 0 && strcasecmp(own + 5, pci) == 0))
            return (int)i;
    }
    return -1;
}

const char *hw_identity(const struct hw_device *d, char ret[HW_IDENTITY])
{
    char link[32] = "no link", memory[UNITS_TEXT];
    if (d->link.width)
        snprintf(link, sizeof link, "gen%ux%u", d->link.gen, d->link.width);
    snprintf(ret, HW_IDENTITY, "%s %04x:%04x %s %s-%s %s%s", d->pci, d->vendor_id, d->device_id, link, *d->driver ? d->driver : "no driver", d->driver_version, units_show_bytes(d->total_bytes, memory),
             d->shared ? " shared" : "");
    return ret;
}

const char *hw_host_identity(const struct hw_host *h, char ret[HW_IDENTITY])
{
    snprintf(ret, HW_IDENTITY, "cpu%s%s%s%s %u threads", h->avx2 ? " avx2" : "", h->avx512 ? " avx512" : "", h->fma ? " fma" : "", h->f16c ? " f16c" : "", h->threads);
    return ret;
}
