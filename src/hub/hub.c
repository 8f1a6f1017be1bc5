/* SPDX-License-Identifier: MIT
 *
 * Opening a hub: its address, the token, the library, the thread; and the list of a repository's files.
 */
#include "hub_int.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define ENDPOINT "https://huggingface.co"
#define TOKEN_MAX 4096

/* ---- token ------------------------------------------------------------------------------------------------------------ */

/* It becomes a part of a request's head: nothing in it may end the line. */
static int take_token(struct hub *h, struct str text, const char *from, struct err *err)
{
    text = str_trim(text);
    if (!text.len)
        return 0;
    for (size_t i = 0; i < text.len; i++)
        if (text.ptr[i] <= ' ' || text.ptr[i] >= 0x7f)
            return err_set(err, -EINVAL, "the token of %s has a character that no token has", from);
    h->token = str_dup(text);
    return h->token ? 0 : err_nomem(err);
}

static int read_token(struct hub *h, const char *path, bool must, struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(TOKEN_MAX);
    int r = os_read_file(AT_FDCWD, path, &text, err);
    if (r == 0)
        r = take_token(h, buf_str(&text), path, err);
    else if (!must && (r == -ENOENT || r == -ENOTDIR || r == -EACCES))
        r = 0;
    if (text.ptr)
        explicit_bzero(text.ptr, text.len);
    return r;
}

