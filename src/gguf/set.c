/* SPDX-License-Identifier: MIT
 *
 * Split sets: a model in several GGUF files. Their names count from 1, the key split.no from 0; part 1 alone has the model's metadata; split.tensors.count is the sum over all parts. What is proven here is that the files which
 * lie under the names of a set's parts are those parts, all of them, of one model.
 */
#include "reader_int.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

/* ---- names --------------------------------------------------------------------------------------------------------- */

/* Five digits at the end of s, which loses them. */
static bool take_number(struct str *s, uint32_t *ret)
{
    uint64_t n;
    if (s->len < 5 || str_to_u64((struct str){s->ptr + s->len - 5, 5}, &n) < 0)
        return false;
    s->len -= 5;
    *ret = (uint32_t)n;
    return true;
}

static bool take_text(struct str *s, struct str tail)
{
    if (!str_ends(*s, tail))
        return false;
    s->len -= tail.len;
    return true;
}

bool gguf_split_name(struct str file, struct gguf_split_name *ret)
{
    struct gguf_split_name n = {.suffix = STR(".gguf")};
    struct str rest = file;
    if (!take_text(&rest, n.suffix)) {
        n.suffix = STR(".safetensors");
        if (!take_text(&rest, n.suffix))
            return false;
    }
    if (!take_number(&rest, &n.count) || !take_text(&rest, STR("-of-")) || !take_number(&rest, &n.no) || !take_text(&rest, STR("-")) || !rest.len)
        return false;
    if (n.no == 0 || n.no > n.count)
        return false;
    n.prefix = rest;
    *ret = n;
    return true;
}

void gguf_split_file(struct buf *out, const struct gguf_split_name *n, uint32_t no)
{
    buf_add_str(out, n->prefix);
    buf_addf(out, "-%05" PRIu32 "-of-%05" PRIu32, no, n->count);
    buf_add_str(out, n->suffix);
}

/* ---- keys ------------------------------------------------------------------------------------------------------------ */

/* The engine takes each key in one type only. */
static int want_type(const struct gguf_kv *kv, enum gguf_value_type type, struct err *err)
{
    if (kv->type != type)
        return err_set(err, -EBADMSG, "%s at byte %" PRIu64 " has type %s; engines want %s", kv->key.ptr, kv->off, gguf_value_type_name(kv->type), gguf_value_type_name(type));
    return 0;
}

int gguf_split(const struct gguf *g, struct gguf_split *ret, struct err *err)
{
    const struct gguf_kv *count = gguf_find(g, "split.count"), *no = gguf_find(g, "split.no"), *tensors = gguf_find(g, "split.tensors.count");
    if (!count)
        return 0;
    int r = want_type(count, GGUF_U16, err);
    if (r < 0)
        return r;
    if (count->v.u <= 1)
        return 0;
    if (!no || !tensors)
        return err_set(err, -EBADMSG, "split.count is %" PRIu64 " but the key %s is missing", count->v.u, no ? "split.tensors.count" : "split.no");
    r = want_type(no, GGUF_U16, err);
    if (r == 0)
        r = want_type(tensors, GGUF_I32, err);
    if (r < 0)
        return r;
    if (no->v.u >= count->v.u)
        return err_set(err, -EBADMSG, "split.no is %" PRIu64 " (it counts from 0) of %" PRIu64 " parts", no->v.u, count->v.u);
    if (tensors->v.i < 0 || (uint64_t)tensors->v.i < gguf_info(g)->n_tensors)
        return err_set(err, -EBADMSG, "split.tensors.count says %" PRId64 " tensors in all parts; this part alone has %zu", tensors->v.i, gguf_info(g)->n_tensors);
    *ret = (struct gguf_split){.no = (uint32_t)no->v.u, .count = (uint32_t)count->v.u, .tensors = (uint64_t)tensors->v.i};
    return 1;
}

/* ---- sets -------------------------------------------------------------------------------------------------------------- */

static void mark(struct gguf_part *p, enum gguf_part_state state, const struct err *why)
{
    p->state = state;
    if (why)
        p->why = *why;
}

/* What a part says of itself against its name: part no (from 1) of n. */
static void judge_alone(struct gguf_part *parts, size_t i, size_t n)
{
    struct gguf_part *p = &parts[i];
    struct gguf_split s = {.count = 1};
    struct err why;
    int r = gguf_split(p->g, &s, &why);
    if (r < 0) {
        mark(p, GGUF_PART_BAD, &why);
        return;
    }
    if (s.count == n && s.no == i)
        return;
    if (r == 0)
        err_set(&p->why, -EBADMSG, "is a model of its own (no split.count), not part %zu of %zu: fetch the right file", i + 1, n);
    else if (n == 1)
        err_set(&p->why, -EBADMSG, "is part %" PRIu32 " of %" PRIu32 " of a split set, but engines find the parts by their names: it must be called NAME-%05" PRIu32 "-of-%05" PRIu32 ".gguf", s.no + 1, s.count, s.no + 1, s.count);
    else if (s.count != n)
        err_set(&p->why, -EBADMSG, "says that it is of a set of %" PRIu32 " parts, not %zu: it belongs to another set", s.count, n);
    else
        err_set(&p->why, -EBADMSG, "says that it is part %" PRIu32 " (split.no %" PRIu32 ", which counts from 0), not %zu: the file has the wrong name", s.no + 1, s.no, i + 1);
    p->state = GGUF_PART_FOREIGN;
}

