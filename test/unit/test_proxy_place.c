/* SPDX-License-Identifier: MIT
 *
 * proxy: which conversation a request belongs to, which replica holds it, and who is sent where. No sockets: time is a number, replicas are structs, and what comes
 * from a cache is counted in prompt tokens.
 */
#include <conf/conf.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sched_rig.h"

/* ---- identity -------------------------------------------------------------------------------------------- */

static struct place_identity id, other;

static void identify(const struct http_head *head, const char *body, const struct place_names *names, struct place_identity *ret)
{
    place_read(place_dialect_of(head->method, head->target), str_of(body), 7, ret);
    place_name(head, names, 7, ret);
}

static void read_fields(const char *path, const char *body, const struct http_field *fields, size_t n, struct place_identity *ret)
{
    struct http_head head = {.method = STR("POST"), .target = str_of(path), .fields = fields, .n_fields = n};
    identify(&head, body, &place_names_default, ret);
}

static void read_body(const char *path, const char *body, struct place_identity *ret)
{
    read_fields(path, body, NULL, 0, ret);
}

#define SYS "{\"role\":\"system\",\"content\":\"be good\"}"
#define U1 "{\"role\":\"user\",\"content\":\"one\"}"
#define A1 "{\"role\":\"assistant\",\"content\":\"eins\"}"
#define U2 "{\"role\":\"user\",\"content\":\"two\"}"
#define CHAT "/v1/chat/completions"

static void next_turn_has_the_last_as_prefix(void **state)
{
    (void)state;
    static const struct {
        const char *path, *before, *after;
        size_t n;
    } cases[] = {
        {CHAT, "{\"messages\":[" SYS "," U1 "]}", "{\"stream\":true,\"messages\":[ " SYS " , " U1 "," A1 "," U2 "]}", 1},
        {CHAT, "{\"tools\":[{\"a\":1}],\"messages\":[" U1 "]}", "{\"messages\":[" U1 "," A1 "," U2 "],\"tools\":[ {\"a\":1}]}", 1},
        {"/v1/messages", "{\"system\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"one\",\"cache_control\":{\"type\":\"ephemeral\"}}]}]}",
         "{\"system\":[{\"type\":\"text\",\"text\":\"s\",\"cache_control\":{}}],\"messages\":[" U1 "," A1 "," U2 "]}", 1},
        {"/v1/responses", "{\"instructions\":\"x\",\"input\":[{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"}]}]}",
         "{\"instructions\":\"x\",\"input\":[{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"}]},{\"type\":\"function_call\",\"name\":\"f\"}]}", 1},
        {"/completion", "{\"prompt\":\"a b\"}", "{\"n_predict\":5,\"prompt\":\"a b\"}", 1},
    };
    for (size_t i = 0; i < BASE_COUNT(cases); i++) {
        read_body(cases[i].path, cases[i].before, &id);
        read_body(cases[i].path, cases[i].after, &other);
        if (id.n != cases[i].n || other.n < id.n || id.chain[id.n - 1] != other.chain[id.n - 1] || id.scaffold != other.scaffold)
            fail_msg("case %zu: %zu links, then %zu", i, id.n, other.n);
        assert_true(id.flow == other.flow && id.flow);
        if (other.n > id.n)
            assert_true(other.chain[other.n - 1] != id.chain[id.n - 1]);
    }
}

static void scaffold_is_no_match(void **state)
{
    (void)state;
    read_body(CHAT, "{\"messages\":[" SYS "," U1 "]}", &id);
    read_body(CHAT, "{\"messages\":[" SYS "," U2 "]}", &other);
    assert_true(id.scaffold == other.scaffold && id.scaffold && id.scaffold_tokens);
    assert_int_equal(id.n, 1);
    assert_true(id.chain[0] != other.chain[0]);
    /* the same words after another system text or other tools are another prompt */
    read_body(CHAT, "{\"messages\":[" U1 "]}", &other);
    assert_true(other.chain[0] != id.chain[0] && !other.scaffold);
    read_body(CHAT, "{\"tools\":[1],\"messages\":[" SYS "," U1 "]}", &other);
    assert_true(other.chain[0] != id.chain[0]);
    /* system text alone, or later on */
    read_body(CHAT, "{\"messages\":[" SYS "]}", &id);
    assert_int_equal(id.n, 0);
    read_body(CHAT, "{\"messages\":[" U1 "," SYS "]}", &id);
    assert_int_equal(id.n, 2);
}

