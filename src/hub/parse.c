/* SPDX-License-Identifier: MIT
 *
 * What servers say: fields of HTTP heads and the hub's JSON. Everything here is hostile until checked: names become paths below a folder, numbers become sizes, times become pauses. Pure functions over text.
 */
#include "hub_int.h"

#include <conf/conf.h>
#include <errno.h>

#define TREE_MEMORY_MAX (256u << 20)
#define TREE_PAGE_MAX 20000 /* hubs send 1,000; finding an element walks those before it */

/* ---- numbers and lists -------------------------------------------------------------------------------------------------- */

/* The digits at the front of *s, which loses them. */
static bool take_number(struct str *s, uint64_t *ret)
{
    size_t n = 0;
    while (n < s->len && s->ptr[n] >= '0' && s->ptr[n] <= '9')
        n++;
    if (!n || str_to_u64((struct str){s->ptr, n}, ret) < 0)
        return false;
    *s = (struct str){s->ptr + n, s->len - n};
    return true;
}

static bool take_char(struct str *s, char c)
{
    if (!s->len || s->ptr[0] != c)
        return false;
    *s = (struct str){s->ptr + 1, s->len - 1};
    return true;
}

static bool starts_nocase(struct str s, struct str prefix)
{
    return s.len >= prefix.len && str_eq_nocase((struct str){s.ptr, prefix.len}, prefix);
}

bool hub_is_hex(struct str s, size_t n)
{
    for (size_t i = 0; i < s.len; i++)
        if (!((s.ptr[i] >= '0' && s.ptr[i] <= '9') || (s.ptr[i] >= 'a' && s.ptr[i] <= 'f')))
            return false;
    return s.len == n;
}

bool hub_parse_range(struct str v, struct hub_range *ret)
{
    struct hub_range r = {HUB_UNKNOWN, HUB_UNKNOWN, HUB_UNKNOWN};
    v = str_trim(v);
    if (!starts_nocase(v, STR("bytes ")))
        return false;
    v = str_trim((struct str){v.ptr + 6, v.len - 6});
    if (!take_char(&v, '*')) {
        if (!take_number(&v, &r.from) || !take_char(&v, '-') || !take_number(&v, &r.to) || r.to < r.from || r.to == HUB_UNKNOWN)
            return false;
    }
    if (!take_char(&v, '/'))
        return false;
    if (!take_char(&v, '*') && !take_number(&v, &r.total))
        return false;
    if (v.len || (r.to != HUB_UNKNOWN && r.total != HUB_UNKNOWN && r.to >= r.total))
        return false;
    if (r.to == HUB_UNKNOWN && r.total == HUB_UNKNOWN)
        return false;
    *ret = r;
    return true;
}

/* True when the parameters of one link say rel=next. */
static bool is_next(struct str params)
{
    while (params.ptr) {
        struct str p = str_trim(str_split(&params, ';'));
        if (!starts_nocase(p, STR("rel=")))
            continue;
        p = str_trim((struct str){p.ptr + 4, p.len - 4});
        if (p.len >= 2 && p.ptr[0] == '"' && p.ptr[p.len - 1] == '"')
            p = (struct str){p.ptr + 1, p.len - 2};
        if (str_eq_nocase(p, STR("next")))
            return true;
    }
    return false;
}

bool hub_parse_next(struct str v, struct str *ret)
{
    while (v.len) {
        ptrdiff_t open = str_find_char(v, '<');
        if (open < 0)
            return false;
        v = (struct str){v.ptr + open + 1, v.len - (size_t)open - 1};
        ptrdiff_t close = str_find_char(v, '>');
        if (close < 0)
            return false;
        struct str url = {v.ptr, (size_t)close};
        v = (struct str){v.ptr + close + 1, v.len - (size_t)close - 1};
        /* the next link begins behind a comma; one inside a quoted parameter would only cut it short */
        ptrdiff_t comma = str_find_char(v, ',');
        struct str params = {v.ptr, comma < 0 ? v.len : (size_t)comma};
        if (url.len && is_next(params)) {
            *ret = url;
            return true;
        }
        v = (struct str){v.ptr + params.len, v.len - params.len};
    }
    return false;
}

/* ---- times ---------------------------------------------------------------------------------------------------------------- */

