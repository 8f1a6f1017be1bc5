/* SPDX-License-Identifier: MIT
 *
 * What a card's driver tells beside its memory: firmware, power, the window through which the CPU sees it, the name that ROCm's libraries have files for.
 */
#include "hw_int.h"

#include <string.h>

#define CARD "sys/bus/pci/devices/%s"
#define NODES "sys/class/kfd/kfd/topology/nodes"
#define KFD_NODES_MAX 128
#define LINKS_MAX 16
#define SENSORS_MAX 32
#define NO_ATOMICS 0x0c /* of a link's flags: neither of 32 nor of 64 bits */

/* The largest of the windows in `resource`: lines "0x<start> 0x<end> 0x<flags>". The seventh is its ROM, those after it belong to virtual functions. */
static uint64_t largest_window(struct str text)
{
    uint64_t most = 0;
    for (unsigned i = 0; i < 6 && text.ptr; i++) {
        struct str line = str_split(&text, '\n'), first = str_split(&line, ' '), last = str_split(&line, ' ');
        uint64_t a = 0, b = 0;
        if (text_number(first, &a) && text_number(last, &b) && b > a && b - a < UINT64_MAX && b - a + 1 > most)
            most = b - a + 1;
    }
    return most;
}

static void power_of(const struct hw_reader *r, const char *pci, struct hw_card *c)
{
    for (unsigned i = 0; i < SENSORS_MAX; i++)
        if (text_u64(r, &c->power_cap_uw, CARD "/hwmon/hwmon%u/power1_cap", pci, i)) {
            base_ignore(text_u64(r, &c->power_max_uw, CARD "/hwmon/hwmon%u/power1_cap_max", pci, i)); /* not every card tells */
            return;
        }
}

static void firmware_of(const struct hw_reader *r, const char *pci, struct hw_card *c)
{
    static const char *const names[] = {"smc", "mes", "mec", "pfp", "sdma", "sos", "imu", "rlc"};
    _Static_assert(BASE_COUNT(names) <= HW_FIRMWARE_MAX, "room for each");
    for (size_t i = 0; i < BASE_COUNT(names); i++) {
        char version[24];
        uint64_t number = 0;
        if (!text_line(r, version, sizeof version, CARD "/fw_version/%s_fw_version", pci, names[i]) || !text_number(str_of(version), &number) || number == 0)
            continue; /* 0: it has no such part */
        snprintf(c->firmware[c->n_firmware].name, sizeof c->firmware[0].name, "%s", names[i]);
        snprintf(c->firmware[c->n_firmware].version, sizeof c->firmware[0].version, "%s", version);
        c->n_firmware++;
    }
}

/* ROCm's driver has asked for atomic operations when it met the card: the links of its node say what came of it. */
static void driver_atomics(const struct hw_reader *r, unsigned node, struct hw_card *c)
{
    for (unsigned i = 0; i < LINKS_MAX; i++) {
        base_autobuf struct buf b = BUF_INIT(HW_FILE_MAX);
        uint64_t flags = 0, type = 0;
        if (!text_read(r, &b, NODES "/%u/io_links/%u/properties", node, i))
            return;
        if (!text_field(buf_str(&b), "type", &type) || type != 2 || !text_field(buf_str(&b), "flags", &flags))
            continue; /* 2: over PCIe */
        c->driver_atomics_known = true;
        c->driver_atomics = (flags & NO_ATOMICS) != NO_ATOMICS;
        return;
    }
}

static void rocm_of(const struct hw_reader *r, const struct hw_device *d, struct hw_card *c)
{
    for (unsigned i = 0; d->kfd_id && i < KFD_NODES_MAX; i++) {
        base_autobuf struct buf b = BUF_INIT(HW_FILE_MAX);
        uint64_t id = 0, v = 0;
        if (!text_u64(r, &id, NODES "/%u/gpu_id", i) || id != d->kfd_id || !text_read(r, &b, NODES "/%u/properties", i))
            continue;
        if (text_field(buf_str(&b), "gfx_target_version", &v) && v >= 10000 && v < 1000000)
            snprintf(c->gfx, sizeof c->gfx, "gfx%u%x%x", (unsigned)(v / 10000), (unsigned)(v / 100 % 100), (unsigned)(v % 100));
        driver_atomics(r, i, c);
        return;
    }
}

/* "Model: 	 NVIDIA GeForce RTX 3090" in /proc/driver/nvidia/gpus/ADDRESS/information */
static void nvidia_text(struct str text, const char *key, char *out, size_t size)
{
    while (text.ptr) {
        struct str line = str_split(&text, '\n');
        ptrdiff_t colon = str_find_char(line, ':');
        if (colon < 0 || !str_eq_c(str_trim((struct str){line.ptr, (size_t)colon}), key))
            continue;
        base_autobuf struct buf shown = BUF_INIT(1024);
        buf_add_printable(&shown, str_trim((struct str){line.ptr + colon + 1, line.len - (size_t)colon - 1}), size - 1);
        if (buf_status(&shown) == 0 && shown.len)
            snprintf(out, size, "%s", shown.ptr);
        return;
    }
}

static void nvidia_of(const struct hw_reader *r, const struct hw_device *d, struct hw_card *c)
{
    base_autobuf struct buf b = BUF_INIT(HW_FILE_MAX);
    if (text_read(r, &b, "proc/driver/nvidia/gpus/%s/information", d->pci)) {
        nvidia_text(buf_str(&b), "Model", c->model, sizeof c->model);
        nvidia_text(buf_str(&b), "Video BIOS", c->vbios, sizeof c->vbios);
    }
    if (r->has_nvml)
        nvml_card(&r->nvml, d, c);
}

static void read_card(const struct hw_reader *r, const struct hw_device *d, struct hw_card *c)
{
    base_autobuf struct buf b = BUF_INIT(HW_FILE_MAX);
    if (text_read(r, &b, CARD "/resource", d->pci))
        c->bar_bytes = largest_window(buf_str(&b));
    c->busy_known = text_u64(r, &c->busy_percent, CARD "/gpu_busy_percent", d->pci) && c->busy_percent <= 100;
    if (d->vendor == HW_NVIDIA) {
        nvidia_of(r, d, c);
    } else if (d->vendor == HW_AMD) {
        base_ignore(text_u64(r, &c->visible_bytes, CARD "/mem_info_vis_vram_total", d->pci)); /* stays 0: not told */
        text_line(r, c->vbios, sizeof c->vbios, CARD "/vbios_version", d->pci);
        power_of(r, d->pci, c);
        firmware_of(r, d->pci, c);
        rocm_of(r, d, c);
    }
}

void hw_cards(struct hw_reader *r, const struct hw *h, struct hw_card ret[HW_DEVICES_MAX])
{
    memset(ret, 0, sizeof *ret * HW_DEVICES_MAX);
    for (size_t i = 0; i < h->n_devices; i++)
        read_card(r, &h->devices[i], &ret[i]);
}
