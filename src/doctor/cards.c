/* SPDX-License-Identifier: MIT
 *
 * Cards: whether a driver has them, what memory there really is, whether the CPU reaches it, whether this account may open them.
 */
#include "doctor_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUS "sys/bus/pci/devices"
#define CLASS_ACCELERATOR 0x1200
#define CLASS_3D 0x0302
#define PAGE 4096ull
#define POOL_ROOM (8ull << 30)   /* of RAM that an integrated GPU's pool should leave to everything else */
#define SMALL_WINDOW (256ull << 20)

static bool discrete(const struct hw_device *dev)
{
    return !dev->shared && dev->memory_known;
}

/* ---- drivers ---------------------------------------------------------------------------------------------------------- */

static bool in_cmdline(struct doctor *d, const char *word)
{
    base_autobuf struct buf b = BUF_INIT(DOCTOR_FILE_MAX);
    struct str value;
    return host_word(doctor_file(d, "proc/cmdline", &b), word, &value);
}

/* False when nothing more can be said of the card. */
static bool judge_driver(struct doctor *d, const struct hw_device *dev)
{
    static const char *const names[] = {[HW_AMD] = "amdgpu", [HW_NVIDIA] = "nvidia", [HW_INTEL] = "xe or i915"};
    if (!*dev->driver) {
        const char *todo = in_cmdline(d, "nomodeset") ? "take 'nomodeset' off the kernel command line and reboot" : doctor_text(d, "load %s (modprobe), or install it", names[dev->vendor]);
        doctor_say(d, DOCTOR_BAD, "card", dev->pci, "no engine can use it", todo, "%s: no driver is bound to it", dev->name);
        return false;
    }
    if (strcmp(dev->driver, "vfio-pci") == 0) {
        doctor_say(d, DOCTOR_NOTE, "card", dev->pci, "it is set aside for a virtual machine", "", "%s: given away (vfio-pci)", dev->name);
        return false;
    }
    if (dev->vendor == HW_NVIDIA && strcmp(dev->driver, "nvidia") != 0) {
        doctor_say(d, DOCTOR_WARN, "card", dev->pci, "CUDA needs NVIDIA's own driver", "install NVIDIA's driver and reboot", "%s: has the driver '%s'", dev->name, dev->driver);
        return false;
    }
    return true;
}

static void judge_unknown_memory(struct doctor *d, const struct hw_device *dev)
{
    if (dev->vendor == HW_NVIDIA && d->live)
        doctor_say(d, DOCTOR_BAD, "card", dev->pci, "CUDA does not start either", "install the library of the same version as the module (libnvidia-ml1, or the driver's own installer)", "%s: the driver is loaded (%s), its library cannot ask it",
                   dev->name, *dev->driver_version ? dev->driver_version : "version unknown");
    else if (dev->vendor == HW_NVIDIA)
        doctor_say(d, DOCTOR_NOTE, "card", dev->pci, "", "", "%s: its memory is told by NVIDIA's library alone, which a recorded machine has not got", dev->name);
    else
        doctor_say(d, dev->vendor == HW_AMD ? DOCTOR_WARN : DOCTOR_NOTE, "card", dev->pci, "berth cannot plan what it is not told", "declare its memory under 'devices' of the fleet file", "%s: the driver '%s' does not tell its memory", dev->name, dev->driver);
}

/* ---- memory --------------------------------------------------------------------------------------------------------------- */

static void judge_window(struct doctor *d, const struct hw_device *dev, const struct hw_card *c)
{
    char part[UNITS_TEXT], all[UNITS_TEXT];
    uint64_t seen = c->visible_bytes ? c->visible_bytes : c->bar_bytes;
    if (!seen || seen >= dev->vram_total_bytes || (dev->vendor == HW_NVIDIA && !dev->vram_total_bytes))
        return;
    bool small = seen <= SMALL_WINDOW;
    doctor_say(d, dev->vendor == HW_AMD ? DOCTOR_WARN : DOCTOR_NOTE, "card", dev->pci, "models load through it piece by piece, and other cards cannot reach this one's memory directly",
               small ? "turn on 'Above 4G Decoding' and 'Resizable BAR' in the firmware setup" : "look for a newer firmware of the board", "the CPU sees %s of its %s: %s", units_show_bytes(seen, part),
               units_show_bytes(dev->vram_total_bytes, all), small ? "resizable BAR is off" : "the window is too small");
}

