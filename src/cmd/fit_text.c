/* SPDX-License-Identifier: MIT
 *
 * berth fit for people: for each machine a bar per device and the verdict, for each service its terms per device, and everything that the figures are to be read with. A figure carries its mark: "=" exact by law, "*" measured, "~" estimated, "?" not predicted, "<" a ceiling.
 */
#include "fit_int.h"

#include <inttypes.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define BAR_MIN 24u
#define BAR_MAX 110u
#define INDENT_MAX 40u
#define TERM_COLUMNS 18u   /* of the terms' names in a table, and of a device's figures */
#define DEVICE_COLUMNS 14u

/* A ceiling starts empty and is counted full. */
static bool is_ceiling(const struct fit_amount *a)
{
    return a->low == 0 && a->high == a->bytes && a->known == FIT_EXACT;
}

static char mark_of(const struct fit_amount *a)
{
    return is_ceiling(a) ? '<' : fit_mark(a->known);
}

/* ---- the view ------------------------------------------------------------------------------------------------------------ */

bool fit_view_need(const struct fit_view *v, const struct check_need *n)
{
    return !v->only || n->service == v->only;
}

bool fit_view_machine(const struct fit_view *v, const struct check_machine *m)
{
    if (v->only)
        return v->only->host == m->host;
    for (size_t i = 0; i < v->plan->n_needs; i++)
        if (v->plan->needs[i].machine == m)
            return true;
    return false;
}

bool fit_view_fits(const struct fit_view *v)
{
    for (size_t i = 0; i < v->plan->n_needs; i++) {
        const struct check_need *n = &v->plan->needs[i];
        if (fit_view_need(v, n) && n->why && (n->broken || n->missing))
            return false;
    }
    for (size_t i = 0; i < v->plan->n_machines; i++)
        if (fit_view_machine(v, &v->plan->machines[i]) && !v->plan->machines[i].fits)
            return false;
    return true;
}

/* ---- small texts ----------------------------------------------------------------------------------------------------------- */

/* Text beside a word of WORD columns or a name: later lines begin where the first does, unless that is too far to the right. */
static void add_wrapped(struct buf *out, const char *text, unsigned indent, unsigned width)
{
    cmd_add_wrapped_within(out, str_of(text), indent, indent <= INDENT_MAX ? indent : 4, "", width);
    buf_add_char(out, '\n');
}

void fit_table_add(struct os_table *t, bool color, const char *const *below, unsigned width, struct buf *out)
{
    base_autobuf struct buf text = BUF_INIT(1 << 20);
    if (!t || os_table_text(t, color, &text) < 0) {
        buf_fail(out, -ENOMEM);
        os_table_free(t);
        return;
    }
    os_table_free(t);
    struct str rest = buf_str(&text);
    for (size_t row = 0; rest.len; row++) {
        struct str line = str_split(&rest, '\n');
        buf_addf(out, "%s", line.len ? "  " : "");
        buf_add_str(out, line);
        buf_add_char(out, '\n');
        if (below && row > 0 && below[row - 1]) {
            buf_add_c(out, "       ");
            cmd_add_wrapped_within(out, str_of(below[row - 1]), 7, 7, "", width);
            buf_add_char(out, '\n');
        }
    }
}

static void add_split(const struct check_need *n, struct buf *out)
{
    const struct fit_shape *s = &n->shape;
    if (n->input.n_devices < 2 || s->n_split == 0)
        return;
    /* berth's own shares by memory are no numbers that a person wrote */
    if (n->service->shape.split_auto) {
        buf_add_c(out, ", split by memory");
        return;
    }
    buf_add_c(out, ", split ");
    for (size_t i = 0; i < s->n_split; i++)
        buf_addf(out, "%s%.9g", i ? "," : "", s->split[i]);
}

static void add_pool(const struct check_need *n, struct buf *out)
{
    const struct fit_vllm_result *p = n->pool;
    char tokens[FIT_NUMBER], length[FIT_NUMBER];
    if (p->pool_tokens)
        buf_addf(out, "a pool of %s tokens holds %.2f contexts of %s", units_show_count(p->pool_tokens, tokens), p->contexts, units_show_count(n->result->n_ctx_seq, length));
    else
        buf_addf(out, "contexts of %s tokens, a pool of %s GiB whose price a token is not declared", units_show_count(n->result->n_ctx_seq, length), fit_gib(p->kv_bytes, tokens));
    buf_addf(out, ", utilization %.2f of at most %.2f", p->utilization, p->utilization_ceiling);
    if (p->arena_slots)
        buf_addf(out, ", %s expert slots", units_show_count(p->arena_slots, tokens));
}

