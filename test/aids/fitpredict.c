/* SPDX-License-Identifier: MIT
 *
 * fitpredict: what fit says, for a comparison with what the engine says. Reads one prediction a line from standard input, words separated by tabs, and prints one JSON object a line:
 *
 *   [--program tool|server] [--device NAME=BUFFER]... [--repack] -m FILE [-md FILE] [--mmproj FILE] then flags as the engine has them: -c -np -kvu -b -ub -ngl -ts -ctk -ctv -ctkd -ctvd -fa -nkvo --swa-full -nr -ot -otd -cmoe -ncmoe
 *   --spec-type --spec-draft-n-max --spec-draft-p-min -ngld -mg -sm -lm --no-warmup --embedding --no-mmproj-offload
 *
 * --learn NAME=UBMIN,UBMAX,CMIN,CMAX measures compute buffers first, with the runtime of the store in $BERTH_STATE; lines of one NAME share what was measured.
 *
 * A flag that is not read here is an error, so that nothing is compared by half. Files stay open from line to line. Exit 2 for a line that cannot be read.
 */
#include <base/base.h>
#include <conf/conf.h>
#include <fit/fit.h>
#include <gguf/gguf.h>
#include <measure/measure.h>
#include <model/model.h>
#include <os/os.h>
#include <store/store.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORDS_MAX 128
#define MODELS_MAX 16
#define MEMORY (UINT64_C(1) << 50) /* of every device: whether something fits is not asked */

static _Noreturn void die(const char *what, struct str word)
{
    fprintf(stderr, "fitpredict: %s '" STR_FMT "'\n", what, STR_ARG(word));
    exit(2);
}

/* ---- models -------------------------------------------------------------------------------------------------------- */

struct file {
    int fd;
    struct gguf_source src;
    struct gguf *g;
};
struct loaded {
    char *path;
    struct model *m;
    struct err err; /* when m is NULL */
};
static struct loaded models[MODELS_MAX];
static size_t n_models;

static int read_file(void *ctx, uint64_t off, void *buf, size_t len, struct err *err)
{
    const ssize_t n = pread(*(const int *)ctx, buf, len, (off_t)off);
    return n == (ssize_t)len ? 0 : err_set(err, -EIO, "cannot read");
}

static int open_part(struct file *f, const char *path, struct err *err)
{
    struct stat st;
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0 || fstat(f->fd, &st) < 0)
        return err_sys(err, -errno, "cannot open '%s'", path);
    f->src = (struct gguf_source){.read = read_file, .size = (uint64_t)st.st_size, .ctx = &f->fd};
    return gguf_open(&f->src, &f->g, err);
}

/* Opens path and the parts of its set that follow; their number or an error. */
static int open_parts(struct file *files, const char *path, struct err *err)
{
    const char *slash = strrchr(path, '/');
    struct gguf_split_name name;
    struct gguf_split split = {.count = 1};
    if (open_part(&files[0], path, err) < 0 || gguf_split(files[0].g, &split, err) < 0)
        return err->code;
    const bool set = gguf_split_name(str_of(slash ? slash + 1 : path), &name);
    for (uint32_t i = 1; set && i < split.count; i++) {
        base_autobuf struct buf b = BUF_INIT(4096);
        if (slash)
            buf_add(&b, path, (size_t)(slash - path) + 1);
        gguf_split_file(&b, &name, i + 1);
        if (open_part(&files[i], b.ptr, err) < 0)
            return err->code;
    }
    return set && split.count ? (int)split.count : 1;
}

/* Between questions, so that none loses a model that it has: the most that one can name stays free. */
static void make_room(void)
{
    if (n_models + 3 <= MODELS_MAX)
        return;
    while (n_models) {
        free(models[--n_models].path);
        models[n_models].m = model_free(models[n_models].m);
    }
}

