/* SPDX-License-Identifier: MIT
 *
 * What a lock says of one file of a model. Most files have a line of their own. One that was cut for upload has a line for each fragment, NAME.part1of3 and so on, and no digest of the whole: there the fragments pin it, each in its
 * range of bytes, and a sum over them stands for all, so that a manifest can say of which it was proven to be made.
 */
#include "store_int.h"

#include <errno.h>
#include <inttypes.h>

#define SUM_BYTES 20 /* as many as git's sha1 has: it takes that place */

bool store_fragment(struct str path, const char *file, uint32_t *ret_no, uint32_t *ret_count)
{
    struct str rest = path;
    uint64_t no, count;
    if (!str_starts(rest, str_of(file)))
        return false;
    rest = (struct str){rest.ptr + strlen(file), rest.len - strlen(file)};
    if (!str_starts(rest, STR(".part")))
        return false;
    rest = (struct str){rest.ptr + 5, rest.len - 5};
    ptrdiff_t of = str_find(rest, STR("of"));
    if (of <= 0 || str_to_u64((struct str){rest.ptr, (size_t)of}, &no) < 0 || str_to_u64((struct str){rest.ptr + of + 2, rest.len - (size_t)of - 2}, &count) < 0)
        return false;
    if (!no || no > count || count < 2 || count > STORE_FRAGMENTS_MAX)
        return false;
    *ret_no = (uint32_t)no;
    *ret_count = (uint32_t)count;
    return true;
}

/* How many fragments the lock has of file; 0: none, or not all. */
static uint32_t count_fragments(const struct fleet_lock_model *locked, const char *file)
{
    uint32_t no, count, all = 0, n = 0;
    for (size_t i = 0; i < locked->n_files; i++)
        if (store_fragment(str_of(locked->files[i].path), file, &no, &count)) {
            all = n ? all : count;
            n += count == all;
        }
    return n == all ? n : 0;
}

static int pin_fragments(const struct fleet_lock_model *locked, const char *file, uint32_t count, struct arena *a, struct store_pin *ret, struct err *err)
{
    struct store_pin p = {.n_parts = count, .want = {.path = file}};
    const struct fleet_lock_file **parts = arena_alloc(a, count, sizeof(const struct fleet_lock_file *));
    char *sum = arena_alloc(a, OS_SHA256_HEX, 1);
    uint8_t digest[OS_SHA256_BYTES];
    struct os_sha256 h;
    if (!parts || !sum)
        return err_nomem(err);
    os_sha256_init(&h);
    for (uint32_t i = 0; i < count; i++) {
        base_autobuf struct buf text = BUF_INIT(STORE_PATH_MAX);
        buf_addf(&text, "%s.part%uof%u", file, (unsigned)i + 1, (unsigned)count);
        if (buf_status(&text) < 0)
            return err_nomem(err);
        parts[i] = fleet_lock_find_file(locked, text.ptr);
        if (!parts[i])
            return err_set(err, -ENOENT, "'%s' was cut into %u fragments, and '%s' is not in the lock: 'berth lock' writes it anew", file, (unsigned)count, text.ptr);
        if (!size_add(p.want.bytes, parts[i]->bytes, &p.want.bytes) || p.want.bytes > STORE_PAYLOAD_MAX)
            return err_set(err, -EFBIG, "the fragments of '%s' have more bytes than any payload", file);
        buf_clear(&text);
        buf_addf(&text, "%" PRIu64 " %s\n", parts[i]->bytes, parts[i]->sha256 ? parts[i]->sha256 : parts[i]->git_sha1);
        os_sha256_update(&h, text.ptr, text.len);
    }
    os_sha256_final(&h, digest);
    p.want.git_sha1 = os_hex(digest, SUM_BYTES, sum);
    p.parts = parts;
    *ret = p;
    return 1;
}

int store_pin_of(const struct fleet_lock_model *locked, const char *file, struct arena *a, struct store_pin *ret, struct err *err)
{
    const struct fleet_lock_file *own = locked ? fleet_lock_find_file(locked, file) : NULL;
    *ret = (struct store_pin){.want = {.path = file}};
    if (own)
        ret->want = *own;
    uint32_t count = locked && !own ? count_fragments(locked, file) : 0;
    return own ? 1 : count ? pin_fragments(locked, file, count, a, ret, err) : 0;
}