void fit_shape_text(const struct check_need *n, struct buf *out)
{
    const struct fit_shape *s = &n->shape;
    const struct fit_result *r = n->result;
    char all[FIT_NUMBER], one[FIT_NUMBER];
    if (n->pool) {
        add_pool(n, out);
        return;
    }
    uint32_t np = s->slots;
    if (np == 1)
        buf_addf(out, "1 slot of %s tokens", units_show_count(r->n_ctx_seq, one));
    else
        buf_addf(out, "%u slots of %s tokens (%s in all%s)", np, units_show_count(r->n_ctx_seq, one), units_show_count(r->n_ctx, all), s->unified ? ", shared" : "");
    if (s->k_type == s->v_type)
        buf_addf(out, ", %s KV", s->k_type->name);
    else
        buf_addf(out, ", %s K, %s V", s->k_type->name, s->v_type->name);
    buf_addf(out, ", ubatch %s", units_show_count(r->n_ubatch, one));
    add_split(n, out);
    for (size_t i = 0; i < n->service->shape.n_speculative; i++)
        buf_addf(out, ", %s", n->service->shape.speculative[i]);
    if (s->cpu_moe == UINT32_MAX)
        buf_add_c(out, ", experts on the CPU");
    else if (s->cpu_moe)
        buf_addf(out, ", experts of %u layers on the CPU", s->cpu_moe);
}

void fit_verdict(const struct check_machine *m, struct buf *out)
{
    size_t d = (size_t)m->binds;
    int64_t over = m->left[d] - (int64_t)check_floor(m, d);
    char left[FIT_NUMBER], floor[UNITS_TEXT], gap[UNITS_TEXT], slack[UNITS_TEXT];
    const char *fits = m->turns ? "fits in turns" : "fits", *fails = m->turns ? "does not fit even in turns" : "does not fit";
    if (!m->planned) {
        buf_add_c(out, "nothing is planned");
        return;
    }
    if (over < 0)
        buf_addf(out, "%s: %s is %s short", fails, check_device_name(m, d), fit_signed(-over, left));
    else if (m->slack_bytes && m->gap_bytes > m->slack_bytes)
        buf_addf(out, "%s: the gap between devices is %s, the slack %s", fails, units_show_bytes(m->gap_bytes, gap), units_show_bytes(m->slack_bytes, slack));
    else if (!m->fits)
        buf_add_c(out, "does not fit: the engine would refuse it ('refused' says why)");
    else
        buf_addf(out, "%s: %s is tightest with %s left", fits, check_device_name(m, d), fit_signed(over, left));
    if (over >= 0 && check_floor(m, d))
        buf_addf(out, " over its floor of %s", units_show_bytes(check_floor(m, d), floor));
    else if (over < 0 && check_floor(m, d))
        buf_addf(out, " of its floor of %s", units_show_bytes(check_floor(m, d), floor));
    if (m->n_devices > 1)
        buf_addf(out, "; gap between devices %s", units_show_bytes(m->gap_bytes, gap));
}

/* ---- a machine --------------------------------------------------------------------------------------------------------------- */

static size_t name_width(const struct check_machine *m)
{
    size_t width = 3;
    for (size_t d = 0; d < m->n_devices; d++)
        width = strlen(m->devices[d].name) > width ? strlen(m->devices[d].name) : width;
    return width;
}

static void add_bars(const struct fit_view *v, const struct check_machine *m, struct buf *out)
{
    size_t names = name_width(m);
    unsigned rest = (unsigned)names + 2 + 2 + 2 + 42;
    unsigned width = v->width > rest + BAR_MIN ? v->width - rest : BAR_MIN;
    width = width < BAR_MAX ? width : BAR_MAX;
    for (size_t d = 0; d <= m->n_devices; d++) {
        char used[FIT_NUMBER], free[FIT_NUMBER], left[FIT_NUMBER];
        if (!fit_shows_device(m, d))
            continue;
        buf_addf(out, "  %-*s  ", (int)names, check_device_name(m, d));
        if (check_free(m, d) >= FIT_BYTES_MAX) {
            buf_addf(out, "%s GiB used, how much there is is not declared\n", fit_gib(m->used[d], used));
            continue;
        }
        fit_bar(v, m, d, width, out);
        bool low = m->left[d] < (int64_t)check_floor(m, d);
        buf_addf(out, " %6s of %s GiB%s, %s%s left %c%s\n", fit_gib(m->used[d], used), fit_gib(check_free(m, d), free), m->live ? " free" : "", os_style_on(OS_RED, v->color && low), fit_signed(m->left[d], left),
                 fit_mark(fit_known_device(v->plan, m, d)), os_style_off(OS_RED, v->color && low));
    }
}

