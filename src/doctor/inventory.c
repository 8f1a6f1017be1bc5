/* SPDX-License-Identifier: MIT
 *
 * What the fleet file records of this machine against what is there: cards that moved, are gone or are new, less memory, a narrower way, another order.
 */
#include "doctor_int.h"

#include <string.h>

#define MEASUREMENTS_MAX 1000 /* that are looked at, newest first */

static bool declared(const struct doctor *d, size_t card)
{
    for (size_t i = 0; i < d->o->host->n_devices; i++)
        if (doctor_place(&d->r->hw, &d->o->host->devices[i]) == (int)card)
            return true;
    return false;
}

/* The only card that is not declared and has that memory, or -1. */
static int moved_to(const struct doctor *d, const struct fleet_device *f)
{
    int at = -1;
    for (size_t i = 0; i < d->r->hw.n_devices; i++) {
        const struct hw_device *dev = &d->r->hw.devices[i];
        if (!dev->memory_known || declared(d, i) || !doctor_near(dev->total_bytes, f->memory_bytes, 20))
            continue;
        if (at >= 0)
            return -1;
        at = (int)i;
    }
    return at;
}

static void judge_missing(struct doctor *d, const struct fleet_device *f)
{
    int at = moved_to(d, f);
    if (at >= 0)
        doctor_say(d, DOCTOR_WARN, "inventory", f->name, "measurements on it are of the old place, and the engine's order may be another", "berth doctor --write", "is declared at %s, and seems to have moved to %s", f->pci ? f->pci : "no address", d->r->hw.devices[at].pci);
    else
        doctor_say(d, DOCTOR_BAD, "inventory", f->name, "services that are planned on it do not start, or run on the CPU", "reboot, reseat the card; or take it out of the fleet file", "is declared%s%s and is not there", f->pci ? " at " : "", f->pci ? f->pci : "");
}

static void judge_name(struct doctor *d, const struct fleet_device *f, size_t card)
{
    static const enum hw_api apis[] = {HW_ROCM, HW_CUDA, HW_VULKAN, HW_SYCL};
    static const char *const prefixes[] = {"ROCm", "CUDA", "Vulkan", "SYCL"};
    char name[HW_ENGINE_NAME];
    bool sure = false;
    for (size_t i = 0; i < BASE_COUNT(apis); i++)
        if (str_starts(str_of(f->name), str_of(prefixes[i])) && hw_engine_name(&d->r->hw, card, apis[i], name, &sure) && sure && strcmp(name, f->name) != 0) {
            /* equal cards may be named either way where the order is not ours to know */
            if (apis[i] == HW_ROCM || d->r->hw.n_devices == 1)
                doctor_say(d, DOCTOR_WARN, "inventory", f->name, "splits are laid on the wrong card", "change the name in the fleet file", "engines call the card at %s '%s'", d->r->hw.devices[card].pci, name);
        }
}

static void judge_declared(struct doctor *d, const struct fleet_device *f)
{
    char a[UNITS_TEXT], b[UNITS_TEXT];
    size_t before = d->n;
    int at = doctor_place(&d->r->hw, f);
    if (at < 0) {
        judge_missing(d, f);
        return;
    }
    const struct hw_device *dev = &d->r->hw.devices[at];
    if (dev->memory_known && dev->total_bytes < f->memory_bytes && !doctor_near(dev->total_bytes, f->memory_bytes, 10))
        doctor_say(d, DOCTOR_BAD, "inventory", f->name, "plans count on memory that is not there", "berth doctor --write, then berth fit", "is declared with %s and has %s", units_show_bytes(f->memory_bytes, a), units_show_bytes(dev->total_bytes, b));
    else if (dev->memory_known && !doctor_near(dev->total_bytes, f->memory_bytes, 10))
        doctor_say(d, DOCTOR_NOTE, "inventory", f->name, "plans use less than there is", "berth doctor --write, unless it is meant so", "is declared with %s and has %s", units_show_bytes(f->memory_bytes, a), units_show_bytes(dev->total_bytes, b));
    if (f->link_bytes_s && dev->link.bytes_s && dev->link.bytes_s < f->link_bytes_s && !doctor_near(dev->link.bytes_s, f->link_bytes_s, 30))
        doctor_say(d, DOCTOR_WARN, "inventory", f->name, "speeds are predicted with the wider way", "look at the findings about its way; berth doctor --write when it is to stay so", "its way is declared with %s and has %s", doctor_rate((double)f->link_bytes_s, a),
                   doctor_rate((double)dev->link.bytes_s, b));
    if (dev->memory_known && (f->shared == FLEET_YES) != dev->shared)
        doctor_say(d, DOCTOR_WARN, "inventory", f->name, "its memory is counted twice, or not with the RAM", dev->shared ? "'shared: true' in the fleet file" : "take 'shared' out of the fleet file", dev->shared ? "its memory is the machine's RAM" : "its memory is its own");
    judge_name(d, f, (size_t)at);
    if (d->n == before)
        doctor_say(d, DOCTOR_OK, "inventory", f->name, "", "", "as declared, at %s", dev->pci);
}

