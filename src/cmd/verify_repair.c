/* SPDX-License-Identifier: MIT
 *
 * What `berth verify --repair` does. A file whose manifest is of what is pinned gets only its damaged segments again, each proven before it is written; what is missing, or was never proven, is fetched whole beside the old one and takes
 * its place when it is proven. Afterwards everything that was touched is read again from the disk.
 */
#include "verify_int.h"

#include <errno.h>
#include <string.h>

static struct hub_want want_of(struct verify *v, const struct verify_file *f, struct buf *url, struct err *err)
{
    const struct fleet_model *m = f->model;
    const struct store_check *c = f->check;
    bool pinned = c->want.sha256 || c->want.git_sha1;
    struct hub_want w = {.subject = f->file, .path = f->path, .bytes = pinned ? c->want.bytes : HUB_UNKNOWN, .sha256 = c->want.sha256, .git_sha1 = c->want.git_sha1};
    int r = pull_hub(&v->s, err);
    if (r == 0)
        r = pull_url(&v->s, m, m->commit ? m->commit : m->revision, f->file, url, err);
    w.url = r == 0 ? url->ptr : NULL;
    return w;
}

/* The fragments that a file was joined of, as the hub has them. */
static int repair_joined(struct verify *v, struct verify_file *f, const struct store_manifest *m, int fd, struct err *err)
{
    const struct fleet_model *model = f->model;
    const struct store_check *c = f->check;
    struct arena *a = v->s.arena;
    struct hub_want *parts = arena_alloc(a, f->pin.n_parts, sizeof *parts);
    if (!parts)
        return err_nomem(err);
    for (size_t i = 0; i < f->pin.n_parts; i++) {
        const struct fleet_lock_file *part = f->pin.parts[i];
        base_autobuf struct buf url = BUF_INIT(PULL_PATH_MAX);
        int r = pull_url(&v->s, model, model->commit ? model->commit : model->revision, part->path, &url, err);
        if (r < 0)
            return r;
        parts[i] = (struct hub_want){.subject = f->file, .url = arena_dup(a, buf_str(&url)), .path = f->path, .bytes = part->bytes};
        if (!parts[i].url)
            return err_nomem(err);
    }
    return hub_repair_joined(v->s.hub, parts, f->pin.n_parts, m, c->segments, c->n_segments, fd, &f->fetched_bytes, err);
}

/* Only what is damaged. */
static int repair_segments(struct verify *v, struct verify_file *f, const struct hub_want *w, struct err *err)
{
    struct store_manifest m;
    struct store_repair fix;
    const struct store_check *c = f->check;
    int r = store_manifest_load(v->s.store, f->path, &m, err);
    if (r < 0)
        return r;
    r = store_repair_begin(f->path, m.bytes, &fix, err);
    if (r == 0) {
        if (c->n_segments && f->pin.parts)
            r = repair_joined(v, f, &m, fix.fd, err);
        else if (c->n_segments) /* else it is only too long */
            r = hub_repair(v->s.hub, w, &m, c->segments, c->n_segments, fix.fd, &f->fetched_bytes, err);
        /* what was written is proven, so it is kept even when not all of it came */
        struct err end;
        int ended = store_repair_end(&fix, r == 0 || r == -EINTR, &end);
        if (r == 0 && ended < 0)
            r = err_set(err, ended, "%s", end.text);
    }
    store_manifest_release(&m);
    return r;
}

static int repair_one(struct verify *v, struct verify_file *f)
{
    struct err *err = &f->repair;
    const struct store_check *c = f->check;
    base_autobuf struct buf url = BUF_INIT(PULL_PATH_MAX);
    if (f->model->source == FLEET_MODEL_FILE)
        return err_set(err, -ENOENT, "a file: source has nothing to fetch it from; put a good copy there");
    if (f->pin.parts && !c->located)
        return err_set(err, -ENOTSUP, "it is joined of fragments: 'berth pull %s' fetches those and makes it again", f->model->name);
    if (f->unlisted)
        return err_set(err, -ENOENT, "fleet.lock does not have it: 'berth lock' pins it");
    struct hub_want w = want_of(v, f, &url, err);
    if (!w.url)
        return err->code;
    if (c->located)
        return repair_segments(v, f, &w, err);
    int r = hub_fetch(v->s.hub, v->s.store, &w, 1, NULL, err);
    if (r == 0)
        f->fetched_bytes = c->want.bytes;
    return r;
}

int verify_repair(struct verify *v, struct err *err)
{
    size_t tried = 0;
    for (size_t i = 0; i < v->n_files; i++) {
        struct verify_file *f = &v->files[i];
        if (f->same != i || (verify_sound(f->check) && !f->unlisted))
            continue;
        int r = repair_one(v, f);
        if (r == -EINTR)
            return err_set(err, r, "interrupted: what was repaired stays so, and the next 'berth verify --repair' goes on there");
        f->repaired = r == 0;
        tried += r == 0;
        if (r == 0)
            f->repair.code = 0; /* of something on the way that was none after all */
    }
    if (!tried)
        return 0;
    int r = verify_files(v, true, err);
    for (size_t i = 0; r == 0 && i < v->n_files; i++) {
        struct verify_file *f = &v->files[i];
        f->repaired = v->files[f->same].repaired && verify_sound(f->check);
    }
    return r;
}