static const struct loaded *load(struct str path)
{
    for (size_t i = 0; i < n_models; i++)
        if (str_eq_c(path, models[i].path))
            return &models[i];
    if (n_models == MODELS_MAX)
        die("too many models in one question:", path);
    struct loaded *l = &models[n_models++];
    *l = (struct loaded){.path = str_dup(path)};
    struct file *files = calloc(GGUF_PARTS_MAX, sizeof(*files));
    const struct gguf *parts[GGUF_PARTS_MAX];
    if (!l->path || !files)
        die("out of memory at", path);
    const int n = open_parts(files, l->path, &l->err);
    for (int i = 0; i < n; i++)
        parts[i] = files[i].g;
    if (n > 0 && model_load(parts, (size_t)n, &l->m, &l->err) < 0)
        l->m = NULL;
    for (int i = 0; i < GGUF_PARTS_MAX; i++) {
        files[i].g = gguf_free(files[i].g);
        if (files[i].fd > 0)
            close(files[i].fd);
    }
    free(files);
    return l;
}

/* ---- flags ---------------------------------------------------------------------------------------------------------- */

struct ask {
    struct fit_shape s;
    struct fit_device devices[FIT_DEVICES_MAX];
    size_t n_devices;
    struct fit_host host;
    enum fit_program program;
    const struct loaded *target, *drafter, *projector;
    struct str learn;
    struct arena *a;
};

enum kind { U32, ON, TYPE, OVERRIDE, DRAFT_OVERRIDE, ALL_EXPERTS, REAL, NOTHING, OTHER };
struct flag {
    const char *name;
    enum kind kind;
    size_t at;
};
#define AT(member) offsetof(struct fit_shape, member)
static const struct flag flags[] = {
    {"-c", U32, AT(context)}, {"-np", U32, AT(slots)}, {"-b", U32, AT(batch)}, {"-ub", U32, AT(ubatch)}, {"-ngl", U32, AT(gpu_layers)}, {"-mg", U32, AT(main_gpu)}, {"-ncmoe", U32, AT(cpu_moe)}, {"-ncmoed", U32, AT(draft_cpu_moe)},
    {"-ngld", U32, AT(draft_gpu_layers)}, {"--spec-draft-n-max", U32, AT(draft_max)}, {"--spec-draft-n-ubatch", U32, AT(draft_ubatch)}, {"-ctxcp", U32, AT(checkpoints)},
    {"-kvu", ON, AT(unified)}, {"-nkvo", ON, AT(kv_on_cpu)}, {"--swa-full", ON, AT(swa_full)}, {"-nr", ON, AT(no_repack)}, {"--no-host", ON, AT(no_host)}, {"--embedding", ON, AT(embedding)},
    {"-ctk", TYPE, AT(k_type)}, {"-ctv", TYPE, AT(v_type)}, {"-ctkd", TYPE, AT(draft_k_type)}, {"-ctvd", TYPE, AT(draft_v_type)},
    {"-ot", OVERRIDE, 0}, {"-otd", DRAFT_OVERRIDE, 0}, {"-cmoe", ALL_EXPERTS, AT(cpu_moe)}, {"-cmoed", ALL_EXPERTS, AT(draft_cpu_moe)}, {"--spec-draft-p-min", REAL, AT(draft_p_min)}, {"--no-warmup", NOTHING, 0},
    {"-ts", OTHER, 0}, {"-fa", OTHER, 0}, {"-sm", OTHER, 0}, {"-lm", OTHER, 0}, {"--spec-type", OTHER, 0}, {"--no-mmproj-offload", OTHER, 0}};

static double real(struct str w)
{
    base_autofree char *c = str_dup(w);
    char *end = NULL;
    const double v = c ? strtod(c, &end) : 0;
    if (!c || end == c || *end)
        die("no number", w);
    return v;
}

static void overrides(struct ask *q, struct str list, struct fit_override *to, size_t *n, size_t most)
{
    while (list.ptr) {
        struct str buffer = str_split(&list, ',');
        const struct str pattern = str_split(&buffer, '=');
        if (*n == most)
            die("too many overrides", list);
        to[(*n)++] = (struct fit_override){.pattern = arena_dup(q->a, pattern), .buffer = arena_dup(q->a, buffer)};
    }
}

