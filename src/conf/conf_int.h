/* SPDX-License-Identifier: MIT
 *
 * Shared inside conf only: where in a text something is, as people count.
 */
#pragma once

#include <conf/conf.h>

struct conf_place {
    unsigned line, column; /* 1-based; columns count characters, not bytes */
};

/* The place of the byte at offset (clamped to the text's end). Lines end with "\n", "\r" or "\r\n", as in YAML. */
struct conf_place conf_locate(struct str text, size_t offset);
