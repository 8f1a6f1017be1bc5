/* SPDX-License-Identifier: MIT
 *
 * firewall: rules of a machine as nft or iptables-save print them, asked whether a connection gets through. Text comes from outside: bounded, never trusted. What a rule's words say that is not understood here may match or not, so the
 * answer is a set: both bits mean that it cannot be told.
 */
#pragma once

#include <base/base.h>

#define FIREWALL_TEXT_MAX ((size_t)4 << 20) /* bytes; a host with thousands of rules has some 300 KiB */
#define FIREWALL_WORDS_MAX 512              /* of one rule: a set written in place */
#define FIREWALL_JUMPS_MAX 16               /* nft's own limit */
#define FIREWALL_STEPS_MAX 200000           /* rules that one question walks: chains may jump to a chain many times over */

enum { FIREWALL_PASSES = 1, FIREWALL_STOPS = 2 };

struct firewall_rule {
    unsigned line;
    const char *const *words; /* "iif", "lo", "accept"; braces and commas are words of their own */
    size_t n_words;
};
struct firewall_chain {
    const char *table, *name;
    unsigned line;
    bool input, output; /* a base chain of that hook, of type filter */
    bool drops;         /* its policy */
    struct firewall_rule *rules;
    size_t n_rules, cap;
};
struct firewall {
    bool iptables;
    struct firewall_chain *chains;
    size_t n, cap;
};
/* -EBADMSG: text is neither; -E2BIG; -ENOMEM. Everything lives in arena a. An empty ruleset is one. */
int firewall_parse(struct str text, struct arena *a, struct firewall *ret, struct err *err) BASE_MUST_USE;

/* A new TCP connection over IPv4 to a port of the host. */
struct firewall_probe {
    uint16_t port;
    bool loopback; /* from the host itself, over lo; else from another machine, by an interface and address that are not known */
};
/* FIREWALL_ bits; *ret_line: where the first rule or policy stands that stops it. */
unsigned firewall_ask(const struct firewall *f, const struct firewall_probe *p, unsigned *ret_line);

/* The rules of this machine into out (at most its ceiling), and the program that printed them. 1: none of the programs is here. Negative, with why: one is and does not say them. Needs root and the main thread. */
int firewall_read(struct buf *out, const char **ret_program, struct err *err) BASE_MUST_USE;
