/* SPDX-License-Identifier: MIT
 *
 * doctor, private.
 *
 *   doctor.c      looking at a machine, and the list of findings
 *   cards.c       memory, pools, drivers, rights
 *   ways.c        links and atomic operations; collectives
 *   klog.c        lines of the kernel log; log.c: what they mean
 *   host.c        limits, swap, huge pages, cgroups, command line
 *   account.c     what an account needs without root: ranges of ids, delegation, linger, boot
 *   podman.c      `podman info`
 *   firewall.c    whether berth's own probes get through
 *   runtime.c     files of ROCm's libraries for the cards
 *   inventory.c   the fleet file against the cards; write.c: the cards into the fleet file
 *   collective.c  proofs in the ledger
 *
 * Parsers take text and are fuzzed; judges add findings.
 */
#pragma once

#include "doctor.h"

#include <os/os.h>

#define DOCTOR_MEMORY ((size_t)16 << 20)
#define DOCTOR_FILE_MAX ((size_t)1 << 20)  /* of a small file of /proc, /sys, /etc */
#define DOCTOR_LOG_MAX ((size_t)16 << 20)  /* of the kernel's log: its ring has at most that */
#define DOCTOR_COMMAND_MS 20000
#define DOCTOR_IDS_WANTED 65536 /* of a range of accounts: images have some up to 65535 */

struct doctor {
    const struct doctor_options *o;
    struct doctor_report *r;
    struct arena *arena;
    struct hw_reader *reader;
    bool live;       /* the machine itself */
    uid_t uid;       /* on a recorded machine: root */
    bool config;     /* configuration space was read */
    struct doctor_finding *list;
    size_t n, cap;
    bool failed;     /* out of memory */
    struct klog_sum *log;
};

/* Adds a finding; why and todo are "" or live as long as the report. */
void doctor_say(struct doctor *d, enum doctor_level level, const char *topic, const char *where, const char *why, const char *todo, const char *fmt, ...) BASE_PRINTF(7, 8);
/* A text of the report; "" without memory, which is remembered. */
const char *doctor_text(struct doctor *d, const char *fmt, ...) BASE_PRINTF(2, 3);
/* Trimmed content of a file below the root, as a view of *b; empty when it cannot be read. */
struct str doctor_file(struct doctor *d, const char *path, struct buf *b);
bool doctor_file_u64(struct doctor *d, const char *path, uint64_t *ret);
bool doctor_exists(struct doctor *d, const char *path);
/* Whether the fleet has a service of that kind on this machine. */
bool doctor_has_unit(const struct doctor *d, enum fleet_unit kind);
/* Which of h's cards a declared device is: by its address, else by its engine's name; -1. */
int doctor_place(const struct hw *h, const struct fleet_device *f);
/* Figures in a fleet file are rounded by a person: equal but for that many thousandths of the larger one. */
bool doctor_near(uint64_t a, uint64_t b, unsigned per_mille);
/* "7.9 GB/s" */
const char *doctor_rate(double bytes_s, char out[UNITS_TEXT]);
/* A command's output; its exit must be 0. -ENOENT: it is not here. */
int doctor_run(const char *const *argv, struct buf *out, struct err *err) BASE_MUST_USE;

/* ---- judges, in the order of their findings ---- */
void cards_judge(struct doctor *d);
void ways_judge(struct doctor *d);
void log_judge(struct doctor *d);
void inventory_judge(struct doctor *d);
void host_judge(struct doctor *d);
void account_judge(struct doctor *d);
void podman_judge(struct doctor *d);
void firewall_judge(struct doctor *d);
void runtime_judge(struct doctor *d);

/* ---- klog.c ---- */

enum klog_kind {
    KLOG_OOM,         /* a process was killed: no memory */
    KLOG_OOM_GROUP,   /* the same, of a cgroup's limit */
    KLOG_HANG,        /* a GPU's ring did not come to an end */
    KLOG_RESET,       /* a GPU was reset */
    KLOG_LOST,        /* a GPU is gone until the next boot */
    KLOG_FAULT,       /* a GPU's program touched memory that is not its own */
    KLOG_ATOMICS,     /* ROCm's driver refuses a card, or goes without */
    KLOG_XID,         /* NVIDIA's own number of what happened */
    KLOG_MISMATCH,    /* NVIDIA's library is of another version than its module */
    KLOG_LINK,        /* errors of a link that were corrected */
    KLOG_LINK_FATAL,  /* and that were not */
    KLOG_MACHINE,     /* a machine check: CPU or memory */
    KLOG_KINDS
};
struct klog_event {
    enum klog_kind kind;
    char pci[HW_PCI];      /* "": none is named */
    unsigned xid;
    char process[32];      /* of the last one; "" */
    char text[160];        /* of the last line, printable */
    unsigned count;
    uint64_t last_us;      /* since boot; 0 unknown */
};
#define KLOG_EVENTS_MAX 64
struct klog_sum {
    struct klog_event events[KLOG_EVENTS_MAX];
    size_t n;
    bool more;             /* there were other ones */
    size_t last;           /* of a hang whose process the next line names; else KLOG_EVENTS_MAX */
};
/* Adds lines: records of /dev/kmsg ("6,1,100,-;text" and " KEY=value" lines below), or plain messages. */
void klog_add(struct klog_sum *s, struct str text);

/* ---- parsers ---- */

/* 2: only the one hierarchy; 1: several, with or without it; 0: none is mounted. */
unsigned host_cgroups(struct str mountinfo);
/* The soft limit of a line of /proc/PID/limits; UINT64_MAX: unlimited. */
bool host_limit(struct str limits, const char *name, uint64_t *ret);
/* The value of "name=value" in a kernel command line; empty for the word alone. */
bool host_word(struct str cmdline, const char *name, struct str *ret);
/* How many ids /etc/subuid or /etc/subgid has for an account, in its largest range. */
uint64_t account_range(struct str text, const char *user, uid_t uid);

struct podman_facts {
    char version[32], cgroups[8], manager[16], driver[24], runtime[24];
    bool rootless, socket;
    bool cpu, memory, pids; /* controllers that it may use */
    uint64_t ids;           /* of its map: what images may use */
};
int podman_parse(struct str text, struct podman_facts *ret, struct err *err) BASE_MUST_USE;
