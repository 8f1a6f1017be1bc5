/* SPDX-License-Identifier: MIT
 *
 * Cards on the PCI bus, from /sys/bus/pci: who they are, which driver has them, and the way from them to the CPU. A card is what says so by its class (display controller, processing accelerator) and is of a
 * maker whose cards engines compute on.
 *
 * Each entry is a link into /sys/devices whose path names every bridge on the way. A card often has a switch of its own, so its own link may read full width while the slot's is narrow: every hop counts.
 */
#include "hw_int.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUS "sys/bus/pci/devices"
#define CLASS_DISPLAY 0x03
#define CLASS_ACCELERATOR 0x12

static bool vendor_of(uint64_t id, enum hw_vendor *ret)
{
    static const struct {
        uint16_t id;
        enum hw_vendor vendor;
    } known[] = {{0x1002, HW_AMD}, {0x10de, HW_NVIDIA}, {0x8086, HW_INTEL}};
    for (size_t i = 0; i < BASE_COUNT(known); i++)
        if (known[i].id == id) {
            *ret = known[i].vendor;
            return true;
        }
    return false;
}

static void driver_of(const struct hw_reader *r, struct hw_device *d)
{
    char path[HW_PATH_MAX], target[HW_PATH_MAX];
    snprintf(path, sizeof path, BUS "/%s/driver", d->pci);
    ssize_t n = readlinkat(r->root, path, target, sizeof target - 1);
    if (n <= 0)
        return;
    target[n] = '\0';
    const char *name = strrchr(target, '/');
    name = name ? name + 1 : target;
    if (!os_name_valid(str_of(name)) || strlen(name) >= sizeof d->driver)
        return;
    memcpy(d->driver, name, strlen(name) + 1);
    /* a driver that comes with the kernel has its version */
    if (!text_line(r, d->driver_version, sizeof d->driver_version, "sys/module/%s/version", d->driver))
        text_line(r, d->driver_version, sizeof d->driver_version, "proc/sys/kernel/osrelease");
}

/* False for what is no card. */
static bool read_device(const struct hw_reader *r, const char *pci, struct hw_device *d)
{
    uint64_t class = 0, vendor = 0, device = 0;
    memset(d, 0, sizeof *d);
    if (!text_u64(r, &class, BUS "/%s/class", pci) || (class >> 16 != CLASS_DISPLAY && class >> 16 != CLASS_ACCELERATOR))
        return false;
    if (!text_u64(r, &vendor, BUS "/%s/vendor", pci) || !text_u64(r, &device, BUS "/%s/device", pci) || !vendor_of(vendor, &d->vendor))
        return false;
    snprintf(d->pci, sizeof d->pci, "%s", pci);
    d->vendor_id = (uint16_t)vendor;
    d->device_id = (uint16_t)device;
    driver_of(r, d);
    return true;
}

static int by_address(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Addresses of everything on the bus, sorted. */
static int list_bus(const struct hw_reader *r, char (**ret)[HW_PCI], size_t *ret_n, struct err *err)
{
    *ret = NULL;
    *ret_n = 0;
    int fd = openat(r->root, BUS, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : err_sys(err, -errno, "cannot read '/" BUS "'"); /* a machine without PCI */
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return err_nomem(err);
    }
    size_t cap = 0;
    int result = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (!pci_address(str_of(e->d_name)))
            continue;
        if (*ret_n == cap) {
            cap = cap ? cap * 2 : 64;
            void *grown = realloc(*ret, cap * sizeof **ret);
            if (!grown) {
                result = err_nomem(err);
                break;
            }
            *ret = grown;
        }
        memcpy((*ret)[(*ret_n)++], e->d_name, sizeof "0000:00:00.0");
    }
    closedir(dir);
    if (*ret_n)
        qsort(*ret, *ret_n, sizeof **ret, by_address);
    return result;
}

/* ---- links ------------------------------------------------------------------------------------------------------------------- */

/* "16.0 GT/s PCIe" and the older "8 GT/s"; 0 for what is none ("Unknown"). */
unsigned pci_generation(const struct hw_reader *r, const char *pci, const char *file)
{
    static const char *const speeds[] = {"2.5", "5", "8", "16", "32", "64"};
    char text[64];
    if (!text_line(r, text, sizeof text, BUS "/%s/%s", pci, file))
        return 0;
    struct str rest = str_of(text), number = str_split(&rest, ' ');
    if (str_ends(number, STR(".0")))
        number.len -= 2;
    for (size_t i = 0; i < BASE_COUNT(speeds); i++)
        if (str_eq_c(number, speeds[i]))
            return (unsigned)i + 1;
    return 0;
}

unsigned pci_width(const struct hw_reader *r, const char *pci, const char *file)
{
    uint64_t n = 0;
    return text_u64(r, &n, BUS "/%s/%s", pci, file) && hw_link_bytes_s(1, n > 32 ? 0 : (unsigned)n) ? (unsigned)n : 0;
}

static unsigned least(unsigned a, unsigned b)
{
    return a == 0 ? b : b == 0 || a < b ? a : b;
}

uint64_t hw_link_bytes_s(unsigned gen, unsigned n)
{
    /* bytes a second of one lane: transfers by the code's own share (8 of 10 bits, 128 of 130, 242 of 256) */
    static const uint64_t lanes[] = {0, 250000000, 500000000, 984615385, 1969230769, 3938461538, 7562500000};
    static const unsigned widths[] = {1, 2, 4, 8, 12, 16, 32};
    for (size_t i = 0; i < BASE_COUNT(widths); i++)
        if (widths[i] == n && gen < BASE_COUNT(lanes))
            return lanes[gen] * n;
    return 0;
}

struct str pci_place(const struct hw_reader *r, const char *pci, char *out, size_t size)
{
    char path[HW_PATH_MAX];
    snprintf(path, sizeof path, BUS "/%s", pci);
    ssize_t n = readlinkat(r->root, path, out, size);
    return n > 0 && (size_t)n < size ? (struct str){out, (size_t)n} : str_of(pci);
}

static void read_link(const struct hw_reader *r, struct hw_device *d)
{
    char target[HW_PATH_MAX], hop[HW_PCI];
    struct str rest = pci_place(r, d->pci, target, sizeof target); /* a folder of its own: no way is known but the card's last hop */
    struct hw_link l = {.max_gen = pci_generation(r, d->pci, "max_link_speed"), .max_width = pci_width(r, d->pci, "max_link_width")};
    while (rest.ptr) {
        struct str part = str_split(&rest, '/');
        if (!pci_address(part))
            continue;
        snprintf(hop, sizeof hop, STR_FMT, STR_ARG(part));
        l.gen = least(l.gen, pci_generation(r, hop, "max_link_speed"));
        l.width = least(l.width, pci_width(r, hop, "current_link_width"));
    }
    if (!l.max_gen || !l.max_width)
        l.gen = l.width = 0; /* an integrated device has no link */
    l.bytes_s = hw_link_bytes_s(l.gen, l.width);
    d->link = l;
}

int pci_devices(const struct hw_reader *r, struct hw *ret, struct err *err)
{
    char(*list)[HW_PCI] = NULL;
    size_t n = 0;
    int result = list_bus(r, &list, &n, err);
    for (size_t i = 0; result == 0 && i < n; i++) {
        struct hw_device d;
        if (!read_device(r, list[i], &d))
            continue;
        if (ret->n_devices == HW_DEVICES_MAX) {
            ret->n_more++;
            continue;
        }
        read_link(r, &d);
        ret->devices[ret->n_devices++] = d;
    }
    free(list);
    return result;
}
