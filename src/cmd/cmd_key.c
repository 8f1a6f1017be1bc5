/* SPDX-License-Identifier: MIT
 *
 * berth key: keys that the router's clients show. A new one is printed once; its file keeps only what proves it.
 */
#include "cmd_int.h"

#include <conf/conf.h>
#include <errno.h>
#include <fcntl.h>
#include <proxy/proxy.h>
#include <stdio.h>
#include <unistd.h>

/* ---- the file ------------------------------------------------------------------------------------------------ */

/* Nobody else changes it while this is held. */
static int lock_file(const char *path, struct err *err)
{
    base_autobuf struct buf b = BUF_INIT(8192);
    buf_addf(&b, "%s.lock", path);
    return buf_status(&b) < 0 ? err_nomem(err) : os_lock(b.ptr, true, true, err);
}

/* The text and what is in it; a file that is not there is an empty one. */
static int read_keys(const char *path, struct buf *text, struct proxy_keys **ret, struct err *err)
{
    int rc = proxy_keys_read(path, text, err);
    if (rc < 0 && rc != -ENOENT)
        return rc;
    return proxy_keys_parse(buf_str(text), path, ret, err);
}

/* Only what can be read again is written. */
static int write_keys(const char *path, const struct buf *text, struct err *err)
{
    struct proxy_keys *k;
    int rc = buf_status(text) < 0 ? err_set(err, -EFBIG, "keys file '%s' would be larger than %zu KiB", path, PROXY_KEYS_FILE_MAX / 1024) : proxy_keys_parse(buf_str(text), path, &k, err);
    if (rc < 0)
        return rc;
    proxy_keys_unref(k);
    return os_put_file(path, text->ptr ? text->ptr : "", text->len, 0600, err);
}

static const struct proxy_key *find(const struct proxy_keys *k, const char *name)
{
    for (size_t i = 0; i < proxy_keys_count(k); i++)
        if (strcmp(proxy_keys_at(k, i)->name, name) == 0)
            return proxy_keys_at(k, i);
    return NULL;
}

/* ---- add ------------------------------------------------------------------------------------------------------- */

/* Models that the fleet does not have would be a key that opens nothing. */
static int check_models(const struct fleet *f, struct str list)
{
    while (list.ptr) {
        struct str name = str_split(&list, ',');
        bool known = false;
        for (size_t i = 0; i < f->n_endpoints; i++)
            known = known || str_eq_c(name, f->endpoints[i].name);
        if (!known)
            return cmd_failf(CMD_USAGE, "fleet '%s' has no endpoint '" STR_FMT "'; --models takes their names, not aliases", f->name, STR_ARG(name));
    }
    return CMD_OK;
}

static void add_line(struct buf *text, const struct cmd *c, const struct cmd_args *a, const unsigned char hash[PROXY_KEY_HASH])
{
    static const char *const options[] = {"models", "concurrency", "rate"};
    if (text->len && text->ptr[text->len - 1] != '\n')
        buf_add_char(text, '\n');
    buf_addf(text, "%s sha256:", a->words[1]);
    for (size_t i = 0; i < PROXY_KEY_HASH; i++)
        buf_addf(text, "%02x", hash[i]);
    for (size_t i = 0; i < BASE_COUNT(options); i++)
        if (cmd_given(c, a, options[i]))
            buf_addf(text, " %s=%s", options[i], cmd_value(c, a, options[i]));
    buf_add_char(text, '\n');
}

