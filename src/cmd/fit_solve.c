/* SPDX-License-Identifier: MIT
 *
 * berth fit --solve: the best shapes that there are. What is recommended is printed as a person would use it: the part of the fleet file, and the command line that berth would start.
 */
#include "fit_int.h"

#include <conf/conf.h>
#include <engine/engine.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOLVE_MEMORY ((size_t)1 << 30)
#define CONTEXT_LEAST 4096u
#define SLOTS_MOST 8u
#define POINTS_SHOWN 8
#define SPEED_ALIKE 1.1 /* estimates that differ by less are the same */
#define COMMAND_WIDTH 78 /* columns of a command line, broken with backslashes */
#define MARGIN_BYTES ((uint64_t)1 << 30) /* of each device, where no floor is declared: what the engine's own fit leaves ... */
#define MARGIN_SHARE 16                  /* ... but of small ones no more than this part */
#define FREE_SERVICES 2 /* so many are searched over everything; more of them over the neighbourhood of what is declared */

static int no_memory(void)
{
    return cmd_failf(CMD_FAILED, "out of memory");
}

/* ---- what may be varied --------------------------------------------------------------------------------------------------------- */

static void add_context(struct fit_space *sp, uint32_t v)
{
    for (size_t i = 0; i < sp->n_contexts; i++)
        if (sp->contexts[i] == v)
            return;
    if (v && sp->n_contexts < BASE_COUNT(sp->contexts))
        sp->contexts[sp->n_contexts++] = v;
}

static void add_ubatch(struct fit_space *sp, uint32_t v, uint32_t batch)
{
    for (size_t i = 0; i < sp->n_ubatches; i++)
        if (sp->ubatches[i] == v)
            return;
    if (v && v <= batch && sp->n_ubatches < BASE_COUNT(sp->ubatches))
        sp->ubatches[sp->n_ubatches++] = v;
}

static void add_slots(struct fit_space *sp, uint32_t v)
{
    for (size_t i = 0; i < sp->n_slots; i++)
        if (sp->slots[i] == v)
            return;
    if (sp->n_slots < BASE_COUNT(sp->slots))
        sp->slots[sp->n_slots++] = v;
}

/* What may be varied for a service: everything when all, else the neighbourhood of what is declared. */
static void space_of(const struct check_need *n, enum fit_want want, bool all, struct fit_space *sp)
{
    static const uint32_t ubatches[] = {512, 1024, 2048, 256};
    const struct fit_shape *s = &n->shape;
    uint32_t declared = n->result->n_ctx;
    *sp = (struct fit_space){.split = n->input.n_devices > 1, .gpu_layers = n->input.n_devices > 0, .drafter_off = s->spec != 0, .cpu_moe = n->target->experts > 0 && n->input.n_devices > 0,
                             .projector_device = n->projector != NULL && n->input.n_devices > 0, .want = want, .slack_bytes = n->machine->slack_bytes,
                             .own = {.floor_set = n->service->floor_set, .slack_set = n->service->slack_bytes > 0, .floor_bytes = n->service->floor_bytes, .slack_bytes = n->service->slack_bytes, .reason = n->service->reason}};
    add_context(sp, declared);
    add_slots(sp, s->slots);
    add_ubatch(sp, s->ubatch, s->batch);
    sp->kv[sp->n_kv++] = s->k_type;
    if (!all) {
        add_context(sp, declared / 2);
        add_context(sp, declared < UINT32_MAX / 2 ? declared * 2 : declared);
        return;
    }
    for (uint32_t c = CONTEXT_LEAST; c <= n->target->context_trained && c <= INT32_MAX / SLOTS_MOST; c *= 2)
        add_context(sp, c);
    for (uint64_t c = n->target->context_trained; c && c <= (uint64_t)n->target->context_trained * SLOTS_MOST && c <= INT32_MAX; c *= 2)
        add_context(sp, (uint32_t)c);
    sp->context_largest = true;
    for (uint32_t v = 1; v <= SLOTS_MOST; v *= 2)
        add_slots(sp, v);
    for (size_t i = 0; i < BASE_COUNT(ubatches); i++)
        add_ubatch(sp, ubatches[i], s->batch);
    const struct gguf_type *q8 = gguf_type_find(STR("q8_0"));
    if (q8 && q8 != s->k_type)
        sp->kv[sp->n_kv++] = q8;
}

