/* SPDX-License-Identifier: MIT
 *
 * Argument lists: built in an arena, one word after the other, and what is asked of the words a user adds by hand: whether
 * one of them says a flag.
 */
#include "engine_int.h"

void args_add(struct args *args, const char *word)
{
    if (!word || args->failed) {
        args->failed = true;
        return;
    }
    const char **v = arena_grow(args->a, args->v, args->n + 2, &args->cap, sizeof(*v));
    if (!v) {
        args->failed = true;
        return;
    }
    args->v = v;
    v[args->n++] = word; /* NULL follows: the arena's memory is zeroed */
}

void args_addf(struct args *args, const char *fmt, ...)
{
    base_autobuf struct buf b = BUF_INIT(64UL * 1024);
    va_list ap;
    va_start(ap, fmt);
    buf_addv(&b, fmt, ap);
    va_end(ap);
    args_add(args, buf_status(&b) < 0 ? NULL : arena_dup(args->a, buf_str(&b)));
}

void args_pair(struct args *args, const char *flag, const char *value)
{
    args_add(args, flag);
    args_add(args, value);
}

void args_number(struct args *args, const char *flag, uint64_t value)
{
    args_add(args, flag);
    args_addf(args, "%llu", (unsigned long long)value);
}

int args_finish(struct args *args, const char *const **ret, size_t *ret_n, struct err *err)
{
    if (args->failed || args->n == 0)
        return err_nomem(err);
    *ret = args->v;
    *ret_n = args->n;
    return 0;
}

bool args_is(struct str word, const char *flag)
{
    struct str name = str_split(&word, '=');
    if (name.len != strlen(flag))
        return false;
    for (size_t i = 0; i < name.len; i++)
        if ((i >= 2 && name.ptr[i] == '_' ? '-' : name.ptr[i]) != flag[i])
            return false;
    return true;
}

ptrdiff_t args_find(const struct fleet_service *s, const char *const *names, size_t n)
{
    for (size_t i = 0; i < s->n_args; i++)
        for (size_t k = 0; k < n && names[k]; k++)
            if (args_is(str_of(s->args[i]), names[k]))
                return (ptrdiff_t)i;
    return -1;
}
