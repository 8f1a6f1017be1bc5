/* SPDX-License-Identifier: MIT
 *
 * Units that somebody else may have written: whose one is, which keys a podman lacks; and a word that goes into one.
 */
#include <stdint.h>

#include <unit/unit.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct str text = {(const char *)data, size};
    base_autobuf struct buf word = BUF_INIT(1u << 20);
    struct unit_owner owner;
    struct unit_version version;
    struct err err;
    if (unit_owner_parse(text, &owner) && (owner.fleet.ptr < text.ptr || owner.digest.ptr + owner.digest.len > text.ptr + text.len))
        __builtin_trap();
    base_ignore(unit_podman_check(text, (struct unit_version){5, 4}, &err));
    base_ignore(unit_version_parse(text, &version));
    /* nothing that ends a line or a word comes out */
    if (unit_quote(text, true, &word) == 0 && buf_status(&word) == 0 && str_find_char(buf_str(&word), '\n') >= 0)
        __builtin_trap();
    return 0;
}
