/* SPDX-License-Identifier: MIT
 *
 * What the machine's firewall does with berth's own probes, which come over lo, and with clients of a router that listens wider. An engine whose probe is dropped is up for everybody and never ready for berth.
 */
#include "doctor_int.h"

#include <firewall/firewall.h>
#include <string.h>

#define RULES_MEMORY ((size_t)64 << 20) /* FIREWALL_TEXT_MAX in words */
#define ROUTER_PORT 8080 /* what is asked about without a fleet: any port would do, rules about single ones are rare */

static const char why_probe[] = "berth waits for an engine that is up, and restarts it for ever", why_client[] = "clients wait until they give up, and berth sees none of them";

struct asking {
    struct doctor *d;
    const struct firewall *f;
    const char *source;
    unsigned asked, stopped;
};

/* who: "the probe of service 'a'". */
static void ask(struct asking *a, uint16_t port, bool loopback, const char *who)
{
    unsigned line = 0, may = firewall_ask(a->f, &(struct firewall_probe){.port = port, .loopback = loopback}, &line);
    const char *where = doctor_text(a->d, "port %u", (unsigned)port);
    a->asked++;
    if (may == FIREWALL_PASSES)
        return;
    a->stopped++;
    if (may == FIREWALL_STOPS)
        doctor_say(a->d, DOCTOR_BAD, "firewall", where, loopback ? why_probe : why_client, loopback ? "accept what comes over lo, before other rules: nft 'iif lo accept', iptables '-I INPUT -i lo -j ACCEPT'" : doctor_text(a->d, "accept it where your clients are: 'tcp dport %u accept'", (unsigned)port),
                   "%s is stopped by line %u of %s", who, line, a->source);
    else if (loopback)
        doctor_say(a->d, DOCTOR_WARN, "firewall", where, why_probe, "accept what comes over lo, before other rules", "%s may be stopped by line %u of %s, which says more than can be judged", who, line, a->source);
    else
        doctor_say(a->d, DOCTOR_NOTE, "firewall", where, "", "", "%s passes line %u of %s from some places only", who, line, a->source);
}

static bool is_loopback(const char *ip)
{
    return strncmp(ip, "127.", 4) == 0 || strcmp(ip, "::1") == 0 || strcmp(ip, "localhost") == 0;
}

static void ask_all(struct asking *a)
{
    const struct fleet *f = a->d->o->fleet;
    if (!f) {
        ask(a, ROUTER_PORT, true, "what asks over lo");
        return;
    }
    for (size_t i = 0; i < f->n_services; i++)
        if (f->services[i].host == a->d->o->host && f->services[i].port)
            ask(a, f->services[i].port, true, doctor_text(a->d, "the probe of service '%s'", f->services[i].name));
    const struct fleet_host *router = f->router.host ? f->router.host : fleet_host_here(f);
    if (router != a->d->o->host || f->router.socket || !f->router.port)
        return;
    ask(a, f->router.port, true, "what asks the router from here");
    if (!is_loopback(f->router.address))
        ask(a, f->router.port, false, "what asks the router from elsewhere");
}

/* As nft or iptables-save printed them on a recorded machine. */
static int recorded(struct doctor *d, struct buf *out, const char **ret_source)
{
    static const char *const files[] = {"nft", "iptables-save"};
    for (size_t i = 0; i < BASE_COUNT(files); i++)
        if (hw_file(d->reader, files[i], out)) {
            *ret_source = files[i];
            return 0;
        }
    return 1;
}

static void judge_rules(struct doctor *d, struct str text, const char *source, struct arena *arena)
{
    struct asking a = {.d = d, .source = source};
    struct firewall f;
    struct err err;
    if (firewall_parse(text, arena, &f, &err) < 0) {
        doctor_say(d, DOCTOR_NOTE, "firewall", "here", why_probe, "see by hand that what comes over lo is accepted", "its rules cannot be judged: %s", err.text);
        return;
    }
    a.f = &f;
    ask_all(&a);
    if (!a.stopped)
        doctor_say(d, DOCTOR_OK, "firewall", "here", "", "", "%u way%s through %s", a.asked, a.asked == 1 ? "" : "s", source);
}

void firewall_judge(struct doctor *d)
{
    base_autobuf struct buf text = BUF_INIT(FIREWALL_TEXT_MAX);
    const char *source = "";
    struct err err;
    if (d->live && d->uid != 0) {
        doctor_say(d, DOCTOR_OK, "firewall", "here", "", "", "its rules are told to root only");
        return;
    }
    int r = d->live ? firewall_read(&text, &source, &err) : recorded(d, &text, &source);
    if (r < 0)
        doctor_say(d, DOCTOR_NOTE, "firewall", "here", why_probe, "see by hand that what comes over lo is accepted", "its rules cannot be seen: %s", err.text);
    else if (r == 1 && d->live)
        doctor_say(d, DOCTOR_OK, "firewall", "here", "", "", "neither nft nor iptables is here");
    if (r != 0)
        return;
    struct arena *arena = arena_new(RULES_MEMORY);
    d->failed = d->failed || !arena;
    if (arena)
        judge_rules(d, buf_str(&text), source, arena);
    arena_free(arena);
}