static int add(const struct cmd *c, const struct cmd_args *a, const struct fleet *f, const char *path, struct buf *text, const struct proxy_keys *k)
{
    char secret[PROXY_KEY_TEXT];
    unsigned char hash[PROXY_KEY_HASH];
    struct err err;
    const char *models = cmd_value(c, a, "models");
    if (!fleet_name_valid(str_of(a->words[1])))
        return cmd_failf(CMD_USAGE, "'%.60s' is no name: lower-case letters, digits, '-', '_' and '.'", a->words[1]);
    if (find(k, a->words[1]))
        return cmd_failf(CMD_FAILED, "there is a key '%s' already; 'berth key remove %s' takes it away", a->words[1], a->words[1]);
    if (models && check_models(f, str_of(models)) != CMD_OK)
        return CMD_USAGE;
    int rc = proxy_key_new(secret, &err);
    if (rc == 0 && proxy_key_hash(str_of(secret), hash) < 0)
        rc = err_nomem(&err);
    if (rc == 0) {
        add_line(text, c, a, hash);
        rc = write_keys(path, text, &err);
    }
    if (rc < 0)
        return cmd_fail(rc == -EINVAL ? CMD_USAGE : CMD_FAILED, &err);
    (void)fprintf(stderr, "this is the only time that key '%s' is shown\n", a->words[1]);
    base_autobuf struct buf line = BUF_INIT(PROXY_KEY_TEXT + 2);
    buf_addf(&line, "%s\n", secret);
    int code = cmd_print(buf_str(&line));
    explicit_bzero(secret, sizeof secret);
    return code;
}

/* ---- remove and list --------------------------------------------------------------------------------------------- */

