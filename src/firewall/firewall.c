/* SPDX-License-Identifier: MIT
 *
 * Asking a firewall: a probe walks the base chains of the input hook, and for one from the host itself of the output hook too. Every chain of a hook has its say; one that stops is enough. Both languages come to the same
 * matches: interface, address, protocol, port, state of the connection.
 */
#include "firewall.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum match { NO, YES, MAYBE };

static enum match invert(enum match m, bool doit)
{
    return !doit || m == MAYBE ? m : m == YES ? NO : YES;
}

static enum match both(enum match a, enum match b)
{
    if (a == NO || b == NO)
        return NO;
    return a == MAYBE || b == MAYBE ? MAYBE : YES;
}

/* ---- values -------------------------------------------------------------------------------------------------------- */

enum selector { SEL_IIF, SEL_OIF, SEL_SADDR, SEL_DADDR, SEL_DPORT, SEL_PROTO, SEL_STATE, SEL_FAMILY };

static enum match match_port(struct str v, char between, uint16_t port)
{
    struct str low = str_split(&v, between);
    uint64_t from, to;
    if (str_to_u64(low, &from) < 0)
        return MAYBE; /* a service's name, a set */
    if (!v.ptr)
        to = from;
    else if (str_to_u64(v, &to) < 0)
        return MAYBE;
    return port >= from && port <= to ? YES : NO;
}

static bool read_ipv4(struct str s, uint32_t *ret)
{
    uint32_t ip = 0;
    for (int i = 0; i < 4; i++) {
        uint64_t part;
        if (str_to_u64(str_split(&s, '.'), &part) < 0 || part > 255)
            return false;
        ip = ip << 8 | (uint32_t)part;
    }
    *ret = ip;
    return !s.ptr;
}

/* Of a probe over lo both addresses are 127.0.0.1; of another one neither is known but for not being loopback's. */
static enum match match_address(struct str v, bool loopback)
{
    struct str net = str_split(&v, '/');
    uint32_t ip;
    uint64_t bits = 32;
    if (!read_ipv4(net, &ip))
        return str_find_char(net, ':') >= 0 ? NO : MAYBE;
    if (v.ptr && (str_to_u64(v, &bits) < 0 || bits > 32))
        return MAYBE;
    uint32_t mask = bits ? UINT32_MAX << (32 - bits) : 0;
    if (loopback)
        return ((ip ^ 0x7f000001u) & mask) == 0 ? YES : NO;
    return bits == 0 ? YES : ip >> 24 == 127 && bits >= 8 ? NO : MAYBE;
}

static enum match match_name(struct str v, bool loopback)
{
    bool lo = str_eq_c(v, "lo") || str_eq_c(v, "\"lo\"");
    if (loopback)
        return lo || str_eq_c(v, "*") || str_eq_c(v, "+") ? YES : NO;
    return lo ? NO : MAYBE;
}

static enum match match_value(enum selector s, struct str v, const struct firewall_probe *p, char between)
{
    switch (s) {
    case SEL_IIF:
    case SEL_OIF:
        return match_name(v, p->loopback);
    case SEL_SADDR:
    case SEL_DADDR:
        return match_address(v, p->loopback);
    case SEL_DPORT:
        return match_port(v, between, p->port);
    case SEL_PROTO:
        return str_eq_c(v, "tcp") || str_eq_c(v, "6") || str_eq_c(v, "all") || str_eq_c(v, "0") ? YES : v.len && v.ptr[0] == '@' ? MAYBE : NO;
    case SEL_STATE:
        return str_eq_nocase(v, STR("new")) ? YES : NO;
    default:
        return str_eq_c(v, "ipv4") ? YES : NO;
    }
}

/* ---- one rule of nft ------------------------------------------------------------------------------------------------ */

/* What a rule comes to: whether it matches and what happens then. */
struct effect {
    enum match match;
    enum { GO_ON, ACCEPT, DROP, RETURN, JUMP, GOTO } then;
    const char *to;
};

static bool verdict_of(const char *w, struct effect *e)
{
    static const struct {
        const char *word;
        int then;
    } words[] = {{"accept", ACCEPT}, {"drop", DROP}, {"reject", DROP}, {"return", RETURN}, {"continue", GO_ON}, {"jump", JUMP}, {"goto", GOTO}, {"ACCEPT", ACCEPT}, {"DROP", DROP}, {"REJECT", DROP}, {"RETURN", RETURN}};
    for (size_t i = 0; i < BASE_COUNT(words); i++)
        if (strcmp(w, words[i].word) == 0) {
            e->then = words[i].then;
            return true;
        }
    return false;
}

struct reader {
    const struct firewall_rule *r;
    size_t i;
    const struct firewall_probe *p;
    struct effect *e;
};

static const char *word_at(const struct reader *x, size_t i)
{
    return i < x->r->n_words ? x->r->words[i] : "";
}

