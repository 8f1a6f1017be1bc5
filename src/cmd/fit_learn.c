/* SPDX-License-Identifier: MIT
 *
 * berth fit --measure, --observe, --explain-log, --known-bad, --not-bad: where the plan meets the engine. What is learnt goes into the ledger, under the build, the model's headers and the hardware that it belongs to.
 */
#include "fit_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOG_MAX ((size_t)64 << 20) /* a log is cut at half of that */

static int no_memory(void)
{
    return cmd_failf(CMD_FAILED, "out of memory");
}

/* Opens or makes the ledger and plans again with it, so that keys are there. *need becomes the same service's in the new plan. */
static int with_ledger(struct fit_session *s, const char *service, struct check_need **ret)
{
    bool had = s->ledger != NULL;
    *ret = fit_session_need(s, service);
    int code = fit_session_ledger(s, true);
    if (code == CMD_OK && !had) {
        s->options.ledger = s->ledger;
        code = fit_session_plan(s);
    }
    if (code != CMD_OK)
        return code;
    *ret = fit_session_need(s, service);
    if (!*ret)
        return cmd_failf(CMD_FAILED, "there is no service '%s'", service);
    if ((*ret)->why)
        return cmd_failf(CMD_FAILED, "service '%s': %s", service, (*ret)->why);
    const char *why = ledger_read_only(s->ledger);
    return why ? cmd_failf(CMD_FAILED, "the ledger cannot be written: %s", why) : CMD_OK;
}

/* ---- measure ----------------------------------------------------------------------------------------------------------------------- */

static void show_progress(void *ctx, enum event_level level, const char *subject, const char *text, uint64_t done, uint64_t total)
{
    if (level >= EVENT_WARN)
        os_progress_say(ctx, level == EVENT_ERROR ? OS_RED : OS_YELLOW, "%s: %s", subject, text);
    else
        os_progress_set(ctx, subject, text, done, total, OS_PLAIN);
}

