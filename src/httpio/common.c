/* SPDX-License-Identifier: MIT
 *
 * What server and client share: the sweep over deadlines, chunks, dates, the body of an error.
 */
#include <errno.h>
#include <time.h>

#include "httpio_int.h"

/* ---- sweep ----------------------------------------------------------------------------------------------- */

static void strike(void *ctx)
{
    struct httpio_sweep *s = ctx;

    s->due = UINT64_MAX;
    s->look(s->ctx);
}

int httpio_sweep_init(struct httpio_sweep *s, struct net_loop *l, void (*look)(void *ctx), void *ctx)
{
    *s = (struct httpio_sweep){.loop = l, .due = UINT64_MAX, .look = look, .ctx = ctx};
    s->timer = net_timer_new(l, strike, s);
    return s->timer ? 0 : -ENOMEM;
}

void httpio_sweep_release(struct httpio_sweep *s)
{
    s->timer = net_timer_close(s->timer);
}

void httpio_sweep_want(struct httpio_sweep *s, uint64_t due)
{
    uint64_t now, delay;

    if (due >= s->due || !s->timer)
        return;
    now = net_loop_now_ms(s->loop);
    delay = due > now ? due - now : 0;
    if (delay < HTTPIO_SWEEP_MS)
        delay = HTTPIO_SWEEP_MS;
    if (now + delay >= s->due)
        return;
    s->due = now + delay;
    net_timer_start(s->timer, delay, 0);
}

/* ---- text ------------------------------------------------------------------------------------------------ */

void httpio_error_body(struct buf *out, const char *message, const char *type, unsigned code)
{
    base_autobuf struct buf shown = BUF_INIT((size_t)4 * ERR_TEXT_MAX);

    buf_add_printable(&shown, str_of(message), ERR_TEXT_MAX);
    buf_add_c(out, "{\"error\":{\"message\":");
    buf_add_quoted(out, buf_str(&shown));
    buf_addf(out, ",\"type\":\"%s\",\"code\":%u}}", type, code);
}

const char *httpio_date(uint64_t real_s, char out[HTTPIO_DATE])
{
    /* Not strftime: its names follow the locale. */
    static const char days[7][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char months[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    time_t when = (time_t)real_s;
    struct tm tm = {0};

    (void)gmtime_r(&when, &tm);
    (void)snprintf(out, HTTPIO_DATE, "%s, %02u %s %04u %02u:%02u:%02u GMT", days[tm.tm_wday], (unsigned)tm.tm_mday % 100, months[tm.tm_mon],
                   (unsigned)(tm.tm_year + 1900) % 10000, (unsigned)tm.tm_hour % 100, (unsigned)tm.tm_min % 100, (unsigned)tm.tm_sec % 100);
    return out;
}

bool httpio_field_ours(struct str name)
{
    switch (name.len) {
    case sizeof("connection") - 1:
        return str_eq_nocase(name, STR("connection"));
    case sizeof("content-length") - 1:
        return str_eq_nocase(name, STR("content-length"));
    case sizeof("transfer-encoding") - 1:
        return str_eq_nocase(name, STR("transfer-encoding"));
    default:
        return false;
    }
}

size_t httpio_chunk(struct str data, char line[HTTP_CHUNK_LINE], struct str parts[3])
{
    parts[0] = (struct str){line, http_chunk_line(data.len, line)};
    parts[1] = data;
    parts[2] = STR(HTTP_CHUNK_END);
    return 3;
}