/* "{ 22, 80-90 }", "22", "new,established", and behind vmap "{ new : accept, ... }", which ends the rule. True when the rule's verdict came with it. */
static bool take_values(struct reader *x, enum selector s)
{
    bool map = strcmp(word_at(x, x->i), "vmap") == 0;
    x->i += map;
    bool not = strcmp(word_at(x, x->i), "!=") == 0;
    x->i += not || strcmp(word_at(x, x->i), "==") == 0;
    bool set = strcmp(word_at(x, x->i), "{") == 0;
    x->i += set;
    enum match any = NO;
    for (; x->i < x->r->n_words && strcmp(word_at(x, x->i), "}") != 0; x->i++) {
        const char *w = word_at(x, x->i);
        if (strcmp(w, ",") == 0)
            continue;
        enum match m = w[0] == '@' ? MAYBE : match_value(s, str_of(w), x->p, '-');
        if (map && strcmp(word_at(x, x->i + 1), ":") == 0) {
            struct effect e = {.then = GO_ON};
            bool known = verdict_of(word_at(x, x->i + 2), &e);
            bool jumps = known && (e.then == JUMP || e.then == GOTO);
            if (known && m == YES && any == NO) {
                e.match = x->e->match;
                e.to = jumps ? word_at(x, x->i + 3) : NULL;
                *x->e = e;
                return true;
            }
            if (m != NO)
                any = MAYBE;
            x->i += 2 + jumps;
            continue;
        }
        if (m == YES || (m == MAYBE && any == NO))
            any = m;
        /* without braces it is one value, or several with commas between */
        if (!set && strcmp(word_at(x, x->i + 1), ",") != 0) {
            x->i++;
            break;
        }
    }
    x->i += set && strcmp(word_at(x, x->i), "}") == 0;
    x->e->match = both(x->e->match, map ? (any == NO ? NO : MAYBE) : invert(any, not));
    return false;
}

static bool is(const struct reader *x, const char *word)
{
    return strcmp(word_at(x, x->i), word) == 0;
}

/* A match of two words that is understood: which selector, and the place moves behind it. */
static bool take_selector(struct reader *x, enum selector *ret)
{
    static const struct {
        const char *first, *second;
        enum selector s;
    } known[] = {{"iif", NULL, SEL_IIF}, {"iifname", NULL, SEL_IIF}, {"oif", NULL, SEL_OIF}, {"oifname", NULL, SEL_OIF}, {"ip", "saddr", SEL_SADDR}, {"ip", "daddr", SEL_DADDR}, {"ip", "protocol", SEL_PROTO},
                 {"tcp", "dport", SEL_DPORT}, {"th", "dport", SEL_DPORT}, {"meta", "l4proto", SEL_PROTO}, {"meta", "iif", SEL_IIF}, {"meta", "iifname", SEL_IIF}, {"meta", "oif", SEL_OIF}, {"meta", "oifname", SEL_OIF},
                 {"meta", "nfproto", SEL_FAMILY}, {"ct", "state", SEL_STATE}};
    for (size_t i = 0; i < BASE_COUNT(known); i++)
        if (is(x, known[i].first) && (!known[i].second || strcmp(word_at(x, x->i + 1), known[i].second) == 0)) {
            x->i += known[i].second ? 2 : 1;
            *ret = known[i].s;
            return true;
        }
    return false;
}

/* Words that match nothing and decide nothing. */
static bool take_idle(struct reader *x)
{
    if (is(x, "counter")) {
        x->i++;
        if (is(x, "packets"))
            x->i += 4;
        return true;
    }
    if (is(x, "log")) {
        x->i++;
        while (is(x, "prefix") || is(x, "level") || is(x, "group") || is(x, "flags") || is(x, "snaplen") || is(x, "queue-threshold"))
            x->i += 2;
        return true;
    }
    if (is(x, "comment")) {
        x->i += 2;
        return true;
    }
    return false;
}

static void read_nft(const struct firewall_rule *r, const struct firewall_probe *p, struct effect *e)
{
    struct reader x = {.r = r, .p = p, .e = e};
    *e = (struct effect){.match = YES, .then = GO_ON};
    while (x.i < r->n_words) {
        enum selector s;
        if (take_selector(&x, &s)) {
            if (take_values(&x, s))
                return;
        } else if (verdict_of(word_at(&x, x.i), e)) {
            e->to = e->then == JUMP || e->then == GOTO ? word_at(&x, x.i + 1) : NULL;
            return;
        } else if (is(&x, "udp") || is(&x, "icmp") || is(&x, "icmpv6") || is(&x, "sctp") || is(&x, "ip6")) {
            e->match = NO;
            return;
        } else if (!take_idle(&x)) {
            e->match = both(e->match, MAYBE);
            x.i++;
        }
    }
}

/* ---- one rule of iptables --------------------------------------------------------------------------------------------- */

static bool iptables_selector(const char *w, enum selector *ret)
{
    static const struct {
        const char *word;
        enum selector s;
    } known[] = {{"-i", SEL_IIF}, {"-o", SEL_OIF}, {"-s", SEL_SADDR}, {"-d", SEL_DADDR}, {"-p", SEL_PROTO}, {"--dport", SEL_DPORT}, {"--dports", SEL_DPORT}, {"--ctstate", SEL_STATE}, {"--state", SEL_STATE}};
    for (size_t i = 0; i < BASE_COUNT(known); i++)
        if (strcmp(w, known[i].word) == 0) {
            *ret = known[i].s;
            return true;
        }
    return false;
}

