/* SPDX-License-Identifier: MIT
 *
 * Source debian:SUITE. The closure of the packages is resolved by apt (apt.c); each .deb is kept as store/debs/SHA256.deb, proven against the sha256 of the signed index when it
 * comes in and again right before it is unpacked. What was resolved last is recorded beside them, so that the same runtime can be made again without a network:
 *
 *   store/debs/resolved-KEY.json   {"version": 1, "suite", "arch", "packages", "debs": [{"file", "bytes", "sha256", "url"}]}, KEY from suite, architecture and packages
 */
#include "store_int.h"

#include <conf/conf.h>
#include <engine/engine.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#define FORMAT 1
#define RECORD_MAX (8u << 20)
#define UNPACK_MS 600000 /* one package; the largest of ROCm hold some GB */
#define KEY_DIGITS 16

struct debian {
    struct install *in;
    struct apt apt;
    struct apt_list list;
    int debsfd;
    char record[32 + KEY_DIGITS]; /* "resolved-KEY.json" */
};

/* ---- the record of a resolution --------------------------------------------------------------------------------- */

static int make_record_name(struct debian *d, struct err *err)
{
    struct os_digest *digest = os_digest_new();
    base_autobuf struct buf b = BUF_INIT(1u << 20);
    buf_addf(&b, "%s %s %s", d->in->want->source_arg, d->apt.arch, d->in->m->packages);
    char hex[OS_SHA256_HEX];
    int r = digest ? buf_status(&b) : -ENOMEM;
    if (r == 0)
        r = os_digest_add(digest, b.ptr, b.len);
    if (r == 0)
        r = os_digest_hex(digest, hex);
    os_digest_free(digest);
    if (r < 0)
        return err_sys(err, r, "cannot name the resolution");
    snprintf(d->record, sizeof d->record, "resolved-%.*s.json", KEY_DIGITS, hex);
    return 0;
}

static int record_write(const struct debian *d, struct err *err)
{
    struct json_out *o = json_out_new();
    if (!o)
        return err_nomem(err);
    json_out_obj(o, NULL);
    json_out_u64(o, "version", FORMAT);
    json_out_cstr(o, "suite", d->in->want->source_arg);
    json_out_cstr(o, "arch", d->apt.arch);
    json_out_cstr(o, "packages", d->in->m->packages);
    json_out_arr(o, "debs");
    for (size_t i = 0; i < d->list.n; i++) {
        const struct apt_deb *deb = &d->list.debs[i];
        json_out_obj(o, NULL);
        json_out_cstr(o, "file", deb->file);
        json_out_u64(o, "bytes", deb->bytes);
        json_out_cstr(o, "sha256", deb->sha256);
        json_out_cstr(o, "url", deb->url);
        json_out_end(o);
    }
    json_out_end(o);
    json_out_end(o);
    base_autobuf struct buf text = BUF_INIT(RECORD_MAX);
    int r = json_out_finish(o, true, &text);
    json_out_free(o);
    if (r < 0)
        return err_sys(err, r, "cannot record the resolution");
    return os_write_atomic(d->debsfd, d->record, text.ptr, text.len, 0644, err);
}

static int record_debs(struct debian *d, json_val debs, struct err *err)
{
    size_t n = json_count(debs);
    if (n == 0 || n > APT_DEBS_MAX)
        return -EBADMSG;
    d->list.debs = arena_alloc(d->apt.arena, n, sizeof *d->list.debs);
    if (!d->list.debs)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++) {
        struct apt_deb *deb = &d->list.debs[i];
        struct str file, sha256, url;
        json_val v = json_at(debs, i);
        if (!json_str(json_get(v, "file"), &file) || !os_name_valid(file) || !json_str(json_get(v, "sha256"), &sha256) || !manifest_is_sha256(sha256) ||
            !json_str(json_get(v, "url"), &url) || !json_u64(json_get(v, "bytes"), &deb->bytes))
            return -EBADMSG;
        deb->file = arena_dup(d->apt.arena, file);
        deb->sha256 = arena_dup(d->apt.arena, sha256);
        deb->url = arena_dup(d->apt.arena, url);
        if (!deb->file || !deb->sha256 || !deb->url)
            return err_nomem(err);
    }
    d->list.n = n;
    return 0;
}

/* -ENOENT when nothing was ever resolved. */
static int record_read(struct debian *d, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(RECORD_MAX);
    int r = os_read_file(d->debsfd, d->record, &text, err);
    if (r < 0)
        return r;
    struct json *j;
    r = json_parse(buf_str(&text), &j, NULL);
    if (r == 0) {
        uint64_t version;
        r = json_u64(json_get(json_root(j), "version"), &version) && version == FORMAT ? record_debs(d, json_get(json_root(j), "debs"), err) : -EBADMSG;
        json_free(j);
    }
    if (r < 0 && r != -ENOMEM)
        return err_set(err, -EBADMSG, "the record 'store/debs/%s' is damaged: add the runtime with a network", d->record);
    return r;
}