/* ---- measurements ------------------------------------------------------------------------------------------------------- */

struct stale {
    const struct hw *hw;
    unsigned all, n;
    char then[HW_IDENTITY]; /* of the newest that does not count */
};

static bool is_here(const struct hw *h, struct str identity)
{
    char now[HW_IDENTITY];
    for (size_t i = 0; i < h->n_devices; i++)
        if (str_eq_c(identity, hw_identity(&h->devices[i], now)))
            return true;
    return false;
}

/* "ROCm0 0000:03:00.0 1002:7551 gen5x16 ...; ROCm1 ...; host cpu ...": identities as they were. Emulated devices have no address. */
static int compare(void *ctx, const struct ledger_row *row, struct err *err)
{
    struct stale *s = ctx;
    struct str rest = str_of(row->hardware);
    bool any = false, other = false;
    (void)err;
    while (rest.ptr) {
        struct str part = str_trim(str_split(&rest, ';'));
        if (str_starts(part, STR("host ")))
            continue;
        (void)str_split(&part, ' ');
        if (part.len < 13 || part.ptr[4] != ':' || part.ptr[7] != ':')
            continue;
        any = true;
        if (is_here(s->hw, part))
            continue;
        if (!other && !*s->then)
            snprintf(s->then, sizeof s->then, STR_FMT, STR_ARG(part));
        other = true;
    }
    s->all += any;
    s->n += other;
    return 0;
}

static void judge_ledger(struct doctor *d)
{
    struct stale s = {.hw = &d->r->hw};
    const struct ledger_query q = {.most = MEASUREMENTS_MAX};
    char now[HW_IDENTITY];
    int at = -1;
    struct err err;
    if (!d->o->ledger)
        return;
    if (ledger_find(d->o->ledger, &q, compare, &s, &err) < 0) {
        doctor_say(d, DOCTOR_WARN, "inventory", "ledger", "predictions go without measurements", "move the file away, and measure again", "the ledger cannot be read: %s", doctor_text(d, "%s", err.text));
        return;
    }
    if (s.n == 0)
        return;
    s.then[12] = '\0'; /* its address */
    at = hw_find_pci(&d->r->hw, s.then);
    s.then[12] = ' ';
    doctor_say(d, DOCTOR_NOTE, "inventory", "ledger", "a card that moved, another driver or another way make a measurement stale: predictions go without it", "berth fit --measure, once the machine is as it is to stay",
               "%u of the last %u measurements are of other hardware: then %s, now %s", s.n, s.all, s.then, at >= 0 ? hw_identity(&d->r->hw.devices[at], now) : "no card is there");
}

void inventory_judge(struct doctor *d)
{
    const struct fleet_host *host = d->o->host;
    const struct hw_host *found = &d->r->hw.host;
    char a[UNITS_TEXT], b[UNITS_TEXT];
    judge_ledger(d);
    if (!host)
        return;
    for (size_t i = 0; i < host->n_devices; i++)
        judge_declared(d, &host->devices[i]);
    for (size_t i = 0; i < d->r->hw.n_devices; i++) {
        const struct hw_device *dev = &d->r->hw.devices[i];
        bool taken = false;
        for (size_t k = 0; k < host->n_devices; k++)
            taken = taken || (doctor_place(&d->r->hw, &host->devices[k]) < 0 && moved_to(d, &host->devices[k]) == (int)i);
        if (dev->memory_known && !declared(d, i) && !taken)
            doctor_say(d, DOCTOR_NOTE, "inventory", dev->pci, "it is planned with only while this machine is looked at", "berth doctor --write", "%s is not declared under 'devices' of host '%s'", dev->name, host->name);
    }
    if (host->memory_bytes > found->total_bytes && !doctor_near(host->memory_bytes, found->total_bytes, 10))
        doctor_say(d, DOCTOR_BAD, "inventory", "RAM", "plans count on memory that is not there", "look whether a module is gone; else change 'memory' of the host", "host '%s' is declared with %s and has %s", host->name, units_show_bytes(host->memory_bytes, a),
                   units_show_bytes(found->total_bytes, b));
}
