/* SPDX-License-Identifier: MIT
 *
 * fitmodels: writes hollow GGUF models, a header and a hole in place of the data, from shape files (test/fit/models/NAME): what an engine allocates for a model of any size is asked of it with these. A shape is made of
 * lines of words:
 *
 *   from FIXTURE                 takes keys and tensors of FIXTURE.gguf in the fixtures' folder over (files that llama.cpp's own test program writes)
 *   arch NAME                    general.architecture, and the prefix of keys below; behind `from`: instead of the fixture's
 *   blocks N                     A.block_count; with `from`, per-layer lists are made as long
 *   like SEL LAYER               with `from`: layers of SEL have the tensors of that layer
 *   drop KEY                     with `from`: a key (or, ended by '*', all that begin so) is left out
 *   without NAME [SEL]           with `from`: a tensor (or by '*' at the front or the end all of the kind; of a layer: what follows "blk.N.") is left out
 *   key KEY TYPE VALUE...        A.KEY, or KEY when it begins with '.'; a list's values are repeated to N of them by "... N", or to the blocks by "..."
 *   retype TYPE                  with `from`: matrices that are multiplied with, the embedding and the head have that type
 *   vocab N [KIND]               tokens; KIND none (default): their number only, test: with texts
 *   tensor NAME TYPE DIM...
 *   layer SEL NAME TYPE DIM...   blk.L.NAME (or NAME with L for its '%') for each layer of SEL: "*", "A-B", "A", each followed by ":R%P" (L % P == R) or ":!R%P"
 *   parts N                      a split set; "part N" before tensors says where they go, "part N SEL" where the layers of SEL go
 *
 * Exit codes: 0 written, 1 failed, 2 usage.
 */
#include <base/base.h>
#include <gguf/gguf.h>
#include <os/os.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORDS_MAX 64
#define LIST_MAX 1024
#define PARTS_MAX 16
#define LAYERS_MAX 512
#define TENSORS_MAX 16384
#define MEMORY_MAX ((size_t)512 << 20)
#define SHAPE_MAX ((size_t)1 << 20)

static const char help[] =
    "usage: fitmodels --out DIR [options] [NAME...]\n"
    "       fitmodels --list\n"
    "\n"
    "Writes hollow models from shape files; all of them without a NAME: hundreds of\n"
    "GiB by their length, so the folder must be named.\n"
    "\n"
    "  --list           prints the names\n"
    "  --out DIR        where to write, a folder that exists\n"
    "  --shapes DIR     default test/fit/models\n"
    "  --fixtures DIR   files of test-llama-archs; without it shapes that need one\n"
    "                   are left out\n"
    "  -h, --help       this text\n";

struct options {
    const char *out, *shapes, *fixtures;
    bool list;
};

struct tensor {
    const char *name;
    uint32_t type, part;
    uint64_t dims[GGUF_DIMS_MAX];
    size_t n_dims;
};

/* Layers; period 0: all from from to to. */
struct sel {
    uint64_t from, to, rest, period;
    bool negated;
};

struct shape {
    const struct options *o;
    const char *name;
    size_t line;
    struct arena *arena;
    const char *arch, *fixture_arch;
    uint32_t blocks, parts, part;
    uint32_t part_of[LAYERS_MAX]; /* 1-based; 0: where the line stands */
    /* from */
    struct gguf *fixture;
    struct gguf_source fixture_source;
    int fixture_fd;
    uint32_t fixture_blocks;
    const struct gguf_type *retype;
    int like[LAYERS_MAX]; /* -1: nothing */
    struct str dropped[WORDS_MAX];
    struct without {
        struct str name;
        struct sel sel;
        bool layers;
    } without[WORDS_MAX];
    size_t n_dropped, n_without;
    struct gguf_writer *keys; /* of part 1 */
    struct tensor *tensors;
    size_t n_tensors;
};

static int fail(const struct shape *s, struct err *err, const char *fmt, ...) BASE_PRINTF(3, 4);
static int fail(const struct shape *s, struct err *err, const char *fmt, ...)
{
    base_autobuf struct buf b = BUF_INIT(ERR_TEXT_MAX);
    va_list ap;
    va_start(ap, fmt);
    buf_addv(&b, fmt, ap);
    va_end(ap);
    return err_set(err, -EINVAL, "%s:%zu: %s", s->name, s->line, b.ptr);
}

/* ---- words ---------------------------------------------------------------------------------------------------- */

