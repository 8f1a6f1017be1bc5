/* SPDX-License-Identifier: MIT
 *
 * Addresses, and what answers mean: whom the token may go to, where a redirect may lead, which failures may pass, and the words for those that do not. No message holds a query: signatures are secrets too.
 */
#include "hub_int.h"

#include <errno.h>
#include <sys/random.h>

#define PAUSE_FIRST_US 500000
#define PAUSE_MOST_US 30000000

/* ---- addresses ------------------------------------------------------------------------------------------------------------ */

static bool take_part(const struct hub *h, CURLU *u, CURLUPart part, unsigned flags, char *out, size_t size)
{
    char *text = NULL;
    if (h->c->url_get(u, part, &text, flags) != CURLUE_OK)
        return false;
    size_t len = strlen(text);
    bool fits = len < size;
    for (size_t i = 0; fits && i <= len; i++) /* schemes and hosts are the same in either case */
        out[i] = text[i] >= 'A' && text[i] <= 'Z' ? (char)(text[i] + 32) : text[i];
    h->c->free(text);
    return fits;
}

int hub_origin_of(const struct hub *h, const char *url, struct hub_origin *ret, struct err *err)
{
    struct hub_origin o;
    char shown[HUB_SHOWN_MAX];
    struct str port;
    if (fleet_has_bad_port(str_of(url), &port))
        return err_set(err, -EINVAL, "'%s' has a port that is none; " FLEET_PORTS, hub_show(h, url, shown));
    CURLU *u = h->c->url();
    if (!u)
        return err_nomem(err);
    bool ok = h->c->url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK && take_part(h, u, CURLUPART_SCHEME, 0, o.scheme, sizeof o.scheme) && take_part(h, u, CURLUPART_HOST, 0, o.host, sizeof o.host) &&
              take_part(h, u, CURLUPART_PORT, CURLU_DEFAULT_PORT, o.port, sizeof o.port) && (strcmp(o.scheme, "https") == 0 || strcmp(o.scheme, "http") == 0);
    h->c->url_cleanup(u);
    if (!ok)
        return err_set(err, -EINVAL, "'%s' is no http or https address", hub_show(h, url, shown));
    *ret = o;
    return 0;
}

bool hub_origin_eq(const struct hub_origin *a, const struct hub_origin *b)
{
    return strcmp(a->scheme, b->scheme) == 0 && strcmp(a->host, b->host) == 0 && strcmp(a->port, b->port) == 0;
}

int hub_url_follow(const struct hub *h, const char *url, const char *location, char *out, struct err *err)
{
    struct hub_origin before, after;
    char shown[HUB_SHOWN_MAX];
    char *text = NULL;
    CURLU *u = h->c->url();
    if (!u)
        return err_nomem(err);
    if (!*location || h->c->url_set(u, CURLUPART_URL, url, 0) != CURLUE_OK || h->c->url_set(u, CURLUPART_URL, location, 0) != CURLUE_OK || h->c->url_set(u, CURLUPART_FRAGMENT, NULL, 0) != CURLUE_OK ||
        h->c->url_get(u, CURLUPART_URL, &text, 0) != CURLUE_OK || strlen(text) >= HUB_URL_MAX) {
        h->c->free(text);
        h->c->url_cleanup(u);
        return err_set(err, -EPROTO, "%s redirects to no usable address", hub_show(h, url, shown));
    }
    h->c->url_cleanup(u);
    int r = hub_origin_of(h, url, &before, err);
    if (r == 0)
        r = hub_origin_of(h, text, &after, err);
    if (r == 0 && strcmp(before.scheme, "https") == 0 && strcmp(after.scheme, "http") == 0)
        r = err_set(err, -EPROTO, "%s redirects from https to http, which is not followed", hub_show(h, url, shown));
    if (r == 0)
        memcpy(out, text, strlen(text) + 1);
    h->c->free(text);
    return r;
}

const char *hub_show(const struct hub *h, const char *url, char out[HUB_SHOWN_MAX])
{
    (void)h;
    struct str s = str_of(url);
    base_autobuf struct buf b = BUF_INIT((size_t)4 * HUB_SHOWN_MAX);
    ptrdiff_t scheme = str_find(s, STR("://"));
    for (size_t i = 0; i < s.len; i++)
        if (s.ptr[i] == '?' || s.ptr[i] == '#')
            s.len = i;
    if (scheme >= 0 && (size_t)scheme + 3 <= s.len) {
        struct str rest = {s.ptr + scheme + 3, s.len - (size_t)scheme - 3};
        ptrdiff_t slash = str_find_char(rest, '/'), at = -1;
        for (size_t i = 0; i < (slash < 0 ? rest.len : (size_t)slash); i++)
            if (rest.ptr[i] == '@')
                at = (ptrdiff_t)i;
        buf_add(&b, s.ptr, (size_t)scheme + 3);
        s = (struct str){rest.ptr + at + 1, rest.len - (size_t)(at + 1)};
    }
    buf_add_printable(&b, s, HUB_SHOWN_MAX / 5);
    (void)snprintf(out, HUB_SHOWN_MAX, "%s", b.ptr ? b.ptr : "");
    return out;
}

/* ---- answers ---------------------------------------------------------------------------------------------------------------- */

