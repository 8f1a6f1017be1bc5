/* SPDX-License-Identifier: MIT
 *
 * What a request is part of. One pass over the body without a tree. What clients change from turn to turn in messages that they send again is left out of the hashes: white space between
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

uint64_t place_hash(uint64_t seed, struct str s)
{
    const uint64_t k1 = 0x9e3779b97f4a7c15u, k2 = 0xd6e8feb86659fd93u;
    uint64_t h = fold(seed ^ k1, s.len ^ k2);
    while (s.len >= 16) {
        uint64_t a, b;
        memcpy(&a, s.ptr, 8);
        memcpy(&b, s.ptr + 8, 8);
        h = fold(a ^ k1 ^ h, b ^ k2 ^ seed);
        s.ptr += 16;
        s.len -= 16;
    }
    unsigned char rest[16] = {0};
    if (s.len)
        memcpy(rest, s.ptr, s.len);
    uint64_t a, b;
    memcpy(&a, rest, 8);
    memcpy(&b, rest + 8, 8);
    h = fold(fold(a ^ k1 ^ h, b ^ k2 ^ seed) ^ k2, k1 ^ seed);
    return h ? h : 1; /* 0 means none */
}

static bool key_is(struct str token, const char *key)
{
    return token.len == strlen(key) + 2 && memcmp(token.ptr + 1, key, token.len - 2) == 0;
}

/* The value of a member of an object's text; empty when there is none. */
static struct str member(struct json_longs *longs, struct str object, const char *key)
{
    struct json_walk w;
    struct str k, v;
    if (json_walk_begin(&w, object, longs) == 0 && w.close == '}')
        while (json_walk_next(&w, &k, &v) == 1)
            if (key_is(k, key))
                return v;
    return (struct str){0};
}

static uint64_t hash_value(struct json_longs *longs, uint64_t seed, struct str v, unsigned depth);

/* A part of a message; a text counts by itself, whatever it is wrapped in. */
static uint64_t hash_part(struct json_longs *longs, uint64_t seed, struct str part, unsigned depth)
{
    struct str text = member(longs, part, "text");
    return text.len && text.ptr[0] == '"' ? place_hash(seed, text) : hash_value(longs, seed, part, depth);
}

static uint64_t hash_content(struct json_longs *longs, uint64_t seed, struct str v, unsigned depth)
{
    struct json_walk w;
    struct str k, part;
    if (v.len == 0 || v.ptr[0] != '[' || json_walk_begin(&w, v, longs) < 0)
        return place_hash(seed, v);
    while (json_walk_next(&w, &k, &part) == 1)
        seed = hash_part(longs, seed, part, depth + 1);
    return seed;
}

static uint64_t hash_value(struct json_longs *longs, uint64_t seed, struct str v, unsigned depth)
{
    struct json_walk w;
    struct str k, child;
    if (depth >= DEPTH_MAX || json_walk_begin(&w, v, longs) < 0)
        return place_hash(seed, v);
    seed = place_hash(seed, (struct str){&w.close, 1});
    while (json_walk_next(&w, &k, &child) == 1) {
        if (key_is(k, "cache_control"))
            continue;
        seed = place_hash(seed, k);
        seed = key_is(k, "content") ? hash_content(longs, seed, child, depth + 1) : hash_value(longs, seed, child, depth + 1);
    }
    return seed;
}

/* ---- what a body says -------------------------------------------------------------------------------------- */

struct body {
    struct str messages, system, tools, stream, slot, cache_key, session, user;
};

static void read_body(struct json_longs *longs, struct str text, struct body *b)
{
    static const struct {
        const char *key;
        size_t at;
    } wanted[] = {
        {"messages", offsetof(struct body, messages)}, {"input", offsetof(struct body, messages)},         {"prompt", offsetof(struct body, messages)},
        {"system", offsetof(struct body, system)},     {"instructions", offsetof(struct body, system)},    {"input_prefix", offsetof(struct body, messages)},
        {"tools", offsetof(struct body, tools)},       {"stream", offsetof(struct body, stream)},          {"id_slot", offsetof(struct body, slot)},
        {"session_id", offsetof(struct body, session)}, {"prompt_cache_key", offsetof(struct body, cache_key)}, {"user", offsetof(struct body, user)},
    };
    struct json_walk w;
    struct str k, v;
    if (json_walk_begin(&w, text, longs) < 0 || w.close != '}')
        return;
    while (json_walk_next(&w, &k, &v) == 1)
        for (size_t i = 0; i < BASE_COUNT(wanted); i++)
            if (key_is(k, wanted[i].key))
                *(struct str *)(void *)((char *)b + wanted[i].at) = v;
}

