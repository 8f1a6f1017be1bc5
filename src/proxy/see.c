/* SPDX-License-Identifier: MIT
 *
 * The book of requests. Pages under way are in one list, ended ones in another; the page of the one that ended longest ago becomes the next new one. Who reads gets copies, made under the
 * lock; text is made from them outside it, so that no request waits for a reader.
 */
#include "see_int.h"

#include <errno.h>
#include <pthread.h>
#include <sys/queue.h>

struct try {
    const char *replica, *reason;
};

struct candidate {
    const char *name;
    uint64_t cached;
    double wait_ms, prefill_tps;
};

struct see_page {
    TAILQ_ENTRY(see_page) link;
    uint64_t number;
    void *owner, *where;
    const char *api;
    bool stream;
    uint64_t conversation;
    enum see_phase phase;
    uint64_t began_ms, phase_ms, sent_ms, content_ms, ended_ms;
    uint64_t queue_ms;      /* before the first replica */
    size_t position;
    uint64_t guess;         /* tokens of its prompt */
    uint64_t tokens;        /* of its answer so far */
    const char *replica;    /* that has or had it; NULL */
    const char *decision;   /* why it was that one */
    uint64_t predicted;     /* tokens expected in its cache */
    unsigned attempts;
    size_t n_tries, n_candidates;
    struct see_end end;
    double regret_ms;       /* negative: not known */
    /* last: only what was written is ever read, so that a page which comes from the end of the book, cold, is touched as little as can be */
    char method[16], path[SEE_PATH_MAX + 1], key[FLEET_NAME_MAX + 1], endpoint[FLEET_MODEL_NAME_MAX + 1];
    struct try tries[SEE_TRIES_MAX];
    struct candidate candidates[SCHED_WEIGHED_MAX];
};

TAILQ_HEAD(pages, see_page);

/* Pages of ended requests lie side by side, in `kept`: one that stayed where it was made would hold the memory of thousands of streams that ended around it. As long as few requests are under
 * way theirs are there too, and nothing is copied. */
struct see {
    pthread_mutex_t lock;
    struct pages running, ended, blank; /* ended and blank ones are of `kept` */
    size_t n_ended, n_inside, n_made;   /* inside: running ones of `kept`; made: of `kept`, that were ever used */
    struct see_page *kept;              /* SEE_KEPT + SEE_INSIDE of them */
};

const char *see_phase_name(enum see_phase p)
{
    static const char *const names[SEE_N_PHASES] = {"read", "queue", "load", "prefill", "decode", "done"};
    return names[p];
}

/* ---- rates ------------------------------------------------------------------------------------------------ */

void see_rate_add(struct see_rate *r, uint64_t now_ms, uint64_t n)
{
    uint64_t now = now_ms / 1000;
    if (now - r->second > SEE_RATE_S)
        *r = (struct see_rate){.second = now};
    while (r->second < now)
        r->n[++r->second % BASE_COUNT(r->n)] = 0;
    uint32_t *at = &r->n[now % BASE_COUNT(r->n)];
    *at = n > UINT32_MAX - *at ? UINT32_MAX : *at + (uint32_t)n;
}

double see_rate_of(const struct see_rate *r, uint64_t now_ms)
{
    uint64_t now = now_ms / 1000, sum = 0;
    /* the second that runs is left out: it is not full */
    for (uint64_t s = now > SEE_RATE_S ? now - SEE_RATE_S : 0; s < now; s++)
        if (s <= r->second && r->second - s < BASE_COUNT(r->n))
            sum += r->n[s % BASE_COUNT(r->n)];
    return (double)sum / SEE_RATE_S;
}

/* ---- life --------------------------------------------------------------------------------------------------- */

struct see *see_new(void)
{
    struct see *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->kept = malloc((SEE_KEPT + SEE_INSIDE) * sizeof *s->kept);
    if (!s->kept || pthread_mutex_init(&s->lock, NULL) != 0) {
        free(s->kept);
        free(s);
        return NULL;
    }
    TAILQ_INIT(&s->running);
    TAILQ_INIT(&s->ended);
    TAILQ_INIT(&s->blank);
    return s;
}

static bool is_inside(const struct see *s, const struct see_page *g)
{
    return g >= s->kept && g < s->kept + SEE_KEPT + SEE_INSIDE;
}

/* One of the kept pages that is not in use, else that of the request that ended longest ago. There always is one: less than all are of running requests. */
static struct see_page *kept_page(struct see *s)
{
    struct see_page *g = TAILQ_FIRST(&s->blank);
    if (g) {
        TAILQ_REMOVE(&s->blank, g, link);
        return g;
    }
    if (s->n_made < SEE_KEPT + SEE_INSIDE)
        return &s->kept[s->n_made++];
    g = TAILQ_FIRST(&s->ended);
    TAILQ_REMOVE(&s->ended, g, link);
    s->n_ended--;
    return g;
}