static int number(const struct shape *s, struct str w, uint64_t most, uint64_t *ret, struct err *err)
{
    uint64_t v = 0;
    if (str_to_u64(w, &v) < 0 || v > most)
        return fail(s, err, "'" STR_FMT "' is no number up to %llu", STR_ARG(w), (unsigned long long)most);
    *ret = v;
    return 0;
}

static int selector(const struct shape *s, struct str w, struct sel *ret, struct err *err)
{
    struct str range = str_split(&w, ':');
    struct sel x = {.from = 0, .to = s->blocks ? s->blocks - 1 : 0};
    if (!str_eq_c(range, "*")) {
        struct str to = range, from = str_split(&to, '-');
        if (number(s, from, LAYERS_MAX - 1, &x.from, err) < 0)
            return err->code;
        x.to = x.from;
        if (to.ptr && number(s, to, LAYERS_MAX - 1, &x.to, err) < 0)
            return err->code;
    }
    if (w.ptr) {
        x.negated = w.len && *w.ptr == '!';
        if (x.negated)
            w = (struct str){w.ptr + 1, w.len - 1};
        struct str rest = str_split(&w, '%');
        if (number(s, rest, LAYERS_MAX, &x.rest, err) < 0 || number(s, w, LAYERS_MAX, &x.period, err) < 0)
            return err->code;
    }
    *ret = x;
    return 0;
}

static bool selected(const struct sel *x, uint64_t layer)
{
    return layer >= x->from && layer <= x->to && (!x->period || (layer % x->period == x->rest) != x->negated);
}

/* A number with sign, fraction or exponent, as the shape files use them. */
static int real(const struct shape *s, struct str w, double *ret, struct err *err)
{
    base_autofree char *c = str_dup(w);
    char *end = NULL;
    if (!c)
        return err_nomem(err);
    double v = strtod(c, &end);
    if (end == c || *end || !isfinite(v))
        return fail(s, err, "'%s' is no number", c);
    *ret = v;
    return 0;
}

/* ---- keys ------------------------------------------------------------------------------------------------------- */

static const char *full_key(struct shape *s, struct str key)
{
    if (key.len && *key.ptr == '.')
        return arena_dup(s->arena, (struct str){key.ptr + 1, key.len - 1});
    return arena_printf(s->arena, "%s." STR_FMT, s->arch, STR_ARG(key));
}

static int put_list(struct shape *s, const char *key, struct str type, const struct str *w, size_t n, struct err *err)
{
    static double values[LIST_MAX];
    static uint32_t u[LIST_MAX];
    static uint64_t wide[LIST_MAX];
    static int32_t i[LIST_MAX];
    static float f[LIST_MAX];
    uint64_t want = 0;
    size_t had = 0;
    for (; had < n && !str_eq_c(w[had], "..."); had++) {
        if (had >= LIST_MAX || real(s, w[had], &values[had], err) < 0)
            return err->code;
    }
    want = had;
    if (had < n) {
        want = s->blocks;
        if (had + 1 < n && number(s, w[had + 1], LIST_MAX, &want, err) < 0)
            return err->code;
        if (!had || want > LIST_MAX)
            return fail(s, err, "a list that cannot be repeated to %llu values", (unsigned long long)want);
    }
    for (size_t k = 0; k < want; k++) {
        u[k] = (uint32_t)values[k % had];
        wide[k] = (uint64_t)values[k % had];
        i[k] = (int32_t)values[k % had];
        f[k] = (float)values[k % had];
    }
    if (str_eq_c(type, "u32s"))
        gguf_put_u32s(s->keys, key, u, want);
    else if (str_eq_c(type, "u64s"))
        gguf_put_u64s(s->keys, key, wide, want);
    else if (str_eq_c(type, "i32s"))
        gguf_put_i32s(s->keys, key, i, want);
    else if (str_eq_c(type, "f32s"))
        gguf_put_f32s(s->keys, key, f, want);
    else
        return fail(s, err, "a type of key that is not known: '" STR_FMT "'", STR_ARG(type));
    return 0;
}

