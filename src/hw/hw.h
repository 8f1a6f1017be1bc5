/* SPDX-License-Identifier: MIT
 *
 * hw: the memory and the paths of one machine, as plain data: cards, shared pools, host RAM, cores. Everything is read below a root folder, so that a recorded tree of /sys and /proc is a machine too; NVIDIA's
 * library is asked only on the machine itself (root "/"), opened at run time when it is there. What cannot be known is 0 or empty and said to be unknown, never guessed: nobody tells a card's memory bandwidth, for one.
 *
 * A reader may be used by one thread at a time; what it fills holds no pointers.
 */
#pragma once

#include <base/base.h>
#include <sys/types.h>

#define HW_DEVICES_MAX 16 /* GPUs of one machine */
#define HW_TEXT 96
#define HW_PCI 16         /* "0000:03:00.0" */
#define HW_IDENTITY 256

enum hw_vendor { HW_AMD, HW_NVIDIA, HW_INTEL }; /* others make no cards that engines compute on; a board controller's display is no device */

/* The way between a card and the CPU. Links sleep: a card lowers its speed when it is idle, so speed is the least that any hop can do at best, and width the least that any hop has. 0: unknown. */
struct hw_link {
    unsigned gen, width;         /* 4, 16 */
    unsigned max_gen, max_width; /* what the card itself can do: less above means that the slot is the limit */
    uint64_t bytes_s;            /* of payload in one direction, before the protocol's own share */
};

struct hw_device {
    char pci[HW_PCI];
    enum hw_vendor vendor;
    uint16_t vendor_id, device_id;
    char name[HW_TEXT];   /* of the product; "1002:7551" when nothing knows it */
    char driver[32], driver_version[64]; /* "amdgpu", "6.12.43"; empty: no driver is bound */
    char uuid[64];        /* NVIDIA's; empty elsewhere */
    bool shared;          /* its pool is the host's RAM: an integrated GPU */
    bool memory_known;    /* the figures below were read */
    uint64_t total_bytes, free_bytes; /* what an engine can take: VRAM, and for a shared pool the carve-out and what the driver may map of the RAM (free: no more than the host has available) */
    uint64_t vram_total_bytes, vram_used_bytes, gtt_total_bytes, gtt_used_bytes; /* amdgpu; gtt 0 elsewhere */
    uint32_t kfd_id, kfd_order; /* ROCm's number of the GPU, and its place (from 1) in ROCm's order; 0: ROCm does not know it */
    struct hw_link link;
};

struct hw_host {
    uint64_t total_bytes, available_bytes, free_bytes, swap_total_bytes, swap_free_bytes;
    unsigned threads;     /* online CPUs */
    unsigned cores;       /* without their siblings; as threads when nobody tells */
    char cpu[HW_TEXT];
    bool avx2, avx512;    /* avx512: f, bw, vl and dq */
    bool fma, f16c;
    char kernel[64];
};

struct hw {
    struct hw_device devices[HW_DEVICES_MAX]; /* by PCI address */
    size_t n_devices;
    size_t n_more;        /* beyond HW_DEVICES_MAX */
    struct hw_host host;
};

/* ---- the way of a card ------------------------------------------------------------------------------------------------------ */

#define HW_HOPS_MAX 12 /* bridges between a card and the CPU: a chipset behind a chipset behind a card's own switch is 8 */

enum hw_port { HW_PORT_UNKNOWN, HW_PORT_ENDPOINT, HW_PORT_ROOT, HW_PORT_UP, HW_PORT_DOWN, HW_PORT_INTEGRATED, HW_PORT_OTHER };

/* One device on the way. Its link is the one towards the CPU; of a port that faces the card, the one towards the card: so both ends of a link tell of it. 0: unknown. */
struct hw_hop {
    char pci[HW_PCI];
    uint16_t vendor_id, device_id;
    unsigned gen, width, max_gen, max_width; /* negotiated at this moment; at most */
    bool config;                             /* its configuration space was read: the rest is known */
    enum hw_port port;
    unsigned target_gen;                     /* its firmware or driver allows no more */
    bool routes, completes32, completes64;   /* of atomic operations: hands them on; is able to carry them out */
    bool requests, blocks;                   /* may send them; lets none out */
};
struct hw_way {
    struct hw_hop hops[HW_HOPS_MAX]; /* the card first, the port at the CPU last */
    size_t n;
    bool cut; /* there are more hops than that */
};

/* A link of a way: between hops[at] and hops[at + 1]. */
struct hw_span {
    size_t at;
    unsigned gen, width, can_gen, can_width; /* negotiated at this moment; what both ends are able to do. 0: unknown */
    uint64_t bytes_s;                        /* at that width, and the speed that both ends are able to do: a link that is asleep wakes up */
};
/* The i-th link from the card; false at the end. */
bool hw_way_span(const struct hw_way *w, size_t i, struct hw_span *ret);
/* The link that is the limit: the least bytes_s, the one nearest to the CPU of equal ones. False when no link is known. */
bool hw_way_narrowest(const struct hw_way *w, struct hw_span *ret);