/* ---- the packages ------------------------------------------------------------------------------------------------------ */

static void deb_name(const struct apt_deb *deb, char out[OS_SHA256_HEX + 8])
{
    snprintf(out, OS_SHA256_HEX + 8, "%s.deb", deb->sha256);
}

/* True when the store holds the package, whole. One that is damaged is removed. */
static bool deb_proven(const struct debian *d, const struct apt_deb *deb)
{
    char name[OS_SHA256_HEX + 8], hex[OS_SHA256_HEX];
    deb_name(deb, name);
    if (os_digest_file(d->debsfd, name, hex, NULL, NULL) < 0)
        return false;
    if (strcmp(hex, deb->sha256) == 0)
        return true;
    (void)unlinkat(d->debsfd, name, 0);
    return false;
}

/* Moves what apt has fetched into the store, proven. */
static int keep_fetched(const struct debian *d, int cachefd, const struct apt_deb *deb, struct err *err)
{
    char name[OS_SHA256_HEX + 8], hex[OS_SHA256_HEX];
    uint64_t bytes;
    deb_name(deb, name);
    int r = os_digest_file(cachefd, deb->file, hex, &bytes, err);
    if (r < 0)
        return r;
    if (strcmp(hex, deb->sha256) != 0)
        return err_set(err, -EBADMSG, "'%s' from %s is not what the signed index names: sha256 %.12s, expected %.12s", deb->file, d->apt.mirror, hex, deb->sha256);
    if (fchmodat(cachefd, deb->file, 0644, 0) < 0 || renameat(cachefd, deb->file, d->debsfd, name) < 0)
        return err_sys(err, -errno, "cannot keep '%s'", deb->file);
    return 0;
}

/* apt passes over what lies in its cache with the right size, which what is proven has. */
static int lend_to_apt(const struct debian *d, int cachefd, const struct apt_deb *deb, struct err *err)
{
    char name[OS_SHA256_HEX + 8];
    deb_name(deb, name);
    if (linkat(d->debsfd, name, cachefd, deb->file, 0) == 0 || errno == EEXIST)
        return 0;
    return os_copy_file(d->debsfd, name, cachefd, deb->file, 0644, err);
}

static int fetch_missing(struct debian *d, const bool *have, size_t n_missing, uint64_t missing_bytes, struct err *err)
{
    char size[UNITS_TEXT];
    const char *cache = apt_cache_dir(&d->apt);
    if (!cache)
        return err_nomem(err);
    os_autoclose int cachefd = os_open_dir(cache, err);
    if (cachefd < 0)
        return cachefd;
    event_say(d->in->o->sink, EVENT_INFO, d->in->subject, "fetching %zu packages, %s", n_missing, units_show_bytes(missing_bytes, size));
    int r = 0;
    for (size_t i = 0; r == 0 && i < d->list.n; i++)
        if (have[i])
            r = lend_to_apt(d, cachefd, &d->list.debs[i], err);
    if (r == 0)
        r = apt_fetch(&d->apt, d->list.bytes, err);
    for (size_t i = 0; r == 0 && i < d->list.n; i++)
        if (!have[i])
            r = keep_fetched(d, cachefd, &d->list.debs[i], err);
    return r;
}

static int gather(struct debian *d, struct err *err)
{
    bool *have = arena_alloc(d->apt.arena, d->list.n, sizeof *have);
    if (!have)
        return err_nomem(err);
    size_t n_missing = 0, first = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < d->list.n; i++) {
        have[i] = deb_proven(d, &d->list.debs[i]);
        if (!have[i]) {
            first = n_missing++ ? first : i;
            bytes += d->list.debs[i].bytes;
        }
    }
    if (!n_missing)
        return 0;
    if (d->in->o->offline)
        return err_set(err, -ENETUNREACH, "'%s' is not in the store and nothing may be fetched (--offline); %zu of %zu packages are missing",
                       d->list.debs[first].file, n_missing, d->list.n);
    return fetch_missing(d, have, n_missing, bytes, err);
}

static int resolve(struct debian *d, struct err *err)
{
    int r = make_record_name(d, err);
    if (r < 0)
        return r;
    if (d->in->o->offline) {
        r = record_read(d, err);
        if (r == -ENOENT)
            return err_set(err, -ENETUNREACH, "it is not installed and nothing may be fetched (--offline): add it once with a network");
        return r;
    }
    r = apt_update(&d->apt, err);
    if (r == 0)
        r = apt_resolve(&d->apt, &d->list, err);
    if (r == -ENETUNREACH && faccessat(d->debsfd, d->record, R_OK, 0) == 0)
        (void)err_prefix(err, "no network (--offline takes the packages that are in the store)");
    return r;
}