static void hints(void **state)
{
    (void)state;
    const struct http_field a = {.name = STR("X-Session-Id"), .value = STR("a")}, agent[] = {{.name = STR("x-claude-code-session-id"), .value = STR("a")}, {.name = STR("X-Claude-Code-Agent-Id"), .value = STR("7")}};
    read_fields(CHAT, "{\"messages\":[" U1 "]}", &a, 1, &id);
    read_fields("/v1/messages", "{\"prompt_cache_key\":\"zzz\",\"messages\":[]}", &a, 1, &other);
    assert_true(id.hint && id.hint == other.hint && id.flow == id.hint);
    read_fields(CHAT, "{}", agent, 2, &other);
    assert_true(other.hint != id.hint);
    read_fields(CHAT, "{}", agent, 1, &other);
    assert_true(other.hint == id.hint);
    read_body("/v1/responses", "{\"input\":\"x\",\"prompt_cache_key\":\"k\"}", &id);
    read_body("/v1/responses", "{\"input\":\"y\",\"prompt_cache_key\":\"k\"}", &other);
    assert_true(id.hint && id.hint == other.hint && id.chain[0] != other.chain[0]);
    /* a user has many conversations: fairness, no match */
    read_body(CHAT, "{\"user\":\"u\",\"messages\":[" U1 "]}", &id);
    read_body(CHAT, "{\"user\":\"u\",\"messages\":[" U2 "]}", &other);
    assert_true(!id.hint && id.flow == other.flow);
    read_body(CHAT, "{\"prompt_cache_key\":\"\"}", &id);
    assert_int_equal(id.hint, 0);
}

/* Whoever names the fields has named all of them; those of the body stay. */
static void own_names(void **state)
{
    (void)state;
    static const char *const mine[] = {"x-task", "x-job"};
    const struct place_names names = {mine, BASE_COUNT(mine)};
    const struct http_field fields[] = {{.name = STR("X-Session-Id"), .value = STR("a")}, {.name = STR("X-Job"), .value = STR("b")}, {.name = STR("X-Task"), .value = STR("c")}};
    struct http_head head = {.method = STR("POST"), .target = STR(CHAT), .fields = fields, .n_fields = 1};
    identify(&head, "{}", &names, &id);
    assert_int_equal(id.hint, 0);
    identify(&head, "{\"prompt_cache_key\":\"k\"}", &names, &id);
    assert_true(id.hint != 0);
    head.n_fields = 2;
    identify(&head, "{}", &names, &id);
    head.n_fields = 3;
    identify(&head, "{}", &names, &other);
    assert_true(id.hint && other.hint && id.hint != other.hint);
}

