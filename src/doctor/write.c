/* SPDX-License-Identifier: MIT
 *
 * The cards of a machine into a fleet file that a person wrote. The file is never written anew: positions of the parsed tree say where a value stands or a line belongs, the edits are laid over the text, and the result must be a
 * fleet file with exactly these devices, else nothing comes out.
 */
#include "doctor_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EDITS_MAX 256
#define VALUE_MAX 64

struct edit {
    size_t at, len; /* bytes of the text that go */
    char *put;      /* what comes there; the arena's */
};

struct writing {
    struct str text;
    const char *path, *eol;
    struct arena *arena;
    const struct hw *hw;
    const struct fleet_host *host;
    enum hw_api api;
    int as[HW_DEVICES_MAX]; /* which declared device each card is; -1: none */
    struct edit edits[EDITS_MAX];
    size_t n;
    size_t news;
};

/* ---- places ----------------------------------------------------------------------------------------------------------- */

/* Byte offset of a place that counts characters; the text's end for one that is not there. */
static size_t offset(struct str text, unsigned line, unsigned column)
{
    size_t at = 0;
    for (unsigned l = 1; l < line && at < text.len; at++)
        l += text.ptr[at] == '\n';
    for (unsigned c = 1; c < column && at < text.len && text.ptr[at] != '\n'; c++) {
        at++;
        while (at < text.len && ((unsigned char)text.ptr[at] & 0xc0) == 0x80)
            at++;
    }
    return at;
}

static size_t line_start(struct str text, size_t at)
{
    while (at > 0 && text.ptr[at - 1] != '\n')
        at--;
    return at;
}

/* Behind the newline; the text's end without one. */
static size_t line_end(struct str text, size_t at)
{
    while (at < text.len && text.ptr[at] != '\n')
        at++;
    return at < text.len ? at + 1 : at;
}

static int refuse(const struct writing *w, unsigned line, const char *what, struct err *err)
{
    return err_set(err, -EINVAL, "%s:%u: %s; write it by hand: 'berth doctor --json' tells what is here", w->path, line, what);
}

static int add_edit(struct writing *w, size_t at, size_t len, struct str put, struct err *err)
{
    if (w->n == EDITS_MAX)
        return err_set(err, -E2BIG, "%s: too much of it would change", w->path);
    char *kept = arena_dup(w->arena, put);
    if (!kept)
        return err_nomem(err);
    w->edits[w->n++] = (struct edit){.at = at, .len = len, .put = kept};
    w->news++;
    return 0;
}

/* ---- values ---------------------------------------------------------------------------------------------------------------- */

/* A scalar in the form that it has: plain, or in quotes without anything escaped. */
static int replace(struct writing *w, const struct yaml_node *node, const char *value, bool quote, struct err *err)
{
    char put[VALUE_MAX];
    size_t at = offset(w->text, node->line, node->column), len = node->text.len;
    if (node->kind != YAML_SCALAR)
        return refuse(w, node->line, "a value is no plain word", err);
    char q = at < w->text.len && (w->text.ptr[at] == '"' || w->text.ptr[at] == '\'') ? w->text.ptr[at] : '\0';
    size_t skip = q ? 1 : 0;
    if (at + len + 2 * skip > w->text.len || memcmp(w->text.ptr + at + skip, node->text.ptr ? node->text.ptr : "", len) != 0 || (q && w->text.ptr[at + 1 + len] != q))
        return refuse(w, node->line, "a value is written in a form that is not touched", err);
    snprintf(put, sizeof put, "%s%s%s", quote ? "\"" : "", value, quote ? "\"" : "");
    return add_edit(w, at, len + 2 * skip, str_of(put), err);
}

static const char *memory_text(const struct hw_device *d, char out[VALUE_MAX])
{
    snprintf(out, VALUE_MAX, "%lluMiB", (unsigned long long)(d->total_bytes >> 20));
    return out;
}

static const char *link_text(const struct hw_device *d, char out[VALUE_MAX])
{
    snprintf(out, VALUE_MAX, "%.1fGB/s", (double)d->link.bytes_s / 1e9);
    return out;
}