/* One part beside the first one. */
static void judge_beside(const struct gguf_part *first, struct gguf_part *p)
{
    struct gguf_split a = {0}, b = {0};
    if (gguf_split(first->g, &a, NULL) != 1 || gguf_split(p->g, &b, NULL) != 1)
        return;
    struct reader_quote q, qa;
    if (a.tensors != b.tensors) {
        err_set(&p->why, -EBADMSG, "says that all parts have %" PRIu64 " tensors; part 1 says %" PRIu64 ": it belongs to another set", b.tensors, a.tensors);
        p->state = GGUF_PART_FOREIGN;
    } else if (p->g->arch.len && first->g->arch.len && !str_eq(p->g->arch, first->g->arch)) {
        err_set(&p->why, -EBADMSG, "is of architecture '%s', part 1 of '%s': it belongs to another model", reader_quote(p->g->arch, &q), reader_quote(first->g->arch, &qa));
        p->state = GGUF_PART_FOREIGN;
    }
}

struct entry {
    struct str name;
    size_t part;
};

static int compare_entry(const void *x, const void *y)
{
    const struct entry *a = x, *b = y;
    int r = reader_compare(a->name, b->name);
    return r ? r : (a->part > b->part) - (a->part < b->part);
}

/* A tensor that two parts have: the later part is the one too many. */
static int find_twice(struct gguf_part *parts, size_t n, uint64_t total, struct err *err)
{
    base_autofree struct entry *all = calloc(total ? (size_t)total : 1, sizeof(*all));
    if (!all)
        return err_nomem(err);
    size_t k = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t t = 0; parts[i].state == GGUF_PART_OK && t < parts[i].g->info.n_tensors; t++)
            all[k++] = (struct entry){parts[i].g->tensors[t].name, i};
    qsort(all, k, sizeof(*all), compare_entry);
    for (size_t i = 1; i < k; i++) {
        struct gguf_part *p = &parts[all[i].part];
        if (!str_eq(all[i - 1].name, all[i].name) || p->state != GGUF_PART_OK)
            continue;
        p->state = GGUF_PART_FOREIGN;
        err_set(&p->why, -EBADMSG, "has the tensor '%s', which part %zu has too: it belongs to another set", all[i].name.ptr, all[i - 1].part + 1);
    }
    return 0;
}

static int first_wrong(const struct gguf_part *parts, size_t n, struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct gguf_part *p = &parts[i];
        if (p->state == GGUF_PART_OK)
            continue;
        if (n == 1)
            return err_set(err, -EBADMSG, "%s", p->why.text);
        if (p->state == GGUF_PART_MISSING)
            return err_set(err, -EBADMSG, "part %zu of %zu is missing: %s; fetch it", i + 1, n, p->path);
        return err_set(err, -EBADMSG, "part %zu of %zu, %s: %s", i + 1, n, p->path, p->why.text);
    }
    return 0;
}

int gguf_set_check(struct gguf_part *parts, size_t n, struct err *err)
{
    assert(n > 0 && n <= GGUF_PARTS_MAX);
    for (size_t i = 0; i < n; i++) {
        struct err why;
        assert(parts[i].g || parts[i].state != GGUF_PART_OK);
        if (parts[i].state != GGUF_PART_OK)
            continue;
        /* a type that is unknown here is no fault of a part */
        if ((parts[i].g->info.faults & (GGUF_CUT | GGUF_JOINED)) && gguf_whole(parts[i].g, &why) < 0)
            mark(&parts[i], GGUF_PART_BAD, &why);
        else
            judge_alone(parts, i, n);
    }
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && parts[0].state == GGUF_PART_OK && parts[i].state == GGUF_PART_OK)
            judge_beside(&parts[0], &parts[i]);
        if (parts[i].state == GGUF_PART_OK)
            total += parts[i].g->info.n_tensors; /* GGUF_PARTS_MAX times GGUF_TENSORS_MAX */
    }
    int r = n > 1 ? find_twice(parts, n, total, err) : 0;
    if (r == 0)
        r = first_wrong(parts, n, err);
    struct gguf_split s = {0};
    if (r == 0 && gguf_split(parts[0].g, &s, NULL) == 1 && s.tensors != total)
        return err_set(err, -EBADMSG, "split.tensors.count says %" PRIu64 " tensors, the %zu parts have %" PRIu64 ": one of them is not of this set; fetch them again from one source", s.tensors, n, total);
    return r;
}