static uint64_t wait_of(uint64_t seconds)
{
    return seconds > HUB_WAIT_MAX_MS / 1000 ? HUB_WAIT_MAX_MS : seconds * 1000;
}

/* Days since 1970-01-01. */
static uint64_t days_of(uint64_t year, uint64_t month, uint64_t day)
{
    static const unsigned before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    uint64_t y = year - 1, leaps = y / 4 - y / 100 + y / 400 - (1969 / 4 - 1969 / 100 + 1969 / 400);
    bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return (year - 1970) * 365 + leaps + before[month - 1] + (leap && month > 2) + day - 1;
}

/* "Sun, 06 Nov 1994 08:49:37 GMT" */
static bool read_date(struct str v, uint64_t *ret_s)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    uint64_t day, month = 0, year, h, m, s;
    if (v.len != 29 || v.ptr[3] != ',' || v.ptr[4] != ' ')
        return false;
    for (size_t i = 0; i < 12; i++)
        if (strncmp(v.ptr + 8, months + 3 * i, 3) == 0)
            month = i + 1;
    if (!month || str_to_u64((struct str){v.ptr + 5, 2}, &day) < 0 || str_to_u64((struct str){v.ptr + 12, 4}, &year) < 0 || str_to_u64((struct str){v.ptr + 17, 2}, &h) < 0 ||
        str_to_u64((struct str){v.ptr + 20, 2}, &m) < 0 || str_to_u64((struct str){v.ptr + 23, 2}, &s) < 0 || strncmp(v.ptr + 25, " GMT", 4) != 0)
        return false;
    if (year < 1970 || day < 1 || day > 31 || h > 23 || m > 59 || s > 60)
        return false;
    *ret_s = days_of(year, month, day) * 86400 + h * 3600 + m * 60 + s;
    return true;
}

bool hub_parse_retry_after(struct str v, uint64_t now_s, uint64_t *ret_ms)
{
    uint64_t s;
    v = str_trim(v);
    int r = str_to_u64(v, &s);
    if (r == -ERANGE)
        s = HUB_WAIT_MAX_MS;
    else if (r < 0 && !read_date(v, &s))
        return false;
    else if (r < 0)
        s = s > now_s ? s - now_s : 0;
    *ret_ms = wait_of(s);
    return true;
}

bool hub_parse_rate_limit(struct str v, uint64_t *ret_ms)
{
    uint64_t left = 1, reset = HUB_UNKNOWN;
    while (v.len) {
        size_t end = 0;
        while (end < v.len && v.ptr[end] != ';' && v.ptr[end] != ',')
            end++;
        struct str value = {v.ptr, end}, name;
        v = (struct str){v.ptr + end + (end < v.len), v.len - end - (end < v.len)};
        name = str_trim(str_split(&value, '='));
        uint64_t n;
        if (!value.ptr || str_to_u64(str_trim(value), &n) < 0)
            continue;
        if (str_eq_c(name, "r") || str_eq_c(name, "remaining"))
            left = n;
        else if (str_eq_c(name, "t") || str_eq_c(name, "reset"))
            reset = n;
    }
    if (left || reset == HUB_UNKNOWN)
        return false;
    *ret_ms = wait_of(reset);
    return true;
}

/* ---- the head of an answer -------------------------------------------------------------------------------------------------- */

void hub_head_clear(struct hub_head *h)
{
    *h = (struct hub_head){.length = HUB_UNKNOWN, .linked_size = HUB_UNKNOWN};
}

/* A value that must fit: what is cut would mean something else. */
static void keep(struct hub_head *h, char *to, size_t size, struct str v)
{
    if (v.len >= size) {
        h->bad = true;
        return;
    }
    if (v.len)
        memcpy(to, v.ptr, v.len);
    to[v.len] = '\0';
}

static void keep_etag(struct hub_head *h, struct str v)
{
    if (v.len < 2 || v.ptr[0] != '"' || v.ptr[v.len - 1] != '"' || v.len >= sizeof h->etag)
        return; /* weak, or none that could be sent back */
    for (size_t i = 0; i < v.len; i++)
        if ((unsigned char)v.ptr[i] <= 0x20 || (unsigned char)v.ptr[i] >= 0x7f)
            return;
    keep(h, h->etag, sizeof h->etag, v);
}