static void add_machine(const struct fit_view *v, const struct check_machine *m, struct buf *out)
{
    base_autobuf struct buf verdict = BUF_INIT(4096);
    fit_verdict(m, &verdict);
    buf_addf(out, "%s%s%s: ", os_style_on(OS_BOLD, v->color), m->host->name, os_style_off(OS_BOLD, v->color));
    buf_add_c(out, os_style_on(m->fits ? OS_GREEN : OS_RED, v->color));
    add_wrapped(out, verdict.ptr ? verdict.ptr : "", (unsigned)strlen(m->host->name) + 2, v->width);
    buf_add_c(out, os_style_off(OS_GREEN, v->color));
    if (m->planned)
        add_bars(v, m, out);
    for (size_t i = 0; i < m->n_notes; i++) {
        buf_add_c(out, "  note     ");
        add_wrapped(out, m->notes[i], 11, v->width);
    }
}

/* ---- a service ----------------------------------------------------------------------------------------------------------------- */

static bool term_used(const struct check_need *n, int t)
{
    for (size_t d = 0; d <= n->machine->n_devices; d++) {
        const struct fit_use *u = check_use(n, d);
        if (u && u->terms[t].high)
            return true;
    }
    return false;
}

static void add_cell(struct os_table *t, const struct fit_amount *a)
{
    char text[UNITS_TEXT];
    if (a && a->high)
        os_table_cell(t, a->known >= FIT_ESTIMATE ? OS_YELLOW : a->known == FIT_MEASURED ? OS_CYAN : OS_PLAIN, "%s %c", units_show_bytes(a->bytes, text), mark_of(a));
    else
        os_table_cell(t, OS_PLAIN, "-  ");
}

/* Devices of one block of a table that would be too wide; the host's memory is the last one. */
struct range {
    size_t from, to;
};

static void add_rows(struct os_table *t, const struct check_need *n, struct range r)
{
    const struct check_machine *m = n->machine;
    for (int term = 0; term < FIT_TERMS; term++) {
        if (!term_used(n, term))
            continue;
        os_table_cell(t, OS_PLAIN, "%s", fit_term_text((enum fit_term)term));
        for (size_t d = r.from; d < r.to; d++) {
            const struct fit_use *u = check_use(n, d);
            if (fit_shows_device(m, d))
                add_cell(t, u ? &u->terms[term] : NULL);
        }
    }
}

enum row { ROW_USED, ROW_MAPPED, ROW_LAYERS };

static void add_sum(struct os_table *t, const char *name, const struct check_need *n, struct range r, enum row row, enum os_style style)
{
    const struct check_machine *m = n->machine;
    os_table_cell(t, style, "%s", name);
    for (size_t d = r.from; d < r.to; d++) {
        const struct fit_use *u = check_use(n, d);
        char text[UNITS_TEXT];
        if (!fit_shows_device(m, d))
            continue;
        if (row == ROW_LAYERS)
            os_table_cell(t, style, "%u  ", u ? u->n_layers : 0);
        else if (row == ROW_USED)
            os_table_cell(t, style, "%s %c", units_show_bytes(u ? u->used : 0, text), u ? fit_mark(fit_known_use(u)) : ' ');
        else if (u && u->mapped_bytes)
            os_table_cell(t, style, "%s =", units_show_bytes(u->mapped_bytes, text));
        else
            os_table_cell(t, style, "-  ");
    }
}

/* What devices take of the host's memory, where their pool is that. */
static uint64_t shared_bytes(const struct check_machine *m)
{
    uint64_t sum = 0;
    for (size_t d = 0; d < m->n_devices; d++)
        sum += m->devices[d].shared && m->used[d] < FIT_BYTES_MAX ? m->used[d] : 0;
    return sum;
}