/* ---- solving -------------------------------------------------------------------------------------------------------------------- */

/* Services that are solved together, with the devices that are left to them. */
struct group {
    struct check_need *needs[FIT_SERVICES_MAX];
    struct fit_input inputs[FIT_SERVICES_MAX];
    struct fit_shape shapes[FIT_SERVICES_MAX]; /* the declared ones, with no experts on the CPU: as few as it takes are moved there */
    struct fit_space spaces[FIT_SERVICES_MAX];
    size_t n;
    struct fit_device devices[FIT_DEVICES_MAX];
    struct fit_host memory;
    uint64_t margin_bytes; /* the largest that a device keeps though no floor is declared; 0: none does */
    struct fit_choice *choices;
    size_t n_points;
    enum fit_want want;
    bool instead; /* no point keeps the declared context: the one that keeps most of it is recommended, whatever was wanted */
    bool keeps;   /* the first point has everything that is declared beside what is wanted */
};

static uint64_t less(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static bool in_group(const struct group *g, const struct check_need *n)
{
    for (size_t i = 0; i < g->n; i++)
        if (g->needs[i] == n)
            return true;
    return false;
}

/* Whether n is up with those of the group when most of device d is used. */
static bool is_beside(const struct check_plan *p, const struct group *g, const struct check_need *n, size_t d)
{
    return check_counts(p, n, d) && !(check_takes_turns(n) && check_takes_turns(g->needs[0]));
}

/* The machine without what services outside the group take. */
static void take_devices(const struct check_plan *p, const struct check_machine *m, struct group *g)
{
    memcpy(g->devices, m->devices, m->n_devices * sizeof(g->devices[0]));
    g->memory = m->memory;
    for (size_t i = 0; i < p->n_needs; i++) {
        const struct check_need *n = &p->needs[i];
        if (n->machine != m || in_group(g, n))
            continue;
        for (size_t d = 0; d <= m->n_devices; d++) {
            const struct fit_use *u = is_beside(p, g, n, d) ? check_use(n, d) : NULL;
            uint64_t *free = d < m->n_devices ? &g->devices[d].free_bytes : &g->memory.free_bytes;
            if (u && *free < FIT_BYTES_MAX)
                *free = less(*free, u->used);
            if (u && d < m->n_devices && m->devices[d].shared && g->memory.free_bytes < FIT_BYTES_MAX)
                g->memory.free_bytes = less(g->memory.free_bytes, u->used);
        }
    }
    for (size_t i = 0; i < g->n; i++) {
        g->inputs[i] = g->needs[i]->input;
        g->shapes[i] = g->needs[i]->shape;
        g->shapes[i].cpu_moe = g->inputs[i].n_devices ? 0 : g->shapes[i].cpu_moe;
        g->inputs[i].shape = &g->shapes[i];
        g->inputs[i].devices = g->devices;
        g->inputs[i].host = &g->memory;
    }
}

/* Where nobody has said how much is to stay free the most that fits leaves a device nothing. Figures may be estimates, and what drivers, other programs and the engine take later is in none of them. */
static void keep_margin(const struct fit_session *s, const struct check_machine *m, struct group *g)
{
    bool declared = s->options.floor_set;
    for (size_t i = 0; i < g->n; i++)
        declared = declared || g->needs[i]->service->floor_set;
    for (size_t d = 0; !declared && d < m->n_devices; d++) {
        uint64_t share = g->devices[d].total_bytes / MARGIN_SHARE, margin = share < MARGIN_BYTES ? share : MARGIN_BYTES;
        if (g->devices[d].floor_bytes)
            continue;
        g->devices[d].floor_bytes = margin;
        g->margin_bytes = margin > g->margin_bytes ? margin : g->margin_bytes;
    }
}

/* Whether a point keeps what the declaration says of the other things than the wanted one: more context is no gain when slots are lost for it. */
static bool keeps_declared(const struct group *g, const struct fit_choice *point, enum fit_want want)
{
    for (size_t i = 0; i < g->n; i++) {
        const struct check_need *n = g->needs[i];
        if (want != FIT_WANT_SLOTS && point[i].shape.slots < n->shape.slots)
            return false;
        if (n->shape.spec & FIT_SPEC_CONTEXT & ~point[i].shape.spec)
            return false;
        if (want != FIT_WANT_CONTEXT && point[i].result.n_ctx_seq < n->result->n_ctx_seq)
            return false;
    }
    return true;
}

static size_t first_that_keeps(const struct group *g)
{
    size_t at = 0;
    while (at < g->n_points && !keeps_declared(g, &g->choices[at * g->n], g->want))
        at++;
    return at;
}

/* Whether a point has the same context in each service as another one, and the slots and KV types that are declared. */
static bool is_plainer(const struct group *g, const struct fit_choice *point, const struct fit_choice *than)
{
    for (size_t i = 0; i < g->n; i++) {
        const struct fit_shape *s = &g->needs[i]->shape;
        if (point[i].result.n_ctx_seq != than[i].result.n_ctx_seq || point[i].shape.slots != s->slots || point[i].shape.k_type != s->k_type || point[i].shape.v_type != s->v_type)
            return false;
    }
    return true;
}

/* More slots than declared, or smaller KV types for their sake, are no gain where context is wanted. */
static size_t plainest(const struct group *g, size_t at)
{
    for (size_t p = at; g->want == FIT_WANT_CONTEXT && p < g->n_points; p++)
        if (keeps_declared(g, &g->choices[p * g->n], g->want) && is_plainer(g, &g->choices[p * g->n], &g->choices[at * g->n]))
            return p;
    return at;
}

/* The least share of its declared slot's context that a service keeps at a point. */
static double context_kept(const struct group *g, const struct fit_choice *point)
{
    double least = 1;
    for (size_t i = 0; i < g->n; i++) {
        double share = (double)point[i].result.n_ctx_seq / (double)(g->needs[i]->result->n_ctx_seq ? g->needs[i]->result->n_ctx_seq : 1);
        least = share < least ? share : least;
    }
    return least;
}

/* Slots or speed that cost nearly all of the context are of no use: the point that keeps most of it, with slots and drafter as declared where there is one. */
static size_t most_context(const struct group *g)
{
    size_t best = 0;
    bool best_keeps = false;
    for (size_t p = 0; p < g->n_points; p++) {
        const struct fit_choice *point = &g->choices[p * g->n], *so_far = &g->choices[best * g->n];
        bool keeps = keeps_declared(g, point, FIT_WANT_CONTEXT);
        if ((keeps && !best_keeps) || (keeps == best_keeps && context_kept(g, point) > context_kept(g, so_far))) {
            best = p;
            best_keeps = keeps;
        }
    }
    return best;
}

/* Puts what is recommended first. */
static void recommend(struct group *g, struct fit_choice *spare)
{
    size_t at = plainest(g, first_that_keeps(g));
    if (at == g->n_points && g->want != FIT_WANT_CONTEXT) {
        g->want = FIT_WANT_CONTEXT;
        g->instead = true;
        at = g->n_points ? most_context(g) : 0;
    }
    g->keeps = at < g->n_points && keeps_declared(g, &g->choices[at * g->n], g->want);
    if (!g->choices || at == 0 || at == g->n_points)
        return;
    memcpy(spare, &g->choices[at * g->n], g->n * sizeof(*spare));
    memmove(&g->choices[g->n], g->choices, at * g->n * sizeof(*spare));
    memcpy(g->choices, spare, g->n * sizeof(*spare));
}

static int solve_group(struct fit_session *s, const struct check_machine *m, enum fit_want want, struct group *g, struct arena *a, struct err *err)
{
    take_devices(s->plan, m, g);
    if (g->inputs[0].n_devices > 0)
        keep_margin(s, m, g);
    g->want = want;
    struct fit_choice *spare = arena_alloc(a, g->n, sizeof(*spare));
    if (!spare)
        return err_nomem(err);
    int r = 0;
    /* nothing is moved to the CPU while something fits without: it costs most of the speed */
    for (int moving = 0; r == 0 && moving < 2 && !g->n_points; moving++) {
        for (size_t i = 0; r == 0 && i < g->n; i++) {
            struct fit_space *sp = &g->spaces[i];
            struct fit_bad *bad = NULL;
            space_of(g->needs[i], want, g->n <= FREE_SERVICES, sp);
            if (!moving)
                sp->gpu_layers = sp->cpu_moe = sp->projector_device = false;
            r = fit_bad_shapes(s, g->needs[i], &bad, &sp->n_known_bad, err);
            sp->known_bad = bad;
        }
        if (r == 0)
            r = fit_solve(g->inputs, g->n, g->spaces, a, &g->choices, &g->n_points, err);
    }
    if (r == 0)
        recommend(g, spare);
    return r;
}

/* ---- the answer ----------------------------------------------------------------------------------------------------------------- */

static int64_t tightest(const struct group *g, const struct fit_choice *c, size_t *ret_d)
{
    size_t n = g->inputs[0].n_devices;
    int64_t least = INT64_MAX;
    for (size_t d = 0; d <= n; d++) {
        uint64_t floor = d < n ? g->devices[d].floor_bytes : g->memory.floor_bytes;
        int64_t over = c->result.use[d].left - (int64_t)floor;
        if (over < least) {
            least = over;
            *ret_d = d;
        }
    }
    return least;
}

static void split_text(const struct fit_choice *c, size_t n_devices, struct buf *out)
{
    if (c->shape.gpu_layers == 0) {
        buf_add_c(out, "CPU");
        return;
    }
    for (size_t i = 0; n_devices > 1 && i < c->shape.n_split; i++)
        buf_addf(out, "%s%.9g", i ? "," : "", c->shape.split[i]);
    if (!out->len)
        buf_add_char(out, '-');
}

/* What was moved to the CPU or left out. */
static void moved_text(const struct check_need *n, const struct fit_choice *c, struct buf *out)
{
    if (n->shape.spec & FIT_SPEC_CONTEXT & ~c->shape.spec)
        buf_add_c(out, "no drafter");
    if (c->shape.cpu_moe != n->shape.cpu_moe && !c->shape.cpu_moe)
        buf_addf(out, "%sno experts on the CPU", out->len ? ", " : "");
    else if (c->shape.cpu_moe != n->shape.cpu_moe)
        buf_addf(out, "%sexperts of %s%.0u%s on the CPU", out->len ? ", " : "", c->shape.cpu_moe == UINT32_MAX ? "all layers" : "", c->shape.cpu_moe == UINT32_MAX ? 0 : c->shape.cpu_moe,
                 c->shape.cpu_moe == UINT32_MAX ? "" : " layers");
    if (c->shape.gpu_layers != n->shape.gpu_layers && c->shape.gpu_layers && c->shape.gpu_layers != UINT32_MAX)
        buf_addf(out, "%s%u of %u layers on devices", out->len ? ", " : "", c->shape.gpu_layers, c->result.n_slots_placed);
    if (c->shape.projector_device != n->shape.projector_device && n->projector)
        buf_addf(out, "%sprojector on %s", out->len ? ", " : "", c->shape.projector_device == -2 ? "the CPU" : "another device");
}

/* Whether b is worth a line beside a: another kind of KV, a drafter more, more context, slots or speed in some service. What is only less of all that leaves more memory, which needs no list. */
static bool tells_more(const struct group *g, const struct fit_choice *a, const struct fit_choice *b)
{
    for (size_t i = 0; i < g->n; i++) {
        bool drafter = (b[i].shape.spec & FIT_SPEC_CONTEXT) && !(a[i].shape.spec & FIT_SPEC_CONTEXT);
        bool kv = b[i].shape.k_type != a[i].shape.k_type && g->needs[i]->shape.k_type == b[i].shape.k_type;
        if (drafter || kv || b[i].result.n_ctx_seq > a[i].result.n_ctx_seq || b[i].shape.slots > a[i].shape.slots || b[i].speed.decode_tok_s > SPEED_ALIKE * a[i].speed.decode_tok_s)
            return true;
    }
    return false;
}

/* Which points are shown, the recommended one first; their number. */
static size_t points_shown(const struct group *g, size_t shown[POINTS_SHOWN])
{
    size_t n = 0;
    for (size_t p = 0; p < g->n_points && n < POINTS_SHOWN; p++) {
        bool worth = true;
        for (size_t k = 0; worth && k < n; k++)
            worth = tells_more(g, &g->choices[shown[k] * g->n], &g->choices[p * g->n]);
        if (worth)
            shown[n++] = p;
    }
    return n;
}

/* What stands in the row's own columns; what was moved stands below it. */
static void point_row(const struct group *g, size_t p, size_t i, struct os_table *t)
{
    const struct fit_choice *c = &g->choices[p * g->n + i];
    base_autobuf struct buf split = BUF_INIT(1024), kv = BUF_INIT(64);
    char text[FIT_NUMBER];
    size_t d = 0;
    enum os_style style = p == 0 ? OS_BOLD : OS_PLAIN;
    split_text(c, g->inputs[i].n_devices, &split);
    buf_addf(&kv, "%s", c->shape.k_type->name);
    if (c->shape.k_type != c->shape.v_type)
        buf_addf(&kv, "/%s", c->shape.v_type->name);
    os_table_cell(t, OS_BOLD, "%s", p == 0 ? ">" : " ");
    os_table_cell(t, style, "%s", g->needs[i]->service->name);
    os_table_cell(t, style, "%s", units_show_count(c->result.n_ctx_seq, text));
    os_table_cell(t, style, "%u", c->shape.slots);
    os_table_cell(t, style, "%s", kv.ptr ? kv.ptr : "");
    os_table_cell(t, style, "%s", units_show_count(c->shape.ubatch, text));
    os_table_cell(t, style, "%s", split.ptr ? split.ptr : "");
    if (c->speed.decode_tok_s > 0)
        os_table_cell(t, style, "%.1f", c->speed.decode_tok_s);
    else
        os_table_cell(t, style, "-");
    int64_t left = tightest(g, c, &d);
    os_table_cell(t, style, "%s %s", fit_signed(left, text), check_device_name(g->needs[i]->machine, d < g->inputs[i].n_devices ? d : g->needs[i]->machine->n_devices));
}

/* Where the engine will find a file, wherever its header was read. */
static int real_path(struct fit_session *s, const struct fleet_model *m, const char *header, const char *file, const char **ret, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT(16384);
    *ret = NULL;
    if (!header)
        return 0;
    int r = store_payload_path(s->store, m, file, &path, err);
    if (r < 0)
        return r;
    *ret = arena_dup(s->plan->arena, buf_str(&path));
    return *ret ? 0 : err_nomem(err);
}

static int add_command(struct fit_session *s, const struct check_need *n, const struct fleet_service *sv, struct buf *out, struct err *err)
{
    const struct fleet_model *m = sv->model;
    struct engine_paths paths = {.template_file = m->template_file, .key = sv->key};
    int e = real_path(s, m, n->files.weights, m->weights, &paths.weights, err);
    if (e == 0)
        e = real_path(s, m, n->files.projector, m->projector, &paths.projector, err);
    if (e == 0)
        e = real_path(s, m, n->files.drafter, m->drafter, &paths.drafter, err);
    if (e < 0)
        return e;
    const char *const *argv = NULL;
    size_t count = 0;
    int r = engine_argv(sv, &paths, s->plan->arena, &argv, &count, err);
    if (r < 0)
        return r;
    buf_addf(out, "%s", engine_program(engine_find(sv->runtime->engine)));
    size_t column = COMMAND_WIDTH;
    for (size_t i = 0; i < count;) {
        base_autobuf struct buf words = BUF_INIT(65536);
        /* a flag and its values stay on one line */
        do {
            buf_add_c(&words, words.len ? " " : "");
            fit_shell_word(&words, argv[i++]);
        } while (i < count && argv[i][0] != '-');
        bool breaks = column + 1 + words.len > COMMAND_WIDTH;
        buf_add_c(out, breaks ? " \\\n  " : " ");
        buf_add_str(out, buf_str(&words));
        column = (breaks ? 2 : column + 1) + words.len;
    }
    buf_add_char(out, '\n');
    return 0;
}

static int add_recommended(struct fit_session *s, const struct group *g, const struct fit_view *v, struct buf *out, struct err *err)
{
    base_autobuf struct buf commands = BUF_INIT(1 << 20);
    buf_addf(out, "\n%sfor the fleet file:%s\n\nservices:\n", os_style_on(OS_BOLD, v->color), os_style_off(OS_BOLD, v->color));
    for (size_t i = 0; i < g->n; i++) {
        const struct fit_choice *c = &g->choices[i];
        struct fleet_service sv;
        int r = fit_service_of(g->needs[i]->service, &c->shape, &c->result, s->plan->arena, &sv, err);
        if (r == 0)
            r = add_command(s, g->needs[i], &sv, &commands, err);
        if (r < 0)
            return r;
        fit_service_yaml(&sv, 2, out);
        for (size_t k = 0; k < c->result.n_notes; k++)
            if (c->result.notes[k].severity != FIT_NOTE || strncmp(c->result.notes[k].rule, "own-", 4) == 0) {
                buf_add_c(out, "    # ");
                cmd_add_wrapped_within(out, str_of(c->result.notes[k].text), 6, 4, "# ", v->width);
                buf_add_char(out, '\n');
            }
    }
    buf_addf(out, "\n%sas the engine's command line:%s\n\n", os_style_on(OS_BOLD, v->color), os_style_off(OS_BOLD, v->color));
    buf_add_str(out, buf_str(&commands));
    return buf_status(&commands) < 0 || buf_status(out) < 0 ? err_nomem(err) : 0;
}

/* The shown points as a table, and below a row what its shape leaves out. */
static int add_points(const struct group *g, const size_t *shown, size_t n, const struct fit_view *v, struct arena *a, struct buf *out, struct err *err)
{
    static const char *const headings[] = {"", "SERVICE", "SLOT HAS", "SLOTS", "KV", "UBATCH", "SPLIT", "TOK/S ~", "OVER THE FLOOR ~"};
    static const enum os_align aligns[] = {OS_LEFT, OS_LEFT, OS_RIGHT, OS_RIGHT, OS_LEFT, OS_RIGHT, OS_LEFT, OS_RIGHT, OS_LEFT};
    const char **below = arena_alloc(a, n * g->n, sizeof(*below));
    struct os_table *t = below ? os_table_new(headings, aligns, BASE_COUNT(headings)) : NULL;
    for (size_t p = 0; t && p < n; p++)
        for (size_t i = 0; i < g->n; i++) {
            base_autobuf struct buf moved = BUF_INIT(1024);
            point_row(g, shown[p], i, t);
            moved_text(g->needs[i], &g->choices[shown[p] * g->n + i], &moved);
            if (moved.len && !(below[p * g->n + i] = arena_dup(a, buf_str(&moved))))
                buf_fail(out, -ENOMEM);
        }
    fit_table_add(t, v->color, below, v->width, out);
    return buf_status(out) < 0 ? err_nomem(err) : 0;
}

/* What was kept free though nobody said so. */
static void add_margin(const struct group *g, const struct fit_view *v, struct buf *out)
{
    char text[160], margin[UNITS_TEXT];
    if (!g->margin_bytes)
        return;
    (void)snprintf(text, sizeof(text), "no floor is declared: %s of each device are kept free (of a small one a %uth); --floor 0 uses all", units_show_bytes(g->margin_bytes, margin), MARGIN_SHARE);
    buf_add_c(out, "  ");
    cmd_add_wrapped_within(out, str_of(text), 2, 2, "", v->width);
    buf_add_char(out, '\n');
}

static int solved_text(struct fit_session *s, const struct group *g, const struct fit_view *v, struct buf *out, struct err *err)
{
    const struct check_machine *m = g->needs[0]->machine;
    buf_addf(out, "%s%s%s: ", os_style_on(OS_BOLD, v->color), m->host->name, os_style_off(OS_BOLD, v->color));
    if (!g->n_points) {
        buf_add_c(out, "nothing that was tried fits\n");
        add_margin(g, v, out);
        return 0;
    }
    size_t shown[POINTS_SHOWN], n = points_shown(g, shown);
    static const char *const whys[] = {[FIT_WANT_CONTEXT] = "most context", [FIT_WANT_SLOTS] = "most slots", [FIT_WANT_SPEED] = "fastest"};
    static const char *const kept[] = {[FIT_WANT_CONTEXT] = "slots and drafter as declared", [FIT_WANT_SLOTS] = "context and drafter as declared", [FIT_WANT_SPEED] = "context, slots and drafter as declared"};
    char depth[FIT_NUMBER];
    base_autobuf struct buf head = BUF_INIT(512);
    buf_addf(&head, "%zu shape%s that no other beats; > is recommended: %s%s%s%s; TOK/S with %s tokens in the context", g->n_points, g->n_points == 1 ? "" : "s", whys[g->want], g->keeps ? ", " : "", g->keeps ? kept[g->want] : "",
             g->instead ? " (none keeps the declared context)" : "", units_show_count(FIT_SOLVE_DEPTH, depth));
    cmd_add_wrapped_within(out, buf_str(&head), strlen(m->host->name) + 2, 2, "", v->width);
    buf_add_char(out, '\n');
    add_margin(g, v, out);
    int r = add_points(g, shown, n, v, s->plan->arena, out, err);
    if (r < 0)
        return r;
    if (g->n_points > n) {
        char text[128];
        (void)snprintf(text, sizeof(text), "and %zu more that leave more memory or lie between these, all of them with --json", g->n_points - n);
        buf_add_c(out, "  ");
        cmd_add_wrapped_within(out, str_of(text), 2, 2, "", v->width);
        buf_add_char(out, '\n');
    }
    return add_recommended(s, g, v, out, err);
}

static int solved_json(struct fit_session *s, const struct group *g, struct json_out *o, struct err *err)
{
    json_out_obj(o, NULL);
    json_out_cstr(o, "host", g->needs[0]->machine->host->name);
    json_out_u64(o, "margin", g->margin_bytes);
    json_out_arr(o, "front");
    for (size_t p = 0; p < g->n_points; p++) {
        json_out_arr(o, NULL);
        for (size_t i = 0; i < g->n; i++) {
            const struct fit_choice *c = &g->choices[p * g->n + i];
            size_t d = 0;
            json_out_obj(o, NULL);
            json_out_cstr(o, "service", g->needs[i]->service->name);
            json_out_u64(o, "context", c->result.n_ctx);
            json_out_u64(o, "context_per_slot", c->result.n_ctx_seq);
            json_out_u64(o, "slots", c->shape.slots);
            json_out_u64(o, "ubatch", c->shape.ubatch);
            json_out_cstr(o, "kv_k", c->shape.k_type->name);
            json_out_cstr(o, "kv_v", c->shape.v_type->name);
            json_out_arr(o, "split");
            for (size_t k = 0; k < c->shape.n_split; k++)
                json_out_f64(o, NULL, c->shape.split[k]);
            json_out_end(o);
            json_out_u64(o, "cpu_moe", c->shape.cpu_moe);
            json_out_bool(o, "drafter", (c->shape.spec & FIT_SPEC_CONTEXT) != 0);
            if (c->speed.decode_tok_s > 0)
                json_out_f64(o, "decode_tok_s", c->speed.decode_tok_s);
            else
                json_out_null(o, "decode_tok_s");
            json_out_i64(o, "left_over_floor", tightest(g, c, &d));
            json_out_end(o);
        }
        json_out_end(o);
    }
    json_out_end(o);
    base_autobuf struct buf yaml = BUF_INIT(1 << 20), command = BUF_INIT(1 << 20);
    int r = 0;
    for (size_t i = 0; r == 0 && g->n_points && i < g->n; i++) {
        struct fleet_service sv;
        r = fit_service_of(g->needs[i]->service, &g->choices[i].shape, &g->choices[i].result, s->plan->arena, &sv, err);
        if (r == 0) {
            buf_add_c(&yaml, i ? "" : "services:\n");
            fit_service_yaml(&sv, 2, &yaml);
            r = add_command(s, g->needs[i], &sv, &command, err);
        }
    }
    json_out_cstr(o, "recommended", g->n_points ? yaml.ptr : NULL);
    json_out_cstr(o, "command", g->n_points ? command.ptr : NULL);
    json_out_end(o);
    return r;
}

struct answer {
    struct buf *text;
    struct json_out *json; /* NULL: text */
    bool nothing;          /* for some group nothing fits */
};

/* Why a service is not solved; NULL: it is. */
static const char *left_out(const struct check_need *n)
{
    for (size_t i = 0; !n->why && !n->pool && i < n->result->n_notes; i++)
        if (fit_note_stays(&n->result->notes[i]))
            return n->result->notes[i].text;
    return n->why;
}

/* Solves the services of a machine that run on its devices, or those on its CPU. */
static int answer_group(struct fit_session *s, const struct fit_question *q, struct check_machine *m, bool devices, enum fit_want want, struct answer *an)
{
    struct group *g = calloc(1, sizeof(*g));
    struct arena *a = arena_new(SOLVE_MEMORY);
    struct err err;
    int r = 0;
    if (!g || !a) {
        free(g);
        arena_free(a);
        return no_memory();
    }
    for (size_t i = 0; i < s->plan->n_needs; i++) {
        struct check_need *n = &s->plan->needs[i];
        if (n->machine == m && !left_out(n) && !n->pool && (n->input.n_devices > 0) == devices && fit_view_need(&q->view, n) && g->n < FIT_SERVICES_MAX)
            g->needs[g->n++] = n;
    }
    if (r == 0 && g->n)
        r = solve_group(s, m, want, g, a, &err);
    if (r == 0 && g->n && an->json)
        r = solved_json(s, g, an->json, &err);
    else if (r == 0 && g->n) {
        buf_add_c(an->text, an->text->len ? "\n" : "");
        r = solved_text(s, g, &q->view, an->text, &err);
    }
    if (r == 0 && g->n && !g->n_points)
        an->nothing = true;
    arena_free(a);
    free(g);
    return r < 0 ? cmd_fail(CMD_FAILED, &err) : CMD_OK;
}

static int read_want(const struct fit_question *q, enum fit_want *ret)
{
    static const char *const words[] = {[FIT_WANT_CONTEXT] = "context", [FIT_WANT_SLOTS] = "slots", [FIT_WANT_SPEED] = "speed"};
    const char *text = cmd_value(q->c, q->a, "want");
    *ret = FIT_WANT_CONTEXT;
    for (size_t i = 0; text && i < BASE_COUNT(words); i++)
        if (strcmp(text, words[i]) == 0) {
            *ret = (enum fit_want)i;
            return CMD_OK;
        }
    return text ? cmd_usage(q->c, "--want: '%.40s' is none of context, slots, speed", text) : CMD_OK;
}

int fit_solve_show(struct fit_session *s, const struct fit_question *q)
{
    base_autobuf struct buf out = BUF_INIT(16 << 20);
    struct answer an = {.text = &out};
    enum fit_want want;
    int code = read_want(q, &want);
    if (code != CMD_OK)
        return code;
    if (q->json && !(an.json = json_out_new()))
        return no_memory();
    if (an.json)
        json_out_arr(an.json, NULL);
    for (size_t i = 0; code == CMD_OK && i < s->plan->n_machines; i++) {
        struct check_machine *m = &s->plan->machines[i];
        if (!fit_view_machine(&q->view, m))
            continue;
        code = answer_group(s, q, m, true, want, &an);
        if (code == CMD_OK)
            code = answer_group(s, q, m, false, want, &an);
    }
    for (size_t i = 0; i < s->plan->n_needs; i++)
        if (left_out(&s->plan->needs[i]) && fit_view_need(&q->view, &s->plan->needs[i]))
            code = cmd_failf(CMD_FAILED, "service '%s' is left out: %s", s->plan->needs[i].service->name, left_out(&s->plan->needs[i]));
    if (an.json) {
        json_out_end(an.json);
        int printed = fit_print_json(an.json);
        code = code == CMD_OK ? printed : code;
    } else if (out.len) {
        int printed = buf_status(&out) < 0 ? no_memory() : cmd_print(buf_str(&out));
        code = code == CMD_OK ? printed : code;
    }
    return code == CMD_OK && an.nothing ? cmd_failf(CMD_FAILED, "nothing that was tried fits; 'berth fit' says what each knob would buy") : code;
}