static void odd_bodies(void **state)
{
    (void)state;
    static const char *const odd[] = {"", "[]", "{", "{\"messages\":[", "{\"messages\":7}", "{\"messages\":[1,null,{}]}", "{\"messages\":{}}", "\"x\"", "{\"messages\":[{\"content\":[\"", "{\"stream\":true"};
    for (size_t i = 0; i < BASE_COUNT(odd); i++)
        read_body(CHAT, odd[i], &id);
    assert_int_equal(id.n, 0);
    /* deep, and longer than what is kept */
    base_autobuf struct buf b = BUF_INIT(1 << 20);
    buf_add_c(&b, "{\"messages\":[");
    for (int i = 0; i < 5000; i++)
        buf_add_c(&b, "[");
    read_body(CHAT, b.ptr, &id);
    buf_clear(&b);
    buf_add_c(&b, "{\"messages\":[0");
    for (int i = 1; i < PLACE_CHAIN_MAX + 10; i++)
        buf_addf(&b, ",%d", i);
    buf_add_c(&b, "]}");
    read_body(CHAT, b.ptr, &id);
    assert_int_equal(id.n, PLACE_CHAIN_MAX);
    /* the last ones, in order: the oldest of them is what a body of the first eleven ends with */
    for (int last = 10; last < 12; last++) {
        static struct place_identity front;
        buf_clear(&b);
        buf_add_c(&b, "{\"messages\":[0");
        for (int i = 1; i <= last; i++)
            buf_addf(&b, ",%d", i);
        buf_add_c(&b, "]}");
        read_body(CHAT, b.ptr, &front);
        assert_int_equal(front.n, last + 1);
        assert_true(front.chain[last] == id.chain[last - 10]);
    }
    static const struct {
        const char *method, *path;
        enum place_dialect want;
    } paths[] = {
        {"POST", CHAT, PLACE_CHAT}, {"POST", "/completion", PLACE_COMPLETIONS}, {"POST", "/v1/embeddings", PLACE_BATCH}, {"POST", "/v1/messages", PLACE_MESSAGES},
        {"POST", "/v1/messages/count_tokens", PLACE_OTHER}, {"GET", CHAT, PLACE_OTHER}, {"POST", "/tokenize", PLACE_OTHER}, {"POST", "/v1/responses", PLACE_RESPONSES},
    };
    for (size_t i = 0; i < BASE_COUNT(paths); i++)
        assert_int_equal(place_dialect_of(str_of(paths[i].method), str_of(paths[i].path)), paths[i].want);
}

/* ---- the index ---------------------------------------------------------------------------------------------- */

static void longest_chain_first(void **state)
{
    (void)state;
    struct affinity *a = affinity_new(1 << 20);
    struct affinity_match m[AFFINITY_MATCHES];
    const uint64_t chain[] = {11, 12, 13, 14, 15};
    assert_int_equal(affinity_find(a, chain, 5, 0, m), 0);
    affinity_put(a, 11, &(struct affinity_place){.replica = 1, .generation = 1, .tokens = 10});
    affinity_put(a, 13, &(struct affinity_place){.replica = 2, .generation = 1, .tokens = 30});
    affinity_put(a, 99, &(struct affinity_place){.replica = 3, .generation = 1, .tokens = 50});
    assert_int_equal(affinity_find(a, chain, 5, 99, m), 3);
    assert_int_equal(m[0].place.replica, 2);
    assert_int_equal(m[0].links, 3);
    assert_int_equal(m[1].place.replica, 1);
    assert_int_equal(m[2].links, 0);
    assert_int_equal(affinity_find(a, chain, 2, 0, m), 1);
    /* a turn that went elsewhere is in both places, the latest first; one that proved wrong is forgotten */
    affinity_put(a, 13, &(struct affinity_place){.replica = 1, .generation = 1, .tokens = 31});
    assert_int_equal(affinity_find(a, chain, 3, 0, m), 2);
    assert_int_equal(m[0].place.tokens, 31);
    affinity_drop(a, 13, 1);
    affinity_drop(a, 13, 7);
    affinity_drop(a, 77, 1);
    affinity_find(a, chain, 3, 0, m);
    assert_int_equal(m[0].place.replica, 2);
    affinity_free(a);
}

static void bounded_in_bytes(void **state)
{
    (void)state;
    enum { BYTES = 200000 };
    struct affinity *a = affinity_new(BYTES);
    struct affinity_match m[AFFINITY_MATCHES];
    struct affinity_place p = {.replica = 1, .generation = 1, .tokens = 10};
    const uint64_t kept = 1;
    for (uint64_t i = 1; i < 100000; i++) {
        affinity_put(a, i * 2654435761u, &p);
        affinity_put(a, kept, &p); /* what is used stays */
        assert_true(affinity_bytes(a) <= BYTES);
    }
    assert_int_equal(affinity_find(a, &kept, 1, 0, m), 1);
    uint64_t old = 2654435761u, young = 99999 * (uint64_t)2654435761u;
    assert_int_equal(affinity_find(a, &old, 1, 0, m), 0);
    assert_int_equal(affinity_find(a, &young, 1, 0, m), 1);
    affinity_free(a);
}

