/* SPDX-License-Identifier: MIT
 *
 * What berth top shows, from what the supervisor and the router tell.
 */
#include "top_int.h"

#include <errno.h>

#define BAR_MAX 8 /* slots that are drawn one by one */

static const char *const lists[] = {[TOP_REQUESTS] = "requests", [TOP_RECENT] = "recent"};

static json_val list_of(const struct top_data *d, enum top_list which)
{
    return d->requests ? json_get(json_root(d->requests), lists[which]) : NULL;
}

size_t top_count(const struct top_data *d, enum top_list which)
{
    return json_count(list_of(d, which));
}

uint64_t top_id(const struct top_data *d, enum top_list which, size_t i)
{
    return json_get_u64(json_at(list_of(d, which), i), "id");
}

void top_headline(const struct top_data *d, struct buf *out)
{
    char up[UNITS_TEXT], total[UNITS_TEXT];
    json_val s = d->status ? json_root(d->status) : NULL, r = d->requests ? json_root(d->requests) : NULL;
    struct str name = json_get_str(s, "fleet", "-"), state = json_get_str(s, "state", "-");
    buf_addf(out, STR_FMT "  " STR_FMT, STR_ARG(name), STR_ARG(state));
    if (json_get_u64(s, "uptime_ms"))
        buf_addf(out, " %s", units_show_ms(json_get_u64(s, "uptime_ms"), up));
    buf_addf(out, "   %llu under way, %llu waiting, %s served, %llu sent again, %llu errors\n", (unsigned long long)json_get_u64(r, "active"), (unsigned long long)json_get_u64(r, "waiting"),
             units_show_count(json_get_u64(r, "total") - json_get_u64(r, "active"), total), (unsigned long long)json_get_u64(r, "retries"), (unsigned long long)json_get_u64(r, "errors"));
}

/* ---- replicas ------------------------------------------------------------------------------------------------ */

/* The supervisor's word for a service that it runs; for another what the router was told. */
static struct str state_of(const struct top_data *d, json_val replica)
{
    json_val services = d->status ? json_get(json_root(d->status), "services") : NULL;
    struct str name = json_get_str(replica, "name", "-");
    for (size_t i = 0; i < json_count(services); i++) {
        json_val s = json_at(services, i);
        if (str_eq(json_get_str(s, "name", "-"), name) && json_get_bool(s, "drained"))
            return STR("drained");
        if (str_eq(json_get_str(s, "name", "-"), name) && !str_eq_c(json_get_str(s, "state", "-"), "elsewhere"))
            return json_get_str(s, "state", "-");
    }
    return json_get_bool(replica, "ready") ? STR("ready") : STR("not ready");
}

static void slots_cell(struct os_table *t, json_val r)
{
    base_autobuf struct buf bar = BUF_INIT(256);
    uint64_t slots = json_get_u64(r, "slots"), busy = json_get_u64(r, "busy");
    if (!slots) {
        os_table_cell(t, OS_PLAIN, "%llu", (unsigned long long)busy);
        return;
    }
    for (uint64_t i = 0; i < slots && slots <= BAR_MAX; i++)
        buf_add_c(&bar, i < busy ? "\xe2\x96\xa0" : "\xc2\xb7"); /* a full square, a dot */
    os_table_cell(t, busy >= slots ? OS_YELLOW : OS_PLAIN, "%s %llu/%llu", slots <= BAR_MAX && bar.ptr ? bar.ptr : "", (unsigned long long)busy, (unsigned long long)slots);
}

