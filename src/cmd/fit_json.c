/* SPDX-License-Identifier: MIT
 *
 * berth fit for programs. Names and units are stable: sizes in bytes, contexts in tokens, null for what is not known.
 */
#include "fit_int.h"

#include <conf/conf.h>

static const char *const known_words[] = {[FIT_EXACT] = "exact", [FIT_MEASURED] = "measured", [FIT_ESTIMATE] = "estimated", [FIT_UNPREDICTED] = "not predicted"};
static const char *const severity_words[] = {[FIT_NOTE] = "note", [FIT_WARNING] = "warning", [FIT_REFUSED] = "refused"};
static const char *const backend_words[] = {[FIT_CPU] = "cpu", [FIT_RPC] = "rpc", [FIT_CUDA] = "cuda", [FIT_HIP] = "hip", [FIT_VULKAN] = "vulkan", [FIT_OTHER] = "other"};

static void put_known(struct json_out *o, const char *key, bool known, uint64_t v)
{
    if (known)
        json_out_u64(o, key, v);
    else
        json_out_null(o, key);
}

static void put_device(struct json_out *o, const struct check_plan *p, const struct check_machine *m, size_t d)
{
    bool known = check_free(m, d) < FIT_BYTES_MAX;
    json_out_obj(o, NULL);
    json_out_cstr(o, "name", check_device_name(m, d));
    json_out_cstr(o, "backend", d < m->n_devices ? backend_words[m->devices[d].backend] : "cpu");
    put_known(o, "total", known, d < m->n_devices ? m->devices[d].total_bytes : m->memory.total_bytes);
    put_known(o, "free", known, check_free(m, d));
    json_out_u64(o, "floor", check_floor(m, d));
    json_out_u64(o, "used", m->used[d]);
    json_out_cstr(o, "known", known_words[fit_known_device(p, m, d)]);
    if (known)
        json_out_i64(o, "left", m->left[d]);
    else
        json_out_null(o, "left");
    json_out_bool(o, "shared", d < m->n_devices && m->devices[d].shared);
    json_out_cstr(o, "identity", m->hardware[d]);
    json_out_end(o);
}

static void put_machine(struct json_out *o, const struct check_plan *p, const struct check_machine *m)
{
    size_t d = (size_t)m->binds;
    json_out_obj(o, NULL);
    json_out_cstr(o, "host", m->host->name);
    json_out_bool(o, "here", m->here);
    json_out_cstr(o, "devices_from", m->declared ? "declared" : "found");
    json_out_bool(o, "live", m->live);
    json_out_bool(o, "fits", m->fits);
    json_out_bool(o, "turns", m->turns);
    json_out_cstr(o, "tightest", check_device_name(m, d));
    json_out_i64(o, "left_over_floor", m->left[d] - (int64_t)check_floor(m, d));
    put_known(o, "gap", m->n_devices > 1, m->gap_bytes);
    put_known(o, "slack", m->slack_bytes > 0, m->slack_bytes);
    json_out_arr(o, "devices");
    for (size_t i = 0; i <= m->n_devices; i++)
        put_device(o, p, m, i);
    json_out_end(o);
    json_out_arr(o, "notes");
    for (size_t i = 0; i < m->n_notes; i++)
        json_out_cstr(o, NULL, m->notes[i]);
    json_out_end(o);
    json_out_end(o);
}

static void put_use(struct json_out *o, const struct check_need *n, size_t d)
{
    const struct fit_use *u = check_use(n, d);
    if (!u)
        return;
    json_out_obj(o, NULL);
    json_out_cstr(o, "device", check_device_name(n->machine, d));
    json_out_u64(o, "layers", u->n_layers);
    json_out_u64(o, "used", u->used);
    json_out_cstr(o, "known", known_words[fit_known_use(u)]);
    json_out_u64(o, "used_high", u->used_high);
    json_out_u64(o, "mapped", u->mapped_bytes);
    json_out_arr(o, "terms");
    for (int t = 0; t < FIT_TERMS; t++) {
        const struct fit_amount *a = &u->terms[t];
        if (!a->high)
            continue;
        json_out_obj(o, NULL);
        json_out_cstr(o, "term", fit_term_text((enum fit_term)t));
        json_out_u64(o, "bytes", a->bytes);
        json_out_u64(o, "low", a->low);
        json_out_u64(o, "high", a->high);
        json_out_cstr(o, "known", known_words[a->known]);
        json_out_end(o);
    }
    json_out_end(o);
    json_out_end(o);
}

static void put_shape(struct json_out *o, const struct check_need *n)
{
    const struct fit_shape *s = &n->shape;
    const struct fit_result *r = n->result;
    json_out_obj(o, "shape");
    json_out_u64(o, "context", r->n_ctx);
    json_out_u64(o, "context_per_slot", r->n_ctx_seq);
    json_out_u64(o, "slots", s->slots);
    json_out_bool(o, "unified_kv", s->unified);
    json_out_u64(o, "batch", r->n_batch);
    json_out_u64(o, "ubatch", r->n_ubatch);
    put_known(o, "gpu_layers", s->gpu_layers != UINT32_MAX, s->gpu_layers);
    json_out_cstr(o, "kv_k", s->k_type->name);
    json_out_cstr(o, "kv_v", s->v_type->name);
    json_out_arr(o, "split");
    for (size_t i = 0; i < s->n_split; i++)
        json_out_f64(o, NULL, s->split[i]);
    json_out_end(o);
    json_out_arr(o, "speculative");
    for (size_t i = 0; i < n->service->shape.n_speculative; i++)
        json_out_cstr(o, NULL, n->service->shape.speculative[i]);
    json_out_end(o);
    json_out_u64(o, "draft_max", r->draft_max);
    const uint64_t saved = fit_saved_slot(n);
    put_known(o, "saved_slot_bytes", saved > 0, saved);
    json_out_end(o);
}