struct see *see_free(struct see *s)
{
    if (!s)
        return NULL;
    struct see_page *g;
    while ((g = TAILQ_FIRST(&s->running))) {
        TAILQ_REMOVE(&s->running, g, link);
        if (!is_inside(s, g))
            free(g);
    }
    free(s->kept);
    (void)pthread_mutex_destroy(&s->lock);
    free(s);
    return NULL;
}

static void lock(struct see *s)
{
    (void)pthread_mutex_lock(&s->lock);
}

static void unlock(struct see *s)
{
    (void)pthread_mutex_unlock(&s->lock);
}

/* ---- writing a page -------------------------------------------------------------------------------------------- */

static void set_phase(struct see_page *g, enum see_phase phase, uint64_t now)
{
    g->phase = phase;
    g->phase_ms = now;
}

/* The front of s that has room. */
static void put(char *to, size_t size, struct str s)
{
    size_t len = s.len < size ? s.len : size - 1;
    if (len)
        memcpy(to, s.ptr, len);
    to[len] = '\0';
}

struct see_page *see_begin(struct see *s, uint64_t number, void *owner, void *where, uint64_t now, struct str method, struct str path)
{
    struct see_page *g = NULL;
    lock(s);
    if (s->n_inside < SEE_INSIDE) {
        g = kept_page(s);
        s->n_inside++;
    } else {
        g = malloc(sizeof *g);
    }
    if (g) {
        memset(g, 0, offsetof(struct see_page, method));
        g->key[0] = g->endpoint[0] = '\0';
        g->number = number;
        g->owner = owner;
        g->where = where;
        g->began_ms = now;
        g->api = "other";
        g->regret_ms = -1;
        put(g->method, sizeof g->method, method);
        put(g->path, sizeof g->path, path);
        set_phase(g, SEE_READ, now);
        TAILQ_INSERT_TAIL(&s->running, g, link);
    }
    unlock(s);
    return g;
}

void see_is(struct see *s, struct see_page *g, const struct see_named *n, uint64_t now)
{
    if (!g)
        return;
    lock(s);
    put(g->endpoint, sizeof g->endpoint, str_of(n->endpoint));
    put(g->key, sizeof g->key, n->key ? str_of(n->key) : (struct str){0});
    g->api = n->api;
    g->conversation = n->conversation;
    g->guess = n->prompt_tokens;
    g->stream = n->stream;
    set_phase(g, SEE_QUEUE, now);
    unlock(s);
}

void see_phase(struct see *s, struct see_page *g, enum see_phase phase, uint64_t now)
{
    if (!g)
        return;
    lock(s);
    if (phase == SEE_DECODE && !g->content_ms)
        g->content_ms = now;
    if (g->phase != phase)
        set_phase(g, phase, now);
    unlock(s);
}

void see_position(struct see *s, struct see_page *g, size_t position)
{
    if (!g)
        return;
    lock(s);
    g->position = position;
    unlock(s);
}

void see_sent(struct see *s, struct see_page *g, const struct sched_ticket *t, const char *const *names, uint64_t now)
{
    if (!g)
        return;
    lock(s);
    if (g->attempts++ == 0)
        g->queue_ms = t->started_ms - t->entered_ms;
    g->sent_ms = now;
    g->replica = names[0];
    g->decision = sched_decision_name(t->decision);
    g->predicted = t->predicted;
    g->position = 0;
    g->n_candidates = t->n_weighed;
    for (size_t i = 0; i < t->n_weighed; i++)
        g->candidates[i] = (struct candidate){names[i], t->weighed[i].cached, t->weighed[i].wait_ms, t->weighed[i].prefill_tps};
    set_phase(g, SEE_PREFILL, now);
    unlock(s);
}

void see_joined(struct see *s, struct see_page *g, const char *replica)
{
    if (!g)
        return;
    lock(s);
    g->decision = sched_decision_name(SCHED_JOINED);
    g->replica = replica;
    unlock(s);
}

void see_failed(struct see *s, struct see_page *g, const char *reason)
{
    if (!g)
        return;
    lock(s);
    if (g->n_tries < SEE_TRIES_MAX)
        g->tries[g->n_tries++] = (struct try){g->replica, reason};
    unlock(s);
}

void see_tokens(struct see *s, struct see_page *g, uint64_t n)
{
    if (!g || !n)
        return;
    lock(s);
    g->tokens += n;
    unlock(s);
}

/* ---- what came of it ---------------------------------------------------------------------------------------------- */

/* Milliseconds until that candidate would have read a prompt of so many tokens. */
static double takes_ms(const struct candidate *c, uint64_t tokens)
{
    double rest = tokens > c->cached ? (double)(tokens - c->cached) : 0;
    return c->wait_ms + (c->prefill_tps > 0 ? rest / c->prefill_tps * 1000 : 0);
}