/* The variable's value unless it is empty. */
static const char *setting(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

static int find_token(struct hub *h, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT(4096);
    const char *v = setting("HF_TOKEN");
    if (v)
        return take_token(h, str_of(v), "HF_TOKEN", err);
    if ((v = setting("HF_TOKEN_PATH")))
        return read_token(h, v, true, err);
    if ((v = setting("HF_HOME")))
        buf_addf(&path, "%s/token", v);
    else if ((v = setting("XDG_CACHE_HOME")) && *v == '/')
        buf_addf(&path, "%s/huggingface/token", v);
    else if ((v = setting("HOME")))
        buf_addf(&path, "%s/.cache/huggingface/token", v);
    if (buf_status(&path) < 0)
        return err_set(err, -ENAMETOOLONG, "the path of the hub's token is too long");
    return path.len ? read_token(h, path.ptr, false, err) : 0;
}

/* ---- opening ------------------------------------------------------------------------------------------------------------ */

static bool is_offline(void)
{
    const char *v = setting("HF_HUB_OFFLINE");
    struct str s = str_of(v);
    return v && (str_eq_c(s, "1") || str_eq_nocase(s, STR("on")) || str_eq_nocase(s, STR("yes")) || str_eq_nocase(s, STR("true")));
}

static int take_endpoint(struct hub *h, const char *endpoint, struct err *err)
{
    struct str e = str_of(endpoint ? endpoint : setting("HF_ENDPOINT") ? setting("HF_ENDPOINT") : ENDPOINT);
    while (e.len && e.ptr[e.len - 1] == '/')
        e.len--;
    h->endpoint = str_dup(e);
    if (!h->endpoint)
        return err_nomem(err);
    char shown[HUB_SHOWN_MAX]; /* without a password that somebody may have put there */
    struct str port;
    if (fleet_has_bad_port(e, &port))
        return err_set(err, -EINVAL, "the hub's address (HF_ENDPOINT) '%s' has a port that is none; " FLEET_PORTS, hub_show(h, h->endpoint, shown));
    if (hub_origin_of(h, h->endpoint, &h->origin, err) < 0 || strpbrk(h->endpoint, "?#@"))
        return err_set(err, -EINVAL, "the hub's address (HF_ENDPOINT) must be like https://host, without a name, a password or a query, not '%s'", hub_show(h, h->endpoint, shown));
    return 0;
}

static int open_hub(struct hub *h, const struct hub_options *o, struct err *err)
{
    int r = hub_curl_open(&h->c, err);
    if (r == 0 && !(h->multi = h->c->multi_init()))
        r = err_nomem(err);
    if (r == 0)
        r = take_endpoint(h, o->endpoint, err);
    if (r == 0)
        r = find_token(h, err);
    return r == 0 ? hub_wire_start(h, err) : r;
}

int hub_new(const struct hub_options *o, struct hub **ret, struct err *err)
{
    pthread_condattr_t monotonic;
    if (is_offline())
        return err_set(err, -ENETDOWN, "HF_HUB_OFFLINE is set: nothing is fetched");
    struct hub *h = calloc(1, sizeof *h);
    if (!h)
        return err_nomem(err);
    h->connections = o->connections ? o->connections : HUB_CONNECTIONS;
    if (h->connections > HUB_CONNECTIONS_MAX)
        h->connections = HUB_CONNECTIONS_MAX;
    h->retries = o->retries ? o->retries : HUB_RETRIES;
    h->stall_us = (o->stall_ms ? o->stall_ms : HUB_STALL_MS) * 1000;
    h->sink = o->sink;
    (void)pthread_mutex_init(&h->lock, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&h->changed, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    int r = open_hub(h, o, err);
    if (r < 0) {
        hub_free(h);
        return r;
    }
    *ret = h;
    return 0;
}

int hub_export(struct buf *ret, struct err *err)
{
    struct hub h = {0};
    int r = find_token(&h, err);
    if (setting("HF_ENDPOINT"))
        buf_addf(ret, "HF_ENDPOINT=%s\n", setting("HF_ENDPOINT"));
    if (h.token) {
        buf_addf(ret, "HF_TOKEN=%s\n", h.token);
        explicit_bzero(h.token, strlen(h.token));
    }
    free(h.token);
    return r < 0 ? r : buf_status(ret) < 0 ? err_nomem(err) : 0;
}

int hub_load(struct err *err)
{
    const struct hub_curl *ignored;
    return hub_curl_open(&ignored, err);
}

struct hub *hub_free(struct hub *h)
{
    if (!h)
        return NULL;
    hub_wire_stop(h);
    if (h->multi)
        (void)h->c->multi_cleanup(h->multi);
    if (h->token)
        explicit_bzero(h->token, strlen(h->token));
    free(h->token);
    free(h->endpoint);
    (void)pthread_cond_destroy(&h->changed);
    (void)pthread_mutex_destroy(&h->lock);
    free(h);
    return NULL;
}

/* ---- repositories -------------------------------------------------------------------------------------------------------- */

/* As one part of a path: a branch may have a slash in its name. */
static void escape_part(struct buf *out, const char *part)
{
    for (const char *p = part; *p; p++) {
        const char one[2] = {*p, '\0'};
        if (*p == '/')
            buf_add_c(out, "%2F");
        else
            hub_escape_path(out, one);
    }
}

int hub_url(const struct hub *h, const char *repo, const char *revision, const char *path, struct buf *ret, struct err *err)
{
    if (!os_relpath_valid(str_of(repo)) || !os_relpath_valid(str_of(revision)) || !os_relpath_valid(str_of(path)))
        return err_set(err, -EINVAL, "'%s' of '%s' at '%s' is no file of a repository", path, repo, revision);
    buf_addf(ret, "%s/", h->endpoint);
    hub_escape_path(ret, repo);
    buf_add_c(ret, "/resolve/");
    escape_part(ret, revision);
    buf_add_char(ret, '/');
    hub_escape_path(ret, path);
    return buf_status(ret) < 0 ? err_set(err, -ENAMETOOLONG, "the address of '%s' is too long", path) : 0;
}

int hub_web_url(const char *folder, const char *path, struct buf *ret, struct err *err)
{
    struct str base = str_of(folder);
    while (base.len && base.ptr[base.len - 1] == '/')
        base.len--;
    if (!os_relpath_valid(str_of(path)))
        return err_set(err, -EINVAL, "'%s' is no file below '%s'", path, folder);
    buf_add_str(ret, base);
    buf_add_char(ret, '/');
    hub_escape_path(ret, path);
    return buf_status(ret) < 0 ? err_set(err, -ENAMETOOLONG, "the address of '%s' is too long", path) : 0;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct hub_file *)a)->path, ((const struct hub_file *)b)->path);
}

