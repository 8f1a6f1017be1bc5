/* SPDX-License-Identifier: MIT
 *
 * Links and atomic operations, and what they mean for cards that work together.
 */
#include "doctor_int.h"

#include <string.h>

#define AT_WORK 20 /* percent: a card that is busy has woken its links */

/* Inside of a card that has a switch of its own: its bridges are of the card's maker. */
static bool inside(const struct hw_way *w, const struct hw_span *s)
{
    return w->hops[s->at].vendor_id == w->hops[0].vendor_id && w->hops[s->at + 1].vendor_id == w->hops[0].vendor_id && s->at + 2 < w->n;
}

static const char *link_text(struct doctor *d, unsigned gen, unsigned width)
{
    return doctor_text(d, "gen%u x%u", gen, width);
}

/* ---- links ------------------------------------------------------------------------------------------------------------- */

static void judge_speed(struct doctor *d, size_t i, const struct hw_span *s)
{
    const struct hw_way *w = &d->r->ways[i];
    const struct hw_card *c = &d->r->cards[i];
    const struct hw_hop *near = &w->hops[s->at], *far = &w->hops[s->at + 1];
    char now[UNITS_TEXT], could[UNITS_TEXT];
    if (!s->gen || !s->can_gen || s->gen >= s->can_gen || inside(w, s))
        return;
    doctor_rate((double)hw_link_bytes_s(s->gen, s->width), now);
    doctor_rate((double)hw_link_bytes_s(s->can_gen, s->width), could);
    const char *where = far->pci, *why = doctor_text(d, "%s instead of %s: loading, and everything that the card exchanges with RAM or another card, goes through it", now, could);
    if (far->config && far->target_gen && far->target_gen < s->can_gen)
        doctor_say(d, DOCTOR_WARN, "way", where, why, "set the slot's speed in the firmware setup to auto, unless it was lowered for a riser", "the link to %s is held at gen%u, both ends can do gen%u", near->pci, far->target_gen, s->can_gen);
    else if (c->busy_known && c->busy_percent >= AT_WORK)
        doctor_say(d, DOCTOR_WARN, "way", where, why, "a riser or cable of an older generation, or a bad contact: reseat or replace it", "the link to %s runs at gen%u while the card works (%llu %%), both ends can do gen%u", near->pci, s->gen,
                   (unsigned long long)c->busy_percent, s->can_gen);
    else if (s->gen > 1) /* the first generation is how a card sleeps */
        doctor_say(d, DOCTOR_NOTE, "way", where, "cards lower it when idle; a riser or cable of an older generation does so for ever", "look again while the card works", "the link to %s is at gen%u at this moment, both ends can do gen%u", near->pci,
                   s->gen, s->can_gen);
}

static void judge_width(struct doctor *d, size_t i, const struct hw_span *s)
{
    const struct hw_way *w = &d->r->ways[i];
    char now[UNITS_TEXT], could[UNITS_TEXT];
    if (!s->width || s->width >= s->can_width || inside(w, s))
        return;
    doctor_rate((double)hw_link_bytes_s(s->can_gen, s->width), now);
    doctor_rate((double)hw_link_bytes_s(s->can_gen, s->can_width), could);
    doctor_say(d, DOCTOR_WARN, "way", w->hops[s->at + 1].pci, doctor_text(d, "%s instead of %s", now, could), "lanes are shared with another slot (board's manual), or contacts are bad: reseat the card, clean its edge, try it without riser",
               "the link to %s has %u of %u lanes that both ends could use", w->hops[s->at].pci, s->width, s->can_width);
}

static void judge_way(struct doctor *d, size_t i)
{
    const struct hw_device *dev = &d->r->hw.devices[i];
    const struct hw_way *w = &d->r->ways[i];
    struct hw_span s, narrow;
    char rate[UNITS_TEXT], full[UNITS_TEXT];
    size_t before = d->n;
    for (size_t k = 0; hw_way_span(w, k, &s); k++) {
        judge_width(d, i, &s);
        judge_speed(d, i, &s);
    }
    if (!hw_way_narrowest(w, &narrow)) {
        doctor_say(d, DOCTOR_NOTE, "way", dev->pci, "what is handed into a virtual machine has no bridges there", "", "its links are not told");
        return;
    }
    uint64_t most = hw_link_bytes_s(dev->link.max_gen, dev->link.max_width);
    const char *at = w->hops[narrow.at + 1].pci;
    const char *text = link_text(d, hw_link_bytes_s(narrow.can_gen, narrow.width) == narrow.bytes_s ? narrow.can_gen : w->hops[narrow.at + 1].target_gen, narrow.width);
    doctor_rate((double)narrow.bytes_s, rate);
    doctor_rate((double)most, full);
    if (d->n > before)
        return; /* what is wrong with it says more */
    if (most && narrow.bytes_s <= most / 2)
        doctor_say(d, DOCTOR_NOTE, "way", dev->pci, "loading takes longer by that much, and so do layers or experts in RAM and splits that exchange with another card; what rests on the card does not",
                   "put the card that must exchange most into the widest slot", "the narrowest link is %s at %s: %s, the card itself could take %s", text, at, rate, full);
    else
        doctor_say(d, DOCTOR_OK, "way", dev->pci, "", "", "%s to the CPU, %s", text, rate);
}