static void keep_type(struct hub_head *h, struct str v)
{
    struct str type = str_trim(str_split(&v, ';'));
    size_t n = type.len < sizeof h->type ? type.len : sizeof h->type - 1;
    for (size_t i = 0; i < n; i++)
        h->type[i] = type.ptr[i] >= 'A' && type.ptr[i] <= 'Z' ? (char)(type.ptr[i] + 32) : type.ptr[i];
    h->type[n] = '\0';
}

static struct str unquote(struct str v)
{
    if (v.len >= 2 && v.ptr[0] == '"' && v.ptr[v.len - 1] == '"')
        v = (struct str){v.ptr + 1, v.len - 2};
    return v;
}

static bool is_word(struct str v)
{
    for (size_t i = 0; i < v.len; i++)
        if (!((v.ptr[i] >= 'a' && v.ptr[i] <= 'z') || (v.ptr[i] >= 'A' && v.ptr[i] <= 'Z')))
            return false;
    return true;
}

static void keep_printable(char *to, size_t size, struct str v)
{
    base_autobuf struct buf out = BUF_INIT(4096);
    buf_add_printable(&out, v, size / 4 - 1);
    struct str s = buf_str(&out);
    if (buf_status(&out) < 0 || s.len >= size)
        return;
    if (s.len)
        memcpy(to, s.ptr, s.len);
    to[s.len] = '\0';
}

static void keep_length(struct hub_head *h, struct str v)
{
    uint64_t n;
    if (str_to_u64(v, &n) < 0 || n >= INT64_MAX || (h->length != HUB_UNKNOWN && h->length != n))
        h->bad = true;
    else
        h->length = n;
}

static void take_field(struct hub_head *h, struct str name, struct str v, uint64_t now_s)
{
    uint64_t n;
    struct str next;
    if (str_eq_nocase(name, STR("content-length"))) {
        keep_length(h, v);
    } else if (str_eq_nocase(name, STR("content-range"))) {
        if (h->has_range || !hub_parse_range(v, &h->range))
            h->bad = true;
        h->has_range = true;
    } else if (str_eq_nocase(name, STR("content-type"))) {
        keep_type(h, v);
    } else if (str_eq_nocase(name, STR("content-encoding"))) {
        h->encoded = v.len && !str_eq_nocase(v, STR("identity"));
    } else if (str_eq_nocase(name, STR("etag"))) {
        keep_etag(h, v);
    } else if (str_eq_nocase(name, STR("location"))) {
        keep(h, h->location, sizeof h->location, v);
    } else if (str_eq_nocase(name, STR("link")) && hub_parse_next(v, &next)) {
        keep(h, h->next, sizeof h->next, next);
    } else if (str_eq_nocase(name, STR("x-linked-etag")) && hub_is_hex(unquote(v), 64)) {
        keep(h, h->linked_etag, sizeof h->linked_etag, unquote(v));
    } else if (str_eq_nocase(name, STR("x-linked-size")) && str_to_u64(v, &n) == 0) {
        h->linked_size = n;
    } else if (str_eq_nocase(name, STR("x-error-code"))) {
        if (v.len < sizeof h->error && is_word(v))
            keep(h, h->error, sizeof h->error, v);
    } else if (str_eq_nocase(name, STR("x-error-message"))) {
        keep_printable(h->message, sizeof h->message, v);
    } else if (str_eq_nocase(name, STR("retry-after")) || str_eq_nocase(name, STR("ratelimit"))) {
        bool ok = name.len == 11 ? hub_parse_retry_after(v, now_s, &n) : hub_parse_rate_limit(v, &n);
        if (ok && n > h->wait_ms)
            h->wait_ms = n;
    }
}

void hub_head_line(struct hub_head *h, struct str line, uint64_t now_s)
{
    if (starts_nocase(line, STR("http/"))) {
        hub_head_clear(h);
        ptrdiff_t space = str_find_char(line, ' ');
        uint64_t status = 0;
        struct str rest = {line.ptr + space + 1, space < 0 ? 0 : line.len - (size_t)space - 1};
        if (space > 0 && take_number(&rest, &status) && status >= 100 && status <= 999)
            h->status = (long)status;
        else
            h->bad = true;
        return;
    }
    struct str value = line, name = str_split(&value, ':');
    if (value.ptr)
        take_field(h, str_trim(name), str_trim(value), now_s);
}

