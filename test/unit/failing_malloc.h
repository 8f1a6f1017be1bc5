/* SPDX-License-Identifier: MIT
 *
 * An allocator that refuses the n-th call, for tests that walk through every place where memory can end. It stands in
 * front of the C library's own in the program that includes this header (libraries included) and counts blocks, so
 * that a path of failure that leaks is seen. Sanitizers bring allocators of their own: there the tests skip.
 */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FAILING_MALLOC 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define FAILING_MALLOC 0
#endif
#endif
#if !defined(FAILING_MALLOC) && defined(__GLIBC__)
#define FAILING_MALLOC 1
#endif
#ifndef FAILING_MALLOC
#define FAILING_MALLOC 0
#endif

#if FAILING_MALLOC
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t size);
extern void __libc_free(void *p);

static bool failing_armed, failing_failed;
static long failing_calls, failing_at, failing_live;

static bool failing_refuse(void)
{
    bool refuse = failing_armed && failing_calls++ == failing_at;
    if (refuse) {
        failing_failed = true;
        errno = ENOMEM;
    }
    return refuse;
}

static void *failing_count(void *p)
{
    if (p && failing_armed)
        failing_live++;
    return p;
}

void *malloc(size_t size)
{
    return failing_refuse() ? NULL : failing_count(__libc_malloc(size));
}

void *calloc(size_t n, size_t size)
{
    return failing_refuse() ? NULL : failing_count(__libc_calloc(n, size));
}

void *realloc(void *p, size_t size)
{
    if (failing_refuse())
        return NULL;
    void *moved = __libc_realloc(p, size);
    return p ? moved : failing_count(moved);
}

void free(void *p)
{
    if (p && failing_armed)
        failing_live--;
    __libc_free(p);
}

/* From here on call number n (from 0) fails, and blocks are counted. */
static inline void failing_arm(long n)
{
    failing_calls = 0;
    failing_at = n;
    failing_live = 0;
    failing_failed = false;
    failing_armed = true;
}

/* Blocks that are still allocated since failing_arm; *ret_failed: the n-th call came. */
static inline long failing_disarm(bool *ret_failed)
{
    failing_armed = false;
    *ret_failed = failing_failed;
    return failing_live;
}
#endif
