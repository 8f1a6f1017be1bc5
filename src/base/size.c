/* SPDX-License-Identifier: MIT
 *
 * Arithmetic on numbers from outside. Each function says whether the result fits before anybody can use it: sizes in
 * files and answers are where wrapped sums become writes out of bounds.
 */
#include <base/base.h>

#include <assert.h>

bool size_add(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return false;
    *ret = sum;
    return true;
}

bool size_mul(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *ret = product;
    return true;
}

bool size_align(uint64_t a, uint64_t align, uint64_t *ret)
{
    assert(align && (align & (align - 1)) == 0);
    uint64_t sum;
    if (!size_add(a, align - 1, &sum))
        return false;
    *ret = sum & ~(align - 1);
    return true;
}
