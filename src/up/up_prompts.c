/* SPDX-License-Identifier: MIT
 *
 * What the slots of a llama.cpp engine hold is kept in files while it is stopped, and given back to its next life: a conversation then goes on where it was instead of having its prompt read again. One file for
 * each slot, in a folder of the fleet's state that the engine's account may write to and nobody else reads; at most `prompt-files` bytes, for one run of berth only. Files are given back to the same
 * weights, runtime and shape, which within one run only the weights' file can break. The router goes on knowing what the slots hold because the engine's life keeps its name.
 *
 * Nothing here may fail anything: without its file a turn is slower.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "up_int.h"

#define CALL_MS 60000   /* gigabytes to a slow disk */
#define ANSWER_MAX 65536
#define FOLDER "prompts"

/* ---- folders ------------------------------------------------------------------------------------------------------ */

/* As root the engine's account has to come to the folder by itself. */
static bool is_reachable(const char *path)
{
    base_autofree char *copy = str_dup(str_of(path));
    struct stat st;
    if (geteuid() != 0)
        return true;
    for (char *p = copy; p && (p = strchr(p + 1, '/'));) {
        *p = '\0';
        if (stat(copy, &st) < 0 || !(st.st_mode & S_IXOTH))
            return false;
        *p = '/';
    }
    return copy != NULL;
}

static bool wants_files(const struct up_service *us)
{
    const struct fleet_service *s = us->service;
    if (s->prompt_files_bytes == 0 || strcmp(s->runtime->engine, "llama.cpp") != 0 || us->runtime->confine == STORE_CHROOT)
        return false;
    for (size_t i = 0; i < s->n_args; i++)
        if (strcmp(s->args[i], "--slot-save-path") == 0)
            return false; /* theirs */
    return true;
}

static int make_folder(struct up *u, struct up_service *us, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT(UP_PATH_MAX);
    uid_t uid;
    gid_t gid;
    buf_addf(&path, "%s/" FOLDER "/%s", u->paths.fleet, us->service->name);
    if (buf_status(&path) < 0)
        return err_nomem(err);
    if (!is_reachable(path.ptr)) {
        up_say_service(u, EVENT_WARN, us->service, "prompts are not kept while it is stopped: the engines' account cannot come to '%s'", path.ptr);
        return 0;
    }
    int rc = os_make_dirs(path.ptr, 0700, err);
    if (rc == 0 && geteuid() == 0) {
        rc = os_engine_account(&uid, &gid, err);
        if (rc == 0 && (chown(path.ptr, uid, gid) < 0 || chmod(path.ptr, 0700) < 0))
            rc = err_sys(err, -errno, "cannot give folder '%s' to the engines' account", path.ptr);
    }
    if (rc < 0)
        return rc;
    us->prompts.dir = buf_take(&path);
    if (!us->prompts.dir)
        return err_nomem(err);
    run_set_slot_dir(us->run, us->prompts.dir);
    return 0;
}

static void remove_all(struct up *u)
{
    os_autoclose int fleet = os_open_dir(u->paths.fleet, NULL);
    if (fleet >= 0)
        base_ignore(os_remove_tree(fleet, FOLDER, NULL)); /* what stays is removed at the next start */
}

int up_prompts_open(struct up *u, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT(UP_PATH_MAX);
    int rc = 0;
    remove_all(u); /* of a berth that was killed */
    buf_addf(&path, "%s/" FOLDER, u->paths.fleet);
    if (buf_status(&path) < 0)
        return err_nomem(err);
    rc = os_make_dirs(path.ptr, geteuid() == 0 ? 0711 : 0700, err);
    return rc < 0 ? rc : up_prompts_renew(u, err);
}

int up_prompts_renew(struct up *u, struct err *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < u->demand.d.n; i++)
        if (!u->demand.units[i]->prompts.dir && wants_files(u->demand.units[i]))
            rc = make_folder(u, u->demand.units[i], err);
    return rc;
}

void up_prompts_close(struct up *u)
{
    for (size_t i = 0; i < u->n_services; i++) {
        free(u->services[i]->prompts.dir);
        u->services[i]->prompts.dir = NULL;
    }
    if (u->paths.fleet && u->lock_fd >= 0)
        remove_all(u);
}

void up_prompts_cancel(struct up_service *us)
{
    us->prompts.fetch = httpio_fetch_cancel(us->prompts.fetch);
}

/* ---- one slot after the other --------------------------------------------------------------------------------------- */

static void step(struct up_service *us);

static int slot_file(const struct up_service *us, unsigned slot, struct buf *out)
{
    buf_addf(out, "%s/slot-%u.bin", us->prompts.dir, slot);
    return buf_status(out);
}

static void drop_file(const struct up_service *us, unsigned slot)
{
    base_autobuf struct buf path = BUF_INIT(UP_PATH_MAX);
    if (slot_file(us, slot, &path) == 0)
        (void)unlink(path.ptr);
}

/* Which weights the files are of. */
static struct up_stamp weights_of(const struct up_service *us)
{
    base_autobuf struct buf path = BUF_INIT(UP_PATH_MAX);
    bool known = store_payload_path(us->up->store, us->service->model, us->service->model->weights, &path, NULL) == 0;
    return known ? up_stamp_of(path.ptr) : (struct up_stamp){0};
}

static bool same_weights(const struct up_stamp *a, const struct up_stamp *b)
{
    return a->size > 0 && up_stamp_eq(a, b);
}