static void put_pool(struct json_out *o, const struct check_need *n)
{
    const struct fit_vllm_result *p = n->pool;
    json_out_obj(o, "pool");
    json_out_u64(o, "max_model_len", n->result->n_ctx_seq);
    put_known(o, "tokens", p->pool_tokens > 0, p->pool_tokens);
    json_out_f64(o, "contexts", p->contexts);
    json_out_u64(o, "bytes", p->kv_bytes);
    json_out_f64(o, "utilization", p->utilization);
    json_out_f64(o, "utilization_ceiling", p->utilization_ceiling);
    put_known(o, "expert_slots", p->arena_slots > 0, p->arena_slots);
    json_out_bool(o, "starts", p->starts);
    json_out_end(o);
}

static void put_speed(struct json_out *o, const struct check_need *n, struct arena *a)
{
    struct fit_speed s;
    if (n->pool || fit_speed(&n->input, n->result, n->result->n_ctx_seq, a, &s, NULL) < 0) {
        json_out_null(o, "speed");
        return;
    }
    json_out_obj(o, "speed");
    json_out_cstr(o, "known", "estimated");
    json_out_u64(o, "depth", n->result->n_ctx_seq);
    json_out_u64(o, "bytes_per_token", s.bytes_per_token);
    if (s.decode_tok_s > 0)
        json_out_f64(o, "decode_tok_s", s.decode_tok_s);
    else
        json_out_null(o, "decode_tok_s");
    if (s.prefill_tok_s > 0)
        json_out_f64(o, "prefill_tok_s", s.prefill_tok_s);
    else
        json_out_null(o, "prefill_tok_s");
    json_out_cstr(o, "assumes", s.assumes);
    json_out_end(o);
}

static void put_calibration(struct json_out *o, const struct measure_calibration *c)
{
    double worst = 0;
    if (!c->c.n && !c->n_stale) {
        json_out_null(o, "calibration");
        return;
    }
    json_out_obj(o, "calibration");
    json_out_cstr(o, "source", c->c.n ? c->c.source : NULL);
    json_out_u64(o, "compute_rows", c->n_compute);
    json_out_u64(o, "observed_rows", c->n_observed);
    json_out_bool(o, "emulated", c->emulated);
    for (size_t i = 0; c->c.compute && i < c->c.n; i++)
        worst = c->c.compute[i].worst_error > worst ? c->c.compute[i].worst_error : worst;
    if (c->c.compute)
        json_out_f64(o, "remaining_error", worst);
    else
        json_out_null(o, "remaining_error");
    json_out_u64(o, "stale_rows", c->n_stale);
    json_out_cstr(o, "stale", c->stale);
    json_out_end(o);
}

static void put_need(const struct fit_view *v, struct json_out *o, const struct check_need *n)
{
    json_out_obj(o, NULL);
    json_out_cstr(o, "name", n->service->name);
    json_out_cstr(o, "host", n->machine->host->name);
    json_out_cstr(o, "model", n->service->model ? n->service->model->name : NULL);
    json_out_cstr(o, "engine", n->service->runtime->engine);
    json_out_cstr(o, "engine_version", n->version);
    json_out_bool(o, "planned", !n->why);
    json_out_cstr(o, "why", n->why);
    if (n->why) {
        json_out_end(o);
        return;
    }
    json_out_cstr(o, "architecture", n->target ? n->target->arch : NULL);
    if (n->pool)
        put_pool(o, n);
    else
        put_shape(o, n);
    json_out_arr(o, "devices");
    for (size_t d = 0; d <= n->machine->n_devices; d++)
        put_use(o, n, d);
    json_out_end(o);
    put_speed(o, n, v->plan->arena);
    put_calibration(o, &n->calibration);
    json_out_arr(o, "notes");
    for (size_t i = 0; i < n->result->n_notes; i++) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "severity", severity_words[n->result->notes[i].severity]);
        json_out_cstr(o, "rule", n->result->notes[i].rule);
        json_out_cstr(o, "text", n->result->notes[i].text);
        json_out_end(o);
    }
    json_out_end(o);
    json_out_cstr(o, "known_bad", v->session ? fit_bad_reason(v->session, n) : NULL);
    fit_put_knobs(v, n, o);
    json_out_end(o);
}

void fit_json(const struct fit_view *v, struct json_out *o)
{
    json_out_obj(o, NULL);
    json_out_cstr(o, "fleet", v->plan->fleet->name);
    json_out_bool(o, "fits", fit_view_fits(v));
    json_out_arr(o, "machines");
    for (size_t i = 0; i < v->plan->n_machines; i++)
        if (fit_view_machine(v, &v->plan->machines[i]))
            put_machine(o, v->plan, &v->plan->machines[i]);
    json_out_end(o);
    json_out_arr(o, "services");
    for (size_t i = 0; i < v->plan->n_needs; i++)
        if (fit_view_need(v, &v->plan->needs[i]))
            put_need(v, o, &v->plan->needs[i]);
    json_out_end(o);
    fit_put_families(v, o);
    json_out_end(o);
}
