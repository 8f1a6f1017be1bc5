/* SPDX-License-Identifier: MIT
 *
 * Values that a table alone cannot read: sources, references to other parts, shares, environments, addresses with ports.
 * Each is a `read` of fleet_schema.c and gets the struct of its part. References are pointers into arrays that are
 * complete before they are read.
 */
#include "fleet_int.h"

#include <errno.h>
#include <os/os.h>

#define WEB_SOURCE_MAX 1024 /* of an address: it becomes a path in the store */

int fleet_read_version(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    (void)part; /* there is one version: nothing to keep */
    uint64_t v;
    int rc = fleet_number(r, n, 1, UINT32_MAX, &v);
    if (rc < 0)
        return rc;
    if (v != 1)
        return fleet_refuse(r, n, "%s is %llu; this berth reads version 1", fleet_label(r), (unsigned long long)v);
    return 0;
}

/* ---- sources and paths ------------------------------------------------------------------------------------------ */

static int path_from(struct fleet_reader *r, const struct yaml_node *n, struct str text, const char *dir, const char **ret)
{
    if (text.len == 0)
        return fleet_refuse(r, n, "%s names no path; '.' is the folder of the fleet file", fleet_label(r));
    if (text.ptr[0] == '~')
        return fleet_refuse(r, n, "%s begins with '~', which is not expanded; write the whole path", fleet_label(r));
    while (str_starts(text, STR("./")))
        text = (struct str){text.ptr + 2, text.len - 2};
    while (text.len > 1 && text.ptr[text.len - 1] == '/')
        text.len--;
    const char *path = arena_dup(r->arena, text);
    if (text.len == 0 || str_eq_c(text, "."))
        path = arena_dup(r->arena, str_of(dir));
    else if (path && path[0] != '/')
        path = arena_printf(r->arena, "%s/%s", strcmp(dir, "/") == 0 ? "" : dir, path);
    if (!path)
        return err_nomem(r->err);
    *ret = path;
    return 0;
}

/* The absolute path of text, which is taken from the fleet file's folder when relative. */
int fleet_path(struct fleet_reader *r, const struct yaml_node *n, struct str text, const char **ret)
{
    return path_from(r, n, text, r->opt && r->opt->dir ? r->opt->dir : r->fleet->dir, ret);
}

static bool take_prefix(struct str *s, struct str prefix)
{
    if (!str_starts(*s, prefix))
        return false;
    *s = (struct str){s->ptr + prefix.len, s->len - prefix.len};
    return true;
}

/* Letters, digits and what is in `more`, beginning with a letter or digit, without "..". */
static bool is_token(struct str s, const char *more, size_t max)
{
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        bool alnum = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!alnum && (i == 0 || c == '\0' || !strchr(more, c)))
            return false;
    }
    return s.len > 0 && s.len <= max && str_find(s, STR("..")) < 0;
}

static bool has_upper(struct str s)
{
    for (size_t i = 0; i < s.len; i++)
        if (s.ptr[i] >= 'A' && s.ptr[i] <= 'Z')
            return true;
    return false;
}

/* Sixty-four lower-case hexadecimal digits. */
static bool is_sha256(struct str s)
{
    uint8_t raw[OS_SHA256_BYTES];
    return os_unhex(s, raw, sizeof raw);
}

const char *fleet_archive_wrong(struct str text, struct str *ret_place, struct str *ret_digest)
{
    ptrdiff_t at = str_find(text, STR("#sha256="));
    if (at <= 0)
        return "needs its digest: 'archive:URL#sha256=DIGEST'";
    struct str place = {text.ptr, (size_t)at}, digest = {text.ptr + at + 8, text.len - (size_t)at - 8}, port;
    if (!is_sha256(digest))
        return "needs 64 lower-case hexadecimal digits after '#sha256='";
    ptrdiff_t scheme = str_find(place, STR("://"));
    if (scheme >= 0 && !str_starts(place, STR("https://")) && !str_starts(place, STR("http://")))
        return "has an unknown scheme; use https://, or the path of a file";
    for (size_t i = 0; i < place.len; i++)
        if (place.ptr[i] == ' ' && scheme >= 0)
            return "holds a space; write it as %20";
    if (scheme >= 0 && fleet_has_bad_port(place, &port))
        return "has a port that is none; " FLEET_PORTS;
    *ret_place = place;
    *ret_digest = digest;
    return NULL;
}

