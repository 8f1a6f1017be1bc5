/* SPDX-License-Identifier: MIT
 *
 * Any engine: the declaration says the command, the path that answers 200 when it is ready, and, if there is one, the path of an
 * OpenAI-like model list. Nothing else is known of it, so nothing else is asked or compared.
 */
#include "engine_int.h"

#include <errno.h>

#define WORD_MAX (64UL * 1024) /* bytes of one word after replacement */

/* Copies word to out with {port}, {bind} and {model} replaced; other braces stay (JSON is full of them). */
static int expand(const struct fleet_service *s, const struct engine_paths *p, struct str word, struct buf *out, struct err *err)
{
    const char *socket = fleet_service_socket(s);
    const struct {
        struct str name;
        const char *value;
    } marks[] = {{STR("{port}"), NULL}, {STR("{bind}"), socket ? socket : s->bind}, {STR("{model}"), p->weights}};
    while (word.len > 0) {
        size_t used = 1;
        for (size_t i = 0; i < BASE_COUNT(marks) && used == 1; i++) {
            if (!str_starts(word, marks[i].name))
                continue;
            used = marks[i].name.len;
            if (i == 0)
                buf_addf(out, "%u", s->port);
            else if (marks[i].value)
                buf_add_c(out, marks[i].value);
            else
                return err_set(err, -EINVAL, "command of service '%s' says %s, but the service has no model", s->name, marks[i].name.ptr);
        }
        if (used == 1)
            buf_add_char(out, word.ptr[0]);
        word.ptr += used;
        word.len -= used;
    }
    return 0;
}

static int generic_argv(const struct fleet_service *s, const struct engine_paths *p, struct args *args, struct err *err)
{
    if (s->n_command == 0 || !s->command[0][0])
        return err_set(err, -EINVAL, "service '%s' needs command: for engine generic", s->name);
    for (size_t i = 0; i < s->n_command; i++) {
        base_autobuf struct buf word = BUF_INIT(WORD_MAX);
        buf_add_c(&word, "");
        int r = expand(s, p, str_of(s->command[i]), &word, err);
        if (r < 0)
            return r;
        args_add(args, buf_status(&word) < 0 ? NULL : arena_dup(args->a, buf_str(&word)));
    }
    for (size_t i = 0; i < s->n_args; i++)
        args_add(args, s->args[i]);
    return 0;
}

static struct str generic_message(struct str line)
{
    return str_trim(line);
}

static const struct word_rule words[] = {
    {"ddress already in use", NULL, ENGINE_WORDS_PORT, false}, /* strerror(EADDRINUSE), in either case */
    {"CUDA out of memory", NULL, ENGINE_WORDS_DEVICE_MEMORY, false},
    {"HIP out of memory", NULL, ENGINE_WORDS_DEVICE_MEMORY, false},
};

static const char *const env[] = {NULL};

const struct engine_kind engine_generic = {
    .name = "generic",
    .env = env,
    .start_ms = 10ULL * 60 * 1000, /* nothing is known of what it does at a start */
    .argv = generic_argv,
    .message = generic_message,
    .words = words,
    .n_words = BASE_COUNT(words),
};