/* ---- the scheduler -------------------------------------------------------------------------------------------- */

static void slots_are_the_limit(void **state)
{
    (void)state;
    replicas(2, 2);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(sched_enter(sched, turn(i, "adaptive", 2, i + 1, 1, 100), now), 0);
    for (size_t i = 0; i < 4; i++)
        assert_ptr_equal(next(), &t[i]);
    assert_null(next());
    assert_int_equal(reps[0].active, 2);
    assert_int_equal(reps[1].active, 2);
    /* each has a slot of its own */
    assert_true(t[0].replica != t[2].replica || t[0].slot != t[2].slot);
    assert_true(t[0].replica != t[3].replica || t[0].slot != t[3].slot);
    /* one that waits leaves, one that runs ends */
    sched_leave(sched, &t[4], &(struct sched_outcome){.result = SCHED_ABANDONED}, now);
    assert_int_equal(sched_waiting(sched), 1);
    sched_leave(sched, &t[1], &(struct sched_outcome){.result = SCHED_ABANDONED}, now);
    assert_ptr_equal(next(), &t[5]);
    assert_ptr_equal(t[5].replica, t[1].replica);
    /* what takes no slot does not wait for one */
    struct sched_ticket *light = ticket(6, "adaptive", 2, 1);
    light->leased = false;
    go(light);
    assert_int_equal(reps[0].active + reps[1].active, 4);
}

static void one_flow_does_not_fill_the_queue(void **state)
{
    (void)state;
    replicas(1, 1);
    go(turn(0, "adaptive", 1, 50, 1, 10));
    for (size_t i = 1; i <= 4; i++) /* four of one conversation, then two others */
        assert_int_equal(sched_enter(sched, turn(i, "roundrobin", 1, 1, 1, 10), now), 0);
    assert_int_equal(sched_enter(sched, turn(5, "roundrobin", 1, 2, 1, 10), now), 0);
    assert_int_equal(sched_enter(sched, turn(6, "roundrobin", 1, 3, 1, 10), now), 0);
    static const size_t want[] = {1, 5, 6, 2, 3, 4};
    struct sched_ticket *running = &t[0];
    for (size_t i = 0; i < BASE_COUNT(want); i++) {
        sched_leave(sched, running, &(struct sched_outcome){.result = SCHED_ABANDONED}, now);
        running = next();
        assert_ptr_equal(running, &t[want[i]]);
        assert_null(next());
    }
}

/* Of a prompt that was answered no more is expected in the cache than it has, though its answer is there too; the next turn, which has the answer in it, finds both. */
static void no_more_is_expected_than_there_is(void **state)
{
    (void)state;
    replicas(1, 2);
    const struct sched_outcome answered = {.result = SCHED_OK, .content = true, .counted = true, .prompt_n = 600, .cached_n = 100, .predicted_n = 400, .prompt_ms = 600};
    for (int again = 0; again < 3; again++) {
        struct sched_ticket *k = turn(0, "adaptive", 1, 1, 3, 1000); /* a guess: it has 700 */
        go(k);
        assert_int_equal(k->predicted, again ? 700 : 0);
        sched_proved(k);
        sched_leave(sched, k, &answered, now);
    }
    go(turn(1, "adaptive", 1, 1, 5, 1600));
    assert_int_equal(t[1].predicted, 1100);
    done(&t[1], 1100);
    /* a name alone tells nothing of the prompt */
    struct sched_ticket *k = ticket(2, "adaptive", 1, 1000);
    k->hint = 77;
    go(k);
    sched_leave(sched, k, &answered, now);
    k = ticket(3, "adaptive", 1, 1600);
    k->hint = 77;
    go(k);
    assert_int_equal(t[3].predicted, 1100);
    done(&t[3], 1100);
}