/* The same of "oci:...". */
static const char *image_wrong(struct str text, struct str *ret_digest)
{
    ptrdiff_t at = str_find(text, STR("@sha256:"));
    if (at < 0)
        return "needs its digest: 'oci:IMAGE@sha256:DIGEST'; a tag can be moved";
    struct str image = {text.ptr, (size_t)at}, digest = {text.ptr + at + 8, text.len - (size_t)at - 8}, port;
    if (!is_sha256(digest))
        return "needs 64 lower-case hexadecimal digits after '@sha256:'";
    if (!is_token(image, "-_./:", 255))
        return "names no image before '@'";
    if (str_find_char(image, '/') >= 0 && fleet_has_bad_port(image, &port)) /* without a registry it is a tag */
        return "has a port that is none; " FLEET_PORTS;
    *ret_digest = digest;
    return NULL;
}

/* "archive:..." or "oci:...". */
static int read_pinned(struct fleet_reader *r, const struct yaml_node *n, struct str s, bool archive, struct fleet_runtime *rt)
{
    struct str place = s, digest;
    const char *wrong = archive ? fleet_archive_wrong(s, &place, &digest) : image_wrong(s, &digest);
    if (wrong)
        return fleet_refuse(r, n, "%s %s", fleet_label(r), wrong);
    rt->source = archive ? FLEET_SOURCE_ARCHIVE : FLEET_SOURCE_OCI;
    rt->digest = arena_dup(r->arena, digest);
    if (archive && str_find(place, STR("://")) < 0)
        return rt->digest ? fleet_path(r, n, place, &rt->source_arg) : err_nomem(r->err);
    rt->source_arg = arena_dup(r->arena, place);
    return rt->digest && rt->source_arg ? 0 : err_nomem(r->err);
}

int fleet_read_runtime_source(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_runtime *rt = part;
    const char *text;
    int rc = fleet_text(r, n, &text);
    if (rc < 0)
        return rc;
    struct str s = str_of(text);
    if (str_eq_c(s, "system")) {
        rt->source = FLEET_SOURCE_SYSTEM;
        return 0;
    }
    if (take_prefix(&s, STR("path:"))) {
        rt->source = FLEET_SOURCE_PATH;
        return fleet_path(r, n, s, &rt->source_arg);
    }
    if (take_prefix(&s, STR("debian:"))) {
        if (!is_token(s, ".-", FLEET_NAME_MAX) || has_upper(s))
            return fleet_refuse(r, n, "%s needs a suite, such as 'debian:forky', not '%s'", fleet_label(r), fleet_show(r, str_of(text)));
        rt->source = FLEET_SOURCE_DEBIAN;
        rt->source_arg = s.ptr;
        return 0;
    }
    bool archive = take_prefix(&s, STR("archive:"));
    if (archive || take_prefix(&s, STR("oci:")))
        return read_pinned(r, n, s, archive, rt);
    return fleet_refuse(r, n, "%s must be 'debian:SUITE', 'path:FOLDER', 'archive:URL#sha256=DIGEST', 'oci:IMAGE@sha256:DIGEST' or 'system', not '%s'", fleet_label(r), fleet_show(r, str_of(text)));
}

/* "ORG/REPO" or "ORG/REPO@REVISION" */
static int read_hub(struct fleet_reader *r, const struct yaml_node *n, struct str s, struct fleet_model *m)
{
    struct str revision = s;
    struct str repo = str_split(&revision, '@');
    struct str name = repo;
    struct str org = str_split(&name, '/');
    bool ok = is_token(org, "-_.", 96) && is_token(name, "-_.", 96);
    if (ok && revision.ptr)
        ok = is_token(revision, "-_./", 128);
    if (!ok)
        return fleet_refuse(r, n, "%s must be 'hf:ORG/REPO' or 'hf:ORG/REPO@REVISION', not '%s'", fleet_label(r), fleet_show(r, n->text));
    m->source = FLEET_MODEL_HF;
    m->source_arg = arena_dup(r->arena, repo);
    m->revision = revision.ptr ? arena_dup(r->arena, revision) : "main";
    return m->source_arg && m->revision ? 0 : err_nomem(r->err);
}

