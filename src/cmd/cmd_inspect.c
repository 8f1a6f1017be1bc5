/* SPDX-License-Identifier: MIT
 *
 * berth inspect: what is in model files. Headers alone are read. One part of a split set stands for the whole set, however many of its parts are named. What can be read is shown even when something is wrong; the fault is then
 * an error on stderr and exit 1.
 */
#include "inspect_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <hub/hub.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REMOTE_RETRIES 2 /* who looks at a header waits for it */
#define TEXT_BYTES_MAX (256u << 20)

/* Parts that were shown already; the same set is then not shown again. */
struct seen {
    struct arena *arena;
    const char *paths[CMD_WORDS_MAX * 8];
    size_t n;
};

static bool was_seen(const struct seen *s, const char *path)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->paths[i], path) == 0)
            return true;
    return false;
}

static void remember(struct seen *s, const struct inspect *in)
{
    for (size_t i = 0; in->n_parts > 1 && i < in->n_parts && s->n < BASE_COUNT(s->paths); i++) {
        char *path = arena_dup(s->arena, str_of(in->parts[i].file));
        if (path)
            s->paths[s->n++] = path;
    }
}

void inspect_each(const struct inspect *in, void (*fn)(void *ctx, const struct inspect_tensor *t), void *ctx)
{
    for (size_t p = 0; p < in->weights.n; p++) {
        const struct gguf *g = in->weights.parts[p].g;
        for (size_t i = 0; g && i < gguf_info(g)->n_tensors; i++) {
            const struct gguf_tensor *t = gguf_tensor(g, i);
            const struct inspect_tensor shown = {t->name, t->type ? t->type->name : gguf_type_past(t->type_id), t->dims, t->n_dims, t->elements, t->off, t->bytes, p};
            fn(ctx, &shown);
        }
    }
    for (size_t f = 0; f < in->st.n; f++) {
        const struct gguf_st *s = in->st.files[f];
        for (size_t i = 0; s && i < gguf_st_info(s)->n_tensors; i++) {
            const struct gguf_st_tensor *t = gguf_st_tensor(s, i);
            const struct inspect_tensor shown = {t->name, t->dtype.ptr, t->dims, t->n_dims, t->elements, t->off, t->bytes, f};
            fn(ctx, &shown);
        }
    }
}

static void inspect_release(struct inspect *in)
{
    store_weights_release(&in->weights);
    for (size_t i = 0; i < in->st.n; i++) {
        gguf_st_free(in->st.files[i]);
        in->opener->close(&in->st.sources[i]);
    }
    gguf_index_release(&in->st.index);
    arena_free(in->arena);
}

static int read_model(struct inspect *in, struct err *err)
{
    struct gguf_source src = {.size = 0};
    enum gguf_file kind;
    int r = in->opener->open(in->opener->ctx, in->path, &src, err);
    if (r < 0)
        return r;
    r = gguf_sniff(&src, &kind, err);
    in->opener->close(&src);
    if (r < 0)
        return r;
    if (kind == GGUF_FILE_GGUF)
        return inspect_gguf(in, err);
    return kind == GGUF_FILE_JSON ? inspect_index(in, err) : inspect_safetensors(in, err);
}

/* ---- remote files ------------------------------------------------------------------------------------------------------ */

/* Names that are not of this machine: "hf:ORG/REPO[@REVISION]/FILE" and addresses. */
static bool is_remote(const char *path)
{
    struct str s = str_of(path);
    return str_starts(s, STR("hf:")) || str_starts(s, STR("https://")) || str_starts(s, STR("http://"));
}

/* The address of "hf:ORG/REPO[@REVISION]/FILE". */
static int hub_address(const struct hub *h, const char *path, struct buf *url, struct err *err)
{
    struct str rest = str_of(path + 3);
    struct str org = str_split(&rest, '/');
    struct str name = str_split(&rest, '/'), revision = name;
    struct str repo = str_split(&revision, '@');
    base_autofree char *file = str_dup(rest), *rev = revision.ptr ? str_dup(revision) : str_dup(STR("main"));
    base_autobuf struct buf whole = BUF_INIT(1024);
    buf_addf(&whole, STR_FMT "/" STR_FMT, STR_ARG(org), STR_ARG(repo));
    if (!org.len || !repo.len || !rest.len)
        return err_set(err, -EINVAL, "is not like hf:ORG/REPO/FILE or hf:ORG/REPO@REVISION/FILE");
    if (!file || !rev || buf_status(&whole) < 0)
        return err_nomem(err);
    return hub_url(h, whole.ptr, rev, file, url, err);
}

/* Opens the hub when it is first needed. */
static int open_remote(void *ctx, const char *path, struct gguf_source *ret, struct err *err)
{
    struct hub **hub = ctx;
    base_autobuf struct buf url = BUF_INIT(8192);
    const struct hub_options o = {.retries = REMOTE_RETRIES};
    int r = *hub ? 0 : hub_new(&o, hub, err);
    if (r == 0 && str_starts(str_of(path), STR("hf:")))
        r = hub_address(*hub, path, &url, err);
    else if (r == 0)
        buf_add_c(&url, path);
    if (r == 0 && buf_status(&url) < 0)
        r = err_nomem(err);
    return r < 0 ? r : hub_source_open(*hub, url.ptr, ret, err);
}

