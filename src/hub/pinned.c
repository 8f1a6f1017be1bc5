/* SPDX-License-Identifier: MIT
 *
 * One file that is pinned by its sha256, with a hub of its own: how archives of engines are fetched.
 */
#include "hub_int.h"

#include <string.h>

int hub_fetch_pinned(void *ctx, const char *url, const char *sha256, const char *path, struct err *err)
{
    const struct hub_options o = {.sink = ctx};
    const char *slash = strrchr(url, '/');
    const struct hub_want w = {.subject = slash && slash[1] ? slash + 1 : url, .url = url, .path = path, .bytes = HUB_UNKNOWN, .sha256 = sha256};
    struct hub *h = NULL;
    int r = hub_new(&o, &h, err);
    if (r == 0)
        r = hub_fetch(h, NULL, &w, 1, NULL, err);
    hub_free(h);
    return r;
}