/* "https://HOST/FOLDER": what the files' names are put behind. */
static int read_web(struct fleet_reader *r, const struct yaml_node *n, struct str s, struct fleet_model *m)
{
    ptrdiff_t scheme = str_find(s, STR("://"));
    while (s.len && s.ptr[s.len - 1] == '/')
        s.len--;
    struct str rest = {s.ptr + scheme + 3, s.len > (size_t)scheme + 3 ? s.len - (size_t)scheme - 3 : 0};
    bool ok = rest.len && s.len <= WEB_SOURCE_MAX;
    for (struct str parts = rest; ok && parts.ptr;) {
        struct str part = str_split(&parts, '/');
        ok = is_token(part, "-_.~:%+,=[]", 255) && !str_eq_c(part, "..") && !str_eq_c(part, ".");
    }
    if (!ok)
        return fleet_refuse(r, n, "%s must be like 'https://HOST/FOLDER', without a query or a name before the host, not '%s'", fleet_label(r), fleet_show(r, n->text));
    int rc = fleet_check_port(r, n, s);
    if (rc < 0)
        return rc;
    m->source = FLEET_MODEL_WEB;
    m->source_arg = arena_dup(r->arena, s);
    return m->source_arg ? 0 : err_nomem(r->err);
}

int fleet_read_model_source(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_model *m = part;
    const char *text;
    int rc = fleet_text(r, n, &text);
    if (rc < 0)
        return rc;
    struct str s = str_of(text);
    if (take_prefix(&s, STR("hf:")))
        return read_hub(r, n, s, m);
    if (take_prefix(&s, STR("file:"))) {
        m->source = FLEET_MODEL_FILE;
        return fleet_path(r, n, s, &m->source_arg);
    }
    if (str_starts(s, STR("https://")) || str_starts(s, STR("http://")))
        return read_web(r, n, s, m);
    return fleet_refuse(r, n, "%s must be 'file:FOLDER', 'hf:ORG/REPO' or 'https://HOST/FOLDER', not '%s'", fleet_label(r), fleet_show(r, str_of(text)));
}

int fleet_read_template(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_model *m = part;
    const char *text;
    int rc = fleet_text(r, n, &text);
    return rc < 0 ? rc : path_from(r, n, str_of(text), r->fleet->dir, &m->template_file);
}

/* ---- references --------------------------------------------------------------------------------------------------- */

int fleet_read_ref(struct fleet_reader *r, const struct yaml_node *n, const char *what, const void *parts, size_t n_parts, size_t size,
                    const void **ret)
{
    const char *text;
    int rc = fleet_text(r, n, &text);
    if (rc < 0)
        return rc;
    const void *found = fleet_find(parts, n_parts, size, str_of(text));
    if (!found)
        return fleet_refuse_ref(r, n, what, text, parts, n_parts, size);
    *ret = found;
    return 0;
}

int fleet_read_host_ref(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_service *s = part;
    const void *found = NULL;
    int rc = fleet_read_ref(r, n, "host", r->fleet->hosts, r->fleet->n_hosts, sizeof *r->fleet->hosts, &found);
    s->host = found;
    return rc;
}

int fleet_read_runtime_ref(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_service *s = part;
    const void *found = NULL;
    int rc = fleet_read_ref(r, n, "runtime", r->fleet->runtimes, r->fleet->n_runtimes, sizeof *r->fleet->runtimes, &found);
    s->runtime = found;
    return rc;
}

int fleet_read_model_ref(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_service *s = part;
    const void *found = NULL;
    int rc = fleet_read_ref(r, n, "model", r->fleet->models, r->fleet->n_models, sizeof *r->fleet->models, &found);
    s->model = found;
    return rc;
}

