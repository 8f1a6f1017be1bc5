/* SPDX-License-Identifier: MIT
 *
 * What the amdgpu driver tells: memory in the card's folder on the bus, ROCm's numbers in the topology of /sys/class/kfd, and what a process holds, there or in its /proc/PID/fdinfo.
 *
 * An integrated GPU has a carve-out of the RAM as its "VRAM" and takes the rest of what it needs from the RAM at large (GTT). It is known by its north bridge voltage (a sensor that only such chips have); a driver that
 * shows no sensors leaves the memory's maker, which only cards with memory of their own have, and the size of the carve-out.
 */
#include "hw_int.h"

#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CARD "sys/bus/pci/devices/%s"
#define CARVE_OUT_MAX (4ull << 30)  /* cards of this driver with so little memory of their own are older than any engine's support */
#define SENSORS_MAX 32
#define KFD_NODES_MAX 128
#define NODES "sys/class/kfd/kfd/topology/nodes"
#define FDS_MAX 4096
#define CLIENTS_MAX 64

/* ---- memory ------------------------------------------------------------------------------------------------------------------------ */

static bool has_north_bridge(const struct hw_reader *r, const char *pci)
{
    char label[32];
    for (unsigned i = 0; i < SENSORS_MAX; i++)
        if (text_line(r, label, sizeof label, CARD "/hwmon/hwmon%u/in1_label", pci, i))
            return strcmp(label, "vddnb") == 0;
    return false;
}

static bool is_shared(const struct hw_reader *r, const struct hw_device *d)
{
    char maker[64];
    if (has_north_bridge(r, d->pci))
        return true;
    if (text_line(r, maker, sizeof maker, CARD "/mem_info_vram_vendor", d->pci))
        return false;
    return d->vram_total_bytes < CARVE_OUT_MAX && d->gtt_total_bytes > d->vram_total_bytes;
}

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* What all drivers together may map of the RAM, however much this one is told to. */
static uint64_t ram_limit(const struct hw_reader *r)
{
    uint64_t pages = 0, bytes = 0;
    return text_u64(r, &pages, "sys/module/ttm/parameters/pages_limit") && pages && size_mul(pages, 4096, &bytes) ? bytes : UINT64_MAX;
}

void amdgpu_memory(const struct hw_reader *r, const struct hw_host *host, struct hw_device *d)
{
    uint64_t v[4] = {0};
    static const char *const files[] = {"mem_info_vram_total", "mem_info_vram_used", "mem_info_gtt_total", "mem_info_gtt_used"};
    d->memory_known = false;
    for (size_t i = 0; i < BASE_COUNT(files); i++)
        if (!text_u64(r, &v[i], CARD "/%s", d->pci, files[i]) || v[i] > INT64_MAX)
            return;
    d->vram_total_bytes = v[0];
    d->vram_used_bytes = v[1];
    d->gtt_total_bytes = v[2];
    d->gtt_used_bytes = v[3];
    d->shared = is_shared(r, d);
    d->total_bytes = v[0];
    d->free_bytes = less(v[0], v[1]);
    if (d->shared) {
        uint64_t limit = ram_limit(r), all = v[2] < limit ? v[2] : limit, ram = less(all, v[3]);
        d->total_bytes += all;
        d->free_bytes += ram < host->available_bytes ? ram : host->available_bytes;
    }
    d->memory_known = true;
}

/* ---- ROCm's order --------------------------------------------------------------------------------------------------------------------- */