static void read_iptables(const struct firewall_rule *r, const struct firewall_probe *p, struct effect *e)
{
    struct reader x = {.r = r, .p = p, .e = e};
    bool not = false;
    *e = (struct effect){.match = YES, .then = GO_ON};
    while (x.i < r->n_words) {
        const char *w = word_at(&x, x.i++), *next = word_at(&x, x.i);
        enum selector s;
        if (strcmp(w, "!") == 0) {
            not = true;
            continue;
        }
        if (iptables_selector(w, &s)) {
            enum match any = NO;
            struct str list = str_of(next);
            while (list.ptr) {
                enum match m = match_value(s, str_split(&list, ','), p, ':');
                if (m == YES || (m == MAYBE && any == NO))
                    any = m;
            }
            e->match = both(e->match, invert(any, not));
            x.i++;
        } else if (strcmp(w, "-j") == 0 || strcmp(w, "-g") == 0) {
            if (!verdict_of(next, e)) {
                e->then = w[1] == 'g' ? GOTO : JUMP; /* a chain, or LOG and its like: no chain of that name goes on */
                e->to = next;
            }
            return;
        } else if (strcmp(w, "-m") == 0 || strcmp(w, "--comment") == 0) {
            x.i++;
        } else {
            e->match = both(e->match, MAYBE);
        }
        not = false;
    }
}

/* ---- chains ------------------------------------------------------------------------------------------------------------- */

struct walk {
    const struct firewall *f;
    const struct firewall_probe *p;
    unsigned steps, line; /* line: of the first that stops */
};

static void stops_at(struct walk *w, unsigned line)
{
    if (!w->line)
        w->line = line;
}

static const struct firewall_chain *chain_of(const struct firewall *f, const char *table, const char *name)
{
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->chains[i].table, table) == 0 && strcmp(f->chains[i].name, name) == 0)
            return &f->chains[i];
    return NULL;
}

#define FALLS 4 /* beside FIREWALL_ bits: the end of the chain may be reached */

/* What may happen in a chain. Each rule that may match adds what it does; one that surely does ends the walk. */
static unsigned walk_chain(struct walk *w, const struct firewall_chain *c, unsigned depth)
{
    unsigned may = 0;
    for (size_t i = 0; i < c->n_rules; i++) {
        struct effect e;
        if (++w->steps > FIREWALL_STEPS_MAX) {
            stops_at(w, c->rules[i].line);
            return may | FIREWALL_PASSES | FIREWALL_STOPS;
        }
        (w->f->iptables ? read_iptables : read_nft)(&c->rules[i], w->p, &e);
        if (e.match == NO || e.then == GO_ON)
            continue;
        unsigned does = 0;
        const struct firewall_chain *to = e.then == JUMP || e.then == GOTO ? chain_of(w->f, c->table, e.to) : NULL;
        if (e.then == ACCEPT) {
            does = FIREWALL_PASSES;
        } else if (e.then == DROP) {
            does = FIREWALL_STOPS;
            stops_at(w, c->rules[i].line);
        } else if (e.then == RETURN) {
            does = FALLS;
        } else if (!to) {
            continue; /* LOG, MARK: nothing that ends a walk */
        } else if (depth == FIREWALL_JUMPS_MAX) {
            does = FIREWALL_PASSES | FIREWALL_STOPS;
            stops_at(w, c->rules[i].line);
        } else {
            does = walk_chain(w, to, depth + 1);
            if (e.then == JUMP && does & FALLS) { /* comes back and goes on behind */
                may |= does & ~(unsigned)FALLS;
                continue;
            }
        }
        may |= does;
        if (e.match == YES)
            return may;
    }
    return may | FALLS;
}

static unsigned ask_chain(struct walk *w, const struct firewall_chain *c)
{
    unsigned may = walk_chain(w, c, 0), ret = may & (FIREWALL_PASSES | FIREWALL_STOPS);
    if (may & FALLS) {
        ret |= c->drops ? FIREWALL_STOPS : FIREWALL_PASSES;
        if (c->drops)
            stops_at(w, c->line);
    }
    return ret;
}

unsigned firewall_ask(const struct firewall *f, const struct firewall_probe *p, unsigned *ret_line)
{
    struct walk w = {.f = f, .p = p};
    unsigned ret = FIREWALL_PASSES;
    for (size_t i = 0; i < f->n; i++) {
        const struct firewall_chain *c = &f->chains[i];
        if (!c->input && !(p->loopback && c->output))
            continue;
        unsigned one = ask_chain(&w, c);
        if (one == FIREWALL_STOPS)
            ret = FIREWALL_STOPS;
        else if (one & FIREWALL_STOPS && ret != FIREWALL_STOPS)
            ret |= FIREWALL_STOPS;
    }
    *ret_line = ret & FIREWALL_STOPS ? w.line : 0;
    return ret;
}
