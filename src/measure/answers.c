/* SPDX-License-Identifier: MIT
 *
 * The words of an engine that measures: compute buffers of its first pass, by device, and why it did not come that far.
 */
#include "measure_int.h"

#include <stdio.h>
#include <string.h>

#define LEVEL_WITHIN 24 /* a line's level stands behind its time stamp */

int measure_device_of(struct str buffer, const struct fit_input *in, const char *const *rpc)
{
    ptrdiff_t open = str_find_char(buffer, '[');
    if (rpc && open >= 0 && str_ends(buffer, STR("]"))) {
        struct str endpoint = {buffer.ptr + open + 1, buffer.len - (size_t)open - 2};
        for (size_t d = 0; d < in->n_devices; d++)
            if (str_eq_c(endpoint, rpc[d]))
                return (int)d;
        return -1;
    }
    for (size_t d = 0; !rpc && d < in->n_devices; d++) {
        const char *name = in->devices[d].buffer ? in->devices[d].buffer : in->devices[d].name;
        size_t len = strlen(name);
        if (str_starts(buffer, str_of(name)) && (buffer.len == len || str_eq_c((struct str){buffer.ptr + len, buffer.len - len}, "_Split")))
            return (int)d;
    }
    bool host = str_starts(buffer, STR("CPU")) || str_ends(buffer, STR("_Host")) || str_eq_c(buffer, "AMX") || str_eq_c(buffer, "BLAS");
    return host ? (int)in->n_devices : -1;
}

static void take_error(struct measure_reader *m, struct str line)
{
    struct str head = {line.ptr, line.len < LEVEL_WITHIN ? line.len : LEVEL_WITHIN};
    if (*m->last_error)
        return; /* the first is the cause, the others follow from it */
    if (str_find(head, STR(" E ")) < 0 && !str_starts(line, STR("error")) && str_find(line, STR("GGML_ASSERT(")) < 0)
        return;
    struct str text = {0};
    engine_line_parse(engine_find("llama.cpp"), line, &text);
    base_autobuf struct buf shown = BUF_INIT(sizeof m->last_error * 4);
    buf_add_printable(&shown, text, sizeof m->last_error - 4);
    if (buf_status(&shown) == 0 && shown.len)
        snprintf(m->last_error, sizeof m->last_error, "%.250s", shown.ptr);
}

void measure_reader_line(struct measure_reader *m, struct str line)
{
    struct engine_buffer b = {0};
    if (m->done)
        return;
    bool found = engine_memory_line(&m->memory, engine_find("llama.cpp"), line, &b);
    take_error(m, line);
    if (m->memory.passes == 1 && m->memory.contexts == 1)
        m->answer.target = m->memory.target;
    m->done = m->memory.measured || m->memory.failed || (m->memory.passes > 0 && !m->memory.measuring);
    if (!found || b.kind != ENGINE_BUFFER_COMPUTE || !b.measuring || m->memory.passes != 1)
        return;
    int d = measure_device_of(b.name, m->in, m->rpc);
    if (d < 0)
        return;
    if (b.context == 0) {
        m->answer.bytes[d] += b.bytes;
        m->answer.pipeline = m->memory.pipeline;
    } else {
        m->answer.draft_bytes[d] += b.bytes;
        m->answer.draft_pipeline = m->memory.pipeline;
        m->answer.draft_measured = true;
    }
}