int top_replicas(const struct top_data *d, bool color, struct buf *out)
{
    static const char *const headings[] = {"REPLICA", "STATE", "SLOTS", "QUEUE", "TOKENS/S", "READS/S", "CACHE", "GENERATED"};
    static const enum os_align aligns[] = {OS_LEFT, OS_LEFT, OS_LEFT, OS_RIGHT, OS_RIGHT, OS_RIGHT, OS_RIGHT, OS_RIGHT};
    json_val list = d->requests ? json_get(json_root(d->requests), "replicas") : NULL;
    struct os_table *t = os_table_new(headings, aligns, BASE_COUNT(headings));
    char count[UNITS_TEXT];
    if (!t)
        return -ENOMEM;
    for (size_t i = 0; i < json_count(list); i++) {
        json_val r = json_at(list, i);
        struct str name = json_get_str(r, "name", "-"), state = state_of(d, r);
        bool ready = json_get_bool(r, "ready"), suspect = json_get_bool(r, "suspect");
        os_table_cell(t, OS_BOLD, STR_FMT, STR_ARG(name));
        os_table_cell(t, suspect ? OS_RED : ready ? OS_GREEN : OS_YELLOW, STR_FMT "%s", STR_ARG(state), suspect ? ", suspect" : "");
        slots_cell(t, r);
        os_table_cell(t, OS_PLAIN, "%llu", (unsigned long long)json_get_u64(r, "waiting"));
        os_table_cell(t, OS_PLAIN, "%.1f", json_get_f64(r, "tokens_per_s"));
        if (json_is_null(json_get(r, "prefill_tokens_per_s")))
            os_table_cell(t, OS_DIM, "-");
        else
            os_table_cell(t, OS_PLAIN, "%.0f", json_get_f64(r, "prefill_tokens_per_s"));
        if (json_is_null(json_get(r, "cache_share")))
            os_table_cell(t, OS_DIM, "-");
        else
            os_table_cell(t, OS_PLAIN, "%.0f %%", json_get_f64(r, "cache_share") * 100);
        os_table_cell(t, OS_PLAIN, "%s", units_show_count(json_get_u64(r, "generated_tokens"), count));
    }
    int rc = os_table_text(t, color, out);
    os_table_free(t);
    return rc;
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

static enum os_style phase_style(struct str phase)
{
    if (str_eq_c(phase, "decode") || str_eq_c(phase, "ok"))
        return OS_GREEN;
    if (str_eq_c(phase, "prefill") || str_eq_c(phase, "read"))
        return OS_CYAN;
    return str_eq_c(phase, "error") || str_eq_c(phase, "cut") ? OS_RED : OS_YELLOW;
}

/* Tokens a second, "-" for none. */
static const char *show_rate(double rate, char out[UNITS_TEXT])
{
    if (rate >= 1000)
        return units_show_count((uint64_t)(rate + 0.5), out);
    if (rate <= 0)
        return "-";
    snprintf(out, UNITS_TEXT, "%.1f", rate);
    return out;
}

static void request_row(struct os_table *t, json_val v, enum top_list which, bool with_key)
{
    char ms[UNITS_TEXT], tokens[UNITS_TEXT], rate[UNITS_TEXT];
    struct str key = json_get_str(v, "key", "-"), endpoint = json_get_str(v, "endpoint", "-"), replica = json_get_str(v, "replica", "-"), conversation = json_get_str(v, "conversation", "-");
    struct str phase = json_get_str(v, which == TOP_RECENT ? "outcome" : "phase", "-");
    uint64_t position = json_get_u64(v, "position"), attempts = json_get_u64(v, "attempts");
    os_table_cell(t, OS_BOLD, "%llu", (unsigned long long)json_get_u64(v, "id"));
    os_table_cell(t, OS_PLAIN, STR_FMT, STR_ARG(endpoint));
    os_table_cell(t, OS_PLAIN, STR_FMT "%s", STR_ARG(replica), attempts > 1 ? " *" : "");
    if (position)
        os_table_cell(t, phase_style(phase), STR_FMT " #%llu", STR_ARG(phase), (unsigned long long)position);
    else if (which == TOP_RECENT && str_eq_c(phase, "error") && json_get_u64(v, "status"))
        os_table_cell(t, phase_style(phase), STR_FMT " %llu", STR_ARG(phase), (unsigned long long)json_get_u64(v, "status"));
    else
        os_table_cell(t, phase_style(phase), STR_FMT, STR_ARG(phase));
    os_table_cell(t, OS_PLAIN, "%s", units_show_ms(json_get_u64(v, "ms"), ms));
    os_table_cell(t, OS_PLAIN, "%s", json_get_u64(v, "tokens") ? units_show_count(json_get_u64(v, "tokens"), tokens) : "-");
    os_table_cell(t, OS_PLAIN, "%s", show_rate(json_get_f64(v, "tokens_per_s"), rate));
    os_table_cell(t, OS_DIM, STR_FMT, STR_ARG(conversation));
    if (with_key)
        os_table_cell(t, OS_DIM, STR_FMT, STR_ARG(key));
}

static bool any_key(const struct top_data *d)
{
    struct str key;
    for (enum top_list which = TOP_REQUESTS; which <= TOP_RECENT; which++)
        for (size_t i = 0; i < top_count(d, which); i++)
            if (json_str(json_get(json_at(list_of(d, which), i), "key"), &key))
                return true;
    return false;
}

int top_requests(const struct top_data *d, enum top_list which, size_t max, bool color, struct buf *out)
{
    static const char *const headings[2][9] = {{"REQUEST", "ENDPOINT", "REPLICA", "PHASE", "AGE", "TOKENS", "TOKENS/S", "TALK", "KEY"},
                                               {"ENDED", "ENDPOINT", "REPLICA", "HOW", "TOOK", "TOKENS", "TOKENS/S", "TALK", "KEY"}};
    static const enum os_align aligns[] = {OS_RIGHT, OS_LEFT, OS_LEFT, OS_LEFT, OS_RIGHT, OS_RIGHT, OS_RIGHT, OS_LEFT, OS_LEFT};
    bool with_key = any_key(d);
    struct os_table *t = os_table_new(headings[which], aligns, BASE_COUNT(aligns) - !with_key);
    if (!t)
        return -ENOMEM;
    for (size_t i = 0; i < top_count(d, which) && i < max; i++)
        request_row(t, json_at(list_of(d, which), i), which, with_key);
    int rc = os_table_text(t, color, out);
    os_table_free(t);
    return rc;
}