/* How results leave: as text at once, or gathered in JSON. */
struct output {
    const struct store_opener *remote;
    bool kv, tensors, color;
    struct json_out *json; /* NULL: text */
    size_t shown;
};

static int print_text(const struct inspect *in, struct output *o)
{
    base_autobuf struct buf text = BUF_INIT(TEXT_BYTES_MAX);
    if (o->shown)
        buf_add_char(&text, '\n');
    inspect_text(in, o->kv, o->tensors, o->color, &text);
    return buf_status(&text) < 0 ? cmd_nomem() : cmd_print(buf_str(&text));
}

static void json_failure(struct json_out *json, const char *path, const struct err *err)
{
    json_out_obj(json, NULL);
    json_out_cstr(json, "file", path);
    json_out_cstr(json, "error", err->text);
    json_out_end(json);
}

static int fail(const char *path, const struct err *err)
{
    base_autobuf struct buf text = BUF_INIT(16384);
    buf_add_printable(&text, str_of(path), 4096);
    return cmd_failf(CMD_FAILED, "%s: %s", text.ptr ? text.ptr : "", err->text);
}

static int show(const struct inspect *in, struct output *o, struct seen *seen)
{
    int code = CMD_OK;
    if (o->json)
        inspect_json(in, o->kv, o->tensors, o->json);
    else
        code = print_text(in, o);
    o->shown++;
    remember(seen, in);
    return in->fault ? fail(in->path, &in->why) : code;
}

static int inspect_one(const char *path, struct output *o, struct seen *seen)
{
    struct inspect *in = calloc(1, sizeof(*in));
    struct arena *arena = arena_new(INSPECT_MEMORY_MAX);
    struct err err;
    int code;
    if (!in || !arena) {
        arena_free(arena);
        free(in);
        return cmd_nomem();
    }
    in->path = path;
    in->opener = is_remote(path) ? o->remote : &store_files;
    in->arena = arena;
    if (read_model(in, &err) == 0) {
        code = show(in, o, seen);
    } else {
        if (o->json)
            json_failure(o->json, path, &err);
        code = fail(path, &err);
    }
    inspect_release(in);
    free(in);
    return code;
}

static int run_inspect(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    if (!cmd_parse(c, argc, argv, 1, CMD_WORDS_MAX, &a, &code))
        return code;
    struct hub *hub = NULL;
    const struct store_opener remote = {.open = open_remote, .close = hub_source_close, .ctx = &hub};
    struct output o = {.remote = &remote, .kv = cmd_given(c, &a, "kv"), .tensors = cmd_given(c, &a, "tensors"), .color = os_term_color(STDOUT_FILENO)};
    struct seen seen = {.arena = arena_new(INSPECT_MEMORY_MAX)};
    if (cmd_given(c, &a, "json"))
        o.json = json_out_new();
    if (!seen.arena || (cmd_given(c, &a, "json") && !o.json)) {
        arena_free(seen.arena);
        json_out_free(o.json);
        return cmd_nomem();
    }
    if (o.json)
        json_out_arr(o.json, NULL);
    for (size_t i = 0; i < a.n_words; i++) {
        if (was_seen(&seen, a.words[i]))
            continue;
        int r = inspect_one(a.words[i], &o, &seen);
        if (r != CMD_OK)
            code = r;
    }
    if (o.json) {
        json_out_end(o.json);
        int r = cmd_print_json(o.json);
        if (r != CMD_OK)
            code = r;
    }
    arena_free(seen.arena);
    hub_free(hub);
    return code;
}

const struct cmd cmd_inspect = {
    .name = "inspect",
    .synopsis = "[--kv] [--tensors] [--json] FILE...",
    .summary = "what is in a model file",
    .description = "Reads the header of each file and says what model it holds: architecture, parameters, bits per weight, layers by kind, context, experts, tokenizer, and what a drafter needs. The weights are not read, so it takes "
                   "milliseconds.\n\n"
                   "FILE is a GGUF file, a part of a split GGUF set (it stands for the whole set, whose parts are found beside it and proven to belong together), a safetensors file, or a model.safetensors.index.json. It may be remote: hf:ORG/REPO/FILE, "
                   "hf:ORG/REPO@REVISION/FILE or an https address; then only the ranges of the header are fetched.\n\n"
                   "What is wrong with a file is said with the place and with what to do: cut short, joined with cat, a web page or a Git LFS pointer instead of the file, a missing or foreign part, anything that engines refuse. "
                   "A tensor type that is not known here is reported and is no failure. Exit 1 when something is wrong with a file.",
    .examples = "berth inspect model.gguf\nberth inspect --tensors model-00001-of-00003.gguf\nberth inspect --json --kv model.gguf draft.gguf\nberth inspect hf:Qwen/Qwen3-8B-GGUF/Qwen3-8B-Q4_K_M.gguf",
    .options =
        {
            {0, "kv", NULL, "list the metadata too"},
            {0, "tensors", NULL, "list the tensors too"},
            CMD_OPTION_JSON,
        },
    .run = run_inspect,
};