static int put_key(struct shape *s, const char *key, struct str type, const struct str *w, size_t n, struct err *err)
{
    double v = 0;
    if (str_eq_c(type, "str")) {
        gguf_put_str(s->keys, key, n ? w[0] : STR(""));
        return 0;
    }
    if (str_eq_c(type, "u32s") || str_eq_c(type, "u64s") || str_eq_c(type, "i32s") || str_eq_c(type, "f32s"))
        return put_list(s, key, type, w, n, err);
    if (n != 1 || real(s, w[0], &v, err) < 0)
        return n == 1 ? err->code : fail(s, err, "one value is wanted");
    if (str_eq_c(type, "u16"))
        gguf_put_u16(s->keys, key, (uint16_t)v);
    else if (str_eq_c(type, "u32"))
        gguf_put_u32(s->keys, key, (uint32_t)v);
    else if (str_eq_c(type, "i32"))
        gguf_put_i32(s->keys, key, (int32_t)v);
    else if (str_eq_c(type, "u64"))
        gguf_put_u64(s->keys, key, (uint64_t)v);
    else if (str_eq_c(type, "f32"))
        gguf_put_f32(s->keys, key, (float)v);
    else if (str_eq_c(type, "bool"))
        gguf_put_bool(s->keys, key, v != 0);
    else
        return fail(s, err, "a type of key that is not known: '" STR_FMT "'", STR_ARG(type));
    return 0;
}

static int put_vocab(struct shape *s, uint64_t n, struct str kind, struct err *err)
{
    const char *size = full_key(s, STR("vocab_size"));
    struct str *tokens = arena_alloc(s->arena, n, sizeof(*tokens));
    int32_t *types = arena_alloc(s->arena, n, sizeof(*types));
    float *scores = arena_alloc(s->arena, n, sizeof(*scores));
    if (!size || !tokens || !types || !scores)
        return err_nomem(err);
    gguf_put_u32(s->keys, size, (uint32_t)n);
    gguf_put_str(s->keys, "tokenizer.ggml.model", kind);
    if (!str_eq_c(kind, "test"))
        return 0;
    for (size_t i = 0; i < n; i++) {
        char *t = arena_printf(s->arena, "tok_%zu", i);
        if (!t)
            return err_nomem(err);
        tokens[i] = str_of(t);
        types[i] = 1;
    }
    gguf_put_strs(s->keys, "tokenizer.ggml.tokens", tokens, n);
    gguf_put_i32s(s->keys, "tokenizer.ggml.token_type", types, n);
    gguf_put_f32s(s->keys, "tokenizer.ggml.scores", scores, n);
    return 0;
}

/* ---- tensors ------------------------------------------------------------------------------------------------------ */

static int add_tensor(struct shape *s, const char *name, int layer, uint32_t type, const uint64_t *dims, size_t n_dims, struct err *err)
{
    if (!name)
        return err_nomem(err);
    if (s->n_tensors == TENSORS_MAX)
        return fail(s, err, "more than %d tensors", TENSORS_MAX);
    struct tensor *t = &s->tensors[s->n_tensors++];
    *t = (struct tensor){.name = name, .type = type, .n_dims = n_dims, .part = layer >= 0 && s->part_of[layer] ? s->part_of[layer] : s->part};
    memcpy(t->dims, dims, n_dims * sizeof(*dims));
    return 0;
}

/* blk.L.NAME, or NAME with L in place of its '%'. */
static char *layer_name(struct shape *s, uint64_t layer, struct str name)
{
    const ptrdiff_t at = str_find_char(name, '%');
    if (at < 0)
        return arena_printf(s->arena, "blk.%llu." STR_FMT, (unsigned long long)layer, STR_ARG(name));
    const struct str front = {name.ptr, (size_t)at}, back = {name.ptr + at + 1, name.len - (size_t)at - 1};
    return arena_printf(s->arena, STR_FMT "%llu" STR_FMT, STR_ARG(front), (unsigned long long)layer, STR_ARG(back));
}

/* NAME TYPE DIM... from w on; for each layer of sel, or once without. */
static int tensor_line(struct shape *s, const struct sel *sel, const struct str *w, size_t n, struct err *err)
{
    uint64_t dims[GGUF_DIMS_MAX];
    if (n < 3 || n > 2 + GGUF_DIMS_MAX)
        return fail(s, err, "a tensor has a name, a type and one to four dimensions");
    const struct gguf_type *type = gguf_type_find(w[1]);
    if (!type)
        return fail(s, err, "'" STR_FMT "' is no type of tensor", STR_ARG(w[1]));
    for (size_t i = 2; i < n; i++)
        if (number(s, w[i], UINT32_MAX, &dims[i - 2], err) < 0)
            return err->code;
    if (!sel)
        return add_tensor(s, arena_dup(s->arena, w[0]), -1, type->id, dims, n - 2, err);
    for (uint64_t l = sel->from; l <= sel->to; l++)
        if (selected(sel, l) && add_tensor(s, layer_name(s, l, w[0]), (int)l, type->id, dims, n - 2, err) < 0)
            return err->code;
    return 0;
}

