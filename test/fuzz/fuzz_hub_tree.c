/* SPDX-License-Identifier: MIT
 *
 * What a hub sends: a page of its tree API, and the lines of a head. Whatever comes, names stay below a folder and digests are digests.
 */
#include <hub/hub_int.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct hub_head h;
    struct hub_tree t = {0};
    size_t cap = 0;
    struct err err;
    char commit[41];
    struct str text = {(const char *)data, size}, rest = text;
    hub_head_clear(&h);
    while (rest.ptr)
        hub_head_line(&h, str_split(&rest, '\n'), 1700000000);
    if (h.wait_ms > HUB_WAIT_MAX_MS || (h.has_range && !h.bad && h.range.to != HUB_UNKNOWN && h.range.from > h.range.to))
        abort();
    if (hub_parse_tree(text, &t, &cap, &err) == 0)
        for (size_t i = 0; i < t.n_files; i++)
            if (!os_relpath_valid(str_of(t.files[i].path)) || !t.files[i].sha256 == !t.files[i].git_sha1)
                abort();
    hub_tree_release(&t);
    if (hub_parse_commit(text, commit, &err) == 0 && !hub_is_hex(str_of(commit), 40))
        abort();
    return 0;
}
