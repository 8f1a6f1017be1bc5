/* SPDX-License-Identifier: MIT
 *
 * Configuration space through libpci, opened at run time: only `berth doctor` wants it, and a machine without it serves all the same. On the machine itself its own method is used; below a recorded root the bytes come from
 * the file `lspci` there, as `lspci -xxxx` wrote them.
 *
 * libpci ends the program at an error unless its handler does not return: ours jumps back to the one place where it was called.
 */
#include "hw_int.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pci/pci.h>
#include <setjmp.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DUMP_MAX ((off_t)8 << 20) /* 256 functions of 4 KiB, as text, are 3 MiB */

/* The second half of the PCI Express capability, as its standard has it: libpci's header calls these by other names in other versions. */
#define DEVCAP2 0x24
#define DEVCAP2_ROUTES 0x0040
#define DEVCAP2_COMPLETES32 0x0080
#define DEVCAP2_COMPLETES64 0x0100
#define DEVCTL2 0x28
#define DEVCTL2_REQUESTS 0x0040
#define DEVCTL2_BLOCKS 0x0080
#define LNKCTL2 0x30
#define LNKCTL2_TARGET 0x000f

#define CALLS(X) X(alloc) X(init) X(cleanup) X(scan_bus) X(set_param) X(find_cap) X(read_byte) X(read_word) X(read_long)

struct pcilib {
#define X(name) __typeof__(pci_##name) *name; /* NOLINT(bugprone-macro-parentheses): it is a member's name */
    CALLS(X)
#undef X
    void *so;
    struct pci_access *access;
};

/* libpci's callbacks have no context. One reader is used by one thread, but two readers may be used by two. */
static _Thread_local jmp_buf back;

static _Noreturn void jump(char *msg, ...)
{
    (void)msg;
    longjmp(back, 1);
}

static void silent(char *msg, ...)
{
    (void)msg;
}

static bool load(struct pcilib *p)
{
    p->so = dlopen("libpci.so.3", RTLD_NOW | RTLD_LOCAL);
    if (!p->so)
        return false;
#define X(name)                                \
    {                                          \
        void *f = dlsym(p->so, "pci_" #name);  \
        if (!f)                                \
            return false;                      \
        memcpy(&p->name, &f, sizeof p->name);  \
    }
    CALLS(X)
#undef X
    return true;
}

/* A device node or a pipe in a recorded tree would make libpci wait for ever. */
static bool dump_of(const struct hw_reader *r, char *path, size_t size)
{
    struct stat st;
    os_autoclose int fd = openat(r->root, "lspci", O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > DUMP_MAX)
        return false;
    int n = snprintf(path, size, "%s/lspci", r->path);
    return n > 0 && (size_t)n < size;
}

/* Opens libpci on this machine, or on what was recorded of another one. */
static bool begin(struct pcilib *p, const struct hw_reader *r)
{
    char dump[HW_PATH_MAX], name[] = "dump.name";
    bool recorded = strcmp(r->path, "/") != 0;
    if ((recorded && !dump_of(r, dump, sizeof dump)) || !load(p))
        return false;
    p->access = p->alloc();
    if (!p->access)
        return false;
    p->access->error = (__typeof__(p->access->error))jump; /* clang has "does not return" as a part of the type in one of them only */
    p->access->warning = silent;
    p->access->debug = silent;
    if (recorded) {
        p->access->method = PCI_ACCESS_DUMP;
        if (p->set_param(p->access, name, dump) != 0)
            return false;
    }
    p->init(p->access);
    p->scan_bus(p->access);
    return true;
}

static struct pci_dev *find(const struct pcilib *p, const char *pci)
{
    for (struct pci_dev *d = p->access->devices; d; d = d->next) {
        char address[HW_PCI * 2];
        snprintf(address, sizeof address, "%04x:%02x:%02x.%x", (unsigned)d->domain_16, d->bus, d->dev, d->func);
        if (strcmp(address, pci) == 0)
            return d;
    }
    return NULL;
}

static enum hw_port port_of(unsigned type)
{
    switch (type) {
    case PCI_EXP_TYPE_ENDPOINT:
    case PCI_EXP_TYPE_LEG_END:
        return HW_PORT_ENDPOINT;
    case PCI_EXP_TYPE_ROOT_PORT:
        return HW_PORT_ROOT;
    case PCI_EXP_TYPE_UPSTREAM:
        return HW_PORT_UP;
    case PCI_EXP_TYPE_DOWNSTREAM:
        return HW_PORT_DOWN;
    case PCI_EXP_TYPE_ROOT_INT_EP:
        return HW_PORT_INTEGRATED;
    default:
        return HW_PORT_OTHER;
    }
}

static void read_hop(const struct pcilib *p, struct hw_hop *h)
{
    struct pci_dev *d = find(p, h->pci);
    struct pci_cap *cap = d ? p->find_cap(d, PCI_CAP_ID_EXP, PCI_CAP_NORMAL) : NULL;
    if (!cap)
        return;
    int at = (int)cap->addr;
    unsigned flags = p->read_word(d, at + PCI_EXP_FLAGS);
    if ((flags & PCI_EXP_FLAGS_VERS) < 2 || flags == UINT16_MAX)
        return; /* of the first version: it has no second half; all ones: the device is gone from the bus */
    uint32_t can = p->read_long(d, at + DEVCAP2);
    unsigned does = p->read_word(d, at + DEVCTL2);
    h->config = true;
    h->port = port_of((flags & PCI_EXP_FLAGS_TYPE) >> 4);
    h->routes = can & DEVCAP2_ROUTES;
    h->completes32 = can & DEVCAP2_COMPLETES32;
    h->completes64 = can & DEVCAP2_COMPLETES64;
    h->requests = does & DEVCTL2_REQUESTS;
    h->blocks = does & DEVCTL2_BLOCKS;
    unsigned target = p->read_word(d, at + LNKCTL2) & LNKCTL2_TARGET;
    h->target_gen = hw_link_bytes_s(target, 1) ? target : 0;
}

/* What libpci is at lives in the caller: a local of the function that calls setjmp would be lost by the jump back. */
static bool read_all(struct pcilib *p, const struct hw_reader *r, struct hw_way *ways, size_t n)
{
    if (setjmp(back) != 0 || !begin(p, r))
        return false;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < ways[i].n; k++)
            read_hop(p, &ways[i].hops[k]);
    return true;
}

static void end(struct pcilib *p)
{
    if (p->access && setjmp(back) == 0)
        p->cleanup(p->access);
    if (p->so)
        dlclose(p->so);
}

bool pcilib_read(const struct hw_reader *r, struct hw_way *ways, size_t n)
{
    struct pcilib p = {.so = NULL};
    bool ok = read_all(&p, r, ways, n);
    end(&p);
    return ok;
}