static int measure(struct fit_session *s, struct check_need *n, struct os_progress *progress, struct measure_compute *ret)
{
    base_autobuf struct buf folder = BUF_INIT(8192);
    struct err err;
    buf_addf(&folder, "%s/measure", s->dirs.state);
    if (buf_status(&folder) < 0)
        return no_memory();
    if (os_make_dirs(folder.ptr, 0755, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    const struct event_sink sink = {.emit = show_progress, .ctx = progress};
    const struct measure_lab lab = {.store = s->store, .runtime = n->runtime, .folder = folder.ptr, .ledger = s->ledger, .sink = &sink};
    const struct measure_range around = {.ub_min = 0};
    /* the engine's own figures, whatever was measured before */
    struct fit_input in = n->input;
    in.calibration = NULL;
    return measure_compute(&lab, &n->key, &in, &n->files, &around, ret, &err) < 0 ? cmd_failf(CMD_FAILED, "service '%s': %s", n->service->name, err.text) : CMD_OK;
}

int fit_measure(struct fit_session *s, const struct fit_question *q)
{
    struct check_need *n = NULL;
    struct measure_compute *m = calloc(1, sizeof(*m));
    struct os_progress *progress = os_progress_new(STDERR_FILENO, &clk_system);
    int code = m && progress ? with_ledger(s, q->need->service->name, &n) : no_memory();
    if (code == CMD_OK && n && !n->runtime)
        code = cmd_failf(CMD_FAILED, "runtime '%s' is not installed here, so there is no engine to ask: 'berth runtime add'", n->service->runtime->name);
    if (code == CMD_OK && n)
        code = measure(s, n, progress, m);
    if (code == CMD_OK && n) {
        char text[160];
        (void)snprintf(text, sizeof(text), "%zu points measured%s, off by %.2f %% at the one held out", m->n_points, m->emulated ? " on emulated devices" : "", m->worst_error * 100);
        os_progress_set(progress, n->service->name, text, 0, 0, m->worst_error <= MEASURE_GOOD * 2 ? OS_GREEN : OS_YELLOW);
    }
    os_progress_free(progress);
    free(m);
    return code == CMD_OK ? fit_session_plan(s) : code;
}

/* ---- observe ------------------------------------------------------------------------------------------------------------------------ */

static json_val status_of(const struct fit_session *s, const char *service)
{
    json_val services = s->status ? json_get(json_root(s->status), "services") : NULL;
    for (size_t i = 0; i < json_count(services); i++) {
        struct str name;
        if (json_str(json_get(json_at(services, i), "name"), &name) && str_eq_c(name, service))
            return json_at(services, i);
    }
    return NULL;
}

/* Requests that an engine has finished since its last start, by its log; the proof of readiness is one. */
static bool had_traffic(struct str log)
{
    size_t n = 0;
    for (struct str rest = log; rest.ptr && n < 2;) {
        struct str line = str_split(&rest, '\n');
        if (str_find(line, STR("stop processing")) >= 0)
            n++;
        else if (str_find(line, STR("loading model")) >= 0)
            n = 0;
    }
    return n >= 2;
}

/* What the engine's process holds, of the plan's devices in order and then the host. */
static int read_process(const struct check_need *n, pid_t pid, uint64_t ret[FIT_DEVICES_MAX + 1], struct err *err)
{
    struct hw_reader *reader = NULL;
    struct hw hw;
    struct os_mem mem;
    size_t devices = n->input.n_devices;
    for (size_t d = 0; d <= devices; d++)
        ret[d] = UINT64_MAX;
    if (os_proc_mem(pid, &mem) == 0)
        ret[devices] = mem.rss_anon_bytes;
    int r = hw_open(getenv("BERTH_HW_ROOT"), &reader, err);
    if (r == 0)
        r = hw_read(reader, &hw, err);
    if (r == 0) {
        uint64_t bytes[HW_DEVICES_MAX] = {0};
        bool known[HW_DEVICES_MAX] = {0};
        hw_process(reader, &hw, pid, bytes, known);
        for (size_t d = 0; d < devices; d++) {
            int k = n->machine->card[d];
            if (k >= 0 && (size_t)k < hw.n_devices && known[k])
                ret[d] = bytes[k];
        }
    }
    hw_close(reader);
    return r;
}

static void add_observed(const struct check_need *n, const struct fit_result *r, const struct measure_observed *o, const uint64_t used[FIT_DEVICES_MAX + 1], const struct fit_view *v, struct buf *out)
{
    static const char *const headings[] = {"DEVICE", "PLANNED", "READ", "DRIVER AND POOLS", "COMPUTE READ"};
    static const enum os_align aligns[] = {OS_LEFT, OS_RIGHT, OS_RIGHT, OS_RIGHT, OS_RIGHT};
    struct os_table *t = os_table_new(headings, aligns, BASE_COUNT(headings));
    for (size_t d = 0; t && d <= n->input.n_devices; d++) {
        char text[UNITS_TEXT], sign[FIT_NUMBER];
        os_table_cell(t, OS_PLAIN, "%s", check_device_name(n->machine, d < n->input.n_devices ? d : n->machine->n_devices));
        os_table_cell(t, OS_PLAIN, "%s", units_show_bytes(r->use[d].used, text));
        if (used[d] == UINT64_MAX)
            os_table_cell(t, OS_DIM, "?");
        else
            os_table_cell(t, OS_PLAIN, "%s", units_show_bytes(used[d], text));
        if (o->extra_known[d])
            os_table_cell(t, OS_PLAIN, "%s", fit_signed(o->extra_bytes[d], sign));
        else
            os_table_cell(t, OS_DIM, "?");
        if (o->compute_known)
            os_table_cell(t, OS_PLAIN, "%s", units_show_bytes(o->compute[d], text));
        else
            os_table_cell(t, OS_DIM, "?");
    }
    fit_table_add(t, v->color, NULL, v->width, out);
}

static void put_known(struct json_out *o, const char *key, bool known, double v)
{
    if (known)
        json_out_i64(o, key, (int64_t)v);
    else
        json_out_null(o, key);
}

static void put_observed(const struct check_need *n, const struct fit_result *r, const struct measure_observed *ob, enum ledger_tag tag, const uint64_t used[FIT_DEVICES_MAX + 1], struct json_out *o)
{
    json_out_obj(o, NULL);
    json_out_cstr(o, "service", n->service->name);
    json_out_cstr(o, "tag", ledger_tag_text(tag));
    json_out_arr(o, "devices");
    for (size_t d = 0; d <= n->input.n_devices; d++) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "device", check_device_name(n->machine, d < n->input.n_devices ? d : n->machine->n_devices));
        json_out_u64(o, "planned", r->use[d].used);
        put_known(o, "read", used[d] != UINT64_MAX, (double)used[d]);
        put_known(o, "driver_and_pools", ob->extra_known[d], (double)ob->extra_bytes[d]);
        put_known(o, "compute_read", ob->compute_known, (double)ob->compute[d]);
        json_out_end(o);
    }
    json_out_end(o);
    json_out_end(o);
}