/* One declared device and the card that it is. What a person rounded is left. */
static int update(struct writing *w, const struct yaml_node *node, const struct fleet_device *f, const struct hw_device *d, struct err *err)
{
    const struct yaml_node *v;
    char text[VALUE_MAX];
    int r = 0;
    if ((v = yaml_get(node, "memory")) && !doctor_near(f->memory_bytes, d->total_bytes, 5))
        r = replace(w, v, memory_text(d, text), false, err);
    if (r == 0 && f->pci && (v = yaml_get(node, "pci")) && strcasecmp(f->pci, d->pci) != 0)
        r = replace(w, v, d->pci, true, err);
    if (r == 0 && f->link_bytes_s && d->link.bytes_s && (v = yaml_get(node, "link")) && !doctor_near(f->link_bytes_s, d->link.bytes_s, 30))
        r = replace(w, v, link_text(d, text), false, err);
    if (r == 0 && (v = yaml_get(node, "shared")) && (f->shared == FLEET_YES) != d->shared)
        r = replace(w, v, d->shared ? "true" : "false", false, err);
    return r;
}

/* ---- which is which ----------------------------------------------------------------------------------------------------------- */

static int pair(struct writing *w, struct err *err)
{
    const struct fleet_host *host = w->host;
    for (size_t i = 0; i < HW_DEVICES_MAX; i++)
        w->as[i] = -1;
    for (size_t k = 0; k < host->n_devices; k++) {
        int at = doctor_place(w->hw, &host->devices[k]);
        if (at >= 0 && w->hw->devices[at].memory_known)
            w->as[at] = (int)k;
    }
    /* one that is not at its place is the only new card of its size, if there is one */
    for (size_t k = 0; k < host->n_devices; k++) {
        int found = -1;
        bool placed = false;
        for (size_t i = 0; i < w->hw->n_devices; i++)
            placed = placed || w->as[i] == (int)k;
        for (size_t i = 0; !placed && host->devices[k].pci && i < w->hw->n_devices; i++)
            if (w->as[i] < 0 && w->hw->devices[i].memory_known && doctor_near(w->hw->devices[i].total_bytes, host->devices[k].memory_bytes, 20)) {
                if (found >= 0)
                    return refuse(w, host->devices[k].pos.line, "this device is not at its address, and several cards could be it", err);
                found = (int)i;
            }
        if (found >= 0)
            w->as[found] = (int)k;
    }
    return 0;
}

/* Engines' names: as declared ones have it, else as the engine of the host's services has. */
static enum hw_api api_of(const struct fleet *f, const struct fleet_host *host, const struct hw *h)
{
    static const struct {
        const char *prefix, *package;
        enum hw_api api;
    } known[] = {{"ROCm", "hip", HW_ROCM}, {"ROCm", "rocm", HW_ROCM}, {"CUDA", "cuda", HW_CUDA}, {"SYCL", "sycl", HW_SYCL}, {"Vulkan", "vulkan", HW_VULKAN}};
    for (size_t k = 0; k < BASE_COUNT(known); k++)
        if (host->n_devices && str_starts(str_of(host->devices[0].name), str_of(known[k].prefix)))
            return known[k].api;
    for (size_t i = 0; i < f->n_services; i++) {
        const struct fleet_runtime *rt = f->services[i].runtime;
        if (f->services[i].host != host || !rt)
            continue;
        for (size_t p = 0; p < rt->n_packages; p++)
            for (size_t k = 0; k < BASE_COUNT(known); k++)
                if (strstr(rt->packages[p], known[k].package))
                    return known[k].api;
        if (strcmp(rt->engine, "vllm") == 0 && h->n_devices)
            return h->devices[0].vendor == HW_NVIDIA ? HW_CUDA : HW_ROCM;
    }
    return HW_VULKAN;
}

/* ---- new ones --------------------------------------------------------------------------------------------------------------------- */

static void add_device(const struct writing *w, size_t i, unsigned indent, struct buf *out)
{
    const struct hw_device *d = &w->hw->devices[i];
    char name[HW_ENGINE_NAME], text[VALUE_MAX];
    bool sure;
    if (!hw_engine_name(w->hw, i, w->api, name, &sure))
        return;
    buf_addf(out, "%*s- {name: %s, memory: %s, pci: \"%s\"", (int)indent, "", name, memory_text(d, text), d->pci);
    if (d->link.bytes_s && !d->shared)
        buf_addf(out, ", link: %s", link_text(d, text));
    buf_addf(out, "%s}%s", d->shared ? ", shared: true" : "", w->eol);
}

/* In the engine's order. */
static int add_new(const struct writing *w, unsigned indent, struct buf *out, size_t *ret_n)
{
    *ret_n = 0;
    for (unsigned number = 0; number < HW_DEVICES_MAX; number++)
        for (size_t i = 0; i < w->hw->n_devices; i++) {
            char name[HW_ENGINE_NAME], want[HW_ENGINE_NAME * 2];
            bool sure;
            if (w->as[i] >= 0 || !w->hw->devices[i].memory_known || !hw_engine_name(w->hw, i, w->api, name, &sure))
                continue;
            size_t letters = strcspn(name, "0123456789");
            snprintf(want, sizeof want, "%.*s%u", (int)letters, name, number);
            if (strcmp(name, want) != 0)
                continue;
            add_device(w, i, indent, out);
            (*ret_n)++;
        }
    return buf_status(out);
}