/* It has waited its turn; who comes after it stands behind those who wait all the same. */
static void sent_again_is_first(void **state)
{
    (void)state;
    const struct sched_outcome over = {.result = SCHED_ABANDONED};
    replicas(1, 1);
    go(turn(0, "roundrobin", 1, 1, 1, 10));
    for (size_t i = 1; i <= 2; i++) /* the second makes later ranks higher */
        assert_int_equal(sched_enter(sched, turn(i, "roundrobin", 1, 1, 1, 10), now), 0);
    for (size_t i = 0; i < 2; i++) {
        sched_leave(sched, &t[i], &over, now);
        assert_ptr_equal(next(), &t[i + 1]);
    }
    assert_int_equal(sched_enter(sched, turn(3, "roundrobin", 1, 2, 1, 10), now), 0);
    sched_leave(sched, &t[2], &over, now);
    go(&t[2]);
    assert_int_equal(sched_enter(sched, turn(4, "roundrobin", 1, 3, 1, 10), now), 0);
    sched_leave(sched, &t[2], &over, now);
    assert_ptr_equal(next(), &t[3]);
}

/* What it waited before each replica adds up; what it took there does not count. */
static void waits_add_up(void **state)
{
    (void)state;
    const struct sched_outcome over = {.result = SCHED_ABANDONED};
    replicas(1, 1);
    go(turn(0, "roundrobin", 1, 1, 1, 10));
    assert_int_equal(sched_enter(sched, turn(1, "roundrobin", 1, 2, 1, 10), now), 0);
    now += 300;
    sched_leave(sched, &t[0], &over, now);
    assert_ptr_equal(next(), &t[1]);
    assert_int_equal(sched_waited_ms(&t[1]), 300);
    now += 5000;
    sched_leave(sched, &t[1], &over, now);
    go(turn(2, "roundrobin", 1, 3, 1, 10));
    assert_int_equal(sched_enter(sched, &t[1], now), 0);
    now += 40;
    sched_leave(sched, &t[2], &over, now);
    assert_ptr_equal(next(), &t[1]);
    assert_int_equal(sched_waited_ms(&t[1]), 340);
}

static void queue_ends_somewhere(void **state)
{
    (void)state;
    static struct sched_ticket many[SCHED_QUEUE_MAX + 1];
    bool expired;
    replicas(1, 1);
    go(ticket(0, "adaptive", 1, 10));
    for (size_t i = 0; i <= SCHED_QUEUE_MAX; i++) {
        many[i] = (struct sched_ticket){.policy = "adaptive", .candidates = cands, .n_candidates = 1, .tried = &tried[1], .leased = true};
        assert_int_equal(sched_enter(sched, &many[i], now), i == SCHED_QUEUE_MAX ? -EBUSY : 0);
    }
    assert_null(sched_next(sched, now, &expired));
    assert_int_equal(sched_due(sched), now + SCHED_QUEUE_MS);
    /* one that has waited its turn is taken again, and is first */
    sched_leave(sched, &t[0], &(struct sched_outcome){.result = SCHED_FAILED}, now);
    go(&t[0]);
    now += SCHED_QUEUE_MS;
    assert_ptr_equal(sched_next(sched, now, &expired), &many[0]);
    assert_true(expired && !many[0].replica);
    for (size_t i = 1; i < SCHED_QUEUE_MAX; i++)
        sched_leave(sched, &many[i], &(struct sched_outcome){.result = SCHED_ABANDONED}, now);
    assert_int_equal(sched_waiting(sched), 0);
}