/* ---- fixtures ------------------------------------------------------------------------------------------------------- */

static int read_fixture(void *ctx, uint64_t off, void *buf, size_t len, struct err *err)
{
    const struct shape *s = ctx;
    ssize_t r = pread(s->fixture_fd, buf, len, (off_t)off);
    return r == (ssize_t)len ? 0 : err_set(err, -EIO, "cannot read the fixture of '%s'", s->name);
}

/* A pattern with '*' at its front or its end. */
static bool matches(struct str p, struct str name)
{
    if (p.len && *p.ptr == '*')
        return str_ends(name, (struct str){p.ptr + 1, p.len - 1});
    if (p.len && p.ptr[p.len - 1] == '*')
        return str_starts(name, (struct str){p.ptr, p.len - 1});
    return str_eq(p, name);
}

static bool dropped(const struct shape *s, struct str key)
{
    for (size_t i = 0; i < s->n_dropped; i++)
        if (matches(s->dropped[i], key))
            return true;
    return false;
}

/* layer -1: a tensor of no layer. */
static bool left_out(const struct shape *s, struct str name, int layer)
{
    for (size_t i = 0; i < s->n_without; i++) {
        const struct without *w = &s->without[i];
        if (matches(w->name, name) && (!w->layers || (layer >= 0 && selected(&w->sel, (uint64_t)layer))))
            return true;
    }
    return false;
}

struct strings {
    struct shape *s;
    struct str *v;
};
static bool keep_string(void *ctx, uint64_t i, struct str text)
{
    struct strings *x = ctx;
    char *c = arena_dup(x->s->arena, text);
    x->v[i] = str_of(c);
    return c != NULL;
}

/* A list of the fixture; one value for each of its layers becomes one for each of ours. */
static int copy_list(struct shape *s, const char *key, const struct gguf_kv *kv, struct err *err)
{
    const bool by_layer = kv->n == s->fixture_blocks && s->blocks && str_starts(kv->key, str_of(s->fixture_arch));
    const uint64_t n = by_layer ? s->blocks : kv->n;
    if (kv->elem == GGUF_STRING) {
        struct strings x = {s, arena_alloc(s->arena, kv->n + 1, sizeof(struct str))};
        if (!x.v)
            return err_nomem(err);
        if (gguf_each_str(s->fixture, kv, kv->n, keep_string, &x, err) < 0)
            return err->code;
        gguf_put_strs(s->keys, key, x.v, kv->n);
        return 0;
    }
    uint32_t *u = arena_alloc(s->arena, n + 1, sizeof(*u));
    uint64_t *wide = arena_alloc(s->arena, n + 1, sizeof(*wide));
    float *f = arena_alloc(s->arena, n + 1, sizeof(*f));
    if (!u || !wide || !f)
        return err_nomem(err);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t at = by_layer ? (uint64_t)(s->like[i] < 0 ? 0 : s->like[i]) : i;
        int64_t v = 0;
        double d = 0;
        if (kv->elem == GGUF_F32 ? !gguf_at_f64(kv, at, &d) : !gguf_at_i64(kv, at, &v))
            return fail(s, err, "cannot take the list '%s' over", kv->key.ptr);
        u[i] = (uint32_t)v;
        wide[i] = (uint64_t)v;
        f[i] = (float)d;
    }
    if (kv->elem == GGUF_F32)
        gguf_put_f32s(s->keys, key, f, n);
    else if (kv->elem == GGUF_I32)
        gguf_put_i32s(s->keys, key, (int32_t *)u, n);
    else if (kv->elem == GGUF_U64)
        gguf_put_u64s(s->keys, key, wide, n);
    else
        gguf_put_u32s(s->keys, key, u, n);
    return 0;
}

static int copy_key(struct shape *s, const char *key, const struct gguf_kv *kv, struct err *err)
{
    switch (kv->type) {
    case GGUF_U16:
        gguf_put_u16(s->keys, key, (uint16_t)kv->v.u);
        return 0;
    case GGUF_U32:
        gguf_put_u32(s->keys, key, (uint32_t)kv->v.u);
        return 0;
    case GGUF_U64:
        gguf_put_u64(s->keys, key, kv->v.u);
        return 0;
    case GGUF_I32:
        gguf_put_i32(s->keys, key, (int32_t)kv->v.i);
        return 0;
    case GGUF_F32:
        gguf_put_f32(s->keys, key, (float)kv->v.f);
        return 0;
    case GGUF_BOOL:
        gguf_put_bool(s->keys, key, kv->v.b);
        return 0;
    case GGUF_STRING:
        gguf_put_str(s->keys, key, kv->kept);
        return 0;
    case GGUF_ARRAY:
        return copy_list(s, key, kv, err);
    default:
        return fail(s, err, "cannot take '%s' over", key);
    }
}