static unsigned spec_bit(struct str name)
{
    static const struct {
        const char *name;
        unsigned bit;
    } all[] = {{"none", 0}, {"draft-simple", FIT_SPEC_SIMPLE}, {"draft-eagle3", FIT_SPEC_EAGLE3}, {"draft-mtp", FIT_SPEC_MTP}, {"draft-dflash", FIT_SPEC_DFLASH}, {"draft-dspark", FIT_SPEC_DSPARK}, {"ngram-simple", FIT_SPEC_NGRAM_SIMPLE},
               {"ngram-map-k", FIT_SPEC_NGRAM_MAP}, {"ngram-map-k4v", FIT_SPEC_NGRAM_MAP}, {"ngram-mod", FIT_SPEC_NGRAM_MOD}, {"ngram-cache", FIT_SPEC_NGRAM_CACHE}};
    for (size_t i = 0; i < BASE_COUNT(all); i++)
        if (str_eq_c(name, all[i].name))
            return all[i].bit;
    die("no kind of speculation", name);
}

static void other_flag(struct ask *q, const char *name, struct str value)
{
    struct fit_shape *s = &q->s;
    if (!strcmp(name, "-ts")) {
        while (value.ptr && s->n_split < FIT_DEVICES_MAX)
            s->split[s->n_split++] = real(str_split(&value, ','));
    } else if (!strcmp(name, "-fa")) {
        s->flash = str_eq_c(value, "on") ? FLEET_ON : str_eq_c(value, "off") ? FLEET_OFF : FLEET_AUTO;
    } else if (!strcmp(name, "-sm")) {
        s->split_mode = str_eq_c(value, "none") ? FIT_SPLIT_NONE : str_eq_c(value, "row") ? FIT_SPLIT_ROW : str_eq_c(value, "tensor") ? FIT_SPLIT_TENSOR : FIT_SPLIT_LAYER;
    } else if (!strcmp(name, "-lm")) {
        s->no_mmap = str_eq_c(value, "none");
    } else {
        while (value.ptr)
            s->spec |= spec_bit(str_split(&value, ','));
    }
}

/* One flag at w[0]; how many words it took. */
static size_t take_flag(struct ask *q, const struct str *w, size_t n)
{
    const struct flag *f = NULL;
    for (size_t i = 0; i < BASE_COUNT(flags) && !f; i++)
        if (str_eq_c(w[0], flags[i].name))
            f = &flags[i];
    if (!f)
        die("a flag that is not read here:", w[0]);
    char *at = (char *)&q->s + f->at;
    uint64_t v = 0;
    if (!strcmp(f->name, "--no-mmproj-offload")) {
        q->s.projector_device = -2;
        return 1;
    }
    if (f->kind == ON || f->kind == ALL_EXPERTS || f->kind == NOTHING) {
        if (f->kind == ON)
            *(bool *)at = true;
        else if (f->kind == ALL_EXPERTS)
            *(uint32_t *)(void *)at = UINT32_MAX;
        return 1;
    }
    if (n < 2)
        die("no value for", w[0]);
    switch (f->kind) {
    case U32:
        if (str_to_u64(w[1], &v) < 0 || v > UINT32_MAX)
            die("no number", w[1]);
        *(uint32_t *)(void *)at = (uint32_t)v;
        break;
    case TYPE:
        *(const struct gguf_type **)(void *)at = gguf_type_find(w[1]);
        if (!gguf_type_find(w[1]))
            die("no type", w[1]);
        break;
    case REAL:
        *(double *)(void *)at = real(w[1]);
        break;
    case OVERRIDE:
        overrides(q, w[1], q->s.overrides, &q->s.n_overrides, FIT_OVERRIDES_MAX);
        break;
    case DRAFT_OVERRIDE:
        overrides(q, w[1], q->s.draft_overrides, &q->s.n_draft_overrides, FIT_DRAFT_OVERRIDES_MAX);
        break;
    default:
        other_flag(q, f->name, w[1]);
        break;
    }
    return 2;
}

