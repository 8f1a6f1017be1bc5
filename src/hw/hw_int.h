/* SPDX-License-Identifier: MIT
 *
 * Private parts of hw: small files below the root, NVIDIA's library as a table of functions (tests fill it with their own), and what each source adds to a device.
 */
#pragma once

#include "hw.h"

#include <os/os.h>

#define HW_PATH_MAX 512
#define HW_FILE_MAX ((size_t)64 << 10)     /* a file of sysfs has at most a page; of procfs some pages */
#define HW_CPUINFO_MAX ((size_t)8 << 20)   /* 1.5 KiB a thread */

/* ---- nvml.c ---- */

/* NVIDIA's management library, as its manual declares it. Handles are opaque; 0 is success. */
struct nvml_memory {
    unsigned long long total, free, used;
};
struct nvml_process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
struct nvml {
    void *lib;
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_pci)(const char *pci, void **ret);
    int (*memory)(void *device, struct nvml_memory *ret);
    int (*name)(void *device, char *ret, unsigned len);
    int (*uuid)(void *device, char *ret, unsigned len);
    int (*processes)(void *device, unsigned *n, struct nvml_process *ret);
    int (*driver)(char *ret, unsigned len);
    /* these an old library may lack: NULL */
    int (*vbios)(void *device, char *ret, unsigned len);
    int (*power)(void *device, unsigned *ret_mw);
    int (*power_range)(void *device, unsigned *ret_min_mw, unsigned *ret_max_mw);
};
#define NVML_NOT_SUPPORTED 3
/* False when the library is not there, is not what is expected, or finds no driver. */
bool nvml_load(struct nvml *ret);
void nvml_unload(struct nvml *n);
/* What the library knows of d: memory always, the rest when whole. */
void nvml_fill(const struct nvml *n, const struct hw_host *host, struct hw_device *d, bool whole);
void nvml_card(const struct nvml *n, const struct hw_device *d, struct hw_card *c);
bool nvml_process(const struct nvml *n, const struct hw_device *d, pid_t pid, uint64_t *ret);

struct hw_reader {
    int root;          /* descriptor of the root folder */
    char path[HW_PATH_MAX]; /* of it */
    bool here;         /* it is this machine's own */
    bool has_nvml;     /* the library is open: from the first NVIDIA card on */
    struct nvml nvml;
};

/* ---- text.c: small files ---- */

/* True when there is a file or folder of this path below the root. */
bool text_there(const struct hw_reader *r, const char *fmt, ...) BASE_PRINTF(2, 3);
/* Trimmed content of a file below the root, appended to out; false when it cannot be read. */
bool text_read(const struct hw_reader *r, struct buf *out, const char *fmt, ...) BASE_PRINTF(3, 4);
/* The same into a fixed text, printable, cut where it is too long. */
bool text_line(const struct hw_reader *r, char *out, size_t size, const char *fmt, ...) BASE_PRINTF(4, 5);
bool text_number(struct str s, uint64_t *ret); /* a decimal or 0x number */
/* The same from a file. */
bool text_u64(const struct hw_reader *r, uint64_t *ret, const char *fmt, ...) BASE_PRINTF(3, 4);
/* The number after `key` at the start of a line of "key value" or "key: value kB" text (kB is not applied). */
bool text_field(struct str text, const char *key, uint64_t *ret);
/* "0000:03:00.0" */
bool pci_address(struct str s);

/* ---- way.c, pcilib.c, card.c ---- */

/* Adds what configuration space tells of each hop. False when nobody may read it, libpci is not here or does not understand what it reads. */
bool pcilib_read(const struct hw_reader *r, struct hw_way *ways, size_t n);

/* ---- pci.c, amdgpu.c, ids.c, host.c ---- */

int pci_devices(const struct hw_reader *r, struct hw *ret, struct err *err) BASE_MUST_USE;
/* Generation and lanes that a file of a device on the bus tells; 0: unknown. */
unsigned pci_generation(const struct hw_reader *r, const char *pci, const char *file);
unsigned pci_width(const struct hw_reader *r, const char *pci, const char *file);
/* Where a device's folder is, with every bridge on the way in it; its address alone when it is a folder of its own. */
struct str pci_place(const struct hw_reader *r, const char *pci, char *out, size_t size);
/* Memory of one card; also says whether it is shared. */
void amdgpu_memory(const struct hw_reader *r, const struct hw_host *host, struct hw_device *d);
/* ROCm's numbers of all devices. */
void amdgpu_kfd(const struct hw_reader *r, struct hw *h);
bool amdgpu_process(const struct hw_reader *r, const struct hw_device *d, pid_t pid, uint64_t *ret);
/* Names of devices that have none yet, from the machine's list of PCI ids. */
void ids_names(const struct hw_reader *r, struct hw *h);
int host_read(const struct hw_reader *r, struct hw_host *ret, struct err *err) BASE_MUST_USE;
int host_memory(const struct hw_reader *r, struct hw_host *ret, struct err *err) BASE_MUST_USE;