/* Where observations go: text, or an array of JSON. */
struct observed_out {
    struct buf *text;
    struct json_out *json;
};

/* One running service: its log and its memory against a plan that knows nothing of measurements. */
static int observe_one(struct fit_session *s, const struct fit_question *q, struct check_need *n, pid_t pid, const char *log_path, struct observed_out *out)
{
    base_autobuf struct buf log = BUF_INIT(LOG_MAX);
    struct measure_seen *seen = calloc(1, sizeof(*seen));
    struct fit_result *r = calloc(1, sizeof(*r));
    struct measure_observed observed = {.n = 0};
    uint64_t used[FIT_DEVICES_MAX + 1];
    struct err err;
    struct fit_input in = n->input;
    in.calibration = NULL;
    if (!seen || !r) {
        free(seen);
        free(r);
        return no_memory();
    }
    int e = os_read_file(AT_FDCWD, log_path, &log, &err);
    if (e == 0)
        e = fit_predict(&in, s->plan->arena, r, &err);
    if (e == 0)
        e = measure_read_log(n->service->runtime->engine, &in, buf_str(&log), seen, &err);
    if (e == 0)
        e = read_process(n, pid, used, &err);
    if (e == 0) {
        const struct measure_observation o = {.seen = seen, .used_bytes = used, .tag = had_traffic(buf_str(&log)) ? LEDGER_AFTER_TRAFFIC : LEDGER_AFTER_LOAD};
        /* how full the prompt cache is nobody tells, so what is left over in the host's memory cannot be either */
        const struct fit_amount *host = r->use[n->input.n_devices].terms;
        if (o.tag == LEDGER_AFTER_TRAFFIC && (host[FIT_PROMPT_CACHE].bytes || host[FIT_CHECKPOINTS].bytes))
            used[n->input.n_devices] = UINT64_MAX;
        e = measure_observe(s->ledger, &n->key, &in, r, &o, clk_system.real_us(clk_system.ctx), &observed, &err);
        if (e == 0 && out->json)
            put_observed(n, r, &observed, o.tag, used, out->json);
        else if (e == 0) {
            buf_addf(out->text, "%s: %s, kept in the ledger\n", n->service->name, ledger_tag_text(o.tag));
            add_observed(n, r, &observed, used, &q->view, out->text);
        }
    }
    free(seen);
    free(r);
    return e < 0 ? cmd_failf(CMD_FAILED, "service '%s': %s", n->service->name, err.text) : CMD_OK;
}

/* Every ready service that was asked for. */
static int observe_all(struct fit_session *s, const struct fit_question *q, struct observed_out *out)
{
    size_t n_seen = 0;
    int code = CMD_OK;
    for (size_t i = 0; i < s->fleet->n_services && code == CMD_OK; i++) {
        const char *name = s->fleet->services[i].name;
        json_val status = status_of(s, name);
        struct check_need *n = NULL;
        struct str state, log;
        uint64_t pid;
        if ((q->only && q->only != &s->fleet->services[i]) || !json_str(json_get(status, "state"), &state) || !str_eq_c(state, "ready"))
            continue;
        if (!json_u64(json_get(status, "pid"), &pid) || !json_str(json_get(status, "log"), &log))
            continue;
        code = with_ledger(s, name, &n);
        base_autofree char *path = str_dup(log);
        if (code == CMD_OK && n)
            code = path ? observe_one(s, q, n, (pid_t)pid, path, out) : no_memory();
        n_seen++;
    }
    if (code == CMD_OK && !n_seen)
        return cmd_failf(CMD_FAILED, q->only ? "service '%s' is not ready here: 'berth up -d' starts it" : "no service of fleet '%s' is ready here: 'berth up -d' starts them", q->only ? q->only->name : s->fleet->name);
    return code;
}

