/* SPDX-License-Identifier: MIT
 *
 * The rules of this machine, as the programs print them that made them. Only asked, never changed; root alone is answered.
 */
#include "firewall.h"

#include <errno.h>
#include <os/os.h>
#include <signal.h>

#define RULES_MS 10000 /* for a program that prints the rules */

/* What one program prints: 1 when it is not here; negative with its reason when it does not say its rules. */
static int rules_of(const char *const *words, struct buf *out, struct err *err)
{
    static const char *const envp[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", NULL};
    base_autobuf struct buf path = BUF_INIT(4096);
    const char *argv[4] = {NULL};
    if (os_find_program(words[0], &path, NULL) < 0)
        return 1;
    for (size_t i = 0; words[i]; i++)
        argv[i] = i ? words[i] : path.ptr;
    const struct os_spawn s = {.argv = argv, .envp = envp, .new_group = true, .end_group = true, .death_signal = SIGKILL};
    int r = os_run_ok(&s, RULES_MS, out, err);
    if (r < 0)
        return r == -EIO ? err_prefix(err, "'%s' failed", words[0]) : r;
    return out->len < out->max ? 0 : err_set(err, -EFBIG, "'%s' prints more than %zu bytes", words[0], out->max);
}

/* Older rules of iptables are not among nft's: where nft has none, they are asked for as well. */
int firewall_read(struct buf *out, const char **ret_program, struct err *err)
{
    static const char *const programs[][4] = {{"nft", "list", "ruleset", NULL}, {"iptables-save", NULL}};
    int r = 1;
    for (size_t i = 0; i < BASE_COUNT(programs); i++) {
        struct err own;
        buf_clear(out);
        int one = rules_of(programs[i], out, &own);
        if (one == 1)
            continue;
        if (one < 0) {
            *err = own;
            return one;
        }
        r = 0;
        *ret_program = programs[i][0];
        if (str_trim(buf_str(out)).len)
            break;
    }
    return r;
}
