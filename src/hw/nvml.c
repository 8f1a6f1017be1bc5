/* SPDX-License-Identifier: MIT
 *
 * NVIDIA's management library, opened at run time: its driver tells nothing in sysfs. Only what its manual promises is used, by the names that have been stable since driver 510. Cards are asked by PCI address, so
 * that its own numbering plays no part.
 */
#include "hw_int.h"

#include <dlfcn.h>
#include <string.h>

#define PROCESSES_MAX 128

/* A function pointer out of dlsym, without a cast that the language does not know. */
static bool symbol(void *lib, const char *name, const char *older, void *ret, size_t size)
{
    void *p = dlsym(lib, name);
    if (!p && older)
        p = dlsym(lib, older);
    if (!p || size != sizeof p)
        return false;
    memcpy(ret, &p, size);
    return true;
}

bool nvml_load(struct nvml *n)
{
    memset(n, 0, sizeof *n);
    n->lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!n->lib)
        return false;
    bool ok = symbol(n->lib, "nvmlInit_v2", NULL, &n->init, sizeof n->init) && symbol(n->lib, "nvmlShutdown", NULL, &n->shutdown, sizeof n->shutdown) &&
              symbol(n->lib, "nvmlDeviceGetHandleByPciBusId_v2", NULL, &n->by_pci, sizeof n->by_pci) && symbol(n->lib, "nvmlDeviceGetMemoryInfo", NULL, &n->memory, sizeof n->memory) &&
              symbol(n->lib, "nvmlDeviceGetName", NULL, &n->name, sizeof n->name) && symbol(n->lib, "nvmlDeviceGetUUID", NULL, &n->uuid, sizeof n->uuid) &&
              symbol(n->lib, "nvmlSystemGetDriverVersion", NULL, &n->driver, sizeof n->driver) &&
              symbol(n->lib, "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", &n->processes, sizeof n->processes);
    base_ignore(symbol(n->lib, "nvmlDeviceGetVbiosVersion", NULL, &n->vbios, sizeof n->vbios)); /* a card is of use without these */
    base_ignore(symbol(n->lib, "nvmlDeviceGetPowerManagementLimit", NULL, &n->power, sizeof n->power));
    base_ignore(symbol(n->lib, "nvmlDeviceGetPowerManagementLimitConstraints", NULL, &n->power_range, sizeof n->power_range));
    if (ok && n->init() == 0)
        return true;
    dlclose(n->lib);
    n->lib = NULL;
    return false;
}

void nvml_unload(struct nvml *n)
{
    if (n->shutdown)
        n->shutdown();
    if (n->lib)
        dlclose(n->lib);
    memset(n, 0, sizeof *n);
}

/* Copies a text of the library, which may not be terminated when it fills its room. */
static void take_text(char *out, size_t size, char *text, size_t text_size)
{
    base_autobuf struct buf shown = BUF_INIT(1024);
    text[text_size - 1] = '\0';
    buf_add_printable(&shown, str_of(text), size - 1);
    if (buf_status(&shown) == 0 && shown.len)
        snprintf(out, size, "%s", shown.ptr);
}

void nvml_fill(const struct nvml *n, const struct hw_host *host, struct hw_device *d, bool whole)
{
    void *device = NULL;
    struct nvml_memory m = {0};
    char text[128] = "";
    d->memory_known = false;
    if (n->by_pci(d->pci, &device) != 0)
        return;
    int rc = n->memory(device, &m);
    if (rc == 0 && m.total <= INT64_MAX && m.free <= m.total) {
        d->total_bytes = m.total;
        d->free_bytes = m.free;
        d->vram_total_bytes = m.total;
        d->vram_used_bytes = m.used;
        d->memory_known = true;
    } else if (rc == NVML_NOT_SUPPORTED) {
        /* a chip without memory of its own: the RAM is its pool */
        d->shared = true;
        d->total_bytes = host->total_bytes;
        d->free_bytes = host->available_bytes;
        d->memory_known = true;
    }
    if (!whole)
        return;
    if (n->name(device, text, sizeof text) == 0)
        take_text(d->name, sizeof d->name, text, sizeof text);
    if (n->uuid(device, text, sizeof text) == 0)
        take_text(d->uuid, sizeof d->uuid, text, sizeof text);
    if (n->driver(text, sizeof text) == 0)
        take_text(d->driver_version, sizeof d->driver_version, text, sizeof text);
}

void nvml_card(const struct nvml *n, const struct hw_device *d, struct hw_card *c)
{
    void *device = NULL;
    char text[64] = "";
    unsigned now = 0, least = 0, most = 0;
    if (n->by_pci(d->pci, &device) != 0)
        return;
    if (n->vbios && n->vbios(device, text, sizeof text) == 0)
        take_text(c->vbios, sizeof c->vbios, text, sizeof text);
    if (n->power && n->power(device, &now) == 0)
        c->power_cap_uw = (uint64_t)now * 1000;
    if (n->power_range && n->power_range(device, &least, &most) == 0)
        c->power_max_uw = (uint64_t)most * 1000;
}

bool nvml_process(const struct nvml *n, const struct hw_device *d, pid_t pid, uint64_t *ret)
{
    struct nvml_process list[PROCESSES_MAX];
    unsigned count = PROCESSES_MAX;
    void *device = NULL;
    if (n->by_pci(d->pci, &device) != 0 || n->processes(device, &count, list) != 0)
        return false;
    uint64_t sum = 0;
    for (unsigned i = 0; i < count && i < PROCESSES_MAX; i++) {
        if (list[i].pid != (unsigned)pid)
            continue;
        if (list[i].used > INT64_MAX || !size_add(sum, list[i].used, &sum))
            return false; /* all ones: "not available" */
    }
    *ret = sum;
    return true;
}