/* Puts lines behind the line that `at` is in. */
static int insert_behind(struct writing *w, size_t at, struct str lines, struct err *err)
{
    size_t end = line_end(w->text, at);
    base_autobuf struct buf b = BUF_INIT(65536);
    if (end == w->text.len && end && w->text.ptr[end - 1] != '\n')
        buf_add_c(&b, w->eol);
    buf_add_str(&b, lines);
    return buf_status(&b) < 0 ? err_nomem(err) : add_edit(w, end, 0, buf_str(&b), err);
}

static unsigned last_line(const struct yaml_node *n)
{
    unsigned most = n->line;
    for (const struct yaml_node *c = n->first; c; c = c->next) {
        unsigned l = last_line(c);
        most = l > most ? l : most;
    }
    return most;
}

/* A list of lines "- ...": what is before the element on its line; 0 when it is written otherwise. */
static bool dash(struct str text, const struct yaml_node *element, unsigned *ret_indent)
{
    size_t at = offset(text, element->line, element->column), from = line_start(text, at), i = from;
    while (i < at && text.ptr[i] == ' ')
        i++;
    if (i >= at || text.ptr[i] != '-')
        return false;
    *ret_indent = (unsigned)(i - from);
    for (i++; i < at; i++)
        if (text.ptr[i] != ' ')
            return false;
    return true;
}

/* Behind the last element: one in braces must end on the line of its last value. */
static int append(struct writing *w, const struct yaml_node *devices, struct err *err)
{
    const struct yaml_node *last = devices->first;
    unsigned indent = 0;
    size_t n = 0;
    for (; last->next; last = last->next)
        if (!dash(w->text, last, &indent))
            return refuse(w, devices->line, "'devices' is a list in brackets, which is not added to", err);
    if (!dash(w->text, last, &indent))
        return refuse(w, devices->line, "'devices' is a list in brackets, which is not added to", err);
    base_autobuf struct buf lines = BUF_INIT(65536);
    if (add_new(w, indent, &lines, &n) < 0)
        return err_nomem(err);
    if (n == 0)
        return 0;
    size_t first = offset(w->text, last->line, last->column), at = offset(w->text, last_line(last), 1), end = line_end(w->text, at);
    if (w->text.ptr[first] == '{' && !memchr(w->text.ptr + at, '}', end - at))
        return refuse(w, last->line, "the last device's braces end on a line of their own", err);
    return insert_behind(w, at, buf_str(&lines), err);
}

/* "devices:" with its list, behind the line of the key that it belongs to. */
static int insert_devices(struct writing *w, unsigned key_line, unsigned indent, struct err *err)
{
    base_autobuf struct buf lines = BUF_INIT(65536);
    size_t n = 0;
    buf_addf(&lines, "%*sdevices:%s", (int)indent, "", w->eol);
    if (add_new(w, indent + 2, &lines, &n) < 0)
        return err_nomem(err);
    return n ? insert_behind(w, offset(w->text, key_line, 1), buf_str(&lines), err) : 0;
}

/* A fleet file without hosts is about this machine alone. */
static int insert_host(struct writing *w, const struct yaml_node *root, struct err *err)
{
    const struct yaml_node *before = NULL;
    base_autobuf struct buf lines = BUF_INIT(65536);
    size_t n = 0;
    if (root->kind != YAML_MAP || !root->first || (root->line == root->first->key_line && root->column != root->first->key_column))
        return refuse(w, root->line, "the file is no list of keys, a line each", err);
    for (const struct yaml_node *c = root->first; c && !before; c = c->next)
        if (!str_eq_c(c->key, "version") && !str_eq_c(c->key, "name"))
            before = c;
    buf_addf(&lines, "hosts:%s  %s:%s    devices:%s", w->eol, w->host->name, w->eol, w->eol);
    if (add_new(w, 6, &lines, &n) < 0)
        return err_nomem(err);
    if (n == 0)
        return 0;
    if (!before)
        return insert_behind(w, w->text.len, buf_str(&lines), err);
    /* the comment above a key is its own */
    size_t at = line_start(w->text, offset(w->text, before->key_line, 1));
    while (at > 0 && w->text.ptr[line_start(w->text, at - 1)] == '#')
        at = line_start(w->text, at - 1);
    return add_edit(w, at, 0, buf_str(&lines), err);
}

/* ---- all ------------------------------------------------------------------------------------------------------------------------- */