/* The pool of an integrated GPU ends where the first of three limits is: the driver's (amdgpu.gttsize), that of all drivers together (ttm.pages_limit), the RAM. */
static void judge_pool(struct doctor *d, const struct hw_device *dev)
{
    uint64_t pages = 0, gtt = 0, ram = d->r->hw.host.total_bytes;
    char a[UNITS_TEXT], b[UNITS_TEXT], c[UNITS_TEXT];
    if (!doctor_file_u64(d, "sys/module/ttm/parameters/pages_limit", &pages) || pages > UINT64_MAX / PAGE)
        pages = 0;
    uint64_t limit = pages * PAGE;
    uint64_t want = ram > 2 * POOL_ROOM ? (ram - POOL_ROOM) / PAGE / 262144 * 262144 : 0; /* whole GiB */
    const char *todo = want ? doctor_text(d, "put ttm.pages_limit=%llu on the kernel command line (%s), without amdgpu.gttsize, and the carve-out in the firmware setup at its least", (unsigned long long)want,
                                          units_show_bytes(want * PAGE, c))
                            : "";
    if (doctor_file_u64(d, "sys/module/amdgpu/parameters/gttsize", &gtt) && limit && gtt < UINT64_MAX >> 20 && gtt << 20 > limit + limit / 64)
        doctor_say(d, DOCTOR_WARN, "pool", dev->pci, "an allocation beyond the smaller limit fails although the driver says that there is room", todo, "amdgpu.gttsize allows %s, but ttm.pages_limit ends the pool at %s", units_show_bytes(gtt << 20, a),
                   units_show_bytes(limit, b));
    else if (ram && dev->total_bytes < ram - ram / 4 && want && want * PAGE > dev->total_bytes)
        doctor_say(d, DOCTOR_NOTE, "pool", dev->pci, "the kernel's own default is half of the RAM", todo, "the GPU's pool ends at %s of %s of RAM (carve-out %s)", units_show_bytes(dev->total_bytes, a), units_show_bytes(ram, b),
                   units_show_bytes(dev->vram_total_bytes, c));
    else
        doctor_say(d, DOCTOR_OK, "pool", dev->pci, "", "", "the GPU shares the RAM: %s of %s", units_show_bytes(dev->total_bytes, a), units_show_bytes(ram, b));
}

/* ---- what is in order ---------------------------------------------------------------------------------------------------------- */

static void say_card(struct doctor *d, const struct hw_device *dev, const struct hw_card *c)
{
    char total[UNITS_TEXT], free[UNITS_TEXT];
    base_autobuf struct buf b = BUF_INIT(2048);
    buf_addf(&b, "%s: %s, %s free; %s %s", *c->model ? c->model : dev->name, units_show_bytes(dev->total_bytes, total), units_show_bytes(dev->free_bytes, free), dev->driver, dev->driver_version);
    if (*c->gfx)
        buf_addf(&b, ", %s", c->gfx);
    if (*c->vbios)
        buf_addf(&b, ", VBIOS %s", c->vbios);
    for (size_t i = 0; i < c->n_firmware; i++)
        if (strcmp(c->firmware[i].name, "smc") == 0 || strcmp(c->firmware[i].name, "mes") == 0 || (strcmp(c->firmware[i].name, "mec") == 0))
            buf_addf(&b, ", %s %s", c->firmware[i].name, c->firmware[i].version);
    if (c->power_cap_uw)
        buf_addf(&b, ", %llu W", (unsigned long long)(c->power_cap_uw / 1000000));
    if (c->power_max_uw > c->power_cap_uw)
        buf_addf(&b, " of %llu", (unsigned long long)(c->power_max_uw / 1000000));
    doctor_say(d, DOCTOR_OK, "card", dev->pci, "", "", "%s", buf_status(&b) == 0 ? b.ptr : dev->name);
}

/* ---- others ------------------------------------------------------------------------------------------------------------------------ */

