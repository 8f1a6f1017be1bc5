/* SPDX-License-Identifier: MIT
 *
 * unit, private.
 *
 *   unit.c     names, the comment that says whose a unit is, what both forms begin and end with
 *   quote.c    the one quoting function
 *   systemd.c  a .service file
 *   quadlet.c  a .container file and its health check
 *   podman.c   which keys which podman knows
 */
#pragma once

#include "unit.h"

#define UNIT_STOP_MS 90000 /* when nothing is declared: systemd's own limit */

/* "KEY=value\n": value is ours and goes out as it is. */
void unit_key(struct buf *out, const char *key, const char *value);
/* "KEY=word word...\n", each quoted. */
int unit_words(struct buf *out, const char *key, const char *const *words, size_t n, bool commands, struct err *err) BASE_MUST_USE;
/* "KEY=word\n" for each. */
int unit_each(struct buf *out, const char *key, const char *const *words, size_t n, bool commands, struct err *err) BASE_MUST_USE;
/* "KEY=value\n" for keys whose reader takes a value as it stands: quotes would be part of it. Specifiers are escaped, variables too when the value comes to a command. -EINVAL: a value that such a line cannot say. */
int unit_raw(struct buf *out, const char *key, const char *value, bool commands, struct err *err) BASE_MUST_USE;
/* [Unit], after the comment. */
int unit_head(const struct unit_input *in, struct buf *out, struct err *err) BASE_MUST_USE;
/* What [Service] has in both forms: limits of time, restarts, the out-of-memory score. */
void unit_service(const struct unit_input *in, struct buf *out);
void unit_install(const struct unit_input *in, struct buf *out);

int unit_systemd(const struct unit_input *in, struct buf *out, struct err *err) BASE_MUST_USE;
int unit_quadlet(const struct unit_input *in, struct buf *out, struct err *err) BASE_MUST_USE;

/* A version before a.b, when it is known. */
static inline bool unit_before(struct unit_version v, unsigned a, unsigned b)
{
    return (v.major || v.minor) && (v.major < a || (v.major == a && v.minor < b));
}
