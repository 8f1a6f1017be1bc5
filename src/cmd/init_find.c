/* SPDX-License-Identifier: MIT
 *
 * What a machine has already: GGUF files below a folder or where the Hugging Face hub, LM Studio, Ollama and llama.cpp keep theirs, and llama-server programs. Only headers are read. A file that cannot be read is counted and passed over.
 */
#include "init_int.h"

#include <check/check.h>
#include <conf/conf.h>
#include <errno.h>
#include <fcntl.h>
#include <gguf/gguf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MANIFEST_MAX 65536
#define PATH_BYTES 8192

struct walk {
    struct init_finds *f;
    const char *root, *place;
};

/* ---- one file ------------------------------------------------------------------------------------------------------------ */

static bool has(const struct init_finds *f, const char *path)
{
    for (size_t i = 0; i < f->n; i++)
        if (strcmp(f->models[i].path, path) == 0)
            return true;
    return false;
}

/* Later parts of a set belong to its first. */
static bool is_later_part(const char *file)
{
    struct gguf_split_name name;
    return gguf_split_name(str_of(file), &name) && name.no > 1;
}

static int keep(struct init_finds *f, const char *path, const char *place, const char *label, const struct model *m, struct err *err)
{
    const char *slash = strrchr(path, '/');
    struct init_found *x = &f->models[f->n];
    *x = (struct init_found){.path = arena_dup(f->arena, str_of(path)), .place = place, .role = m->role, .known = m->known, .chat = m->role == MODEL_TARGET && m->logits && m->causal, .bytes = m->weight_bytes,
                             .params = m->params, .context = m->context_trained, .arch = arena_dup(f->arena, str_of(m->arch))};
    x->folder = arena_dup(f->arena, (struct str){path, (size_t)(slash - path)});
    x->file = arena_dup(f->arena, str_of(slash + 1));
    x->label = label ? arena_dup(f->arena, str_of(label)) : x->file;
    if (!x->path || !x->arch || !x->folder || !x->file || !x->label)
        return err_nomem(err);
    f->n++;
    return 0;
}

/* A fleet file can hold it: UTF-8 without control characters. */
static bool can_be_written(const char *path)
{
    for (const char *p = path; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 127 || (*p == '\xc2' && (unsigned char)p[1] < 0xa0))
            return false;
    return str_is_utf8(str_of(path));
}

/* path is absolute. */
static int look_at(struct init_finds *f, const char *path, const char *place, const char *label, struct err *err)
{
    struct model *m = NULL;
    struct err why;
    if (has(f, path))
        return 0;
    if (f->n == INIT_FOUND_MAX) {
        f->n_more++;
        return 0;
    }
    int r = can_be_written(path) ? check_model_load(path, false, &m, NULL, &why) : -EINVAL;
    if (r == -ENOMEM)
        return err_nomem(err);
    if (r < 0) {
        f->n_bad++;
        return 0;
    }
    r = keep(f, path, place, label, m, err);
    model_free(m);
    return r;
}

/* ---- folders --------------------------------------------------------------------------------------------------------------- */

