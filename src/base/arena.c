/* SPDX-License-Identifier: MIT
 *
 * Memory that is freed together: a chain of blocks, each filled from the front. A request that a fresh block of usual size
 * would not hold gets a block of its own behind the current one, so that the rest of that is not lost. The ceiling
 * bounds what the blocks offer, headers apart.
 */
#include "base_int.h"

#define ALIGN (_Alignof(max_align_t))
#define BLOCK_FIRST 4096
#define BLOCK_MOST ((size_t)256 << 10) /* growth stops here: an arena wastes at most one such block */
#define LIST_FIRST 32

struct block {
    struct block *next;
    size_t cap, used;
    _Alignas(max_align_t) char data[];
};

struct arena {
    struct block *top; /* the one that is being filled; older ones follow */
    size_t left;       /* of the ceiling */
    size_t next_cap;
};

struct arena *arena_new(size_t max_bytes)
{
    struct arena *a = malloc(sizeof(*a));
    if (a)
        *a = (struct arena){.left = max_bytes, .next_cap = BLOCK_FIRST};
    return a;
}

struct arena *arena_free(struct arena *a)
{
    if (!a)
        return NULL;
    for (struct block *b = a->top; b;) {
        struct block *next = b->next;
        free(b);
        b = next;
    }
    free(a);
    return NULL;
}

static struct block *add_block(struct arena *a, size_t need)
{
    size_t cap = need > a->next_cap ? need : a->next_cap;
    if (cap > a->left)
        cap = a->left;
    if (cap < need || cap > SIZE_MAX - sizeof(struct block))
        return NULL;
    struct block *b = malloc(sizeof(*b) + cap);
    if (!b)
        return NULL;
    *b = (struct block){.cap = cap};
    a->left -= cap;
    bool own = a->top && need > a->next_cap / 4;
    if (own) {
        b->next = a->top->next;
        a->top->next = b;
    } else {
        b->next = a->top;
        a->top = b;
        if (a->next_cap < BLOCK_MOST)
            a->next_cap *= 2;
    }
    return b;
}

void *arena_alloc(struct arena *a, size_t count, size_t size)
{
    uint64_t need;
    if (!size_mul(count, size, &need) || !size_align(need ? need : 1, ALIGN, &need) || need > SIZE_MAX)
        return NULL;
    struct block *b = a->top;
    if (!b || need > b->cap - b->used)
        b = add_block(a, (size_t)need);
    if (!b)
        return NULL;
    void *p = b->data + b->used;
    b->used += (size_t)need;
    memset(p, 0, (size_t)need);
    return p;
}

void *arena_grow(struct arena *a, void *list, size_t need, size_t *cap, size_t size)
{
    if (need <= *cap)
        return list;
    size_t more = *cap > SIZE_MAX / 2 ? SIZE_MAX : *cap * 2;
    if (more < LIST_FIRST)
        more = LIST_FIRST;
    if (more < need)
        more = need;
    void *grown = arena_alloc(a, more, size);
    if (!grown)
        return NULL;
    if (*cap)
        memcpy(grown, list, *cap * size);
    *cap = more;
    return grown;
}

char *arena_dup(struct arena *a, struct str s)
{
    if (s.len == SIZE_MAX)
        return NULL;
    char *copy = arena_alloc(a, s.len + 1, 1);
    if (copy && s.len)
        memcpy(copy, s.ptr, s.len);
    return copy;
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *text = n < 0 ? NULL : arena_alloc(a, (size_t)n + 1, 1);
    if (text) {
        va_start(ap, fmt);
        vsnprintf(text, (size_t)n + 1, fmt, ap);
        va_end(ap);
    }
    return text;
}