static void add_shared(struct os_table *t, const struct check_machine *m, struct range r)
{
    char text[UNITS_TEXT];
    os_table_cell(t, OS_PLAIN, "shared pool");
    for (size_t d = r.from; d < r.to && d < m->n_devices; d++)
        os_table_cell(t, OS_PLAIN, "-  ");
    if (r.to > m->n_devices && fit_shows_device(m, m->n_devices))
        os_table_cell(t, OS_PLAIN, "%s  ", units_show_bytes(shared_bytes(m), text));
}

static void add_machine_rows(const struct check_plan *p, struct os_table *t, const struct check_machine *m, struct range r, bool shared)
{
    const char *const names[] = {m->turns ? "most at once" : "all services", "free", "floor", "left"};
    for (size_t row = shared ? 0 : 1; row < BASE_COUNT(names); row++) {
        os_table_cell(t, row == 3 ? OS_BOLD : OS_DIM, "%s", names[row]);
        for (size_t d = r.from; d < r.to; d++) {
            char text[FIT_NUMBER];
            bool open = check_free(m, d) >= FIT_BYTES_MAX;
            if (!fit_shows_device(m, d))
                continue;
            const int64_t figures[] = {(int64_t)m->used[d], (int64_t)check_free(m, d), (int64_t)check_floor(m, d), m->left[d]};
            bool low = m->left[d] < (int64_t)check_floor(m, d);
            if (open && (row == 1 || row == 3))
                os_table_cell(t, OS_DIM, "?  ");
            else
                os_table_cell(t, row != 3 ? OS_DIM : low ? OS_RED : OS_BOLD, "%s %c", fit_signed(figures[row], text), row == 0 || row == 3 ? fit_mark(fit_known_device(p, m, d)) : ' ');
        }
    }
}

static bool maps(const struct check_need *n)
{
    const struct fit_use *u = check_use(n, n->machine->n_devices);
    return u && u->mapped_bytes > 0;
}

static size_t services_on(const struct check_plan *p, const struct check_machine *m)
{
    size_t count = 0;
    for (size_t i = 0; i < p->n_needs; i++)
        count += p->needs[i].machine == m;
    return count;
}

static void add_block(const struct fit_view *v, const struct check_need *n, struct range r, struct buf *out)
{
    const struct check_machine *m = n->machine;
    const char *headings[FIT_DEVICES_MAX + 2] = {"TERM"};
    enum os_align aligns[FIT_DEVICES_MAX + 2] = {OS_LEFT};
    char names[FIT_DEVICES_MAX + 1][64];
    size_t columns = 1;
    for (size_t d = r.from; d < r.to; d++) {
        if (!fit_shows_device(m, d))
            continue;
        (void)snprintf(names[d], sizeof(names[d]), "%s  ", check_device_name(m, d));
        headings[columns] = names[d];
        aligns[columns++] = OS_RIGHT;
    }
    struct os_table *t = os_table_new(headings, aligns, columns);
    if (t) {
        add_rows(t, n, r);
        add_sum(t, "used", n, r, ROW_USED, OS_BOLD);
        if (shared_bytes(m))
            add_shared(t, m, r);
        add_machine_rows(v->plan, t, m, r, services_on(v->plan, m) > 1);
        if (maps(n) && r.to > m->n_devices)
            add_sum(t, "mapped", n, r, ROW_MAPPED, OS_DIM);
        add_sum(t, "layers", n, r, ROW_LAYERS, OS_DIM);
    }
    fit_table_add(t, v->color, NULL, v->width, out);
}

static void add_terms(const struct fit_view *v, const struct check_need *n, struct buf *out)
{
    size_t all = n->machine->n_devices + fit_shows_device(n->machine, n->machine->n_devices);
    size_t block = v->width > TERM_COLUMNS + 2 * DEVICE_COLUMNS ? (v->width - TERM_COLUMNS) / DEVICE_COLUMNS : 2;
    for (size_t from = 0; from < all; from += block)
        add_block(v, n, (struct range){from, from + block < all ? from + block : all}, out);
}

