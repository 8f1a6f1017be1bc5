/* SPDX-License-Identifier: MIT
 *
 * check: the contracts of a fleet, each with a name, what it says and what to do when it is broken. It reads files and the store; it starts nothing and changes nothing.
 */
#pragma once

#include <base/base.h>
#include <fleet/fleet.h>
#include <store/store.h>

enum check_verdict { CHECK_HOLDS, CHECK_BROKEN, CHECK_UNPROVEN /* cannot be seen from here: another host's */ };

struct check_result {
    const char *contract; /* "payload", "argv" */
    const char *subject;  /* "service medium", "model qwen" */
    enum check_verdict verdict;
    const char *text;     /* what was found, and for a broken one what to do */
};
/* Proves every contract; the results and their texts live in arena a. An error is ours (memory, unreadable store), never a broken contract. */
int check_fleet(const struct fleet *f, struct store *s, struct arena *a, struct check_result **ret, size_t *ret_n, struct err *err) BASE_MUST_USE;