static uint64_t hex_of(struct doctor *d, const char *pci, const char *file)
{
    base_autobuf struct buf b = BUF_INIT(4096);
    char path[96], text[16], *end = NULL;
    snprintf(path, sizeof path, BUS "/%s/%s", pci, file);
    struct str s = doctor_file(d, path, &b);
    if (s.len < 3 || s.len >= sizeof text || !str_starts(s, STR("0x")))
        return 0;
    memcpy(text, s.ptr, s.len);
    text[s.len] = '\0';
    unsigned long long v = strtoull(text, &end, 16);
    return *end ? 0 : v;
}

/* What computes by its class, of a maker that hw does not know: display controllers of boards are none. */
static void judge_others(struct doctor *d)
{
    os_autoclose int fd = openat(hw_root(d->reader), BUS, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir)
        return;
    base_ignore(os_take_fd(&fd)); /* it is the stream's */
    for (struct dirent *e; (e = readdir(dir));) {
        uint64_t class = os_name_valid(str_of(e->d_name)) && strlen(e->d_name) < HW_PCI ? hex_of(d, e->d_name, "class") >> 8 : 0;
        if (class == CLASS_ACCELERATOR || class == CLASS_3D) {
            uint64_t vendor = hex_of(d, e->d_name, "vendor");
            if (hw_find_pci(&d->r->hw, e->d_name) < 0 && vendor != 0x1002 && vendor != 0x10de && vendor != 0x8086)
                doctor_say(d, DOCTOR_NOTE, "card", e->d_name, "it is not planned with", "", "%04llx:%04llx is an accelerator of a maker that berth knows no engine for", (unsigned long long)vendor, (unsigned long long)hex_of(d, e->d_name, "device"));
        }
    }
    closedir(dir);
}

/* ---- rights ------------------------------------------------------------------------------------------------------------------------- */

static bool may_open(struct doctor *d, const char *path)
{
    return faccessat(hw_root(d->reader), path, R_OK | W_OK, AT_EACCESS) == 0;
}

/* Engines run under the account that starts them, or, for units of the system, in the groups render and video. */
static void judge_rights(struct doctor *d, bool amd, bool any)
{
    if (!any || !d->live)
        return;
    if (amd && !doctor_exists(d, "dev/kfd"))
        doctor_say(d, DOCTOR_NOTE, "card", "/dev/kfd", "ROCm does not work without it; Vulkan does", "use a kernel with CONFIG_HSA_AMD, or a runtime with Vulkan", "it is not there");
    else if (amd && !may_open(d, "dev/kfd"))
        doctor_say(d, DOCTOR_BAD, "card", "/dev/kfd", "ROCm sees no card", "usermod -aG render,video ACCOUNT, then log in again", "this account may not open it");
    for (unsigned i = 128; i < 144; i++) {
        char path[32];
        snprintf(path, sizeof path, "dev/dri/renderD%u", i);
        if (doctor_exists(d, path) && !may_open(d, path))
            doctor_say(d, DOCTOR_BAD, "card", doctor_text(d, "/%s", path), "Vulkan and ROCm do not see the card behind it", "usermod -aG render,video ACCOUNT, then log in again", "this account may not open it");
    }
}

void cards_judge(struct doctor *d)
{
    const struct hw *h = &d->r->hw;
    bool amd = false, any = false;
    for (size_t i = 0; i < h->n_devices; i++) {
        const struct hw_device *dev = &h->devices[i];
        const struct hw_card *c = &d->r->cards[i];
        if (!judge_driver(d, dev))
            continue;
        any = true;
        amd = amd || dev->vendor == HW_AMD;
        if (!dev->memory_known) {
            judge_unknown_memory(d, dev);
            continue;
        }
        say_card(d, dev, c);
        if (dev->shared && dev->vendor == HW_AMD)
            judge_pool(d, dev);
        if (discrete(dev))
            judge_window(d, dev, c);
        if (dev->vendor == HW_AMD && !dev->kfd_order)
            doctor_say(d, DOCTOR_NOTE, "card", dev->pci, "engines with Vulkan see it", "", "ROCm's driver does not know it");
    }
    if (h->n_devices == 0)
        doctor_say(d, DOCTOR_NOTE, "card", "here", "engines run on the CPU", "", "there is no card that engines compute on");
    if (h->n_more)
        doctor_say(d, DOCTOR_WARN, "card", "here", "they cannot be planned for", "", "%zu more cards than the %d that are looked at", h->n_more, HW_DEVICES_MAX);
    judge_others(d);
    judge_rights(d, amd, any);
}