int fit_observe(struct fit_session *s, const struct fit_question *q)
{
    base_autobuf struct buf text = BUF_INIT(1 << 20);
    struct observed_out out = {.text = &text, .json = q->json ? json_out_new() : NULL};
    if (q->json && !out.json)
        return no_memory();
    if (out.json)
        json_out_arr(out.json, NULL);
    int code = observe_all(s, q, &out), printed = CMD_OK;
    if (out.json)
        json_out_end(out.json);
    if (out.json && code == CMD_OK)
        return fit_print_json(out.json);
    if (out.json)
        json_out_free(out.json);
    else
        printed = buf_status(&text) < 0 ? no_memory() : cmd_print(buf_str(&text));
    return code == CMD_OK ? printed : code;
}

/* ---- explain a log --------------------------------------------------------------------------------------------------------------------- */

static void add_difference(struct os_table *t, const struct measure_difference *d)
{
    static const enum os_style styles[] = {[MEASURE_EXACT] = OS_GREEN, [MEASURE_WITHIN] = OS_PLAIN, [MEASURE_OFF] = OS_RED};
    char text[UNITS_TEXT], sign[FIT_NUMBER];
    os_table_cell(t, OS_PLAIN, "%s", d->name);
    os_table_cell(t, OS_PLAIN, "%s", fit_term_text(d->term));
    os_table_cell(t, OS_PLAIN, "%s", units_show_bytes(d->predicted, text));
    os_table_cell(t, OS_PLAIN, "%s", units_show_bytes(d->logged, text));
    os_table_cell(t, OS_PLAIN, "%s", fit_signed((int64_t)d->logged - (int64_t)d->predicted, sign));
    os_table_cell(t, styles[d->verdict], "%s", measure_verdict_text(d->verdict));
}

static void put_difference(struct json_out *o, const struct measure_difference *d)
{
    json_out_obj(o, NULL);
    json_out_cstr(o, "device", d->name);
    json_out_cstr(o, "term", fit_term_text(d->term));
    json_out_u64(o, "predicted", d->predicted);
    json_out_u64(o, "low", d->low);
    json_out_u64(o, "high", d->high);
    json_out_u64(o, "logged", d->logged);
    json_out_u64(o, "tolerance", d->tolerance);
    json_out_cstr(o, "verdict", measure_verdict_text(d->verdict));
    json_out_end(o);
}

static int print_comparison(const struct fit_question *q, const struct measure_comparison *c)
{
    static const char *const headings[] = {"BUFFER", "TERM", "PLANNED", "LOG", "DIFFERENCE", ""};
    static const enum os_align aligns[] = {OS_LEFT, OS_LEFT, OS_RIGHT, OS_RIGHT, OS_RIGHT, OS_LEFT};
    if (q->json) {
        struct json_out *o = json_out_new();
        if (!o)
            return no_memory();
        json_out_obj(o, NULL);
        json_out_cstr(o, "service", q->need->service->name);
        json_out_u64(o, "off", c->n_off);
        json_out_cstr(o, "shape", c->shape);
        json_out_arr(o, "terms");
        for (size_t i = 0; i < c->n; i++)
            put_difference(o, &c->rows[i]);
        json_out_end(o);
        json_out_end(o);
        return fit_print_json(o);
    }
    base_autobuf struct buf out = BUF_INIT(1 << 20);
    if (c->shape)
        buf_addf(&out, "the log is of another shape: %s\n", c->shape);
    struct os_table *t = os_table_new(headings, aligns, BASE_COUNT(headings));
    for (size_t i = 0; t && i < c->n; i++)
        add_difference(t, &c->rows[i]);
    fit_table_add(t, q->view.color, NULL, q->view.width, &out);
    return buf_status(&out) < 0 ? no_memory() : cmd_print(buf_str(&out));
}