/* "ENDPOINT/api/models/REPO/WHAT/REVISION", with the revision as one part. */
static int api_url(const struct hub *h, const char *repo, const char *what, const char *revision, struct buf *ret, struct err *err)
{
    if (!os_relpath_valid(str_of(repo)) || !os_relpath_valid(str_of(revision)))
        return err_set(err, -EINVAL, "'%s' at '%s' is no repository and revision", repo, revision);
    buf_addf(ret, "%s/api/models/", h->endpoint);
    hub_escape_path(ret, repo);
    buf_addf(ret, "/%s/", what);
    escape_part(ret, revision);
    return buf_status(ret) < 0 ? err_set(err, -ENAMETOOLONG, "the name of '%s' is too long", repo) : 0;
}

static int read_commit(struct hub *h, const char *repo, const char *revision, char ret[41], struct err *err)
{
    base_autobuf struct buf url = BUF_INIT(HUB_URL_MAX), answer = BUF_INIT(HUB_JSON_MAX);
    int r = api_url(h, repo, "revision", revision, &url, err);
    if (r == 0)
        r = hub_get(h, url.ptr, &answer, NULL, err);
    if (r == 0 && (r = hub_parse_commit(buf_str(&answer), ret, err)) < 0)
        r = err_prefix(err, "%s", url.ptr);
    return r;
}

static int read_pages(struct hub *h, const char *repo, const char *commit, struct hub_tree *t, struct err *err)
{
    base_autobuf struct buf first = BUF_INIT(HUB_URL_MAX), answer = BUF_INIT(HUB_JSON_MAX);
    char url[HUB_URL_MAX];
    size_t cap = 0;
    int r = api_url(h, repo, "tree", commit, &first, err);
    buf_add_c(&first, "?recursive=true");
    if (r < 0 || buf_status(&first) < 0)
        return r < 0 ? r : err_nomem(err);
    memcpy(url, first.ptr, first.len + 1);
    while (r == 0 && url[0]) {
        char next[HUB_URL_MAX];
        size_t before = t->n_files;
        buf_clear(&answer);
        r = hub_get(h, url, &answer, next, err);
        if (r == 0 && (r = hub_parse_tree(buf_str(&answer), t, &cap, err)) < 0)
            r = err_prefix(err, "%s", repo);
        /* a page that leads on without bringing anything may do so for ever */
        if (r == 0 && next[0] && (t->n_files == before || strcmp(next, url) == 0))
            r = err_set(err, -EPROTO, "%s: the list of files does not end", repo);
        if (r == 0)
            memcpy(url, next, sizeof url);
    }
    return r;
}

int hub_tree(struct hub *h, const char *repo, const char *revision, struct hub_tree *ret, struct err *err)
{
    struct hub_tree t = {0};
    char commit[41];
    int r = read_commit(h, repo, revision, commit, err);
    if (r == 0)
        r = read_pages(h, repo, commit, &t, err);
    if (r == 0 && !(t.commit = arena_dup(t.arena, str_of(commit))))
        r = err_nomem(err);
    if (r < 0) {
        hub_tree_release(&t);
        return r;
    }
    if (t.n_files)
        qsort(t.files, t.n_files, sizeof *t.files, by_path);
    *ret = t;
    return 0;
}

void hub_tree_release(struct hub_tree *t)
{
    arena_free(t->arena);
    *t = (struct hub_tree){0};
}

const struct hub_file *hub_tree_find(const struct hub_tree *t, const char *path)
{
    const struct hub_file key = {.path = path};
    return t->n_files ? bsearch(&key, t->files, t->n_files, sizeof *t->files, by_path) : NULL;
}