static double really_ms(const struct see_page *g)
{
    if (g->end.prompt_ms > 0)
        return (double)g->queue_ms + g->end.prompt_ms;
    return g->content_ms ? (double)(g->content_ms - g->began_ms) : 0;
}

/* Negative: there was no choice, or nothing is known of what came of it. */
static double regret_ms(const struct see_page *g)
{
    double best = -1;
    uint64_t tokens = g->end.prompt_n + g->end.cached_n;
    if (!g->end.counted || g->attempts != 1 || g->n_candidates < 2 || really_ms(g) <= 0)
        return -1;
    for (size_t i = 1; i < g->n_candidates; i++) {
        double ms = takes_ms(&g->candidates[i], tokens);
        if (best < 0 || ms < best)
            best = ms;
    }
    double lost = really_ms(g) - best;
    return lost > 0 ? lost : 0;
}

bool see_end(struct see *s, struct see_page *g, const struct see_end *e, uint64_t now, double *ret_regret_ms)
{
    if (!g)
        return false;
    lock(s);
    g->end = *e;
    g->owner = NULL;
    g->ended_ms = now;
    g->position = 0;
    if (e->counted)
        g->tokens = e->predicted_n;
    g->regret_ms = regret_ms(g);
    double regret = g->regret_ms;
    set_phase(g, SEE_DONE, now);
    TAILQ_REMOVE(&s->running, g, link);
    struct see_page *outside = is_inside(s, g) ? NULL : g, *over = NULL;
    if (outside) {
        g = kept_page(s);
        *g = *outside;
    } else {
        s->n_inside--;
    }
    TAILQ_INSERT_TAIL(&s->ended, g, link);
    if (++s->n_ended > SEE_KEPT) {
        over = TAILQ_FIRST(&s->ended);
        TAILQ_REMOVE(&s->ended, over, link);
        TAILQ_INSERT_HEAD(&s->blank, over, link);
        s->n_ended--;
    }
    unlock(s);
    free(outside);
    if (regret < 0)
        return false;
    *ret_regret_ms = regret;
    return true;
}

/* ---- reading ----------------------------------------------------------------------------------------------------------- */

static struct see_page *find_running(struct see *s, uint64_t number)
{
    struct see_page *g;
    TAILQ_FOREACH(g, &s->running, link)
        if (g->number == number)
            return g;
    return NULL;
}

static struct see_page *find(struct see *s, uint64_t number)
{
    struct see_page *g = find_running(s, number);
    if (g)
        return g;
    TAILQ_FOREACH(g, &s->ended, link)
        if (g->number == number)
            return g;
    return NULL;
}

void see_hand(struct see *s, struct see_page *g, void *owner)
{
    if (!g)
        return;
    lock(s);
    g->owner = owner;
    unlock(s);
}

void *see_owner(struct see *s, uint64_t number, void **ret_where)
{
    lock(s);
    const struct see_page *g = find_running(s, number);
    void *owner = g ? g->owner : NULL;
    if (g)
        *ret_where = g->where;
    unlock(s);
    return owner;
}

static void write_ms(struct json_out *o, const char *key, bool known, uint64_t from, uint64_t to)
{
    if (known)
        json_out_u64(o, key, to > from ? to - from : 0);
    else
        json_out_null(o, key);
}

static double token_rate(const struct see_page *g, uint64_t now)
{
    uint64_t until = g->ended_ms ? g->ended_ms : now;
    if (g->end.predicted_ms > 0)
        return (double)g->end.predicted_n * 1000 / g->end.predicted_ms;
    if (!g->content_ms || until <= g->content_ms || g->tokens < 2)
        return 0;
    return (double)(g->tokens - 1) * 1000 / (double)(until - g->content_ms);
}

/* Two decimals: more would be noise. */
static double rounded(double v)
{
    return (double)(int64_t)(v * 100 + 0.5) / 100;
}

static void write_times(const struct see_page *g, uint64_t at, struct json_out *o)
{
    uint64_t now = at > g->phase_ms ? at : g->phase_ms; /* loops look at the clock at different times */
    uint64_t until = g->ended_ms ? g->ended_ms : now;
    json_out_u64(o, "age_ms", now - g->began_ms);
    json_out_u64(o, "ms", until - g->began_ms);
    json_out_u64(o, "phase_ms", now - g->phase_ms);
    write_ms(o, "queue_ms", g->attempts > 0, 0, g->queue_ms);
    write_ms(o, "first_ms", g->content_ms > 0, g->began_ms, g->content_ms);
}

