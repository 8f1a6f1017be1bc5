/* SPDX-License-Identifier: MIT
 *
 * From a byte offset to line and column. Counted from the start each time: only errors ask, and a text gives one error.
 */
#include "conf_int.h"

struct conf_place conf_locate(struct str text, size_t offset)
{
    struct conf_place p = {1, 1};
    if (offset > text.len)
        offset = text.len;
    for (size_t i = 0; i < offset; i++) {
        unsigned char c = (unsigned char)text.ptr[i];
        bool half = c == '\r' && i + 1 < text.len && text.ptr[i + 1] == '\n';
        if (c == '\n' || (c == '\r' && !half)) {
            p.line++;
            p.column = 1;
        } else if ((c & 0xC0) != 0x80) {
            p.column++; /* the first byte of a character; the others are 10xxxxxx */
        }
    }
    return p;
}
