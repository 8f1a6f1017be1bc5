/* SPDX-License-Identifier: MIT
 *
 * "Did you mean": the known word that a misspelt one is nearest to. Distance counts inserted, left out, changed and
 * swapped neighbouring characters, each as one edit; case is ignored and '_' is '-', for those are not what people get wrong.
 */
#include "base_int.h"

/* Longer words are no misspelt keys. It also bounds the time: n candidates cost at most n * WORD_MAX^2 steps. */
#define WORD_MAX 64
#define SHORT_MIN 4
#define EDITS_MAX 2

static char fold(char c)
{
    return base_lower(c == '_' ? '-' : c);
}

static char next_letter(struct str *s)
{
    while (s->len && fold(s->ptr[0]) == '-') {
        s->ptr++;
        s->len--;
    }
    if (s->len == 0)
        return '\0';
    s->len--;
    return base_lower(*s->ptr++);
}

/* Same but for case, '-' and '_'. */
static bool same_letters(struct str a, struct str b)
{
    for (;;) {
        char x = next_letter(&a), y = next_letter(&b);
        if (x != y)
            return false;
        if (x == '\0')
            return a.len == 0 && b.len == 0;
    }
}

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* Optimal string alignment over three rows of the usual matrix. Both are at most WORD_MAX long. */
static unsigned distance(struct str a, struct str b)
{
    unsigned row[3][WORD_MAX + 1] = {0};
    unsigned *before = row[0], *last = row[1], *here = row[2];
    for (size_t j = 0; j <= b.len; j++)
        last[j] = (unsigned)j;
    for (size_t i = 1; i <= a.len; i++) {
        here[0] = (unsigned)i;
        for (size_t j = 1; j <= b.len; j++) {
            char x = fold(a.ptr[i - 1]), y = fold(b.ptr[j - 1]);
            unsigned best = least(least(last[j], here[j - 1]) + 1, last[j - 1] + (x != y));
            if (i > 1 && j > 1 && x == fold(b.ptr[j - 2]) && y == fold(a.ptr[i - 2]))
                best = least(best, before[j - 2] + 1);
            here[j] = best;
        }
        unsigned *oldest = before;
        before = last;
        last = here;
        here = oldest;
    }
    return last[b.len];
}

/* The only candidate that begins with word; an abbreviation of few letters is none. */
static const char *longer(struct str word, const char *const *candidates, size_t n)
{
    const char *best = NULL;
    for (size_t i = 0; i < n && word.len >= SHORT_MIN; i++) {
        if (!str_starts(str_of(candidates[i]), word))
            continue;
        if (best)
            return NULL;
        best = candidates[i];
    }
    return best;
}

const char *str_nearest(struct str word, const char *const *candidates, size_t n)
{
    if (word.len == 0 || word.len > WORD_MAX)
        return NULL;
    unsigned allowed = least(EDITS_MAX, (unsigned)(word.len / 3));
    const char *best = NULL;
    unsigned best_edits = allowed + 1;
    for (size_t i = 0; i < n; i++) {
        struct str candidate = str_of(candidates[i]);
        if (candidate.len == 0 || candidate.len > WORD_MAX)
            continue;
        unsigned edits = same_letters(word, candidate) ? 0 : distance(word, candidate);
        if (edits < best_edits) {
            best = candidates[i];
            best_edits = edits;
        }
    }
    return best ? best : longer(word, candidates, n);
}