/* A conversation goes home; when home is busy it waits as long as that saves time, and not longer. */
static void waits_for_home_and_overflows(void **state)
{
    (void)state;
    replicas(2, 1);
    go(turn(0, "adaptive", 2, 1, 1, 1000));
    struct sched_replica *home = t[0].replica;
    done(&t[0], 0); /* a token takes a millisecond */
    go(turn(1, "adaptive", 2, 1, 2, 1200));
    assert_ptr_equal(t[1].replica, home);
    assert_int_equal(t[1].decision, SCHED_AFFINE);
    assert_int_equal(t[1].slot, t[0].slot);
    assert_int_equal(t[1].predicted, 1000);
    home->prefill_tps = reps[0].prefill_tps = reps[1].prefill_tps = 1000;
    home->service_ms = 100;
    /* its third turn comes while the second runs */
    assert_int_equal(sched_enter(sched, turn(2, "adaptive", 2, 1, 2, 1400), now), 0);
    sched_leave(sched, &t[2], &(struct sched_outcome){.result = SCHED_ABANDONED}, now);
    assert_int_equal(sched_enter(sched, turn(2, "adaptive", 2, 1, 2, 1400), now), 0);
    assert_null(next());
    assert_true(sched_due(sched) > now && sched_due(sched) <= now + 1000);
    now = sched_due(sched);
    assert_ptr_equal(next(), &t[2]);
    assert_true(t[2].replica != home);
    assert_int_equal(t[2].decision, SCHED_OVERFLOW);
}

/* While all are busy nobody can go elsewhere: only from then on is it counted how long a conversation waits for its own replica. */
static void counts_its_wait_from_the_first_offer(void **state)
{
    (void)state;
    replicas(2, 1);
    go(turn(0, "adaptive", 2, 1, 1, 1000));
    struct sched_replica *home = t[0].replica;
    done(&t[0], 0);
    reps[0].prefill_tps = reps[1].prefill_tps = 1000;
    go(turn(1, "adaptive", 2, 1, 2, 1200));
    assert_ptr_equal(t[1].replica, home);
    go(turn(2, "adaptive", 2, 2, 1, 1000));
    assert_ptr_not_equal(t[2].replica, home);
    home->service_ms = 100;
    assert_int_equal(sched_enter(sched, turn(3, "adaptive", 2, 1, 2, 1200), now), 0);
    now += 5000; /* longer than its 1,000 tokens take to read */
    assert_null(next());
    done(&t[2], 0);
    now += SCHED_HOLD_MAX_MS + 1;
    assert_null(next()); /* the other one has room, its own will have soon */
    uint64_t offered = now;
    assert_true(sched_due(sched) > offered && sched_due(sched) <= offered + 1000);
    now = sched_due(sched);
    assert_ptr_equal(next(), &t[3]);
    assert_ptr_not_equal(t[3].replica, home);
    assert_int_equal(t[3].decision, SCHED_OVERFLOW);
}

/* Who has waited too long takes a held slot, and says which: the engine would choose by itself, and what is believed of both would be wrong. */
static void starved_one_names_the_held_slot(void **state)
{
    (void)state;
    replicas(1, 2);
    reps[0].prefill_tps = 100;
    go(turn(0, "adaptive", 1, 1, 1, 1000));
    go(turn(1, "adaptive", 1, 2, 1, 1000));
    uint32_t first = t[0].slot;
    sched_proved(&t[0]);
    assert_int_equal(sched_enter(sched, turn(2, "adaptive", 1, 3, 1, 1000), now), 0);
    now += 10;
    done(&t[0], 0);
    now += 1;
    done(&t[1], 0);
    assert_null(next());
    assert_true(reps[0].slots[0].hold_until_ms > now && reps[0].slots[1].hold_until_ms > now);
    reps[0].service_ms = 1;
    assert_ptr_equal(next(), &t[2]);
    assert_int_equal(t[2].slot, first); /* left longer ago */
    done(&t[2], 0);
    /* whose slot it was knows that it is lost, the other one that it has its own */
    go(turn(3, "adaptive", 1, 2, 2, 1200));
    assert_int_equal(t[3].slot, t[1].slot);
    assert_false(t[3].displaced);
    now += SCHED_HOLD_MAX_MS + 1;
    go(turn(4, "adaptive", 1, 1, 2, 1200));
    assert_true(t[4].displaced);
}