int fit_explain(struct fit_session *s, const struct fit_question *q)
{
    const char *path = cmd_value(q->c, q->a, "explain-log");
    base_autobuf struct buf log = BUF_INIT(LOG_MAX);
    struct measure_seen *seen = calloc(1, sizeof(*seen));
    struct measure_comparison c = {.n = 0};
    const struct check_need *n = q->need;
    struct err err;
    int e = seen ? 0 : err_nomem(&err);
    if (e == 0)
        e = strcmp(path, "-") == 0 ? os_read_all(STDIN_FILENO, &log, &err) : os_read_file(AT_FDCWD, path, &log, &err);
    if (e == 0)
        e = measure_read_log(n->service->runtime->engine, &n->input, buf_str(&log), seen, &err);
    if (e == 0)
        e = measure_compare_log(&n->input, n->result, seen, s->plan->arena, &c, &err);
    free(seen);
    if (e < 0)
        return cmd_fail(CMD_FAILED, &err);
    int code = print_comparison(q, &c);
    if (code != CMD_OK || !c.n_off)
        return code;
    char sign[FIT_NUMBER];
    if (!c.worst)
        return cmd_failf(CMD_FAILED, "%zu terms are off", c.n_off);
    return cmd_failf(CMD_FAILED, "%zu of %zu terms %s off, most of all %s on %s: %s", c.n_off, c.n, c.n_off == 1 ? "is" : "are", fit_term_text(c.worst->term), c.worst->name,
                     fit_signed((int64_t)c.worst->logged - (int64_t)c.worst->predicted, sign));
}

/* ---- shapes known to be bad ------------------------------------------------------------------------------------------------------------ */

static void split_words(const struct fit_shape *s, struct buf *out)
{
    for (size_t i = 0; i < s->n_split; i++)
        buf_addf(out, "%s%.9g", i ? "," : "", s->split[i]);
}