static int plan(struct writing *w, const struct yaml_node *root, struct err *err)
{
    const struct yaml_node *hosts = yaml_get(root, "hosts"), *host = yaml_get(hosts, w->host->name), *devices = yaml_get(host, "devices");
    size_t k = 0;
    int r = 0;
    if (!hosts)
        return insert_host(w, root, err);
    if (!host)
        return refuse(w, hosts->line, "'hosts' does not list this machine", err);
    if (!devices) {
        if (host->kind != YAML_MAP || !host->first || host->first->key_line <= host->key_line)
            return refuse(w, host->key_line, "the host is written in one line, which is not added to", err);
        return insert_devices(w, host->key_line, host->first->key_column - 1, err);
    }
    if (!devices->first)
        return refuse(w, devices->line, "'devices' is empty: take the key out, then it is written", err);
    for (const struct yaml_node *e = devices->first; r == 0 && e; e = e->next, k++)
        for (size_t i = 0; r == 0 && i < w->hw->n_devices; i++)
            if (w->as[i] == (int)k)
                r = update(w, e, &w->host->devices[k], &w->hw->devices[i], err);
    return r == 0 ? append(w, devices, err) : r;
}

static int by_place(const void *a, const void *b)
{
    const struct edit *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

static int lay_over(struct writing *w, struct buf *out, struct err *err)
{
    size_t at = 0;
    qsort(w->edits, w->n, sizeof *w->edits, by_place);
    for (size_t i = 0; i < w->n; i++) {
        if (w->edits[i].at < at)
            return refuse(w, 1, "two changes meet at one place", err);
        buf_add(out, w->text.ptr + at, w->edits[i].at - at);
        buf_add_c(out, w->edits[i].put);
        at = w->edits[i].at + w->edits[i].len;
    }
    buf_add(out, w->text.ptr + at, w->text.len - at);
    return buf_status(out) < 0 ? err_nomem(err) : 0;
}

/* What came out must be a fleet file that has every card here, and every other device as it was. */
static int prove(const struct writing *w, struct str text, const struct fleet_options *fo, struct err *err)
{
    struct fleet *f = NULL;
    int r = fleet_parse(text, w->path, fo, &f, err);
    if (r < 0) {
        err_prefix(err, "what would be written is no fleet file");
        return r == -ENOMEM ? r : -EINVAL;
    }
    const struct fleet_host *host = fleet_host_find(f, w->host->name);
    size_t want = w->host->n_devices;
    for (size_t i = 0; i < w->hw->n_devices; i++) {
        char name[HW_ENGINE_NAME];
        bool sure, has = false;
        if (!w->hw->devices[i].memory_known || (w->as[i] < 0 && !hw_engine_name(w->hw, i, w->api, name, &sure)))
            continue;
        want += w->as[i] < 0;
        for (size_t k = 0; host && k < host->n_devices; k++)
            has = has || (host->devices[k].pci ? strcasecmp(host->devices[k].pci, w->hw->devices[i].pci) == 0 : w->as[i] == (int)k);
        if (!has)
            r = -EINVAL;
    }
    if (!host || host->n_devices != want || f->n_services == 0)
        r = -EINVAL;
    fleet_free(f);
    return r < 0 ? refuse(w, 1, "what would be written does not say what is here", err) : 0;
}

int doctor_write(struct str text, const char *path, const struct fleet_options *fo, const char *host, const struct hw *h, struct buf *out, size_t *ret_n, struct err *err)
{
    struct writing *w = calloc(1, sizeof *w);
    struct fleet *f = NULL;
    struct yaml *y = NULL;
    if (w)
        w->arena = arena_new(DOCTOR_MEMORY);
    int r = w && w->arena ? fleet_parse(text, path, fo, &f, err) : err_nomem(err);
    if (r == 0) {
        w->text = text;
        w->path = path;
        w->eol = str_find(text, STR("\r\n")) >= 0 ? "\r\n" : "\n";
        w->hw = h;
        w->host = fleet_host_find(f, host);
        r = w->host ? yaml_parse(text, path, &y, err) : err_set(err, -EINVAL, "%s: there is no host '%s'", path, host);
    }
    if (r == 0) {
        w->api = api_of(f, w->host, h);
        r = pair(w, err);
    }
    if (r == 0)
        r = plan(w, yaml_root(y), err);
    if (r == 0)
        r = lay_over(w, out, err);
    if (r == 0 && w->n)
        r = prove(w, buf_str(out), fo, err);
    if (r == 0)
        *ret_n = w->news;
    yaml_free(y);
    fleet_free(f);
    if (w)
        arena_free(w->arena);
    free(w);
    return r;
}
