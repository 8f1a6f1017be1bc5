/* SPDX-License-Identifier: MIT
 *
 * doctor: what is right and wrong with one machine, as findings: its cards and their ways, drivers, kernel log, limits, Podman, and what the fleet file says of it against what is there. It reads, and asks Podman and the journal; it
 * changes nothing and knows no engine's process.
 *
 * The machine may be a recorded one (root): then only files below the root are read, and what only the running machine can tell is left out.
 */
#pragma once

#include <base/base.h>
#include <fleet/fleet.h>
#include <hw/hw.h>
#include <ledger/ledger.h>
#include <store/store.h>

enum doctor_level {
    DOCTOR_OK,
    DOCTOR_NOTE, /* to be known; nothing is wrong */
    DOCTOR_WARN, /* it costs speed, or will fail under load */
    DOCTOR_BAD,  /* something that the machine is for does not work */
};
const char *doctor_level_text(enum doctor_level l);

struct doctor_finding {
    enum doctor_level level;
    const char *topic; /* "card", "way", "atomics", "collectives", "driver", "log", "inventory", "podman", "boot", ... */
    const char *where; /* a PCI address, a path, "here" */
    const char *what;
    const char *why;   /* it matters; "" */
    const char *todo;  /* "" */
};

struct doctor_options {
    const char *root;               /* of a recorded machine; NULL: this one */
    const struct fleet *fleet;      /* NULL: none */
    const struct fleet_host *host;  /* which of its hosts this machine is; NULL with fleet NULL */
    struct store *store;            /* NULL: runtimes are not looked at */
    struct ledger *ledger;          /* NULL: no collective is proven */
};

struct doctor_report {
    struct hw hw;
    struct hw_way ways[HW_DEVICES_MAX];
    struct hw_card cards[HW_DEVICES_MAX];
    const struct doctor_finding *findings; /* worst first, else in the order of the topics */
    size_t n;
    struct arena *arena;                   /* owns them */
};
/* Looks at everything. What cannot be read is a finding; an error is ours, or says that there is no machine below root (-ENOENT). options and what they point at are used during the call only. */
int doctor_look(const struct doctor_options *o, struct doctor_report **ret, struct err *err) BASE_MUST_USE;
struct doctor_report *doctor_free(struct doctor_report *r); /* takes NULL; returns NULL */
enum doctor_level doctor_worst(const struct doctor_report *r);

/* ---- collectives ------------------------------------------------------------------------------------------------------
 *
 * Cards that work on one tensor together (tensor or pipeline parallelism) tell each other through a library of collectives (RCCL, NCCL). Whether that works is decided by firmware, bridges and drivers together and is promised by
 * none: it is unproven until a collective has run on exactly this hardware. A proof is a row of kind "collective" in the ledger, under the identities of all cards that took part. */

/* The cards of h that host's declared devices are (all of one maker when host is NULL or declares none), sorted, as one key: their identities, joined by " + ". False when fewer than two are known. */
bool doctor_collective_key(const struct hw *h, const struct fleet_host *host, struct buf *out);
/* When it was proven (real time), by what (may be NULL), or 0. */
int doctor_collective_find(struct ledger *l, const char *key, uint64_t *ret_at_us, struct buf *by, struct err *err) BASE_MUST_USE;
/* by: "service medium", "all_reduce_perf". bus_bytes_s: measured, 0 when it was not. */
int doctor_collective_add(struct ledger *l, const char *key, const char *by, double bus_bytes_s, struct err *err) BASE_MUST_USE;
/* Judges what a test of rccl-tests or nccl-tests printed: every card of the machine's key must have taken part, and every sum been right. *ret_bus_bytes_s: the average. -EBADMSG says what is missing. */
int doctor_collective_read(struct str output, const struct hw *h, const struct fleet_host *host, double *ret_bus_bytes_s, struct err *err) BASE_MUST_USE;

/* ---- the inventory ------------------------------------------------------------------------------------------------------ */

/* The text of a fleet file with host's devices as they are here: values of `memory`, `pci`, `link` and `shared` of known devices are replaced where they stand, found devices that are not declared are added behind the last one, and no
 * other byte changes. Devices that are gone are left: a person takes them out. path names the file in errors. *ret_n: how many values and devices are new; with 0 out is the text as it was.
 * -EINVAL: no usable fleet file, no such host, or the place is ambiguous (host or devices in one line, a form that cannot be added to, a card that may be one of several); err says what to write by hand. */
int doctor_write(struct str text, const char *path, const struct fleet_options *fo, const char *host, const struct hw *h, struct buf *out, size_t *ret_n, struct err *err) BASE_MUST_USE;