static int drop(const char *name, const char *path, const struct buf *text, const struct proxy_keys *k)
{
    base_autobuf struct buf out = BUF_INIT(PROXY_KEYS_FILE_MAX);
    struct err err;
    if (!find(k, name))
        return cmd_failf(CMD_FAILED, "there is no key '%.60s'; 'berth key list' shows them", name);
    struct str rest = buf_str(text);
    while (rest.ptr) {
        struct str line = str_split(&rest, '\n'), word = str_trim(line);
        size_t n = 0;
        while (n < word.len && word.ptr[n] != ' ' && word.ptr[n] != '\t')
            n++;
        if (str_eq_c((struct str){word.ptr, n}, name) || (!rest.ptr && line.len == 0))
            continue;
        buf_add_str(&out, line);
        buf_add_char(&out, '\n');
    }
    if (write_keys(path, &out, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    (void)fprintf(stderr, "key '%s' is removed\n", name);
    return CMD_OK;
}

static void limit_cell(struct os_table *t, uint32_t n, const char *unit)
{
    if (n)
        os_table_cell(t, OS_PLAIN, "%u%s", n, unit);
    else
        os_table_cell(t, OS_PLAIN, "any");
}

static int list_table(const struct proxy_keys *k, struct buf *out)
{
    static const char *const headings[] = {"KEY", "AT ONCE", "RATE", "MODELS"};
    static const enum os_align aligns[] = {OS_LEFT, OS_RIGHT, OS_RIGHT, OS_LEFT};
    struct os_table *t = os_table_new(headings, aligns, BASE_COUNT(headings));
    if (!t)
        return -ENOMEM;
    for (size_t i = 0; i < proxy_keys_count(k); i++) {
        const struct proxy_key *key = proxy_keys_at(k, i);
        base_autobuf struct buf models = BUF_INIT(65536);
        for (size_t m = 0; m < key->n_models; m++)
            buf_addf(&models, "%s%s", m ? "," : "", key->models[m]);
        os_table_cell(t, OS_BOLD, "%s", key->name);
        limit_cell(t, key->concurrency, "");
        limit_cell(t, key->rate, "/min");
        os_table_cell(t, OS_PLAIN, "%s", models.len ? models.ptr : "all");
    }
    int rc = os_table_text(t, os_term_color(STDOUT_FILENO), out);
    os_table_free(t);
    return rc;
}

static int list_json(const struct proxy_keys *k, struct buf *out)
{
    struct json_out *o = json_out_new();
    if (!o)
        return -ENOMEM;
    json_out_arr(o, NULL);
    for (size_t i = 0; i < proxy_keys_count(k); i++) {
        const struct proxy_key *key = proxy_keys_at(k, i);
        json_out_obj(o, NULL);
        json_out_cstr(o, "name", key->name);
        json_out_arr(o, "models");
        for (size_t m = 0; m < key->n_models; m++)
            json_out_cstr(o, NULL, key->models[m]);
        json_out_end(o);
        json_out_u64(o, "concurrency", key->concurrency);
        json_out_u64(o, "rate", key->rate);
        json_out_end(o);
    }
    json_out_end(o);
    int rc = json_out_finish(o, true, out);
    json_out_free(o);
    buf_add_char(out, '\n');
    return rc < 0 ? rc : buf_status(out);
}

static int list(const struct cmd *c, const struct cmd_args *a, const struct proxy_keys *k)
{
    base_autobuf struct buf out = BUF_INIT(16u << 20);
    int rc = cmd_given(c, a, "json") ? list_json(k, &out) : list_table(k, &out);
    return rc < 0 ? cmd_nomem() : cmd_print(buf_str(&out));
}

/* ---- the command --------------------------------------------------------------------------------------------------- */

static int on_fleet(const struct cmd *c, const struct cmd_args *a, const struct fleet *f, const struct os_dirs *dirs)
{
    (void)dirs;
    const char *path = f->router.keys_file, *verb = a->words[0];
    base_autobuf struct buf text = BUF_INIT(PROXY_KEYS_FILE_MAX);
    struct proxy_keys *k = NULL;
    struct err err;
    if (!path)
        return cmd_failf(CMD_USAGE, "the router of fleet '%s' asks for no keys; add 'keys-file: keys' to 'router' in %s", f->name, f->file);
    bool changes = strcmp(verb, "list") != 0;
    os_autoclose int lock = changes ? lock_file(path, &err) : -1;
    if (changes && lock < 0)
        return cmd_fail(CMD_FAILED, &err);
    if (read_keys(path, &text, &k, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    int code = !changes ? list(c, a, k) : strcmp(verb, "add") == 0 ? add(c, a, f, path, &text, k) : drop(a->words[1], path, &text, k);
    proxy_keys_unref(k);
    return code;
}

static int run_key(const struct cmd *c, int argc, char **argv)
{
    struct cmd_args a;
    int code = CMD_OK;
    if (!cmd_parse(c, argc, argv, 1, 2, &a, &code))
        return code;
    bool is_list = strcmp(a.words[0], "list") == 0, is_add = strcmp(a.words[0], "add") == 0;
    if (!is_list && !is_add && strcmp(a.words[0], "remove") != 0)
        return cmd_usage(c, "unknown word '%.60s': use add, list or remove", a.words[0]);
    if (a.n_words != (is_list ? 1 : 2))
        return cmd_usage(c, is_list ? "'list' takes no name" : "'%s' takes one name", a.words[0]);
    if (!is_add && (cmd_given(c, &a, "models") || cmd_given(c, &a, "concurrency") || cmd_given(c, &a, "rate")))
        return cmd_usage(c, "limits go with 'add'");
    return cmd_on_fleet(c, &a, on_fleet);
}

const struct cmd cmd_key = {
    .name = "key",
    .synopsis = "[-f FILE] [OPTION...] add NAME|list|remove NAME",
    .summary = "keys that clients of the router must show",
    .description = "'add' makes a key, prints it once, and writes what proves it to the fleet's keys file ('keys-file' under 'router'); the key itself is kept nowhere. 'list' shows names and limits, 'remove' takes one away. A router that runs reads the file again within a second.\n\n"
                   "Clients show the key as 'Authorization: Bearer KEY' or 'x-api-key: KEY'. Engines and logs never see it; logs and metrics have its name.",
    .examples = "berth key add alice\nberth key --models small --concurrency 2 --rate 60 add bot\nberth key remove bot",
    .options = {CMD_OPTION_FILE,
                {0, "models", "A,B", "endpoints that it may use (default all)"},
                {0, "concurrency", "N", "requests that it may have under way (default any)"},
                {0, "rate", "N", "requests that it may send a minute (default any)"},
                CMD_OPTION_JSON},
    .run = run_key,
};
