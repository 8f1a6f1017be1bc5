/* SPDX-License-Identifier: MIT
 *
 * The reader of a runtime's manifest. What it takes must survive being written and read again with the same digest.
 */
#include <store/store_int.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct manifest *m, *again;
    struct err err;
    if (manifest_parse((struct str){(const char *)data, size}, &m, &err) < 0)
        return 0;
    struct buf text = BUF_INIT(64u << 20);
    if (manifest_text(m, &text, &err) < 0 || manifest_parse(buf_str(&text), &again, &err) < 0 || strcmp(m->digest, again->digest) != 0)
        abort();
    buf_release(&text);
    manifest_free(again);
    manifest_free(m);
    return 0;
}