/* ---- the hub's JSON ------------------------------------------------------------------------------------------------------------ */

int hub_parse_commit(struct str text, char ret[41], struct err *err)
{
    struct json *j = NULL;
    struct str sha;
    int r = json_parse(text, &j, err);
    if (r < 0)
        return err_set(err, -EPROTO, "the answer is no JSON");
    if (json_str(json_get(json_root(j), "sha"), &sha) && hub_is_hex(sha, 40)) {
        memcpy(ret, sha.ptr, 40);
        ret[40] = '\0';
    } else {
        r = err_set(err, -EPROTO, "the answer names no commit");
    }
    json_free(j);
    return r;
}

static char *copy_hex(struct arena *a, json_val v, size_t n)
{
    struct str s;
    return json_str(v, &s) && hub_is_hex(s, n) ? arena_dup(a, s) : NULL;
}

/* A refusal of the entry `path`, which is the hub's word and may hold anything. */
static int refuse_entry(struct err *err, int code, const char *before, struct str path, const char *after)
{
    base_autobuf struct buf shown = BUF_INIT(4096);
    buf_add_printable(&shown, path, 200);
    return err_set(err, code, "%s '%s'%s", before, shown.ptr ? shown.ptr : "", after);
}

static int add_entry(struct hub_tree *t, size_t *cap, json_val e, struct err *err)
{
    struct str type, path;
    struct hub_file f = {0};
    if (!json_str(json_get(e, "type"), &type) || !json_str(json_get(e, "path"), &path))
        return err_set(err, -EPROTO, "the list of files has an entry without type or path");
    if (!str_eq_c(type, "file"))
        return 0;
    if (!os_relpath_valid(path))
        return refuse_entry(err, -EBADMSG, "the repository has a file", path, ", which would leave the folder that it is fetched to");
    json_val lfs = json_get(e, "lfs");
    if (!json_u64(json_get(e, "size"), &f.bytes) || f.bytes > INT64_MAX)
        return refuse_entry(err, -EPROTO, "the list of files gives no size for", path, "");
    f.sha256 = copy_hex(t->arena, json_get(lfs, "oid"), 64);
    if (!f.sha256)
        f.git_sha1 = copy_hex(t->arena, json_get(e, "oid"), 40);
    if (!f.sha256 && (lfs || !f.git_sha1))
        return refuse_entry(err, -EPROTO, "the list of files gives no digest for", path, "");
    f.path = arena_dup(t->arena, path);
    if (t->n_files == HUB_TREE_MAX)
        return err_set(err, -E2BIG, "the repository has over %d files", HUB_TREE_MAX);
    struct hub_file *list = arena_grow(t->arena, t->files, t->n_files + 1, cap, sizeof *list);
    if (!f.path || !list)
        return err_nomem(err);
    t->files = list;
    t->files[t->n_files++] = f;
    return 0;
}

int hub_parse_tree(struct str text, struct hub_tree *t, size_t *cap, struct err *err)
{
    struct json *j = NULL;
    if (!t->arena && !(t->arena = arena_new(TREE_MEMORY_MAX)))
        return err_nomem(err);
    int r = json_parse(text, &j, err);
    if (r < 0)
        return r == -ENOMEM ? r : err_set(err, -EPROTO, "the list of files is no JSON");
    json_val list = json_root(j);
    if (json_count(list) > TREE_PAGE_MAX)
        r = err_set(err, -E2BIG, "one page of the list of files has over %d entries", TREE_PAGE_MAX);
    else if (!json_is_arr(list))
        r = err_set(err, -EPROTO, "the list of files is no list");
    for (size_t i = 0; r == 0 && i < json_count(list); i++)
        r = add_entry(t, cap, json_at(list, i), err);
    json_free(j);
    return r;
}

void hub_escape_path(struct buf *out, const char *path)
{
    for (const char *p = path; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || strchr("-._~/", c))
            buf_add_char(out, (char)c);
        else
            buf_addf(out, "%%%02X", c);
    }
}