static void generations_fence(void **state)
{
    (void)state;
    replicas(2, 2);
    go(turn(0, "adaptive", 2, 1, 1, 1000));
    struct sched_replica *home = t[0].replica;
    go(turn(1, "adaptive", 2, 2, 1, 1000));
    go(turn(2, "adaptive", 2, 3, 1, 1000));
    assert_ptr_equal(t[2].replica, home);
    done(&t[0], 0);
    assert_int_equal(sched_replica_set(home, true, 2, 2, true), 0);
    assert_int_equal(home->active, 0);
    done(&t[2], 0); /* of the old process: neither counted nor remembered */
    assert_int_equal(home->active, 0);
    go(turn(3, "adaptive", 2, 1, 2, 1200));
    assert_int_equal(t[3].decision, SCHED_COLD);
    assert_int_equal(t[3].predicted, 0);
    /* a replica that is not ready is no candidate, however much it holds */
    struct sched_replica *away = t[1].replica;
    done(&t[1], 0);
    assert_int_equal(sched_replica_set(away, false, 1, 2, true), 0);
    go(turn(4, "sticky", 2, 2, 2, 1200));
    assert_ptr_equal(t[4].replica, home);
    assert_int_equal(sched_replica_set(home, false, 2, 2, true), 0);
    assert_int_equal(sched_enter(sched, turn(5, "adaptive", 2, 9, 1, 10), now), 0);
    assert_ptr_equal(next(), &t[5]);
    assert_null(t[5].replica);
}

static void failures(void **state)
{
    (void)state;
    const struct sched_outcome failed = {.result = SCHED_FAILED};
    replicas(2, 4);
    go(ticket(0, "roundrobin", 2, 10));
    struct sched_replica *bad = t[0].replica;
    now += 2 * (uint64_t)SCHED_QUEUE_MS; /* what it took there is not what it waited */
    sched_leave(sched, &t[0], &failed, now);
    tried[0] = UINT64_C(1) << t[0].index;
    go(&t[0]); /* again, elsewhere */
    assert_ptr_not_equal(t[0].replica, bad);
    for (size_t i = 1; i < 3; i++) {
        go(ticket(i, "roundrobin", 2, 10));
        assert_ptr_not_equal(t[i].replica, bad);
    }
    /* half open: one at a time, until it has answered */
    now += SCHED_SUSPECT_MS;
    go(ticket(3, "roundrobin", 2, 10));
    assert_ptr_equal(t[3].replica, bad);
    go(ticket(4, "roundrobin", 2, 10));
    assert_ptr_not_equal(t[4].replica, bad);
    sched_proved(&t[3]);
    go(ticket(5, "roundrobin", 2, 10));
    assert_ptr_equal(t[5].replica, bad);
    /* failing again it is left alone for longer; what fails together is one failure */
    sched_leave(sched, &t[3], &failed, now);
    sched_leave(sched, &t[5], &failed, now);
    assert_int_equal(bad->failures, 1);
    now += SCHED_SUSPECT_MS;
    sched_leave(sched, &t[4], &(struct sched_outcome){.result = SCHED_OK}, now);
    go(ticket(8, "roundrobin", 2, 10)); /* the other one's turn */
    go(ticket(6, "roundrobin", 2, 10));
    assert_ptr_equal(t[6].replica, bad);
    sched_leave(sched, &t[6], &failed, now);
    assert_int_equal(bad->suspect_ms, now + 2 * SCHED_SUSPECT_MS);
    /* when there is no other it is asked all the same */
    struct sched_replica *good = t[0].replica;
    good->ready = false;
    go(ticket(7, "roundrobin", 2, 10));
    assert_ptr_equal(t[7].replica, bad);
}