/* ---- unpacking ------------------------------------------------------------------------------------------------------------ */

/* "1%3a0.7.0+dfsg-2" of "llama.cpp-tools_1%3a0.7.0+dfsg-2_amd64.deb", without the epoch, which says nothing to people. */
static const char *deb_version(struct arena *a, const char *file)
{
    struct str rest = str_of(file);
    (void)str_split(&rest, '_');
    struct str version = str_split(&rest, '_');
    ptrdiff_t epoch = str_find(version, STR("%3a"));
    if (epoch >= 0)
        version = (struct str){version.ptr + epoch + 3, version.len - (size_t)epoch - 3};
    if (!version.len)
        return NULL;
    return arena_dup(a, version);
}

static int unpack_one(const struct debian *d, const struct apt_deb *deb, struct err *err)
{
    char path[STORE_PATH_MAX], tree[STORE_PATH_MAX];
    int r = store_path(d->in->store, path, err, "debs/%s.deb", deb->sha256);
    if (r == 0)
        r = store_pathf(tree, err, "%s/tree", d->in->stage);
    if (r < 0)
        return r;
    const char *const argv[] = {"dpkg-deb", "-x", path, tree, NULL};
    struct os_spawn s = {.argv = argv, .envp = d->apt.env, .use_path = true, .cwd = "/", .keep_fds = &d->in->lockfd, .n_keep_fds = 1, .death_signal = SIGKILL,
                         .new_group = true, .own_pids = os_own_pids_possible()};
    r = os_run_ok(&s, UNPACK_MS, NULL, err);
    return r < 0 ? err_prefix(err, "cannot unpack '%s': dpkg-deb", deb->file) : 0;
}

/* In order, since a later package may put files into folders of an earlier one. The package that brings the program gives the version; for a kind without a program it is the first that was asked for. */
static int unpack(struct debian *d, struct err *err)
{
    struct manifest *m = d->in->m;
    const char *program = engine_program(engine_find(m->engine)), *file = NULL;
    char found[STORE_PATH_MAX] = "";
    for (size_t i = 0; i < d->list.n; i++) {
        const struct apt_deb *deb = &d->list.debs[i];
        if (!deb_proven(d, deb))
            return err_set(err, -EBADMSG, "'%s' in the store is damaged: add the runtime again", deb->file);
        int r = unpack_one(d, deb, err);
        if (r < 0)
            return r;
        event_progress(d->in->o->sink, d->in->subject, "unpacking", i + 1, d->list.n);
        size_t len = strlen(d->in->want->packages[0]);
        if (program ? !file && tree_program(d->in->treefd, program, found) == 0
                    : strncmp(deb->file, d->in->want->packages[0], len) == 0 && deb->file[len] == '_')
            file = deb->file;
    }
    if (program && !file)
        return err_set(err, -ENOENT, "none of its packages has the program '%s': name the one that does", program);
    m->program = arena_dup(m->arena, str_of(found));
    m->version = file ? deb_version(m->arena, file) : "0";
    return m->program && m->version ? 0 : err_nomem(err);
}

static int record_in_manifest(const struct debian *d, struct err *err)
{
    struct manifest *m = d->in->m;
    m->debs = arena_alloc(m->arena, d->list.n, sizeof *m->debs);
    if (!m->debs)
        return err_nomem(err);
    for (size_t i = 0; i < d->list.n; i++) {
        m->debs[i].file = arena_dup(m->arena, str_of(d->list.debs[i].file));
        m->debs[i].sha256 = arena_dup(m->arena, str_of(d->list.debs[i].sha256));
        if (!m->debs[i].file || !m->debs[i].sha256)
            return err_nomem(err);
    }
    m->n_debs = d->list.n;
    return 0;
}

int debian_install(struct install *in, struct err *err)
{
    struct debian d = {.in = in, .debsfd = -1};
    os_autoclose int debsfd = d.debsfd = store_dir(in->store, "debs", err);
    if (debsfd < 0)
        return debsfd;
    int r = apt_open(&d.apt, in, err);
    if (r == 0)
        r = resolve(&d, err);
    if (r == 0)
        r = gather(&d, err);
    if (r == 0 && !in->o->offline)
        r = record_write(&d, err);
    if (r == 0)
        r = unpack(&d, err);
    if (r == 0)
        r = record_in_manifest(&d, err);
    apt_close(&d.apt);
    return r;
}
