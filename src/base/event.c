/* SPDX-License-Identifier: MIT
 *
 * What happened, told upwards: the text is made on the stack and lives for the call only, so that telling needs no memory
 * and cannot fail.
 */
#include "base_int.h"

void event_say(const struct event_sink *sink, enum event_level level, const char *subject, const char *fmt, ...)
{
    if (!sink)
        return;
    char text[ERR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    base_vformat(text, sizeof(text), fmt, ap);
    va_end(ap);
    sink->emit(sink->ctx, level, subject, text, 0, 0);
}

void event_progress(const struct event_sink *sink, const char *subject, const char *text, uint64_t done, uint64_t total)
{
    if (sink)
        sink->emit(sink->ctx, EVENT_INFO, subject, text, done, total);
}