/* What a conversation left behind is believed less when others used its slot, and not at all once that proved wrong. */
static void predictions_are_corrected(void **state)
{
    (void)state;
    replicas(1, 1);
    go(turn(0, "adaptive", 1, 1, 1, 1000));
    done(&t[0], 0);
    now += 1000;
    go(turn(1, "adaptive", 1, 2, 1, 1000));
    assert_int_equal(t[1].slot, 0);
    done(&t[1], 0);
    now += 1000;
    go(turn(2, "adaptive", 1, 1, 2, 1200));
    assert_true(t[2].displaced && t[2].predicted == 900);
    assert_int_equal(t[2].slot, 0); /* used before: the engine looks into its RAM */
    done(&t[2], 0);
    assert_true(reps[0].kept < 0.75);
    struct affinity_match m[AFFINITY_MATCHES];
    uint64_t first = 1001;
    assert_int_equal(affinity_find(aff, &first, 1, 0, m), 0);
}

/* A request that names an empty slot gets nothing of what the engine keeps in RAM. */
static void no_empty_slot_for_the_displaced(void **state)
{
    (void)state;
    replicas(1, 2);
    go(turn(0, "adaptive", 1, 1, 1, 1000));
    done(&t[0], 0);
    now += 1000;
    reps[0].slots[t[0].slot].key = 77; /* somebody else is there */
    go(turn(1, "adaptive", 1, 1, 2, 1200));
    assert_int_equal(t[1].slot, t[0].slot);
    go(turn(2, "adaptive", 1, 1, 2, 1200));
    assert_int_equal(t[2].slot, AFFINITY_NO_SLOT);
    sched_leave(sched, &t[2], &(struct sched_outcome){.result = SCHED_ABANDONED}, now);
    go(turn(3, "adaptive", 1, 5, 1, 10)); /* a new one may */
    assert_int_not_equal(t[3].slot, t[0].slot);
}

/* Closed loop without think time: a slot waits a moment for its conversation instead of going to the next in the queue. */
static void slot_is_held_for_the_next_turn(void **state)
{
    (void)state;
    replicas(1, 1);
    go(turn(0, "adaptive", 1, 1, 1, 1000));
    assert_int_equal(sched_enter(sched, turn(1, "adaptive", 1, 2, 1, 1000), now), 0);
    assert_null(next());
    now += 1000;
    done(&t[0], 0);
    assert_null(next());
    assert_true(sched_due(sched) > now && sched_due(sched) <= now + SCHED_HOLD_MAX_MS);
    assert_int_equal(sched_enter(sched, turn(2, "adaptive", 1, 1, 2, 1200), now), 0);
    assert_ptr_equal(next(), &t[2]);
    now += 200;
    done(&t[2], 1000);
    assert_null(next());
    now = sched_due(sched); /* it does not come back */
    assert_ptr_equal(next(), &t[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(next_turn_has_the_last_as_prefix),
        cmocka_unit_test(scaffold_is_no_match),
        cmocka_unit_test(hints),
        cmocka_unit_test(own_names),
        cmocka_unit_test(odd_bodies),
        cmocka_unit_test(longest_chain_first),
        cmocka_unit_test(bounded_in_bytes),
        SCHED_TEST(slots_are_the_limit),
        SCHED_TEST(one_flow_does_not_fill_the_queue),
        SCHED_TEST(no_more_is_expected_than_there_is),
        SCHED_TEST(sent_again_is_first),
        SCHED_TEST(waits_add_up),
        SCHED_TEST(queue_ends_somewhere),
        SCHED_TEST(waits_for_home_and_overflows),
        SCHED_TEST(counts_its_wait_from_the_first_offer),
        SCHED_TEST(starved_one_names_the_held_slot),
        SCHED_TEST(generations_fence),
        SCHED_TEST(failures),
        SCHED_TEST(predictions_are_corrected),
        SCHED_TEST(no_empty_slot_for_the_displaced),
        SCHED_TEST(slot_is_held_for_the_next_turn),
    };
    return cmocka_run_group_tests_name("proxy_place", tests, NULL, NULL);
}