/* Whether atomic operations of the card come through to the CPU's memory, as the kernel decides it: the card may send them, each port of a switch hands them on and lets them out, the port at the CPU carries out both sizes. */
enum hw_atomics { HW_ATOMICS_UNKNOWN, HW_ATOMICS_THROUGH, HW_ATOMICS_STOPPED };
/* *ret_at: the hop that stops them. */
enum hw_atomics hw_way_atomics(const struct hw_way *w, size_t *ret_at);

/* What else is told of a card. 0 or "": not told. */
#define HW_FIRMWARE_MAX 8
struct hw_card {
    uint64_t visible_bytes, bar_bytes;    /* of its memory, that the CPU can reach; its largest window on the bus */
    uint64_t power_cap_uw, power_max_uw;  /* what it may draw, and might at most */
    uint64_t busy_percent;
    bool busy_known;
    char gfx[16];                         /* "gfx1201": what ROCm's libraries have files for */
    char vbios[64];
    struct {
        char name[16], version[24];       /* "mes", "0x00000084" */
    } firmware[HW_FIRMWARE_MAX];
    size_t n_firmware;
    bool driver_atomics_known, driver_atomics; /* as ROCm's driver sees the way */
    char model[HW_TEXT];                  /* NVIDIA's, as its driver tells without the library */
};

struct hw_reader;
/* root NULL is "/". Nothing is read yet but NVIDIA's library, whose absence is no error. */
int hw_open(const char *root, struct hw_reader **ret, struct err *err) BASE_MUST_USE;
struct hw_reader *hw_close(struct hw_reader *r); /* takes NULL; returns NULL */
/* Everything. -ENOENT without /proc/meminfo below the root; a machine without GPUs has n_devices 0. */
int hw_read(struct hw_reader *r, struct hw *ret, struct err *err) BASE_MUST_USE;
/* Memory figures of the same devices and the host again: a few small files. */
int hw_update(struct hw_reader *r, struct hw *h, struct err *err) BASE_MUST_USE;
/* The way of each device, bridge by bridge, by the kernel; then by libpci, when it is there and lets us: ret[i].hops[k].config tells for which. False: nobody could read configuration space. */
bool hw_ways(struct hw_reader *r, const struct hw *h, struct hw_way ret[HW_DEVICES_MAX]);
void hw_cards(struct hw_reader *r, const struct hw *h, struct hw_card ret[HW_DEVICES_MAX]);
/* A file below the root, appended: for who wants facts beside the devices. False when it cannot be read or is over the ceiling. */
bool hw_file(const struct hw_reader *r, const char *path, struct buf *out);
int hw_root(const struct hw_reader *r); /* descriptor of the root folder, the reader's */
/* What one process holds on each device of h, as the kernel or NVIDIA's library accounts it: ret[i] bytes, known[i] false where nobody tells. */
void hw_process(struct hw_reader *r, const struct hw *h, pid_t pid, uint64_t ret[HW_DEVICES_MAX], bool known[HW_DEVICES_MAX]);

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* The interface through which an engine sees a device; engines number devices within each. */
enum hw_api { HW_ROCM, HW_CUDA, HW_VULKAN, HW_SYCL };
#define HW_ENGINE_NAME 16
/* The engine's name of device i, "ROCm0". *ret_sure is false when the order is not ours to know: CUDA puts the fastest card first, Vulkan's order is its loader's; one device, or equal ones, are sure. False when the interface does not see the device. */
bool hw_engine_name(const struct hw *h, size_t i, enum hw_api api, char ret[HW_ENGINE_NAME], bool *ret_sure);
/* The device behind an engine's name ("CUDA1"), or -1. */
int hw_find_engine(const struct hw *h, const char *engine_name, bool *ret_sure);
int hw_find_pci(const struct hw *h, const char *pci); /* -1: not here; "03:00.0" means domain 0 */

/* What a measurement on the device belongs to: "0000:03:00.0 1002:7551 gen4x16 amdgpu-6.12.43 31.86GiB". A change of any part makes the measurement stale. Returns ret. */
const char *hw_identity(const struct hw_device *d, char ret[HW_IDENTITY]);
/* The host's: "cpu avx2 avx512 4 threads": what decides the engine's buffers there. */
const char *hw_host_identity(const struct hw_host *h, char ret[HW_IDENTITY]);
/* Bytes a second of a PCIe link, 0 for a generation or width that does not exist. */
uint64_t hw_link_bytes_s(unsigned gen, unsigned width);