/* ---- atomic operations -------------------------------------------------------------------------------------------------- */

static const char *stop_text(const struct hw_hop *h)
{
    if (h->port == HW_PORT_ROOT)
        return h->blocks ? "the port at the CPU lets none out" : "the port at the CPU does not carry them out";
    if (h->port == HW_PORT_UP || h->port == HW_PORT_DOWN)
        return h->blocks ? "that port of a switch or chipset lets none out" : "that port of a switch or chipset hands none on";
    return h->port == HW_PORT_ENDPOINT ? "the card was not allowed to send them" : "that bridge is of the older bus";
}

static void judge_atomics(struct doctor *d, size_t i)
{
    static const char why[] = "signals between CPU and card, and collectives between cards, want them: tensor and pipeline parallelism may hang or be refused; a card by itself, and llama.cpp's split by layers, do without on recent cards";
    const struct hw_device *dev = &d->r->hw.devices[i];
    const struct hw_card *c = &d->r->cards[i];
    size_t at = 0;
    if (dev->vendor != HW_AMD || dev->shared)
        return; /* CUDA asks for none; an integrated GPU has the CPU's own memory */
    enum hw_atomics a = hw_way_atomics(&d->r->ways[i], &at);
    if (a == HW_ATOMICS_STOPPED)
        doctor_say(d, DOCTOR_WARN, "atomics", dev->pci, why, "use a slot whose lanes go to the CPU", "PCIe atomics stop at %s: %s", d->r->ways[i].hops[at].pci, stop_text(&d->r->ways[i].hops[at]));
    else if (a == HW_ATOMICS_THROUGH)
        doctor_say(d, DOCTOR_OK, "atomics", dev->pci, "", "", "PCIe atomics come through to the CPU");
    else if (c->driver_atomics_known && !c->driver_atomics)
        doctor_say(d, DOCTOR_WARN, "atomics", dev->pci, why, "use a slot whose lanes go to the CPU; as root this tells which bridge it is", "ROCm's driver could not have PCIe atomics on the way");
    else if (c->driver_atomics_known)
        doctor_say(d, DOCTOR_OK, "atomics", dev->pci, "", "", "PCIe atomics: ROCm's driver has them");
    else
        doctor_say(d, DOCTOR_NOTE, "atomics", dev->pci, "they decide whether collectives can work", !d->live ? "add what 'lspci -xxx' shows there as root, as the file 'lspci'" : d->uid ? "run it as root" : "install libpci3",
                   "whether PCIe atomics come through is not known: %s", !d->live ? "it was not recorded" : d->uid ? "only root may read it" : "libpci is not here, or the card is asleep");
}

/* ---- collectives ----------------------------------------------------------------------------------------------------------- */

static void judge_collectives(struct doctor *d)
{
    base_autobuf struct buf key = BUF_INIT(8192), by = BUF_INIT(256);
    char when[CLK_RFC3339];
    uint64_t at = 0;
    struct err err;
    if (!doctor_collective_key(&d->r->hw, d->o->host, &key))
        return;
    if (d->o->ledger && doctor_collective_find(d->o->ledger, key.ptr, &at, &by, &err) < 0) {
        doctor_say(d, DOCTOR_WARN, "collectives", "ledger", "", "", "whether a collective was proven cannot be read: %s", doctor_text(d, "%s", err.text));
        return;
    }
    if (at)
        doctor_say(d, DOCTOR_OK, "collectives", "here", "", "", "proven on exactly these cards, %s, by %s", clk_rfc3339(at, when), by.len ? by.ptr : "a test");
    else
        doctor_say(d, DOCTOR_NOTE, "collectives", "here", "tensor and pipeline parallelism (vLLM) need them; 'berth deploy' refuses a service that does until they are proven",
                   "berth doctor --prove -- all_reduce_perf -b 8M -e 128M -f 4 -g 2 (rccl-tests, nccl-tests), or berth deploy --prove-collectives", "unproven: no collective has run on these cards, in these slots, with these drivers");
}

void ways_judge(struct doctor *d)
{
    for (size_t i = 0; i < d->r->hw.n_devices; i++) {
        const struct hw_device *dev = &d->r->hw.devices[i];
        if (dev->shared || !*dev->driver || strcmp(dev->driver, "vfio-pci") == 0)
            continue; /* what an integrated GPU tells of its link is made up */
        judge_way(d, i);
        judge_atomics(d, i);
    }
    judge_collectives(d);
}