/* "blk.N." at the front of a name: the layer, and what follows in *ret_rest; -1: none. */
static int layer_of(struct str name, struct str *ret_rest)
{
    uint64_t l;
    struct str rest = name, blk = str_split(&rest, '.'), no = str_split(&rest, '.');
    if (!str_eq_c(blk, "blk") || str_to_u64(no, &l) < 0 || l >= LAYERS_MAX)
        return -1;
    *ret_rest = rest;
    return (int)l;
}

static uint32_t type_of(const struct shape *s, const struct gguf_tensor *t, struct str name)
{
    static const char *const matrices[] = {"token_embd.weight", "output.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_qkv.weight", "attn_output.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight",
                                           "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_gate_up_exps.weight", "ffn_down_exps.weight"};
    for (size_t i = 0; s->retype && i < BASE_COUNT(matrices); i++)
        if (str_eq_c(name, matrices[i]) && t->dims[0] % s->retype->block == 0)
            return s->retype->id;
    return t->type_id;
}

static int take_fixture(struct shape *s, struct err *err)
{
    const struct gguf_info *info = gguf_info(s->fixture);
    uint64_t had = 0;
    const char *count = full_key(s, STR("block_count"));
    if (!count)
        return err_nomem(err);
    if (!gguf_u64(gguf_find_arch(s->fixture, "block_count"), &had) || had > LAYERS_MAX)
        return fail(s, err, "a fixture without blocks");
    s->fixture_blocks = (uint32_t)had;
    if (!s->blocks) {
        s->blocks = (uint32_t)had;
        for (uint32_t l = 0; l < s->blocks; l++)
            s->like[l] = (int)l;
    }
    for (size_t i = 0; i < info->n_kv; i++) {
        const struct gguf_kv *kv = gguf_kv(s->fixture, i);
        struct str rest = kv->key;
        const struct str prefix = str_split(&rest, '.');
        const bool own = str_eq_c(prefix, s->fixture_arch);
        if (str_eq_c(kv->key, "general.architecture") || (own && str_eq_c(rest, "block_count")) || dropped(s, own ? rest : kv->key))
            continue;
        const char *key = own ? full_key(s, rest) : kv->key.ptr;
        if (!key)
            return err_nomem(err);
        if (copy_key(s, key, kv, err) < 0)
            return err->code;
    }
    gguf_put_str(s->keys, "general.architecture", str_of(s->arch));
    gguf_put_u32(s->keys, count, s->blocks);
    for (size_t i = 0; i < info->n_tensors; i++) {
        const struct gguf_tensor *t = gguf_tensor(s->fixture, i);
        struct str rest = t->name;
        const int layer = layer_of(t->name, &rest);
        if (layer < 0 && !left_out(s, t->name, -1) && add_tensor(s, arena_dup(s->arena, t->name), -1, type_of(s, t, t->name), t->dims, t->n_dims, err) < 0)
            return err->code;
        for (uint32_t l = 0; layer >= 0 && l < s->blocks; l++)
            if (s->like[l] == layer && !left_out(s, rest, (int)l) && add_tensor(s, layer_name(s, l, rest), (int)l, type_of(s, t, rest), t->dims, t->n_dims, err) < 0)
                return err->code;
    }
    return 0;
}