/* A list of services, each once. */
static int read_services(struct fleet_reader *r, const struct yaml_node *n, const struct fleet_service *const **ret, size_t *ret_n)
{
    size_t count = 0;
    int rc = fleet_list(r, n, 1, FLEET_SERVICES_MAX, &count);
    if (rc < 0)
        return rc;
    const struct fleet_service **refs = arena_alloc(r->arena, count, sizeof(struct fleet_service *));
    if (!refs)
        return err_nomem(r->err);
    for (const struct yaml_node *c = n->first; c; c = c->next) {
        size_t i = r->item++;
        const void *found = NULL;
        rc = fleet_read_ref(r, c, "service", r->fleet->services, r->fleet->n_services, sizeof *r->fleet->services, &found);
        if (!found)
            return rc;
        for (size_t k = 0; k < i; k++)
            if (refs[k] == found)
                return fleet_refuse(r, c, "%s names service '%s' twice; remove one", r->of, refs[k]->name);
        refs[i] = found;
    }
    *ret = refs;
    *ret_n = count;
    return 0;
}

int fleet_read_service_refs(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_endpoint *e = part;
    return read_services(r, n, &e->services, &e->n_services);
}

int fleet_read_group_services(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_group *g = part;
    return read_services(r, n, &g->services, &g->n_services);
}

/* ---- devices ---------------------------------------------------------------------------------------------------------- */

static int refuse_same_device(struct fleet_reader *r, const struct yaml_node *n, const struct fleet_device *devices, size_t i)
{
    for (size_t k = 0; k < i; k++) {
        if (strcmp(devices[k].name, devices[i].name) == 0)
            return fleet_refuse(r, yaml_get(n, "name"), "%s has two devices '%s'; give each its own name", r->of, devices[i].name);
        if (devices[k].pci && devices[i].pci && strcmp(devices[k].pci, devices[i].pci) == 0)
            return fleet_refuse(r, yaml_get(n, "pci"), "device '%s' of %s has the address of device '%s'", devices[i].name, r->of,
                                devices[k].name);
    }
    return 0;
}

int fleet_read_devices(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_host *h = part;
    size_t count = 0;
    int rc = fleet_list(r, n, 1, FLEET_DEVICES_MAX, &count);
    if (rc < 0)
        return rc;
    struct fleet_device *devices = arena_alloc(r->arena, count, sizeof *devices);
    if (!devices)
        return err_nomem(r->err);
    size_t i = 0;
    for (const struct yaml_node *c = n->first; c; c = c->next, i++) {
        const char *of = arena_printf(r->arena, "device %zu of %s", i + 1, r->of);
        if (!of)
            return err_nomem(r->err);
        devices[i].pos = fleet_pos_of(c);
        rc = fleet_read_part(r, &fleet_schema_device, c, of, fleet_pos_of(c), &devices[i]);
        if (rc == 0)
            rc = refuse_same_device(r, c, devices, i);
        if (rc < 0)
            return rc;
    }
    h->devices = devices;
    h->n_devices = count;
    return 0;
}

/* ---- shapes -------------------------------------------------------------------------------------------------------------- */

/* A share: digits, optionally a point and up to six digits. Not strtod, which follows the locale and takes "inf". */
static bool parse_share(struct str s, double *ret)
{
    struct str fraction = s;
    struct str whole = str_split(&fraction, '.');
    uint64_t w, f = 0;
    if (str_to_u64(whole, &w) < 0 || w > 1000000 || fraction.len > 6)
        return false;
    if (fraction.ptr && str_to_u64(fraction, &f) < 0)
        return false;
    double scale = 1;
    for (size_t i = 0; i < fraction.len; i++)
        scale *= 10;
    *ret = (double)w + (double)f / scale;
    return true;
}

int fleet_read_split(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_service *s = part;
    if (n->kind == YAML_SCALAR && str_eq_c(n->text, "auto"))
        return 0; /* as the defaults have it */
    if (n->kind != YAML_SEQ)
        return fleet_refuse(r, n, "%s must be 'auto' or a list of shares, such as [36, 29]", fleet_label(r));
    size_t count = 0;
    int rc = fleet_list(r, n, 1, FLEET_DEVICES_MAX, &count);
    if (rc < 0)
        return rc;
    double *shares = arena_alloc(r->arena, count, sizeof *shares);
    if (!shares)
        return err_nomem(r->err);
    double sum = 0;
    for (const struct yaml_node *c = n->first; c; c = c->next) {
        double *share = &shares[r->item++];
        if (c->kind != YAML_SCALAR || c->quoted || !parse_share(c->text, share))
            return fleet_refuse(r, c, "%s must be a share from 0 to 1000000, such as 36 or 29.5", fleet_label(r));
        sum += *share;
    }
    r->item = 0;
    if (!(sum > 0))
        return fleet_refuse(r, n, "%s gives no device a share; at least one must be more than 0", fleet_label(r));
    s->shape.split_auto = false;
    s->shape.split = shares;
    s->shape.n_split = count;
    return 0;
}

