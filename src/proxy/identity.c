/* SPDX-License-Identifier: MIT
 *
 * What a request is part of. Two passes over the body without a tree: one for what its object has, one through the messages. What clients change from turn to turn in messages that they send again is left out of the hashes: white space between
 * tokens, "cache_control" marks, and whether a text is a string or a list of one part.
 */
#include "place_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <strings.h>

#define DEPTH_MAX 16 /* deeper values are hashed as they are written */

/* The names in the body follow: they are weaker. */
static const char *const session_fields[] = {
    "x-session-id", "x-claude-code-session-id", "session-id", "session_id", "thread-id", "x-olla-session-id", "x-dynamo-session-id", "x-session-affinity",
};
const struct place_names place_names_default = {session_fields, BASE_COUNT(session_fields)};
/* An agent's parts have conversations of their own within one session. */
static const char *const agent_fields[] = {"x-claude-code-agent-id"};

/* ---- hashing -------------------------------------------------------------------------------------------- */

static uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

#define STRIPE 64 /* four at once: each alone waits for its own multiplication */

static uint64_t word(const char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t half(const char *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint64_t two_words(const char *p, uint64_t seed, uint64_t h, uint64_t k1, uint64_t k2)
{
    return fold(word(p) ^ k1 ^ h, word(p + 8) ^ k2 ^ seed);
}

/* Fewer than 16 bytes as two words, which may overlap: how many they are is in the hash already. */
static uint64_t rest_words(struct str s, uint64_t seed, uint64_t h, uint64_t k1, uint64_t k2)
{
    uint64_t a = 0, b = 0;
    if (s.len >= 8) {
        a = word(s.ptr);
        b = word(s.ptr + s.len - 8);
    } else if (s.len >= 4) {
        a = half(s.ptr);
        b = half(s.ptr + s.len - 4);
    } else if (s.len) {
        a = (unsigned char)s.ptr[0] | (uint64_t)(unsigned char)s.ptr[s.len / 2] << 8 | (uint64_t)(unsigned char)s.ptr[s.len - 1] << 16;
    }
    return fold(a ^ k1 ^ h, b ^ k2 ^ seed);
}

uint64_t place_hash(uint64_t seed, struct str s)
{
    const uint64_t k1 = 0x9e3779b97f4a7c15u, k2 = 0xd6e8feb86659fd93u, k3 = 0xa0761d6478bd642fu, k4 = 0xe7037ed1a0b428dbu;
    uint64_t h = fold(seed ^ k1, s.len ^ k2);
    if (s.len >= STRIPE) {
        uint64_t h2 = h, h3 = h, h4 = h;
        for (; s.len >= STRIPE; s.ptr += STRIPE, s.len -= STRIPE) {
            h = two_words(s.ptr, seed, h, k1, k2);
            h2 = two_words(s.ptr + 16, seed, h2, k2, k3);
            h3 = two_words(s.ptr + 32, seed, h3, k3, k4);
            h4 = two_words(s.ptr + 48, seed, h4, k4, k1);
        }
        h = fold(fold(fold(h ^ k1, h2 ^ k2) ^ k3, h3 ^ k4) ^ k1, h4 ^ seed);
    }
    for (; s.len >= 16; s.ptr += 16, s.len -= 16)
        h = two_words(s.ptr, seed, h, k1, k2);
    h = fold(rest_words(s, seed, h, k1, k2) ^ k2, k1 ^ seed);
    return h ? h : 1; /* 0 means none */
}

/* Whether a token with its quotes says so. */
#define KEY_IS(token, key) ((token).len == sizeof(key) + 1 && memcmp((token).ptr + 1, key, sizeof(key) - 1) == 0)

/* The functions below take the value at which a walk stands into a hash: 0, or -EBADMSG where the text is broken. One pass goes through all of a message. */

static int hash_value(struct json_walk *w, uint64_t *h, unsigned depth);

static int hash_whole(struct json_walk *w, uint64_t *h)
{
    struct str v;
    int rc = json_walk_value(w, &v);
    if (rc == 0)
        *h = place_hash(*h, v);
    return rc;
}

/* To the end of an object of which nothing more is wanted. */
static int pass_rest(struct json_walk *w)
{
    struct str key;
    int rc;
    while ((rc = json_walk_next(w, &key)) == 1)
        ;
    return rc;
}

/* A part of a message; a text counts by itself, whatever it is wrapped in. */
static int hash_part(struct json_walk *w, uint64_t *h, unsigned depth)
{
    if (json_walk_peek(w) != '{' || depth >= DEPTH_MAX)
        return hash_value(w, h, depth);
    struct json_walk in;
    struct str key;
    uint64_t whole = place_hash(*h, STR("}"));
    int rc;
    json_walk_enter(w, &in);
    while ((rc = json_walk_next(&in, &key)) == 1) {
        if (KEY_IS(key, "text") && json_walk_peek(&in) == '"') {
            rc = hash_whole(&in, h);
            whole = *h;
            rc = rc < 0 ? rc : pass_rest(&in);
            break;
        }
        if (KEY_IS(key, "cache_control"))
            continue;
        whole = place_hash(whole, key);
        rc = hash_value(&in, &whole, depth + 1);
        if (rc < 0)
            return rc;
    }
    if (rc < 0)
        return rc;
    *h = whole;
    json_walk_leave(w, &in);
    return 0;
}

static int hash_content(struct json_walk *w, uint64_t *h, unsigned depth)
{
    struct json_walk in;
    struct str key;
    int rc;
    if (json_walk_peek(w) != '[')
        return hash_whole(w, h);
    json_walk_enter(w, &in);
    while ((rc = json_walk_next(&in, &key)) == 1 && (rc = hash_part(&in, h, depth + 1)) == 0)
        ;
    if (rc == 0)
        json_walk_leave(w, &in);
    return rc;
}

/* ret_role: the value of "role", or NULL. */
static int hash_members(struct json_walk *w, uint64_t *h, unsigned depth, struct str *ret_role)
{
    struct json_walk in;
    struct str key;
    int rc;
    json_walk_enter(w, &in);
    *h = place_hash(*h, (struct str){&in.close, 1});
    while ((rc = json_walk_next(&in, &key)) == 1) {
        if (KEY_IS(key, "cache_control"))
            continue;
        *h = place_hash(*h, key);
        if (ret_role && KEY_IS(key, "role")) {
            rc = json_walk_value(&in, ret_role);
            *h = rc < 0 ? *h : place_hash(*h, *ret_role);
        } else if (KEY_IS(key, "content")) {
            rc = hash_content(&in, h, depth + 1);
        } else {
            rc = hash_value(&in, h, depth + 1);
        }
        if (rc < 0)
            return rc;
    }
    if (rc == 0)
        json_walk_leave(w, &in);
    return rc;
}

static int hash_value(struct json_walk *w, uint64_t *h, unsigned depth)
{
    char c = json_walk_peek(w);
    return depth >= DEPTH_MAX || (c != '{' && c != '[') ? hash_whole(w, h) : hash_members(w, h, depth, NULL);
}

/* ---- what a body says -------------------------------------------------------------------------------------- */

struct body {
    struct str messages, system, tools, stream, slot, cache_key, session, user;
};

static void read_members(struct str text, struct body *b)
{
#define WANTED(key, member) {sizeof(key) - 1, key, offsetof(struct body, member)}
    static const struct {
        size_t len;
        const char *key;
        size_t at;
    } wanted[] = {
        WANTED("messages", messages), WANTED("input", messages), WANTED("prompt", messages), WANTED("input_prefix", messages), WANTED("system", system), WANTED("instructions", system),
        WANTED("tools", tools), WANTED("stream", stream), WANTED("id_slot", slot), WANTED("session_id", session), WANTED("prompt_cache_key", cache_key), WANTED("user", user),
    };
#undef WANTED
    struct json_walk w;
    struct str k, v;
    if (json_walk_begin(&w, text) < 0 || w.close != '}')
        return;
    while (json_walk_next(&w, &k) == 1 && json_walk_value(&w, &v) == 0)
        for (size_t i = 0; i < BASE_COUNT(wanted); i++)
            if (k.len == wanted[i].len + 2 && memcmp(k.ptr + 1, wanted[i].key, wanted[i].len) == 0)
                *(struct str *)(void *)((char *)b + wanted[i].at) = v;
}

/* The content of a message, or what is one. A broken text counts as far as it is whole. */
static uint64_t hash_text(uint64_t seed, struct str v)
{
    struct json_walk w;
    struct str key;
    uint64_t h = seed;
    if (v.len == 0 || v.ptr[0] != '[' || json_walk_begin(&w, v) < 0)
        return place_hash(seed, v);
    while (json_walk_next(&w, &key) == 1 && hash_part(&w, &h, 1) == 0)
        ;
    return h;
}

/* The next message's hash, over the oldest one when there is no more room. */
static void add_link(struct place_identity *id, uint64_t hash, size_t *count)
{
    id->chain[(*count)++ % PLACE_CHAIN_MAX] = hash;
}

/* Brings the chain into order after so many. */
static void settle(struct place_identity *id, size_t count)
{
    uint64_t front[PLACE_CHAIN_MAX];
    size_t first = count % PLACE_CHAIN_MAX;
    id->n = count < PLACE_CHAIN_MAX ? count : PLACE_CHAIN_MAX;
    if (count <= PLACE_CHAIN_MAX || first == 0)
        return;
    memcpy(front, id->chain, first * sizeof front[0]);
    memmove(id->chain, id->chain + first, (PLACE_CHAIN_MAX - first) * sizeof front[0]);
    memcpy(id->chain + PLACE_CHAIN_MAX - first, front, first * sizeof front[0]);
}

/* System texts at the front of a list of messages are scaffold too. */
static void read_messages(struct place_identity *id, struct str messages, uint64_t seed)
{
    struct json_walk w;
    struct str key;
    bool front = true;
    if (messages.len == 0)
        return;
    size_t count = 0;
    uint64_t hash = id->scaffold ? id->scaffold : seed;
    if (messages.ptr[0] != '[' || json_walk_begin(&w, messages) < 0) {
        add_link(id, hash_text(hash, messages), &count);
        settle(id, count);
        return;
    }
    while (json_walk_next(&w, &key) == 1) {
        struct str role = {0};
        size_t from = w.at;
        if ((json_walk_peek(&w) == '{' ? hash_members(&w, &hash, 0, &role) : hash_value(&w, &hash, 0)) < 0)
            break;
        front = front && (str_eq_c(role, "\"system\"") || str_eq_c(role, "\"developer\""));
        if (front) {
            id->scaffold = hash;
            id->scaffold_tokens += (w.at - from) / PLACE_BYTES_PER_TOKEN;
        } else {
            add_link(id, hash, &count);
        }
    }
    settle(id, count);
}

/* ---- what the client calls it ---------------------------------------------------------------------------------- */

static uint64_t hint_in_body(const struct body *b, uint64_t seed)
{
    struct str named[] = {b->session, b->cache_key};
    for (size_t i = 0; i < BASE_COUNT(named); i++)
        if (named[i].len > 2 && named[i].ptr[0] == '"' && named[i].len <= PLACE_HINT_MAX)
            return place_hash(seed ^ 1, named[i]);
    return 0;
}

static uint64_t hint_in_head(const struct http_head *head, const struct place_names *names, uint64_t seed)
{
    for (size_t i = 0; i < names->n; i++) {
        struct str v = http_field_get(head, names->names[i]);
        if (v.len && v.len <= PLACE_HINT_MAX)
            return place_hash(seed ^ 1, v);
    }
    return 0;
}

void place_name(const struct http_head *head, const struct place_names *names, uint64_t seed, struct place_identity *id)
{
    if (id->dialect == PLACE_OTHER)
        return;
    uint64_t hint = hint_in_head(head, names, seed);
    if (hint)
        id->hint = hint;
    for (size_t i = 0; i < BASE_COUNT(agent_fields) && id->hint; i++) {
        struct str v = http_field_get(head, agent_fields[i]);
        if (v.len && v.len <= PLACE_HINT_MAX)
            id->hint = place_hash(id->hint, v);
    }
    id->flow = id->hint ? id->hint : id->flow;
}

/* ---- paths ----------------------------------------------------------------------------------------------------- */

enum place_dialect place_dialect_of(struct str method, struct str path)
{
    static const struct {
        const char *path;
        enum place_dialect dialect;
    } table[] = {
        {"/chat/completions", PLACE_CHAT}, {"/completions", PLACE_COMPLETIONS}, {"/completion", PLACE_COMPLETIONS}, {"/infill", PLACE_COMPLETIONS},
        {"/responses", PLACE_RESPONSES},   {"/messages", PLACE_MESSAGES},       {"/embeddings", PLACE_BATCH},       {"/embedding", PLACE_BATCH},
        {"/rerank", PLACE_BATCH},          {"/reranking", PLACE_BATCH},         {"/score", PLACE_BATCH},            {"/audio/transcriptions", PLACE_BATCH},
        {"/audio/translations", PLACE_BATCH}, {"/audio/speech", PLACE_BATCH},   {"/images/generations", PLACE_BATCH},
        {"/images/edits", PLACE_BATCH},     {"/images/variations", PLACE_BATCH},
    };
    if (!str_eq_c(method, "POST"))
        return PLACE_OTHER;
    if (str_starts(path, STR("/v1/"))) {
        path.ptr += 3;
        path.len -= 3;
    }
    for (size_t i = 0; i < BASE_COUNT(table); i++)
        if (str_eq_c(path, table[i].path))
            return table[i].dialect;
    return PLACE_OTHER;
}

const char *place_dialect_name(enum place_dialect d)
{
    static const char *const names[PLACE_N_DIALECTS] = {"other", "chat", "completions", "responses", "messages", "batch"};
    return names[d];
}

void place_read(enum place_dialect dialect, struct str body, uint64_t seed, struct place_identity *ret)
{
    struct body b = {0};
    ret->dialect = dialect;
    ret->stream = ret->pinned = false;
    ret->scaffold = ret->scaffold_tokens = ret->hint = ret->flow = 0;
    ret->n = 0;
    ret->tokens = body.len / PLACE_BYTES_PER_TOKEN + 1;
    if (dialect == PLACE_OTHER)
        return;
    read_members(body, &b);
    ret->stream = str_eq_c(b.stream, "true");
    ret->pinned = b.slot.len > 0;
    ret->hint = hint_in_body(&b, seed);
    if (dialect != PLACE_BATCH) {
        struct str parts[] = {b.system, b.tools};
        for (size_t i = 0; i < BASE_COUNT(parts); i++)
            if (parts[i].len) {
                ret->scaffold = hash_text(ret->scaffold ? ret->scaffold : seed, parts[i]);
                ret->scaffold_tokens += parts[i].len / PLACE_BYTES_PER_TOKEN;
            }
        read_messages(ret, b.messages, seed);
    }
    struct str user = b.user.len > 2 && b.user.ptr[0] == '"' && b.user.len <= PLACE_HINT_MAX ? b.user : (struct str){0};
    ret->flow = ret->hint ? ret->hint : user.len ? place_hash(seed ^ 2, user) : ret->n ? ret->chain[0] : 0;
}