static void write_page(const struct see_page *g, uint64_t now, struct json_out *o)
{
    char conversation[20];
    snprintf(conversation, sizeof conversation, "%08x", (unsigned)(g->conversation ^ g->conversation >> 32));
    json_out_u64(o, "id", g->number);
    json_out_cstr(o, "key", g->key[0] ? g->key : NULL);
    json_out_cstr(o, "method", g->method);
    json_out_str(o, "path", str_of(g->path));
    json_out_cstr(o, "api", g->api);
    json_out_cstr(o, "endpoint", g->endpoint[0] ? g->endpoint : NULL);
    json_out_cstr(o, "replica", g->replica);
    json_out_cstr(o, "decision", g->decision);
    json_out_cstr(o, "phase", see_phase_name(g->phase));
    if (g->position)
        json_out_u64(o, "position", g->position);
    else
        json_out_null(o, "position");
    json_out_cstr(o, "conversation", g->conversation ? conversation : NULL);
    json_out_bool(o, "stream", g->stream);
    json_out_u64(o, "attempts", g->attempts);
    write_times(g, now, o);
    json_out_u64(o, "prompt_tokens_guess", g->guess);
    json_out_u64(o, "expected_cached_tokens", g->predicted);
    if (g->end.counted) {
        json_out_u64(o, "prompt_tokens", g->end.prompt_n + g->end.cached_n);
        json_out_u64(o, "cached_tokens", g->end.cached_n);
    } else {
        json_out_null(o, "prompt_tokens");
        json_out_null(o, "cached_tokens");
    }
    json_out_u64(o, "tokens", g->tokens);
    json_out_f64(o, "tokens_per_s", rounded(token_rate(g, now)));
    if (g->end.status)
        json_out_u64(o, "status", g->end.status);
    else
        json_out_null(o, "status");
    json_out_cstr(o, "outcome", g->end.outcome);
}

static void write_candidates(const struct see_page *g, struct json_out *o)
{
    uint64_t tokens = g->end.counted ? g->end.prompt_n + g->end.cached_n : g->guess;
    json_out_arr(o, "candidates");
    for (size_t i = 0; i < g->n_candidates; i++) {
        const struct candidate *c = &g->candidates[i];
        json_out_obj(o, NULL);
        json_out_cstr(o, "replica", c->name);
        json_out_bool(o, "chosen", i == 0);
        json_out_u64(o, "expected_cached_tokens", c->cached);
        json_out_f64(o, "wait_ms", rounded(c->wait_ms));
        json_out_f64(o, "prefill_tokens_per_s", rounded(c->prefill_tps));
        json_out_f64(o, "expected_ms", rounded(takes_ms(c, tokens)));
        json_out_end(o);
    }
    json_out_end(o);
    json_out_arr(o, "failed");
    for (size_t i = 0; i < g->n_tries; i++) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "replica", g->tries[i].replica);
        json_out_cstr(o, "reason", g->tries[i].reason);
        json_out_end(o);
    }
    json_out_end(o);
}

static void write_number(struct json_out *o, const char *key, double v, bool known)
{
    if (known)
        json_out_f64(o, key, rounded(v));
    else
        json_out_null(o, key);
}

bool see_write_one(struct see *s, uint64_t number, uint64_t now, struct json_out *o)
{
    struct see_page copy;
    lock(s);
    const struct see_page *g = find(s, number);
    if (g)
        copy = *g;
    unlock(s);
    if (!g)
        return false;
    write_page(&copy, now, o);
    write_candidates(&copy, o);
    write_number(o, "prompt_ms", copy.end.prompt_ms, copy.end.prompt_ms > 0);
    write_number(o, "predicted_ms", copy.end.predicted_ms, copy.end.predicted_ms > 0);
    write_number(o, "regret_ms", copy.regret_ms, copy.regret_ms >= 0);
    return true;
}

static void write_list(struct json_out *o, const char *key, const struct see_page *pages, size_t n, uint64_t now)
{
    json_out_arr(o, key);
    for (size_t i = 0; i < n; i++) {
        json_out_obj(o, NULL);
        write_page(&pages[i], now, o);
        json_out_end(o);
    }
    json_out_end(o);
}

int see_write_all(struct see *s, uint64_t now, struct json_out *o)
{
    struct see_page *copy = malloc(sizeof *copy * (SEE_SHOWN + SEE_RECENT)), *g;
    size_t running = 0, ended = 0;
    if (!copy)
        return -ENOMEM;
    lock(s);
    TAILQ_FOREACH(g, &s->running, link)
        if (running < SEE_SHOWN)
            copy[running++] = *g;
    TAILQ_FOREACH_REVERSE(g, &s->ended, pages, link)
        if (ended < SEE_RECENT)
            copy[SEE_SHOWN + ended++] = *g;
    unlock(s);
    write_list(o, "requests", copy, running, now);
    write_list(o, "recent", copy + SEE_SHOWN, ended, now);
    free(copy);
    return 0;
}