int fleet_read_kv(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_service *s = part;
    int rc = fleet_map(r, n);
    return rc < 0 ? rc : fleet_read_part(r, &fleet_schema_kv, n, fleet_label(r), fleet_key_pos_of(n), &s->shape);
}

int fleet_read_serves(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_service *s = part;
    int rc = fleet_map(r, n);
    return rc < 0 ? rc : fleet_read_part(r, &fleet_schema_serves, n, fleet_label(r), fleet_key_pos_of(n), &s->serves);
}

int fleet_read_vllm(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_service *s = part;
    int rc = fleet_map(r, n);
    s->vllm.declared = true;
    return rc < 0 ? rc : fleet_read_part(r, &fleet_schema_vllm, n, fleet_label(r), fleet_key_pos_of(n), &s->vllm);
}

/* 0 is a floor too. */
int fleet_read_floor(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_service *s = part;
    s->floor_set = true;
    return fleet_bytes(r, n, 0, &s->floor_bytes);
}

/* A size, or "off" for none. */
static int bytes_or_off(struct fleet_reader *r, const struct yaml_node *n, uint64_t *ret)
{
    if (n->kind != YAML_SCALAR || !str_eq_c(n->text, "off"))
        return fleet_bytes(r, n, 0, ret);
    *ret = 0;
    return 0;
}

int fleet_read_prompt_files(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_service *s = part;
    return bytes_or_off(r, n, &s->prompt_files_bytes);
}

int fleet_read_prompt_cache(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_service *s = part;
    uint64_t bytes = 0;
    int rc = bytes_or_off(r, n, &bytes);
    if (rc < 0)
        return rc;
    s->shape.prompt_cache_set = true;
    s->shape.prompt_cache_bytes = bytes;
    return 0;
}

/* ---- environment ------------------------------------------------------------------------------------------------------------ */

static bool is_env_name(struct str s)
{
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        bool letter = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
        if (!letter && !(i > 0 && c >= '0' && c <= '9'))
            return false;
    }
    return s.len > 0;
}

int fleet_read_env(struct fleet_reader *r, const struct yaml_node *n, void *part)
{
    struct fleet_service *s = part;
    int rc = fleet_map(r, n);
    if (rc < 0)
        return rc;
    size_t count = 0;
    for (const struct yaml_node *c = n->first; c; c = c->next)
        count++;
    if (count > FLEET_ARGS_MAX)
        return fleet_refuse(r, n, "%s has %zu names; at most %d are allowed", fleet_label(r), count, FLEET_ARGS_MAX);
    const char **env = arena_alloc(r->arena, count ? count : 1, sizeof *env);
    if (!env)
        return err_nomem(r->err);
    const char *of = fleet_label(r);
    const char *outer_of = r->of, *outer_key = r->key;
    r->of = of;
    size_t i = 0;
    for (const struct yaml_node *c = n->first; c; c = c->next) {
        const char *name = arena_dup(r->arena, c->key), *value;
        if (!name)
            return err_nomem(r->err);
        if (!is_env_name(c->key))
            return fleet_refuse_at(r, fleet_key_pos_of(c), "%s holds '%s', which is no name of a variable; use letters, digits and '_'", of,
                                   fleet_show(r, c->key));
        /* They would load code into the engine that no manifest knows of. */
        if (str_starts(c->key, STR("LD_")))
            return fleet_refuse_at(r, fleet_key_pos_of(c), "%s must not set '%s'; a runtime brings its own libraries", of, name);
        r->key = name;
        rc = fleet_text(r, c, &value);
        if (rc < 0)
            return rc;
        env[i] = arena_printf(r->arena, "%s=%s", name, value);
        if (!env[i++])
            return err_nomem(r->err);
    }
    r->of = outer_of;
    r->key = outer_key;
    s->env = env;
    s->n_env = count;
    return 0;
}