static int visit(void *ctx, const struct os_entry *e, struct err *err)
{
    struct walk *w = ctx;
    struct stat st;
    if (S_ISDIR(e->mode) || !str_ends(str_of(e->name), STR(".gguf")) || is_later_part(e->name))
        return 0;
    /* the hub's cache has links to its blobs */
    if (fstatat(e->dirfd, e->name, &st, 0) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
        return 0;
    base_autobuf struct buf path = BUF_INIT(PATH_BYTES);
    buf_addf(&path, "%s/%s", w->root, e->path);
    return buf_status(&path) < 0 ? 0 : look_at(w->f, path.ptr, w->place, NULL, err);
}

/* A folder that is not there has no models. */
static int find_below(struct init_finds *f, const char *root, const char *place, struct err *err)
{
    struct err why;
    os_autoclose int fd = os_open_dir(root, &why);
    if (fd < 0)
        return 0;
    struct walk w = {.f = f, .root = root, .place = place};
    int r = os_walk(fd, visit, &w, &why);
    if (r == -ENOMEM)
        return err_nomem(err);
    return 0; /* what could be read was looked at */
}

int init_find_path(struct init_finds *f, const char *path, struct err *err)
{
    base_autofree char *whole = realpath(path, NULL);
    struct stat st;
    if (!whole || stat(whole, &st) < 0)
        return err_sys(err, -errno, "cannot read '%s'", path);
    if (S_ISDIR(st.st_mode)) {
        const char *root = arena_dup(f->arena, str_of(whole));
        return root ? find_below(f, root, NULL, err) : err_nomem(err);
    }
    /* a link's own name tells more than the blob's that it leads to */
    base_autobuf struct buf named = BUF_INIT(PATH_BYTES);
    base_autofree char *folder = NULL;
    const char *slash = strrchr(path, '/');
    base_autofree char *before = slash ? str_dup((struct str){path, (size_t)(slash - path) + 1}) : str_dup(STR("."));
    folder = before ? realpath(before, NULL) : NULL;
    if (!folder)
        return err_sys(err, -errno, "cannot read '%s'", path);
    buf_addf(&named, "%s/%s", strcmp(folder, "/") == 0 ? "" : folder, slash ? slash + 1 : path);
    if (buf_status(&named) < 0)
        return err_nomem(err);
    base_autobuf struct buf shown = BUF_INIT(PATH_BYTES);
    buf_add_printable(&shown, str_of(path), 300);
    if (!can_be_written(named.ptr))
        return err_set(err, -EINVAL, "'%s': no fleet file can hold this path: it must be UTF-8 without control characters; rename it", shown.ptr ? shown.ptr : "");
    struct model *m = NULL;
    int r = check_model_load(named.ptr, false, &m, NULL, err);
    if (r < 0)
        return err_prefix(err, "'%s'", path);
    /* a projector goes with the model beside it */
    if (m->role != MODEL_PROJECTOR && (m->role != MODEL_TARGET || !m->logits || !m->causal || !m->known))
        r = err_set(err, -ENOTSUP, "'%s' cannot be served by itself: %s; name a model that generates text", path,
                    m->role != MODEL_TARGET ? "it is a drafter" : m->known ? "it generates no text" : "its architecture is unknown here");
    model_free(m);
    if (r < 0)
        return r;
    r = look_at(f, named.ptr, NULL, NULL, err);
    for (size_t i = 0; r == 0 && i < f->n; i++)
        if (strcmp(f->models[i].path, named.ptr) == 0)
            f->models[i].named = true;
    return r;
}

/* ---- Ollama ------------------------------------------------------------------------------------------------------------------ */

struct ollama {
    struct init_finds *f;
    const char *root;
};

/* A manifest at registry/namespace/NAME/TAG names the blob of its model. */
static int visit_manifest(void *ctx, const struct os_entry *e, struct err *err)
{
    const struct ollama *o = ctx;
    base_autobuf struct buf text = BUF_INIT(MANIFEST_MAX), path = BUF_INIT(PATH_BYTES), label = BUF_INIT(512);
    struct json *j = NULL;
    struct err why;
    if (!S_ISREG(e->mode) || os_read_file(e->dirfd, e->name, &text, &why) < 0 || json_parse(buf_str(&text), &j, &why) < 0)
        return 0;
    json_val layers = json_get(json_root(j), "layers");
    for (size_t i = 0; i < json_count(layers); i++) {
        struct str type, digest;
        if (!json_str(json_get(json_at(layers, i), "mediaType"), &type) || !str_eq_c(type, "application/vnd.ollama.image.model") || !json_str(json_get(json_at(layers, i), "digest"), &digest))
            continue;
        struct str rest = digest, kind = str_split(&rest, ':');
        if (!rest.ptr || !os_name_valid(kind) || !os_name_valid(rest))
            continue;
        buf_clear(&path);
        buf_addf(&path, "%s/blobs/" STR_FMT "-" STR_FMT, o->root, STR_ARG(kind), STR_ARG(rest));
    }
    json_free(j);
    /* NAME-TAG */
    struct str whole = str_of(e->path);
    size_t from = whole.len, slashes = 0;
    while (from > 0 && slashes < 2)
        slashes += whole.ptr[--from] == '/';
    buf_add_str(&label, (struct str){whole.ptr + from + (slashes == 2), whole.len - from - (slashes == 2)});
    for (size_t i = 0; i < label.len; i++)
        if (label.ptr[i] == '/')
            label.ptr[i] = '-';
    if (!path.len || buf_status(&path) < 0 || buf_status(&label) < 0)
        return 0;
    return look_at(o->f, path.ptr, "Ollama's folder", label.ptr, err);
}

static int find_ollama(struct init_finds *f, const char *root, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT(PATH_BYTES);
    struct err why;
    buf_addf(&path, "%s/manifests", root);
    if (buf_status(&path) < 0)
        return 0;
    os_autoclose int fd = os_open_dir(path.ptr, &why);
    if (fd < 0)
        return 0;
    struct ollama o = {.f = f, .root = root};
    return os_walk(fd, visit_manifest, &o, &why) == -ENOMEM ? err_nomem(err) : 0;
}

/* ---- the usual places --------------------------------------------------------------------------------------------------------- */

/* variable (when it is set and absolute) with its tail, else home with its tail; NULL without either. */
static const char *place_of(struct init_finds *f, const char *variable, const char *tail, const char *home_tail)
{
    const char *value = variable ? getenv(variable) : NULL, *home = getenv("HOME");
    if (value && value[0] == '/')
        return arena_printf(f->arena, "%s%s", value, tail);
    if (variable && !home_tail)
        return NULL;
    return home && home[0] == '/' ? arena_printf(f->arena, "%s/%s", home, home_tail) : NULL;
}

int init_find_usual(struct init_finds *f, struct err *err)
{
    static const char hub[] = "the Hugging Face cache", studio[] = "LM Studio's folder";
    const char *hub_folder = place_of(f, "HF_HUB_CACHE", "", NULL);
    if (!hub_folder)
        hub_folder = place_of(f, "HF_HOME", "/hub", ".cache/huggingface/hub");
    const struct {
        const char *path, *place;
    } folders[] = {
        {hub_folder, hub},
        {place_of(f, NULL, "", ".lmstudio/models"), studio},
        {place_of(f, NULL, "", ".cache/lm-studio/models"), studio},
        {place_of(f, "LLAMA_CACHE", "", ".cache/llama.cpp"), "llama.cpp's cache"},
        {place_of(f, NULL, "", "models"), "~/models"},
    };
    int r = 0;
    for (size_t i = 0; r == 0 && i < BASE_COUNT(folders); i++)
        if (folders[i].path)
            r = find_below(f, folders[i].path, folders[i].place, err);
    const char *ollama = place_of(f, "OLLAMA_MODELS", "", ".ollama/models");
    if (r == 0 && ollama)
        r = find_ollama(f, ollama, err);
    return r == 0 ? find_ollama(f, "/usr/share/ollama/.ollama/models", err) : r;
}

void init_find_engines(struct init_finds *f)
{
    const char *home = getenv("HOME");
    const char *folders[INIT_ENGINES_MAX] = {"/usr/bin", "/usr/local/bin", "/opt/llama.cpp/bin", "/opt/llama.cpp/build/bin"};
    size_t n = 4;
    if (home && home[0] == '/')
        folders[n++] = arena_printf(f->arena, "%s/llama.cpp/build/bin", home);
    for (size_t i = 0; i < n; i++) {
        const char *path = folders[i] ? arena_printf(f->arena, "%s/llama-server", folders[i]) : NULL;
        if (path && access(path, X_OK) == 0)
            f->engines[f->n_engines++] = path;
    }
}