/* What an estimate may be, and what an exact figure may grow to. */
static void add_intervals(const struct fit_view *v, const struct check_need *n, struct buf *out)
{
    const struct check_machine *m = n->machine;
    base_autobuf struct buf text = BUF_INIT(1 << 16);
    for (int t = 0; t < FIT_TERMS; t++) {
        bool named = false;
        for (size_t d = 0; d <= m->n_devices; d++) {
            const struct fit_use *u = check_use(n, d);
            const struct fit_amount *a = u ? &u->terms[t] : NULL;
            char low[UNITS_TEXT], high[UNITS_TEXT];
            if (!a || (a->low == a->bytes && a->high == a->bytes) || is_ceiling(a))
                continue;
            if (!named)
                buf_addf(&text, "%s%s ", text.len ? "; " : "", fit_term_text((enum fit_term)t));
            buf_addf(&text, "%s%s to %s on %s", named ? ", " : "", units_show_bytes(a->low, low), units_show_bytes(a->high, high), check_device_name(m, d));
            named = true;
        }
    }
    if (!text.len || buf_status(&text) < 0)
        return;
    buf_add_c(out, "  between  ");
    add_wrapped(out, text.ptr, 11, v->width);
}

static void add_calibration(const struct fit_view *v, const struct check_need *n, struct buf *out)
{
    const struct measure_calibration *c = &n->calibration;
    base_autobuf struct buf text = BUF_INIT(1 << 14);
    double worst = 0;
    if (c->c.n) {
        buf_addf(&text, "%s", c->c.source ? c->c.source : "measured");
        for (size_t i = 0; c->c.compute && i < c->c.n; i++)
            worst = c->c.compute[i].worst_error > worst ? c->c.compute[i].worst_error : worst;
        if (c->c.compute)
            buf_addf(&text, "; compute was off by %.2f %% at the point that was held out%s", worst * 100, c->emulated ? ", on emulated devices" : "");
        if (c->c.extra_bytes)
            buf_addf(&text, "; driver and pools from %u reading%s", c->n_observed, c->n_observed == 1 ? "" : "s");
    }
    if (c->n_stale)
        buf_addf(&text, "%s%u older measurement%s not used: %s", text.len ? "; " : "", c->n_stale, c->n_stale == 1 ? " is" : "s are", c->stale ? c->stale : "the hardware has changed");
    if (!text.len || buf_status(&text) < 0)
        return;
    buf_add_c(out, "  measured ");
    add_wrapped(out, text.ptr, 11, v->width);
}

static void add_speed(const struct fit_view *v, const struct check_need *n, struct arena *a, struct buf *out)
{
    struct fit_speed s;
    base_autobuf struct buf text = BUF_INIT(1 << 14);
    char bytes[UNITS_TEXT], depth[FIT_NUMBER];
    if (n->pool || fit_speed(&n->input, n->result, n->result->n_ctx_seq, a, &s, NULL) < 0 || s.bytes_per_token == 0)
        return;
    buf_addf(&text, "%s are read for a token at a depth of %s", units_show_bytes(s.bytes_per_token, bytes), units_show_count(n->result->n_ctx_seq, depth));
    if (s.decode_tok_s > 0)
        buf_addf(&text, ": at most %.1f tokens/s ~", s.decode_tok_s);
    if (s.assumes && s.assumes[0])
        buf_addf(&text, " (%s)", s.assumes);
    if (buf_status(&text) < 0)
        return;
    buf_add_c(out, "  speed    ");
    add_wrapped(out, text.ptr, 11, v->width);
}

uint64_t fit_saved_slot(const struct check_need *n)
{
    uint64_t target = 0, draft = 0;
    return n->pool || fit_saved_state(&n->input, n->result->n_ctx_seq, &target, &draft, NULL) < 0 ? 0 : target + draft;
}

/* What of a conversation can be kept beside its slot: the ceilings are declared in bytes, and what matters is how many full slots they hold. */
static void add_saved(const struct fit_view *v, const struct check_need *n, struct buf *out)
{
    const struct {
        const char *key;
        uint64_t bytes;
    } places[] = {{"prompt-cache", n->service->shape.prompt_cache_set ? n->service->shape.prompt_cache_bytes : 0}, {"prompt-files", n->service->start == FLEET_ON_DEMAND ? n->service->prompt_files_bytes : 0}};
    base_autobuf struct buf text = BUF_INIT(1024);
    char bytes[UNITS_TEXT], depth[FIT_NUMBER];
    const uint64_t slot = places[0].bytes || places[1].bytes ? fit_saved_slot(n) : 0;
    size_t said = 0;
    if (!slot)
        return;
    buf_addf(&text, "%s for a full slot of %s tokens:", units_show_bytes(slot, bytes), units_show_count(n->result->n_ctx_seq, depth));
    for (size_t i = 0; i < BASE_COUNT(places); i++)
        if (places[i].bytes)
            buf_addf(&text, "%s %s %s holds %llu", said++ ? "," : "", places[i].key, units_show_bytes(places[i].bytes, bytes), (unsigned long long)(places[i].bytes / slot));
    if (buf_status(&text) < 0)
        return;
    buf_add_c(out, "  saved    ");
    add_wrapped(out, text.ptr, 11, v->width);
}