static void take(struct ask *q, const struct str *w, size_t n)
{
    make_room();
    for (size_t i = 0; i < n;) {
        const struct str value = i + 1 < n ? w[i + 1] : (struct str){0};
        if (str_eq_c(w[i], "--program")) {
            q->program = str_eq_c(value, "tool") ? FIT_TOOL : FIT_SERVER;
            i += 2;
        } else if (str_eq_c(w[i], "--device")) {
            struct str buffer = value;
            const struct str name = str_split(&buffer, '=');
            struct fit_device *d = &q->devices[q->n_devices++];
            *d = (struct fit_device){.name = arena_dup(q->a, name), .buffer = buffer.ptr ? arena_dup(q->a, buffer) : NULL, .total_bytes = MEMORY, .free_bytes = MEMORY};
            d->backend = fit_backend_of(d->name);
            i += 2;
        } else if (str_eq_c(w[i], "--learn")) {
            q->learn = value;
            i += 2;
        } else if (str_eq_c(w[i], "--repack")) {
            q->host.repack = true;
            i++;
        } else if (str_eq_c(w[i], "-m") || str_eq_c(w[i], "-md") || str_eq_c(w[i], "--mmproj")) {
            const struct loaded **to = str_eq_c(w[i], "-m") ? &q->target : str_eq_c(w[i], "-md") ? &q->drafter : &q->projector;
            *to = load(value);
            i += 2;
        } else {
            i += take_flag(q, w + i, n - i);
        }
    }
}

/* ---- measuring -------------------------------------------------------------------------------------------------------------- */

static struct {
    char *name;
    struct measure_compute c;
    struct err err; /* code 0: c is good */
} learnt;

/* The engine of the store, asked on hollow copies. */
static int measure(const struct fit_input *in, const struct measure_files *files, const struct measure_range *range, struct err *err)
{
    static const char *const hardware[FIT_DEVICES_MAX + 1] = {"emulated"};
    const struct measure_key key = {.build = "test", .model = "test", .service = "", .hardware = hardware};
    struct os_dirs dirs;
    struct store *store = NULL;
    struct store_runtime *list = NULL;
    size_t n = 0, at = 0;
    char folder[] = "/tmp/fitpredict-XXXXXX";
    int r = os_dirs_find(&dirs, err);
    if (r < 0)
        return r;
    r = store_open(&dirs, &store, err);
    if (r == 0)
        r = store_runtime_list(store, &list, &n, err);
    while (r == 0 && at < n && (strcmp(list[at].engine, "llama.cpp") != 0 || !list[at].complete || !strstr(list[at].packages, "libggml0-backend-rpc")))
        at++;
    if (r == 0 && at == n)
        r = err_set(err, -ENOENT, "no runtime with ggml-rpc-server in the store");
    if (r == 0 && !mkdtemp(folder))
        r = err_sys(err, -errno, "cannot make a folder");
    if (r == 0) {
        const struct measure_lab lab = {.store = store, .runtime = &list[at], .folder = folder};
        r = measure_compute(&lab, &key, in, files, range, &learnt.c, err);
        rmdir(folder);
    }
    store_runtimes_free(list, n);
    store = store_free(store);
    os_dirs_release(&dirs);
    return r;
}

/* What was measured under the line's name; measures when the name is new. */
static int learn(const struct ask *q, const struct fit_input *in, struct err *err)
{
    struct str range = q->learn;
    const struct str name = str_split(&range, '=');
    uint64_t v[4];
    for (size_t i = 0; i < BASE_COUNT(v); i++)
        if (str_to_u64(str_split(&range, ','), &v[i]) < 0 || v[i] > UINT32_MAX)
            die("no range to measure in", q->learn);
    if (!learnt.name || !str_eq_c(name, learnt.name)) {
        const struct measure_range r = {(uint32_t)v[0], (uint32_t)v[1], (uint32_t)v[2], (uint32_t)v[3]};
        const struct measure_files files = {q->target->path, q->drafter ? q->drafter->path : NULL, q->projector ? q->projector->path : NULL};
        free(learnt.name);
        learnt.name = str_dup(name);
        learnt.err = (struct err){0};
        base_ignore(measure(in, &files, &r, &learnt.err)); /* kept for every line of the name */
    }
    if (learnt.err.code)
        *err = learnt.err;
    return learnt.err.code;
}

/* ---- answers ---------------------------------------------------------------------------------------------------------- */

