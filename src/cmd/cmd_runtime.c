/* SPDX-License-Identifier: MIT
 *
 * berth runtime: add, list, verify and remove engine builds in the state folder.
 */
#include "cmd_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <hub/hub.h>
#include <stdlib.h>
#include <string.h>
#include <store/store.h>
#include <unistd.h>

/* Everything that the subcommands need, opened and closed in one place. */
struct session {
    const struct cmd *c;
    const struct cmd_args *a;
    struct os_dirs dirs;
    struct store *store;
    struct os_progress *progress;
    struct event_sink sink;
};

static int session_open(struct session *s, const struct cmd *c, const struct cmd_args *a)
{
    *s = (struct session){.c = c, .a = a};
    struct err err;
    if (os_dirs_find(&s->dirs, &err) < 0 || store_open(&s->dirs, &s->store, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    s->progress = os_progress_new(STDERR_FILENO, &clk_system);
    if (!s->progress)
        return cmd_nomem();
    s->sink = cmd_progress_sink(s->progress);
    return CMD_OK;
}

static void session_close(struct session *s)
{
    s->progress = os_progress_free(s->progress);
    s->store = store_free(s->store);
    os_dirs_release(&s->dirs);
}

/* ---- add ---------------------------------------------------------------------------------------------- */

static int add_one(struct session *s, const struct fleet_runtime *want)
{
    struct store_add_options o = {
        .offline = cmd_given(s->c, s->a, "offline"),
        .ignore_valid_until = cmd_given(s->c, s->a, "ignore-valid-until"),
        .mirror = cmd_value(s->c, s->a, "mirror"),
        .fetch = hub_fetch_pinned,
        .fetch_ctx = &s->sink,
        .sink = &s->sink,
    };
    struct store_runtime rt;
    struct err err;
    base_autobuf struct buf subject = BUF_INIT(256);
    buf_addf(&subject, "runtime %s", want->name);
    if (buf_status(&subject))
        return cmd_nomem();
    if (store_runtime_add(s->store, want, &o, &rt, &err) < 0) {
        os_progress_set(s->progress, subject.ptr, "failed", 0, 0, OS_RED);
        return cmd_fail(CMD_FAILED, &err);
    }
    os_progress_set(s->progress, subject.ptr, "installed and proven", 0, 0, OS_GREEN);
    base_autobuf struct buf line = BUF_INIT(4096);
    buf_addf(&line, "%s\n", rt.id);
    store_runtime_release(&rt);
    return cmd_print(buf_str(&line));
}

/* A runtime from the command line alone. */
static int add_described(struct session *s, const char *source)
{
    const char *engine = cmd_value(s->c, s->a, "engine");
    struct fleet_runtime want = {.name = source, .engine = engine ? engine : "llama.cpp"};
    struct str rest = str_of(source);
    struct str kind = str_split(&rest, ':');
    base_autofree char *path = NULL;
    if (str_eq_c(kind, "debian") && rest.len) {
        want.source = FLEET_SOURCE_DEBIAN;
        want.source_arg = rest.ptr;
        want.packages = s->a->words + 2;
        want.n_packages = s->a->n_words - 2;
        if (!want.n_packages)
            return cmd_usage(s->c, "a debian: runtime needs packages: berth runtime add %.100s PACKAGE...", source);
    } else if (str_eq_c(kind, "path") && rest.len) {
        want.source = FLEET_SOURCE_PATH;
        path = realpath(rest.ptr, NULL);
        if (!path)
            return cmd_failf(CMD_FAILED, "cannot read '%.200s': %s", rest.ptr, strerror(errno));
        want.source_arg = path;
    } else if (str_eq_c(kind, "archive")) {
        struct str place, hex;
        const char *wrong = fleet_archive_wrong(rest.ptr ? rest : STR(""), &place, &hex);
        if (wrong)
            return cmd_usage(s->c, "'%.200s' %s", source, wrong);
        want.source = FLEET_SOURCE_ARCHIVE;
        want.digest = hex.ptr; /* the word's own end */
        path = str_dup(place);
        if (path && str_find(place, STR("://")) < 0) {
            base_autofree char *given = path;
            path = realpath(given, NULL);
            if (!path)
                return cmd_failf(CMD_FAILED, "cannot read '%.200s': %s", given, strerror(errno));
        }
        if (!path)
            return cmd_nomem();
        want.source_arg = path;
    } else if (str_eq_c(kind, "system") && !rest.ptr) {
        want.source = FLEET_SOURCE_SYSTEM;
    } else {
        return cmd_usage(s->c, "unknown source '%.100s': use debian:SUITE, path:DIR, archive:URL#sha256=DIGEST or system", source);
    }
    if (want.source != FLEET_SOURCE_DEBIAN && s->a->n_words > 2)
        return cmd_usage(s->c, "only a debian: runtime takes packages");
    return add_one(s, &want);
}

static const struct fleet_runtime *runtime_named(const struct fleet *f, const char *name)
{
    for (size_t i = 0; i < f->n_runtimes; i++)
        if (strcmp(f->runtimes[i].name, name) == 0)
            return &f->runtimes[i];
    return NULL;
}

static int run_add(struct session *s)
{
    const struct cmd_args *a = s->a;
    if (a->n_words > 1 && (strchr(a->words[1], ':') || strcmp(a->words[1], "system") == 0))
        return add_described(s, a->words[1]);
    int code = CMD_OK;
    struct fleet *f = cmd_fleet(s->c, a, &code);
    if (!f)
        return code;
    size_t n = a->n_words > 1 ? a->n_words - 1 : f->n_runtimes;
    for (size_t i = 0; i < n && code == CMD_OK; i++) {
        const struct fleet_runtime *want = a->n_words > 1 ? runtime_named(f, a->words[1 + i]) : &f->runtimes[i];
        if (want && want->source == FLEET_SOURCE_OCI)
            os_progress_say(s->progress, OS_PLAIN, "runtime %s: an image; podman fetches it by its digest", want->name);
        else
            code = want ? add_one(s, want) : cmd_usage(s->c, "%s declares no runtime '%.60s'", f->file, a->words[1 + i]);
    }
    fleet_free(f);
    return code;
}

/* ---- list, verify, remove ---------------------------------------------------------------------------------- */

static int list_json(const struct store_runtime *list, size_t n)
{
    struct json_out *o = json_out_new();
    if (!o)
        return cmd_nomem();
    json_out_arr(o, NULL);
    for (size_t i = 0; i < n; i++) {
        char when[CLK_RFC3339];
        json_out_obj(o, NULL);
        json_out_cstr(o, "id", list[i].id);
        json_out_cstr(o, "engine", list[i].engine);
        json_out_cstr(o, "version", list[i].version);
        json_out_cstr(o, "source", list[i].source);
        json_out_cstr(o, "packages", list[i].packages);
        json_out_cstr(o, "root", list[i].root);
        json_out_cstr(o, "program", list[i].program);
        json_out_bool(o, "complete", list[i].complete);
        json_out_cstr(o, "digest", list[i].digest);
        json_out_u64(o, "files", list[i].n_files);
        json_out_u64(o, "bytes", list[i].bytes);
        json_out_cstr(o, "installed", clk_rfc3339(list[i].installed_us, when));
        json_out_end(o);
    }
    json_out_end(o);
    return cmd_print_json(o);
}

static int list_table(const struct store_runtime *list, size_t n)
{
    if (!n)
        return cmd_failf(CMD_OK, "no runtime is installed; 'berth runtime add' installs those of the fleet file");
    static const char *const headings[] = {"RUNTIME", "SOURCE", "FILES", "SIZE", "INSTALLED"};
    static const enum os_align aligns[] = {OS_LEFT, OS_LEFT, OS_RIGHT, OS_RIGHT, OS_LEFT};
    struct os_table *t = os_table_new(headings, aligns, BASE_COUNT(headings));
    if (!t)
        return cmd_nomem();
    for (size_t i = 0; i < n; i++) {
        char size[UNITS_TEXT], when[CLK_RFC3339];
        os_table_cell(t, OS_BOLD, "%s", list[i].id);
        os_table_cell(t, OS_PLAIN, "%s", list[i].source);
        os_table_cell(t, OS_PLAIN, "%llu", (unsigned long long)list[i].n_files);
        os_table_cell(t, OS_PLAIN, "%s", units_show_bytes(list[i].bytes, size));
        os_table_cell(t, OS_DIM, "%s", clk_rfc3339(list[i].installed_us, when));
    }
    return cmd_print_table(t);
}

static int run_list(struct session *s)
{
    struct store_runtime *list = NULL;
    size_t n = 0;
    struct err err;
    if (store_runtime_list(s->store, &list, &n, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    int code = cmd_given(s->c, s->a, "json") ? list_json(list, n) : list_table(list, n);
    store_runtimes_free(list, n);
    return code;
}

static int run_verify(struct session *s)
{
    struct store_runtime *list = NULL;
    size_t n = 0, matched = 0;
    struct err err;
    if (store_runtime_list(s->store, &list, &n, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    int code = CMD_OK;
    for (size_t i = 0; i < n; i++) {
        bool wanted = s->a->n_words == 1;
        for (size_t k = 1; k < s->a->n_words; k++)
            wanted = wanted || str_starts(str_of(list[i].id), str_of(s->a->words[k]));
        if (!wanted)
            continue;
        matched++;
        if (store_runtime_verify(s->store, &list[i], &s->sink, &err) < 0) {
            os_progress_set(s->progress, list[i].id, "damaged", 0, 0, OS_RED);
            code = cmd_failf(CMD_FAILED, "%s; 'berth runtime remove %s' and add it again", err.text, list[i].id);
        } else {
            os_progress_set(s->progress, list[i].id, "every file proven", 0, 0, OS_GREEN);
        }
    }
    store_runtimes_free(list, n);
    if (!matched)
        return s->a->n_words > 1 ? cmd_failf(CMD_FAILED, "no installed runtime begins with '%.80s'", s->a->words[1])
                                 : cmd_failf(CMD_FAILED, "no runtime is installed");
    return code;
}

static int run_remove(struct session *s)
{
    if (s->a->n_words < 2)
        return cmd_usage(s->c, "remove needs the runtime's id; 'berth runtime list' prints them");
    for (size_t i = 1; i < s->a->n_words; i++) {
        struct err err;
        if (store_runtime_remove(s->store, s->a->words[i], &err) < 0)
            return cmd_fail(CMD_FAILED, &err);
    }
    return CMD_OK;
}

static int run_runtime(const struct cmd *c, int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(struct session *s);
    } verbs[] = {{"add", run_add}, {"list", run_list}, {"verify", run_verify}, {"remove", run_remove}};
    struct cmd_args a;
    int code = CMD_OK;
    if (!cmd_parse(c, argc, argv, 1, CMD_WORDS_MAX, &a, &code))
        return code;
    for (size_t i = 0; i < BASE_COUNT(verbs); i++) {
        if (strcmp(a.words[0], verbs[i].name) != 0)
            continue;
        struct session s;
        code = session_open(&s, c, &a);
        if (code == CMD_OK)
            code = verbs[i].run(&s);
        session_close(&s);
        return code;
    }
    return cmd_usage(c, "unknown word '%.60s': use add, list, verify or remove", a.words[0]);
}

const struct cmd cmd_runtime = {
    .name = "runtime",
    .synopsis = "add|list|verify|remove [...]",
    .summary = "install, list, prove and remove engine builds",
    .description =
        "A runtime is one pinned engine build with every library it needs, in berth's own state folder, apart from what the distribution installs.\n\n"
        "add installs the runtimes that the fleet file declares, or only the named ones; or one described on the command line: debian:SUITE PACKAGE..., path:DIR, archive:URL#sha256=DIGEST (tar or zip; a path in place of the URL works too) or system. Images (oci:) are podman's to fetch. Installing twice changes nothing.\n\n"
        "list shows what is installed. verify proves every file against the manifest. remove deletes one by its id or the beginning of it; it refuses while a fleet is up.",
    .examples = "berth runtime add                             # all of ./fleet.yaml\n"
                "berth runtime add debian:forky llama.cpp-tools libggml0-backend-rpc\n"
                "berth runtime add path:/srv/llama.cpp/build   # a build of your own\n"
                "berth runtime verify",
    .options = {CMD_OPTION_FILE,
                CMD_OPTION_JSON,
                {0, "engine", "KIND", "engine kind of a runtime described here (default llama.cpp)"},
                {0, "mirror", "URL", "Debian mirror (default: that of this machine's apt)"},
                {0, "ignore-valid-until", NULL, "accept a mirror's snapshot whose release file has run out"},
                {0, "offline", NULL, "fetch nothing; fail when something would have to be"}},
    .run = run_runtime,
};
