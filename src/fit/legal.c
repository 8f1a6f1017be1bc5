/* SPDX-License-Identifier: MIT
 *
 * Rules: what the engine would refuse, silently do otherwise, or do to its owner's surprise. Each has a stable name and is listed with its reason in docs/fit.md.
 */
#include "fit_int.h"

#include <errno.h>

void fit_note(struct fit_run *x, enum fit_severity severity, const char *rule, const char *fmt, ...)
{
    struct fit_result *r = x->r;
    if (r->n_notes == FIT_NOTES_MAX)
        return;
    const char *text = "";
    if (x->a) {
        base_autobuf struct buf b = BUF_INIT(ERR_TEXT_MAX);
        va_list ap;
        va_start(ap, fmt);
        buf_addv(&b, fmt, ap);
        va_end(ap);
        text = buf_status(&b) == -ENOMEM ? NULL : arena_dup(x->a, buf_str(&b));
        if (!text) {
            x->failed = -ENOMEM;
            return;
        }
    }
    r->notes[r->n_notes++] = (struct fit_note){severity, rule, text};
}

void fit_legal(struct fit_run *x)
{
    (void)x;
}