void amdgpu_kfd(const struct hw_reader *r, struct hw *h)
{
    uint32_t order = 0;
    for (unsigned i = 0; i < KFD_NODES_MAX; i++) {
        base_autobuf struct buf b = BUF_INIT(HW_FILE_MAX);
        uint64_t simds = 0, location = 0, domain = 0, id = 0;
        char pci[HW_PCI];
        if (!text_there(r, NODES "/%u", i))
            break; /* the kernel numbers them without gaps */
        if (!text_read(r, &b, NODES "/%u/properties", i))
            continue; /* a card that is kept from us */
        if (!text_field(buf_str(&b), "simd_count", &simds) || simds == 0 || !text_field(buf_str(&b), "location_id", &location))
            continue; /* a node of CPUs */
        base_ignore(text_field(buf_str(&b), "domain", &domain)); /* older kernels tell none: 0 */
        base_ignore(text_u64(r, &id, NODES "/%u/gpu_id", i));
        order++;
        snprintf(pci, sizeof pci, "%04x:%02x:%02x.%x", (unsigned)(domain & 0xffff), (unsigned)(location >> 8 & 0xff), (unsigned)(location >> 3 & 0x1f), (unsigned)(location & 7));
        int at = hw_find_pci(h, pci);
        if (at >= 0 && id <= UINT32_MAX) {
            h->devices[at].kfd_order = order;
            h->devices[at].kfd_id = (uint32_t)id;
        }
    }
}

/* ---- one process ------------------------------------------------------------------------------------------------------------------------ */

/* The clients of the driver that were counted: a descriptor that was passed on or duplicated shows the same client again. */
struct clients {
    uint64_t ids[CLIENTS_MAX];
    size_t n;
};

static bool seen_before(struct clients *c, uint64_t id)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->ids[i] == id)
            return true;
    if (c->n < CLIENTS_MAX)
        c->ids[c->n++] = id;
    return false;
}

static bool line_is(struct str text, const char *key, const char *value)
{
    while (text.ptr) {
        struct str line = str_split(&text, '\n');
        if (!str_starts(line, str_of(key)))
            continue;
        return str_eq_c(str_trim((struct str){line.ptr + strlen(key), line.len - strlen(key)}), value);
    }
    return false;
}

/* Bytes that one open file of the driver holds on d: "drm-memory-vram: 1024 KiB", for a shared pool GTT too. */
static bool fdinfo(struct str text, const struct hw_device *d, struct clients *clients, uint64_t *sum)
{
    uint64_t client = 0, vram = 0, gtt = 0;
    if (!line_is(text, "drm-pdev:", d->pci) || !text_field(text, "drm-client-id", &client) || !text_field(text, "drm-memory-vram", &vram))
        return false;
    if (d->shared)
        base_ignore(text_field(text, "drm-memory-gtt", &gtt));
    if (seen_before(clients, client))
        return true;
    uint64_t kib = 0, bytes = 0, total = 0;
    if (size_add(vram, gtt, &kib) && size_mul(kib, 1024, &bytes) && size_add(*sum, bytes, &total))
        *sum = total;
    return true;
}

static bool from_fdinfo(const struct hw_reader *r, const struct hw_device *d, pid_t pid, uint64_t *ret)
{
    char path[64];
    snprintf(path, sizeof path, "proc/%d/fdinfo", (int)pid);
    int fd = openat(r->root, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    struct clients clients = {.n = 0};
    uint64_t sum = 0;
    bool any = false;
    unsigned n = 0;
    for (struct dirent *e; n < FDS_MAX && (e = readdir(dir)); n++) {
        base_autobuf struct buf b = BUF_INIT(HW_FILE_MAX);
        if (e->d_name[0] != '.' && os_read_file(dirfd(dir), e->d_name, &b, NULL) == 0)
            any |= fdinfo(buf_str(&b), d, &clients, &sum);
    }
    closedir(dir);
    if (any)
        *ret = sum;
    return any;
}

/* ROCm counts what a process took through it by itself; everything else is in fdinfo. */
bool amdgpu_process(const struct hw_reader *r, const struct hw_device *d, pid_t pid, uint64_t *ret)
{
    uint64_t rocm = 0, drm = 0;
    bool has_rocm = d->kfd_id && text_u64(r, &rocm, "sys/class/kfd/kfd/proc/%d/vram_%u", (int)pid, d->kfd_id);
    bool has_drm = from_fdinfo(r, d, pid, &drm);
    if (has_rocm || has_drm)
        *ret = rocm > drm ? rocm : drm; /* recent kernels count ROCm's in fdinfo too */
    return has_rocm || has_drm;
}
