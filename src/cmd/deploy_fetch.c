/* SPDX-License-Identifier: MIT
 *
 * What a deploy fetches on the machine that it is about, before anything is touched: files of pinned models that its units need and that are not there. A fetch that was cut off goes on where it stopped. The hub's token comes
 * through standard input when another machine has sent for it, and is nowhere but in this process.
 */
#include "deploy_host_int.h"
#include "pull_int.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static bool is_needed(const struct fleet *f, const struct fleet_model *m)
{
    for (size_t i = 0; i < f->n_services; i++)
        if (f->services[i].model == m && !f->services[i].host->ssh && f->services[i].unit != FLEET_CHILD)
            return true;
    return false;
}

int deploy_fetch(const struct fleet *f)
{
    const struct fleet_model **missing = calloc(f->n_models + 1, sizeof(void *));
    struct pull_session s;
    size_t n = 0;
    if (!missing)
        return cmd_nomem();
    int code = pull_open(&s, f);
    for (size_t i = 0; code == CMD_OK && i < f->n_models; i++) {
        const struct fleet_model *m = &f->models[i];
        uint64_t bytes;
        /* what is not pinned, or has no source but a folder, is left for the error that names it */
        if (is_needed(f, m) && m->source != FLEET_MODEL_FILE && fleet_lock_of(f, m) && store_payload_check(s.store, m, &bytes, NULL) < 0)
            missing[n++] = m;
    }
    if (code == CMD_OK && n)
        code = pull_lock(&s);
    os_interrupt_begin();
    if (code == CMD_OK && n)
        code = pull_models(&s, missing, n);
    pull_close(&s);
    free(missing);
    os_interrupt_end();
    return code;
}

void deploy_take_secrets(void)
{
    static const char *const known[] = {"HF_ENDPOINT", "HF_TOKEN"};
    base_autobuf struct buf text = BUF_INIT(DEPLOY_SECRETS_MAX);
    char c;
    /* one by one: what comes behind the empty line is for others */
    while (!str_ends(buf_str(&text), STR("\n\n")) && read(STDIN_FILENO, &c, 1) == 1 && buf_status(&text) == 0)
        buf_add_char(&text, c);
    struct str rest = buf_str(&text);
    while (rest.ptr) {
        struct str value = str_split(&rest, '\n'), key = str_split(&value, '=');
        for (size_t i = 0; value.ptr && i < BASE_COUNT(known); i++) {
            base_autofree char *copy = str_eq_c(key, known[i]) ? str_dup(value) : NULL;
            if (copy) {
                (void)setenv(known[i], copy, 1); /* without memory the hub says that it wants a token */
                explicit_bzero(copy, strlen(copy));
            }
        }
    }
    if (text.ptr)
        explicit_bzero(text.ptr, text.len);
}