/* System texts at the front of a list of messages are scaffold too. */
static bool is_system(struct json_longs *longs, struct str message)
{
    struct str role = member(longs, message, "role");
    return str_eq_c(role, "\"system\"") || str_eq_c(role, "\"developer\"");
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

static void read_messages(struct json_longs *longs, struct place_identity *id, struct str messages, uint64_t seed)
{
    struct json_walk w;
    struct str k, v;
    bool front = true;
    size_t count = 0;
    if (messages.len == 0)
        return;
    if (messages.ptr[0] != '[' || json_walk_begin(&w, messages, longs) < 0) {
        uint64_t first = id->scaffold ? id->scaffold : seed;
        add_link(id, hash_content(longs, first, messages, 0), &count);
        settle(id, count);
        return;
    }
    uint64_t hash = 0;
    while (json_walk_next(&w, &k, &v) == 1) {
        front = front && is_system(longs, v);
        if (front) {
            id->scaffold = hash_value(longs, id->scaffold ? id->scaffold : seed, v, 0);
            id->scaffold_tokens += v.len / PLACE_BYTES_PER_TOKEN;
            continue;
        }
        hash = hash_value(longs, hash ? hash : id->scaffold ? id->scaffold : seed, v, 0);
        add_link(id, hash, &count);
    }
    settle(id, count);
}

/* ---- what the client calls it ---------------------------------------------------------------------------------- */

static uint64_t hint_of(const struct http_head *head, const struct body *b, const struct place_names *names, uint64_t seed)
{
    uint64_t hint = 0;
    for (size_t i = 0; i < names->n && !hint; i++) {
        struct str v = http_field_get(head, names->names[i]);
        if (v.len && v.len <= PLACE_HINT_MAX)
            hint = place_hash(seed ^ 1, v);
    }
    struct str named[] = {b->session, b->cache_key};
    for (size_t i = 0; i < BASE_COUNT(named) && !hint; i++)
        if (named[i].len > 2 && named[i].ptr[0] == '"' && named[i].len <= PLACE_HINT_MAX)
            hint = place_hash(seed ^ 1, named[i]);
    for (size_t i = 0; i < BASE_COUNT(agent_fields) && hint; i++) {
        struct str v = http_field_get(head, agent_fields[i]);
        if (v.len && v.len <= PLACE_HINT_MAX)
            hint = place_hash(hint, v);
    }
    return hint;
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

void place_identify(struct str path, const struct http_head *head, struct str body, const struct place_names *names, uint64_t seed, struct place_identity *ret)
{
    struct body b = {0};
    struct json_longs longs;
    longs.n = 0; /* the rest is written before it is read */
    ret->dialect = place_dialect_of(head->method, path);
    ret->stream = ret->pinned = false;
    ret->scaffold = ret->scaffold_tokens = ret->hint = ret->flow = 0;
    ret->n = 0;
    ret->tokens = body.len / PLACE_BYTES_PER_TOKEN + 1;
    if (ret->dialect == PLACE_OTHER)
        return;
    read_body(&longs, body, &b);
    ret->stream = str_eq_c(b.stream, "true");
    ret->pinned = b.slot.len > 0;
    ret->hint = hint_of(head, &b, names, seed);
    if (ret->dialect != PLACE_BATCH) {
        struct str parts[] = {b.system, b.tools};
        for (size_t i = 0; i < BASE_COUNT(parts); i++)
            if (parts[i].len) {
                ret->scaffold = hash_content(&longs, ret->scaffold ? ret->scaffold : seed, parts[i], 0);
                ret->scaffold_tokens += parts[i].len / PLACE_BYTES_PER_TOKEN;
            }
        read_messages(&longs, ret, b.messages, seed);
    }
    struct str user = b.user.len > 2 && b.user.ptr[0] == '"' && b.user.len <= PLACE_HINT_MAX ? b.user : (struct str){0};
    ret->flow = ret->hint ? ret->hint : user.len ? place_hash(seed ^ 2, user) : ret->n ? ret->chain[0] : 0;
}