static enum hub_verdict judge_wire(const struct hub_exchange *x, CURLcode code, const char *shown, struct err *err)
{
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
        (void)err_set(err, -ENETUNREACH, "%s: the host's name cannot be resolved: is there a network?", shown);
        return HUB_AGAIN;
    case CURLE_COULDNT_CONNECT:
        if (x->refusal == ECONNREFUSED)
            (void)err_set(err, -ECONNREFUSED, "%s: connection refused", shown);
        else
            (void)err_set(err, -ECONNREFUSED, "%s: cannot connect%s%s", shown, x->refusal ? ": " : "", x->refusal ? strerror(x->refusal) : "");
        return HUB_AGAIN;
    case CURLE_OPERATION_TIMEDOUT:
        (void)err_set(err, -ETIMEDOUT, "%s: no connection within %d s", shown, HUB_CONNECT_MS / 1000);
        return HUB_AGAIN;
    case CURLE_PARTIAL_FILE:
        (void)err_set(err, -ENODATA, "%s: the answer ended early", shown);
        return HUB_AGAIN;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        (void)err_set(err, -EPROTO, "%s: the server's certificate cannot be proven (%s)", shown, x->text[0] ? x->text : x->hub->c->easy_strerror(code));
        return HUB_HOPELESS;
    case CURLE_SSL_CONNECT_ERROR:
        (void)err_set(err, -EPROTO, "%s: the server does not speak TLS as it should (%s)", shown, x->text[0] ? x->text : x->hub->c->easy_strerror(code));
        return HUB_AGAIN;
    default:
        (void)err_set(err, -ECONNRESET, "%s: the connection broke (%s)", shown, x->hub->c->easy_strerror(code));
        return HUB_AGAIN;
    }
}

static void say_unauthorized(const struct hub_exchange *x, const char *shown, struct err *err)
{
    if (x->hub->token)
        (void)err_set(err, -EACCES, "%s: the hub does not take the token (401): it has run out or was revoked, or there is no such repository", shown);
    else
        (void)err_set(err, -EACCES, "%s: the hub wants a token (401): the repository is private, gated or does not exist; set HF_TOKEN, or HF_TOKEN_PATH to a file with it", shown);
}

static void say_forbidden(const struct hub_exchange *x, const char *shown, struct err *err)
{
    if (strcmp(x->head.error, "GatedRepo") == 0)
        (void)err_set(err, -EACCES, "%s: the repository is gated (403): open its page on %s in a browser and accept its terms with the account of the token", shown, x->hub->endpoint);
    else
        (void)err_set(err, -EACCES, "%s: the token has no access (403)%s%s", shown, x->head.message[0] ? ": " : "", x->head.message);
}

static enum hub_verdict judge_own(const struct hub_exchange *x, const char *shown, struct err *err)
{
    switch (x->head.status) {
    case 401:
        say_unauthorized(x, shown, err);
        return HUB_HOPELESS;
    case 403:
        say_forbidden(x, shown, err);
        return HUB_HOPELESS;
    case 404:
    case 410:
        (void)err_set(err, -ENOENT, "%s: there is no such %s (%ld)", shown,
                      strcmp(x->head.error, "RepoNotFound") == 0 ? "repository" : strcmp(x->head.error, "RevisionNotFound") == 0 ? "revision" : strcmp(x->head.error, "EntryNotFound") == 0 ? "file" : "thing on the hub", x->head.status);
        return HUB_HOPELESS;
    default:
        (void)err_set(err, -EPROTO, "%s: the hub answered %ld%s%s", shown, x->head.status, x->head.message[0] ? ": " : "", x->head.message);
        return HUB_HOPELESS;
    }
}

enum hub_verdict hub_judge(const struct hub_exchange *x, CURLcode code, struct err *err)
{
    char shown[HUB_SHOWN_MAX];
    long status = x->head_complete ? x->head.status : 0;
    hub_show(x->hub, x->url, shown);
    if (status >= 300 && status <= 399 && x->head.location[0])
        return HUB_REDIRECT;
    if (!status || (code != CURLE_OK && status < 300))
        return judge_wire(x, code, shown, err);
    if (status >= 200 && status <= 299)
        return HUB_GOOD;
    if (status == 429) {
        (void)err_set(err, -EBUSY, "%s: too many requests (429)", shown);
        return HUB_AGAIN;
    }
    if (status >= 500 || status == 408 || status == 425) {
        (void)err_set(err, -EREMOTEIO, "%s: the server has a fault (%ld)", shown, status);
        return HUB_AGAIN;
    }
    if (x->own)
        return judge_own(x, shown, err);
    if (status == 400 || status == 401 || status == 403 || status == 404 || status == 410) {
        (void)err_set(err, status == 404 || status == 410 ? -ENOENT : -EACCES, "%s: the server refuses (%ld)", shown, status);
        return HUB_EXPIRED;
    }
    (void)err_set(err, -EPROTO, "%s: the server answered %ld", shown, status);
    return HUB_HOPELESS;
}

uint64_t hub_pause_us(unsigned n)
{
    uint16_t chance = 0;
    uint64_t us = n > 7 ? PAUSE_MOST_US : (uint64_t)PAUSE_FIRST_US << (n ? n - 1 : 0);
    if (us > PAUSE_MOST_US)
        us = PAUSE_MOST_US;
    /* a quarter by chance, so that those who failed together do not come back together */
    base_ignore(getrandom(&chance, sizeof chance, GRND_NONBLOCK));
    return us - us / 4 + us / 4 * chance / UINT16_MAX;
}