static void answer_place(struct json_out *o, const char *name, const struct fit_use *u)
{
    json_out_obj(o, name);
    json_out_u64(o, "layers", u->n_layers);
    json_out_u64(o, "repack", u->repack_bytes);
    json_out_u64(o, "mapped", u->mapped_bytes);
    for (int t = 0; t < FIT_TERMS; t++) {
        const struct fit_amount *a = &u->terms[t];
        json_out_arr(o, fit_term_text((enum fit_term)t));
        json_out_u64(o, NULL, a->bytes);
        json_out_u64(o, NULL, a->low);
        json_out_u64(o, NULL, a->high);
        json_out_cstr(o, NULL, a->known == FIT_EXACT ? "exact" : a->known == FIT_MEASURED ? "measured" : "estimate");
        json_out_end(o);
    }
    json_out_end(o);
}

static void answer(struct ask *q, struct json_out *o)
{
    static struct fit_result r;
    struct err err = {0};
    const struct loaded *all[] = {q->target, q->drafter, q->projector};
    for (size_t i = 0; i < BASE_COUNT(all); i++)
        if (all[i] && !all[i]->m) {
            json_out_cstr(o, "error", all[i]->err.text);
            return;
        }
    const struct fit_input in = {.target = q->target ? q->target->m : NULL, .drafter = q->drafter ? q->drafter->m : NULL, .projector = q->projector ? q->projector->m : NULL, .shape = &q->s, .devices = q->devices,
                                 .n_devices = q->n_devices, .host = &q->host, .program = q->program, .engine_version = "0.7.0"};
    struct fit_input with = in;
    struct fit_calibration known = {.source = "measured"};
    if (q->learn.ptr) {
        if (learn(q, &in, &err) < 0) {
            json_out_cstr(o, "error", err.text);
            return;
        }
        known.compute = learnt.c.compute;
        known.draft_compute = learnt.c.has_draft ? learnt.c.draft_compute : NULL;
        known.n = learnt.c.n;
        with.calibration = &known;
    }
    if (fit_predict(&with, q->a, &r, &err) < 0) {
        json_out_cstr(o, "error", err.text);
        return;
    }
    json_out_bool(o, "known", in.target->known);
    json_out_cstr(o, "arch", in.target->arch);
    json_out_u64(o, "n_ctx", r.n_ctx);
    json_out_u64(o, "n_ctx_seq", r.n_ctx_seq);
    json_out_u64(o, "n_ubatch", r.n_ubatch);
    json_out_u64(o, "n_outputs", r.n_outputs);
    json_out_bool(o, "pipeline", r.pipeline);
    json_out_obj(o, "places");
    for (size_t i = 0; i <= q->n_devices; i++)
        answer_place(o, i < q->n_devices ? q->devices[i].name : "host", &r.use[i]);
    json_out_end(o);
    json_out_arr(o, "notes");
    for (size_t i = 0; i < r.n_notes; i++) {
        json_out_obj(o, NULL);
        json_out_cstr(o, "severity", r.notes[i].severity == FIT_REFUSED ? "refused" : r.notes[i].severity == FIT_WARNING ? "warning" : "note");
        json_out_cstr(o, "rule", r.notes[i].rule);
        json_out_cstr(o, "text", r.notes[i].text);
        json_out_end(o);
    }
    json_out_end(o);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t len; (len = getline(&line, &cap, stdin)) > 0;) {
        struct str w[WORDS_MAX], rest = {line, (size_t)len - (line[len - 1] == '\n')};
        size_t n = 0;
        while (rest.ptr && n < WORDS_MAX)
            w[n++] = str_split(&rest, '\t');
        static struct ask q;
        q = (struct ask){.a = arena_new((size_t)64 << 20), .host = {.total_bytes = MEMORY, .free_bytes = MEMORY}};
        if (!q.a)
            die("out of memory at", w[0]);
        fit_shape_default(&q.s);
        take(&q, w, n);
        struct json_out *o = json_out_new();
        base_autobuf struct buf b = BUF_INIT((size_t)1 << 20);
        json_out_obj(o, NULL);
        answer(&q, o);
        json_out_end(o);
        if (json_out_finish(o, false, &b) < 0)
            die("cannot write", w[0]);
        printf(STR_FMT "\n", (int)b.len, b.ptr);
        fflush(stdout);
        o = json_out_free(o);
        q.a = arena_free(q.a);
    }
    free(line);
    free(learnt.name);
    while (n_models) {
        free(models[--n_models].path);
        models[n_models].m = model_free(models[n_models].m);
    }
    return 0;
}