static void add_notes(const struct fit_view *v, const struct check_need *n, struct buf *out)
{
    static const struct {
        const char *word;
        enum os_style style;
    } looks[] = {[FIT_NOTE] = {"note", OS_DIM}, [FIT_WARNING] = {"warning", OS_YELLOW}, [FIT_REFUSED] = {"refused", OS_RED}};
    for (int severity = FIT_REFUSED; severity >= FIT_NOTE; severity--)
        for (size_t i = 0; i < n->result->n_notes; i++) {
            const struct fit_note *note = &n->result->notes[i];
            base_autobuf struct buf text = BUF_INIT(1 << 14);
            if ((int)note->severity != severity)
                continue;
            buf_addf(&text, "%s [%s]", note->text, note->rule);
            buf_addf(out, "  %s%-8s%s ", os_style_on(looks[severity].style, v->color), looks[severity].word, os_style_off(looks[severity].style, v->color));
            add_wrapped(out, buf_status(&text) < 0 ? "" : text.ptr, 11, v->width);
        }
}

static void add_need(const struct fit_view *v, const struct check_need *n, struct buf *out)
{
    buf_addf(out, "\n%s%s%s  ", os_style_on(OS_BOLD, v->color), n->service->name, os_style_off(OS_BOLD, v->color));
    unsigned indent = (unsigned)strlen(n->service->name) + 2;
    if (n->why) {
        base_autobuf struct buf why = BUF_INIT(1 << 14);
        buf_addf(&why, "%s: %s", n->broken ? "cannot be planned" : "not planned", n->why);
        add_wrapped(out, buf_status(&why) < 0 ? n->why : why.ptr, indent, v->width);
        return;
    }
    base_autobuf struct buf shape = BUF_INIT(8192);
    if (n->pool)
        buf_addf(&shape, "%s (vllm)", n->service->model->name);
    else if (n->target->name && n->target->name[0])
        buf_add_printable(&shape, str_of(n->target->name), 60);
    else
        buf_addf(&shape, "%s", n->service->model->name);
    buf_addf(&shape, n->pool ? "%s: " : " (%s): ", n->pool ? "" : n->target->arch);
    fit_shape_text(n, &shape);
    add_wrapped(out, buf_status(&shape) < 0 ? "" : shape.ptr, indent, v->width);
    add_terms(v, n, out);
    add_intervals(v, n, out);
    add_calibration(v, n, out);
    add_speed(v, n, v->plan->arena, out);
    add_saved(v, n, out);
    const char *bad = v->session ? fit_bad_reason(v->session, n) : NULL;
    if (bad) {
        buf_addf(out, "  %s%-8s%s ", os_style_on(OS_RED, v->color), "bad", os_style_off(OS_RED, v->color));
        add_wrapped(out, bad, 11, v->width);
    }
    add_notes(v, n, out);
    fit_add_knobs(v, n, out);
}

static bool any_unpredicted(const struct fit_view *v)
{
    for (size_t i = 0; i < v->plan->n_needs; i++)
        if (fit_view_need(v, &v->plan->needs[i]) && v->plan->needs[i].shape.split_mode >= FIT_SPLIT_ROW)
            return true;
    return false;
}

void fit_text(const struct fit_view *v, struct buf *out)
{
    bool any = false, planned = false;
    for (size_t i = 0; i < v->plan->n_machines; i++) {
        const struct check_machine *m = &v->plan->machines[i];
        if (!fit_view_machine(v, m))
            continue;
        buf_add_c(out, any ? "\n" : "");
        any = true;
        planned = planned || m->planned;
        add_machine(v, m, out);
        for (size_t k = 0; k < v->plan->n_needs; k++)
            if (v->plan->needs[k].machine == m && fit_view_need(v, &v->plan->needs[k]))
                add_need(v, &v->plan->needs[k], out);
    }
    if (!planned)
        return;
    fit_add_families(v, out);
    buf_add_char(out, '\n');
    fit_legend(v, out);
    buf_addf(out, "  = exact by law  * measured  ~ estimated%s  < at most\n", any_unpredicted(v) ? "  ? not predicted" : "");
}
