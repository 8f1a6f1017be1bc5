/* SPDX-License-Identifier: MIT
 *
 * The session of commands that fetch, and what a person sees of it: a line for each file on its way and one for all together on a terminal; elsewhere a line for each file that is done and for each tenth of the whole.
 */
#include "pull_int.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define TELL_US 10000000 /* a log is not to be filled by what is quick */

static void say_tenths(struct pull_session *s, const char *text, uint64_t done, uint64_t total)
{
    char have[UNITS_TEXT], all[UNITS_TEXT];
    unsigned tenths = total ? (unsigned)(done / (total / 10 + 1)) : 0;
    uint64_t now_us = clk_system.mono_us(clk_system.ctx);
    if (s->terminal || tenths <= s->told || now_us - s->told_us < TELL_US)
        return;
    s->told = tenths;
    s->told_us = now_us;
    os_progress_say(s->progress, OS_PLAIN, "total: %u %%, %s of %s%s%s", tenths * 10, units_show_bytes(done, have), units_show_bytes(total, all), *text ? ", " : "", text);
}

static void show(void *ctx, enum event_level level, const char *subject, const char *text, uint64_t done, uint64_t total)
{
    struct pull_session *s = ctx;
    if (level == EVENT_DEBUG && !total)
        return;
    if (done || total) {
        if (strcmp(subject, "total") == 0)
            say_tenths(s, text, done, total);
        os_progress_set(s->progress, subject, text, done, total, OS_PLAIN);
    } else if (level == EVENT_ERROR || strcmp(text, "") == 0) {
        os_progress_set(s->progress, subject, *text ? text : "...", 0, 0, *text ? OS_RED : OS_PLAIN);
    } else if (level == EVENT_WARN) {
        os_progress_say(s->progress, OS_YELLOW, "%s: %s", subject, text);
    } else {
        os_progress_set(s->progress, subject, text, 0, 0, OS_GREEN);
    }
}

int pull_open(struct pull_session *s, const struct fleet *f)
{
    struct err err;
    *s = (struct pull_session){.fleet = f, .lock_fd = -1, .terminal = os_is_terminal(STDERR_FILENO)};
    s->arena = arena_new(PULL_MEMORY_MAX);
    s->progress = os_progress_new(STDERR_FILENO, &clk_system);
    if (!s->arena || !s->progress)
        return cmd_nomem();
    if (os_dirs_find(&s->dirs, &err) < 0 || store_open(&s->dirs, &s->store, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    s->sink = (struct event_sink){.emit = show, .ctx = s};
    s->options.sink = &s->sink;
    s->told_us = clk_system.mono_us(clk_system.ctx);
    return CMD_OK;
}

void pull_close(struct pull_session *s)
{
    s->hub = hub_free(s->hub);
    s->progress = os_progress_free(s->progress);
    os_closep(&s->lock_fd);
    s->store = store_free(s->store);
    s->arena = arena_free(s->arena);
    os_dirs_release(&s->dirs);
}

int pull_lock(struct pull_session *s)
{
    struct err err;
    s->lock_fd = store_lock_payloads(s->store, false, &err);
    if (s->lock_fd == -EWOULDBLOCK) {
        os_progress_say(s->progress, OS_PLAIN, "another berth fetches or repairs files here: waiting until it is done");
        s->lock_fd = store_lock_payloads(s->store, true, &err);
    }
    if (s->lock_fd < 0 || store_uses_write(s->store, s->fleet, false, &err) < 0)
        return cmd_fail(CMD_FAILED, &err);
    return CMD_OK;
}

static int read_number(const struct cmd *c, const struct cmd_args *a, const char *name, uint64_t most, uint64_t *ret)
{
    const char *text = cmd_value(c, a, name);
    if (text && (str_to_u64(str_of(text), ret) < 0 || !*ret || *ret > most))
        return cmd_usage(c, "--%s: '%.40s' is no number from 1 to %u", name, text, (unsigned)most);
    return CMD_OK;
}

int pull_read_options(struct pull_session *s, const struct cmd *c, const struct cmd_args *a)
{
    uint64_t connections = 0, stall = 0, retries = 0;
    int code = read_number(c, a, "connections", HUB_CONNECTIONS_MAX, &connections);
    if (code == CMD_OK)
        code = read_number(c, a, "stall", 3600, &stall);
    if (code == CMD_OK)
        code = read_number(c, a, "retries", 1000, &retries);
    s->options.connections = (unsigned)connections;
    s->options.stall_ms = stall * 1000;
    s->options.retries = (unsigned)retries;
    return code;
}

int pull_hub(struct pull_session *s, struct err *err)
{
    return s->hub ? 0 : hub_new(&s->options, &s->hub, err);
}

int pull_url(const struct pull_session *s, const struct fleet_model *m, const char *revision, const char *file, struct buf *url, struct err *err)
{
    return m->source == FLEET_MODEL_HF ? hub_url(s->hub, m->source_arg, revision, file, url, err) : hub_web_url(m->source_arg, file, url, err);
}

bool pull_wants(const struct cmd_args *a, const struct fleet_model *m)
{
    for (size_t i = 0; i < a->n_words; i++)
        if (strcmp(a->words[i], m->name) == 0)
            return true;
    return !a->n_words;
}

struct fleet *pull_fleet(const struct cmd *c, const struct cmd_args *a, int *ret_exit)
{
    int code = CMD_OK;
    struct fleet *f = cmd_fleet(c, a, ret_exit);
    for (size_t i = 0; f && i < a->n_words && code == CMD_OK; i++)
        code = cmd_model(f, a->words[i]);
    if (code == CMD_OK)
        return f;
    *ret_exit = code;
    return fleet_free(f);
}
