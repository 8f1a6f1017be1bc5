/* SPDX-License-Identifier: MIT
 *
 * The keys of clients: read and proven here, because the router's workers have no right to the file, and given to them. A file that changed is read again within a second; one that cannot be used leaves the keys as
 * they were, and says so once.
 */
#include <errno.h>

#include "up_int.h"

#define LOOK_MS 1000
#define OWN_LINE_MAX 128u
#define OWN_NAME "berth.itself" /* of our own key, in logs and metrics */

/* A key for berth itself, which nobody else has: it asks the router as clients do, and the file has no secret to ask with. */
static int add_own(struct up *u, struct buf *text, struct err *err)
{
    unsigned char hash[PROXY_KEY_HASH];
    char hex[2 * PROXY_KEY_HASH + 1];
    int r = u->keys.own[0] ? 0 : proxy_key_new(u->keys.own, err);
    if (r < 0)
        return r;
    r = proxy_key_hash(str_of(u->keys.own), hash);
    if (r < 0)
        return err_sys(err, r, "cannot hash a key");
    buf_addf(text, "\n" OWN_NAME " sha256:%s\n", os_hex(hash, sizeof hash, hex));
    return buf_status(text) < 0 ? err_nomem(err) : 0;
}

int up_keys_read(struct up *u, const char *path, struct up_keys_read *ret, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(PROXY_KEYS_FILE_MAX + OWN_LINE_MAX);
    struct proxy_keys *k = NULL;
    *ret = (struct up_keys_read){.text = BUF_INIT(PROXY_KEYS_FILE_MAX + OWN_LINE_MAX)};
    if (!path)
        return 0;
    ret->file = up_stamp_of(path); /* before it is read: what changes meanwhile is read again */
    int rc = proxy_keys_read(path, &text, err);
    if (rc == 0)
        rc = add_own(u, &text, err);
    if (rc == 0)
        rc = proxy_keys_parse(buf_str(&text), path, &k, err);
    if (rc < 0)
        return rc;
    proxy_keys_unref(k);
    ret->text = text;
    text = BUF_INIT(PROXY_KEYS_FILE_MAX + OWN_LINE_MAX);
    return 0;
}

void up_keys_take(struct up *u, struct up_keys_read *k)
{
    struct up_keys_read before = u->keys.read;
    u->keys.read = *k;
    *k = before;
    if (!u->fleet->router.keys_file)
        u->keys.own[0] = '\0';
}

int up_keys_load(struct up *u, struct err *err)
{
    struct up_keys_read k;
    int rc = up_keys_read(u, u->fleet->router.keys_file, &k, err);
    if (rc == 0)
        up_keys_take(u, &k);
    else
        u->keys.read.file = k.file; /* told once */
    buf_release(&k.text);
    return rc;
}

static void on_look(void *ctx)
{
    struct up *u = ctx;
    struct up_stamp now = up_stamp_of(u->fleet->router.keys_file);
    struct err err;
    if (up_stamp_eq(&now, &u->keys.read.file))
        return;
    if (up_keys_load(u, &err) < 0) {
        up_say(u, EVENT_WARN, "router", "the keys stay as they were: %s", err.text);
        return;
    }
    up_say(u, EVENT_INFO, "router", "keys read again");
    up_router_tell_keys(u);
}

int up_keys_watch(struct up *u, struct err *err)
{
    u->keys.timer = net_timer_new(u->loop, on_look, u);
    if (!u->keys.timer)
        return err_nomem(err);
    up_keys_follow(u);
    return 0;
}

void up_keys_follow(struct up *u)
{
    if (u->router.wanted && u->fleet->router.keys_file)
        net_timer_start(u->keys.timer, LOOK_MS, LOOK_MS);
    else
        net_timer_stop(u->keys.timer);
}

void up_keys_release(struct up *u)
{
    if (u->loop)
        u->keys.timer = net_timer_close(u->keys.timer);
    buf_release(&u->keys.read.text);
}