/* A slot was saved: it counts, and goes again when it is too much. */
static void take_saved(struct up_service *us, unsigned status)
{
    struct up_prompts *p = &us->prompts;
    base_autobuf struct buf path = BUF_INIT(UP_PATH_MAX);
    struct stat st;
    if (slot_file(us, p->slot, &path) < 0 || lstat(path.ptr, &st) < 0)
        return;
    if (status == 200 && S_ISREG(st.st_mode) && (uint64_t)st.st_size <= us->service->prompt_files_bytes - p->bytes) {
        p->bytes += (uint64_t)st.st_size;
        p->held[p->slot] = true;
        p->n_held++;
    } else {
        (void)unlink(path.ptr);
    }
}

static void drop_from(struct up_service *us, unsigned slot)
{
    struct up_prompts *p = &us->prompts;
    for (; slot < us->service->shape.slots; slot++) {
        if (p->held[slot])
            drop_file(us, slot);
        p->held[slot] = false;
    }
}

void up_prompts_drop(struct up_service *us)
{
    drop_from(us, 0);
    us->prompts.n_held = 0;
    us->prompts.bytes = 0;
}

static void on_saved(struct up_service *us, unsigned status, bool failed)
{
    take_saved(us, status);
    us->prompts.slot = failed ? us->service->shape.slots : us->prompts.slot + 1; /* who does not answer for one slot is not asked for the others: somebody waits for its end */
    step(us);
}

static void on_restored(struct up_service *us, unsigned status, const struct err *failed)
{
    struct up_prompts *p = &us->prompts;
    if (failed) { /* it has died of it, or hangs: its end is told, and the next start has nothing to give back */
        up_say(us->up, EVENT_WARN, us->service->name, "starts again without its prompts: %s", failed->text);
        up_prompts_drop(us);
        run_stop(us->run, 0);
        return;
    }
    p->n_restored += status == 200;
    p->held[p->slot] = false;
    drop_file(us, p->slot++);
    step(us);
}

static void on_answer(void *ctx, unsigned status, struct str body, const struct err *failed)
{
    struct up_service *us = ctx;
    (void)body;
    us->prompts.fetch = NULL;
    if (us->prompts.saving)
        on_saved(us, status, failed);
    else
        on_restored(us, status, failed);
}

static bool ask(struct up_service *us)
{
    struct up_prompts *p = &us->prompts;
    char target[64], body[64];
    char bearer[HTTPIO_BEARER_MAX];
    struct http_field fields[2] = {HTTPIO_FIELD(STR("Content-Type"), STR("application/json"))};
    struct httpio_request q = {.method = STR("POST"), .fields = fields, .fresh = true};
    q.n_fields = 1 + httpio_bearer(run_key(us->run), bearer, &fields[1]);
    snprintf(target, sizeof target, "/slots/%u?action=%s", p->slot, p->saving ? "save" : "restore");
    snprintf(body, sizeof body, "{\"filename\":\"slot-%u.bin\"}", p->slot);
    q.target = str_of(target);
    q.body = str_of(body);
    if (net_addr_parse(us->service->bind, us->service->port, &q.addr) < 0)
        return false;
    p->fetch = httpio_fetch(us->up->client, &q, ANSWER_MAX, CALL_MS, on_answer, us);
    return p->fetch != NULL;
}

/* Room on the disk for all that may be written, and as much again for everybody else. */
static bool has_room(const struct up_service *us)
{
    const struct up_prompts *p = &us->prompts;
    struct statvfs v;
    return p->bytes < us->service->prompt_files_bytes && statvfs(p->dir, &v) == 0 && (uint64_t)v.f_bavail * v.f_frsize / 2 > us->service->prompt_files_bytes - p->bytes;
}

static void finish_save(struct up_service *us)
{
    struct up_prompts *p = &us->prompts;
    char text[UNITS_TEXT];
    if (p->n_held)
        up_say_service(us->up, EVENT_INFO, us->service, "keeps the prompts of %u slot%s in files, %s", p->n_held, p->n_held == 1 ? "" : "s", units_show_bytes(p->bytes, text));
    up_demand_stop(us);
}

static void finish_restore(struct up_service *us)
{
    struct up_prompts *p = &us->prompts;
    if (p->n_restored) {
        up_say_service(us->up, EVENT_INFO, us->service, "has the prompts of %u slot%s back", p->n_restored, p->n_restored == 1 ? "" : "s");
    } else {
        us->life = p->next_life;
    }
    p->n_held = 0;
    p->bytes = 0;
    up_demand_ready(us);
}

static void step(struct up_service *us)
{
    struct up_prompts *p = &us->prompts;
    unsigned slots = us->service->shape.slots;
    while (p->dir && p->slot < slots && (p->saving ? has_room(us) : true)) {
        if ((p->saving || p->held[p->slot]) && ask(us))
            return;
        p->slot++;
    }
    if (p->saving)
        finish_save(us);
    else
        finish_restore(us);
}

/* ---- doors ---------------------------------------------------------------------------------------------------------------- */

void up_prompts_save(struct up_service *us)
{
    struct up_prompts *p = &us->prompts;
    up_prompts_cancel(us);
    p->saving = true;
    p->slot = p->n_held = 0;
    p->bytes = 0;
    memset(p->held, 0, sizeof p->held);
    if (p->dir)
        p->weights = weights_of(us);
    p->declared_hash = run_service_of(us->run)->declared_hash;
    step(us);
}

void up_prompts_restore(struct up_service *us, uint64_t life)
{
    struct up_prompts *p = &us->prompts;
    up_prompts_cancel(us);
    p->saving = false;
    p->slot = p->n_restored = 0;
    p->next_life = life;
    struct up_stamp weights = p->n_held ? weights_of(us) : (struct up_stamp){0};
    if (p->n_held && !(same_weights(&weights, &p->weights) && p->declared_hash == run_service_of(us->run)->declared_hash))
        drop_from(us, 0);
    step(us);
}