static int open_fixture(struct shape *s, struct str name, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT(4096);
    buf_addf(&path, "%s/" STR_FMT ".gguf", s->o->fixtures, STR_ARG(name));
    if (buf_status(&path))
        return err_nomem(err);
    s->fixture_fd = open(path.ptr, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (s->fixture_fd < 0 || fstat(s->fixture_fd, &st) < 0)
        return err_sys(err, -errno, "cannot open '%s'", path.ptr);
    s->fixture_source = (struct gguf_source){.read = read_fixture, .size = (uint64_t)st.st_size, .ctx = s};
    if (gguf_open(&s->fixture_source, &s->fixture, err) < 0)
        return err_prefix(err, "%s", path.ptr);
    s->arch = s->fixture_arch = arena_dup(s->arena, gguf_arch(s->fixture));
    return s->arch ? 0 : err_nomem(err);
}

/* ---- shapes ----------------------------------------------------------------------------------------------------------- */

/* One kind of line each: w[0] is its word. */

static int line_from(struct shape *s, const struct str *w, size_t n, struct err *err)
{
    (void)n;
    return open_fixture(s, w[1], err);
}

static int line_arch(struct shape *s, const struct str *w, size_t n, struct err *err)
{
    (void)n;
    s->arch = arena_dup(s->arena, w[1]);
    return s->arch ? 0 : err_nomem(err);
}

static int line_blocks(struct shape *s, const struct str *w, size_t n, struct err *err)
{
    (void)n;
    uint64_t v = 0;
    if (number(s, w[1], LAYERS_MAX, &v, err) < 0)
        return err->code;
    s->blocks = (uint32_t)v;
    return 0;
}

static int line_like(struct shape *s, const struct str *w, size_t n, struct err *err)
{
    (void)n;
    struct sel x = {0};
    uint64_t v = 0;
    if (selector(s, w[1], &x, err) < 0 || number(s, w[2], LAYERS_MAX - 1, &v, err) < 0)
        return err->code;
    for (uint64_t l = x.from; l <= x.to; l++)
        if (selected(&x, l))
            s->like[l] = (int)v;
    return 0;
}

static int line_drop(struct shape *s, const struct str *w, size_t n, struct err *err)
{
    (void)n;
    if (s->n_dropped == WORDS_MAX)
        return fail(s, err, "more than %d keys are left out", WORDS_MAX);
    s->dropped[s->n_dropped++] = w[1];
    return 0;
}

static int line_without(struct shape *s, const struct str *w, size_t n, struct err *err)
{
    if (s->n_without == WORDS_MAX)
        return fail(s, err, "more than %d tensors are left out", WORDS_MAX);
    struct without *out = &s->without[s->n_without++];
    *out = (struct without){.name = w[1], .layers = n == 3};
    return n == 3 ? selector(s, w[2], &out->sel, err) : 0;
}

static int line_retype(struct shape *s, const struct str *w, size_t n, struct err *err)
{
    (void)n;
    s->retype = gguf_type_find(w[1]);
    return s->retype ? 0 : fail(s, err, "'" STR_FMT "' is no type of tensor", STR_ARG(w[1]));
}

static int line_parts(struct shape *s, const struct str *w, size_t n, struct err *err)
{
    (void)n;
    uint64_t v = 0;
    if (number(s, w[1], PARTS_MAX, &v, err) < 0)
        return err->code;
    s->parts = (uint32_t)v;
    return 0;
}

/* Where layers go: before tensors are made. */
static int line_part_of(struct shape *s, const struct str *w, size_t n, struct err *err)
{
    struct sel x = {0};
    uint64_t v = 0;
    if (n == 2)
        return 0;
    if (number(s, w[1], PARTS_MAX, &v, err) < 0 || selector(s, w[2], &x, err) < 0)
        return err->code;
    for (uint64_t l = x.from; l <= x.to; l++)
        if (selected(&x, l))
            s->part_of[l] = (uint32_t)v;
    return 0;
}

static int line_part(struct shape *s, const struct str *w, size_t n, struct err *err)
{
    uint64_t v = 0;
    if (n == 3)
        return 0;
    if (number(s, w[1], PARTS_MAX, &v, err) < 0)
        return err->code;
    s->part = (uint32_t)v;
    return 0;
}

static int line_key(struct shape *s, const struct str *w, size_t n, struct err *err)
{
    const char *key = full_key(s, w[1]);
    return key ? put_key(s, key, w[2], w + 3, n - 3, err) : err_nomem(err);
}

static int line_vocab(struct shape *s, const struct str *w, size_t n, struct err *err)
{
    uint64_t v = 0;
    return number(s, w[1], 1 << 24, &v, err) < 0 ? err->code : put_vocab(s, v, n > 2 ? w[2] : STR("none"), err);
}

static int line_tensor(struct shape *s, const struct str *w, size_t n, struct err *err)
{
    return tensor_line(s, NULL, w + 1, n - 1, err);
}

static int line_layer(struct shape *s, const struct str *w, size_t n, struct err *err)
{
    struct sel x = {0};
    return selector(s, w[1], &x, err) < 0 ? err->code : tensor_line(s, &x, w + 2, n - 2, err);
}

/* early: what must be known before a fixture is taken over. What a shape says itself (key) is not taken over. */
static const struct kind {
    const char *word;
    size_t least, most; /* words of the line */
    int (*early)(struct shape *s, const struct str *w, size_t n, struct err *err);
    int (*late)(struct shape *s, const struct str *w, size_t n, struct err *err);
} kinds[] = {
    {"from", 2, 2, line_from, NULL},        {"arch", 2, 2, line_arch, NULL},          {"blocks", 2, 2, line_blocks, NULL},       {"like", 3, 3, line_like, NULL},
    {"drop", 2, 2, line_drop, NULL},        {"without", 2, 3, line_without, NULL},    {"retype", 2, 2, line_retype, NULL},       {"parts", 2, 2, line_parts, NULL},
    {"part", 2, 3, line_part_of, line_part}, {"key", 3, WORDS_MAX, line_drop, line_key}, {"vocab", 2, 3, NULL, line_vocab},        {"tensor", 4, 7, NULL, line_tensor},
    {"layer", 5, 8, NULL, line_layer},
};

static int read_line(struct shape *s, bool late, const struct str *w, size_t n, struct err *err)
{
    for (size_t i = 0; i < BASE_COUNT(kinds); i++) {
        const struct kind *k = &kinds[i];
        if (!str_eq_c(w[0], k->word))
            continue;
        if (n < k->least || n > k->most)
            return fail(s, err, "'%s' with %zu words", k->word, n);
        return late ? k->late ? k->late(s, w, n, err) : 0 : k->early ? k->early(s, w, n, err) : 0;
    }
    return fail(s, err, "'" STR_FMT "' is no line of a shape", STR_ARG(w[0]));
}

static size_t words(struct str line, struct str *ret)
{
    size_t n = 0;
    while (line.ptr && n < WORDS_MAX) {
        const struct str w = str_split(&line, ' ');
        if (w.len && *w.ptr == '#')
            break;
        if (w.len)
            ret[n++] = w;
    }
    return n;
}

/* Twice over the text: what a fixture needs, then all else in order. */
static int read_shape(struct shape *s, struct str text, struct err *err)
{
    struct str w[WORDS_MAX];
    for (int late = 0; late < 2; late++) {
        struct str rest = text;
        for (s->line = 1; rest.ptr; s->line++) {
            const size_t n = words(str_split(&rest, '\n'), w);
            if (!n)
                continue;
            if (read_line(s, late != 0, w, n, err) < 0)
                return err->code;
        }
        if (!s->arch)
            return fail(s, err, "no architecture");
        if (late)
            break;
        if (s->fixture) {
            if (take_fixture(s, err) < 0)
                return err->code;
            continue;
        }
        gguf_put_str(s->keys, "general.architecture", str_of(s->arch));
        const char *count = full_key(s, STR("block_count"));
        if (!count)
            return err_nomem(err);
        if (s->blocks)
            gguf_put_u32(s->keys, count, s->blocks);
    }
    return 0;
}

/* ---- files -------------------------------------------------------------------------------------------------------------- */

static int write_part(struct shape *s, uint32_t no, uint64_t *size, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT(4096), header = BUF_INIT(MEMORY_MAX);
    struct gguf_writer *w = no == 1 ? s->keys : gguf_writer_new();
    uint64_t data = 0;
    if (!w)
        return err_nomem(err);
    if (s->parts > 1) {
        buf_addf(&path, "%s/%s-%05u-of-%05u.gguf", s->o->out, s->name, no, s->parts);
        gguf_put_u16(w, "split.no", (uint16_t)(no - 1));
        gguf_put_u16(w, "split.count", (uint16_t)s->parts);
        gguf_put_i32(w, "split.tensors.count", (int32_t)s->n_tensors);
    } else {
        buf_addf(&path, "%s/%s.gguf", s->o->out, s->name);
    }
    for (size_t i = 0; i < s->n_tensors; i++)
        if (s->tensors[i].part == no)
            gguf_put_tensor(w, s->tensors[i].name, s->tensors[i].type, s->tensors[i].dims, s->tensors[i].n_dims);
    int r = buf_status(&path) ? err_nomem(err) : gguf_writer_header(w, &header, &data, err);
    if (no != 1)
        w = gguf_writer_free(w);
    if (r < 0)
        return err_prefix(err, "%s", s->name);
    os_autoclose int fd = open(path.ptr, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_sys(err, -errno, "cannot create '%s'", path.ptr);
    if (os_write_all(fd, header.ptr, header.len, err) < 0)
        return err->code;
    *size += header.len + data;
    return ftruncate(fd, (off_t)(header.len + data)) < 0 ? err_sys(err, -errno, "cannot set the length of '%s'", path.ptr) : 0;
}

/* 1: it needs a fixture and there are none. */
static int make(const struct options *o, const char *name, struct err *err)
{
    base_autobuf struct buf path = BUF_INIT(4096), text = BUF_INIT(SHAPE_MAX);
    *err = (struct err){0};
    buf_addf(&path, "%s/%s", o->shapes, name);
    if (buf_status(&path))
        return err_nomem(err);
    if (os_read_file(AT_FDCWD, path.ptr, &text, err) < 0)
        return err->code;
    if (!o->fixtures && (str_starts(buf_str(&text), STR("from ")) || str_find(buf_str(&text), STR("\nfrom ")) >= 0))
        return 1;
    struct shape s = {.o = o, .name = name, .parts = 1, .part = 1, .fixture_fd = -1, .arena = arena_new(MEMORY_MAX), .keys = gguf_writer_new()};
    memset(s.like, -1, sizeof s.like);
    s.tensors = s.arena ? arena_alloc(s.arena, TENSORS_MAX, sizeof(*s.tensors)) : NULL;
    uint64_t size = 0;
    int r = s.keys && s.tensors ? read_shape(&s, buf_str(&text), err) : err_nomem(err);
    for (uint32_t p = 1; r == 0 && p <= s.parts; p++)
        r = write_part(&s, p, &size, err);
    if (r == 0) {
        char shown[UNITS_TEXT];
        printf("%s: %zu tensors, %s\n", name, s.n_tensors, units_show_bytes(size, shown));
    }
    s.keys = gguf_writer_free(s.keys);
    s.fixture = gguf_free(s.fixture);
    if (s.fixture_fd >= 0)
        close(s.fixture_fd);
    s.arena = arena_free(s.arena);
    return r;
}

static int is_shape(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {{"list", no_argument, NULL, 'l'}, {"out", required_argument, NULL, 'o'}, {"shapes", required_argument, NULL, 's'}, {"fixtures", required_argument, NULL, 'f'}, {"help", no_argument, NULL, 'h'}, {0}};
    struct options o = {.shapes = "test/fit/models"};
    for (int c; (c = getopt_long(argc, argv, "h", longs, NULL)) != -1;) {
        switch (c) {
        case 'l':
            o.list = true;
            break;
        case 'o':
            o.out = optarg;
            break;
        case 's':
            o.shapes = optarg;
            break;
        case 'f':
            o.fixtures = optarg;
            break;
        case 'h':
            fputs(help, stdout);
            return 0;
        default:
            fputs("fitmodels: 'fitmodels --help' shows how it is used\n", stderr);
            return 2;
        }
    }
    if (!o.out && !o.list) {
        fputs("fitmodels: name the folder to write into: --out DIR\n", stderr);
        return 2;
    }
    struct dirent **all = NULL;
    const int n_all = scandir(o.shapes, &all, is_shape, alphasort);
    if (n_all < 0) {
        fprintf(stderr, "fitmodels: cannot read the folder '%s': %m\n", o.shapes);
        return 1;
    }
    struct err err = {0};
    int rc = 0, left_out = 0;
    for (int i = 0; i < n_all; i++) {
        bool wanted = optind == argc;
        for (int a = optind; a < argc; a++)
            wanted = wanted || !strcmp(argv[a], all[i]->d_name);
        if (o.list) {
            puts(all[i]->d_name);
        } else if (wanted) {
            const int r = make(&o, all[i]->d_name, &err);
            if (r < 0)
                fprintf(stderr, "fitmodels: %s\n", err.text);
            rc |= r < 0;
            left_out += r == 1;
        }
    }
    for (int a = optind; a < argc && !o.list; a++) {
        bool known = false;
        for (int i = 0; i < n_all; i++)
            known = known || !strcmp(argv[a], all[i]->d_name);
        if (!known) {
            fprintf(stderr, "fitmodels: no shape '%s': 'fitmodels --list' names them\n", argv[a]);
            rc = 2;
        }
    }
    for (int i = 0; i < n_all; i++)
        free(all[i]);
    free(all);
    if (left_out)
        fprintf(stderr, "fitmodels: %d shapes need --fixtures\n", left_out);
    return rc;
}