int fit_record_bad(struct fit_session *s, const struct fit_question *q)
{
    const char *reason = cmd_value(q->c, q->a, "known-bad");
    base_autobuf struct buf split = BUF_INIT(4096), shape = BUF_INIT(8192);
    struct check_need *n = NULL;
    struct err err;
    if (!reason[0] || !str_is_utf8(str_of(reason)))
        return cmd_usage(q->c, "--known-bad needs a reason: 'died of page faults on its eighth request'");
    int code = with_ledger(s, q->need->service->name, &n);
    if (code != CMD_OK || !n)
        return code;
    const struct fit_shape *sh = &n->shape;
    split_words(sh, &split);
    fit_shape_text(n, &shape);
    if (buf_status(&split) < 0 || buf_status(&shape) < 0)
        return no_memory();
    const struct ledger_value values[] = {
        {.name = "reason", .text = reason}, {.name = "context", .number = n->result->n_ctx}, {.name = "slots", .number = sh->slots}, {.name = "batch", .number = sh->batch}, {.name = "ubatch", .number = sh->ubatch},
        {.name = "gpu_layers", .number = sh->gpu_layers}, {.name = "cpu_moe", .number = sh->cpu_moe}, {.name = "spec", .number = sh->spec}, {.name = "kv_k", .text = sh->k_type->name}, {.name = "kv_v", .text = sh->v_type->name},
        {.name = "split", .text = split.ptr ? split.ptr : ""},
    };
    const struct ledger_row row = {.at_us = clk_system.real_us(clk_system.ctx), .kind = "known-bad", .service = n->service->name, .build = n->key.build, .model = n->key.model, .shape = shape.ptr, .hardware = "",
                                   .tag = LEDGER_AFTER_TRAFFIC, .values = values, .n_values = BASE_COUNT(values)};
    if (ledger_add(s->ledger, &row, NULL, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    base_autobuf struct buf out = BUF_INIT(16384);
    buf_addf(&out, "%s is recorded as bad: %s\n", n->service->name, shape.ptr);
    return cmd_print(buf_str(&out));
}

int fit_forget_bad(struct fit_session *s, const struct fit_question *q)
{
    base_autobuf struct buf shape = BUF_INIT(8192), out = BUF_INIT(16384);
    struct check_need *n = NULL;
    uint64_t count = 0;
    struct err err;
    int code = with_ledger(s, q->need->service->name, &n);
    if (code != CMD_OK || !n)
        return code;
    fit_shape_text(n, &shape);
    if (buf_status(&shape) < 0)
        return no_memory();
    const struct ledger_query bad = {.kind = "known-bad", .model = n->key.model, .shape = shape.ptr}; /* of whatever build, as it holds for all */
    if (ledger_forget(s->ledger, &bad, &count, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    if (!count)
        return cmd_failf(CMD_FAILED, "%s was not recorded as bad in this shape: %s", n->service->name, shape.ptr);
    buf_addf(&out, "%s is not recorded as bad any more: %s\n", n->service->name, shape.ptr);
    return cmd_print(buf_str(&out));
}

struct bad_reader {
    const struct check_need *n;
    struct arena *a;
    struct fit_bad list[64];
    size_t count;
};

static uint32_t u32_of(const struct ledger_row *row, const char *name, uint32_t otherwise)
{
    double v = ledger_number(row, name, otherwise);
    return v >= 0 && v <= UINT32_MAX ? (uint32_t)v : otherwise;
}

static const struct gguf_type *type_of(const struct ledger_row *row, const char *name, const struct gguf_type *otherwise)
{
    const struct ledger_value *v = ledger_value(row, name);
    const struct gguf_type *t = v && v->text ? gguf_type_find(str_of(v->text)) : NULL;
    return t ? t : otherwise;
}

static void read_split(const struct ledger_row *row, struct fit_shape *s)
{
    const struct ledger_value *v = ledger_value(row, "split");
    struct str rest = str_of(v && v->text ? v->text : "");
    s->n_split = 0;
    while (rest.len && s->n_split < FIT_DEVICES_MAX) {
        struct str one = str_split(&rest, ',');
        char text[64], *end = NULL;
        if (!one.len || one.len >= sizeof(text))
            return;
        memcpy(text, one.ptr, one.len);
        text[one.len] = '\0';
        double share = strtod(text, &end);
        if (end == text || *end || !(share >= 0))
            return;
        s->split[s->n_split++] = share;
    }
}

static int read_bad(void *ctx, const struct ledger_row *row, struct err *err)
{
    struct bad_reader *b = ctx;
    const struct ledger_value *reason = ledger_value(row, "reason");
    struct fit_shape *s = arena_alloc(b->a, 1, sizeof(*s));
    char when[CLK_RFC3339];
    if (!s)
        return err_nomem(err);
    *s = b->n->shape;
    s->context = u32_of(row, "context", s->context);
    s->slots = u32_of(row, "slots", s->slots);
    s->batch = u32_of(row, "batch", s->batch);
    s->ubatch = u32_of(row, "ubatch", s->ubatch);
    s->gpu_layers = u32_of(row, "gpu_layers", s->gpu_layers);
    s->cpu_moe = u32_of(row, "cpu_moe", s->cpu_moe);
    s->spec = u32_of(row, "spec", s->spec);
    s->k_type = type_of(row, "kv_k", s->k_type);
    s->v_type = type_of(row, "kv_v", s->v_type);
    read_split(row, s);
    const char *text = arena_printf(b->a, "%s (recorded %s)", reason && reason->text ? reason->text : "recorded as bad", clk_rfc3339(row->at_us, when));
    if (!text)
        return err_nomem(err);
    b->list[b->count++] = (struct fit_bad){.shape = s, .reason = text};
    return b->count == BASE_COUNT(b->list);
}

int fit_bad_shapes(struct fit_session *s, const struct check_need *n, struct fit_bad **ret, size_t *ret_n, struct err *err)
{
    struct bad_reader b = {.n = n, .a = s->plan->arena};
    *ret = NULL;
    *ret_n = 0;
    if (!s->ledger || !n->key.model[0])
        return 0;
    const struct ledger_query q = {.kind = "known-bad", .model = n->key.model};
    int r = ledger_find(s->ledger, &q, read_bad, &b, err);
    if (r < 0)
        return r;
    struct fit_bad *list = arena_alloc(s->plan->arena, b.count ? b.count : 1, sizeof(*list));
    if (!list)
        return err_nomem(err);
    memcpy(list, b.list, b.count * sizeof(*list));
    *ret = list;
    *ret_n = b.count;
    return 0;
}
