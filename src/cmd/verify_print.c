/* SPDX-License-Identifier: MIT
 *
 * What `berth verify` found: a row for each file, and below the table the byte ranges of what is damaged; or all of it as JSON.
 */
#include "verify_int.h"

#include <conf/conf.h>
#include <inttypes.h>
#include <stdio.h>

#define RANGES_SHOWN 8 /* of one file, in text */

static const char *word_of(enum store_verdict v)
{
    static const char *const words[] = {
        [STORE_PROVEN] = "proven", [STORE_UNCHANGED] = "unchanged", [STORE_RECORDED] = "recorded", [STORE_MISSING] = "missing", [STORE_DAMAGED] = "damaged", [STORE_UNREADABLE] = "unreadable",
    };
    return words[v];
}

/* The next run of damaged segments from segments[*at] on, as bytes [*ret_from, *ret_to). False at the end. */
static bool next_range(const struct store_check *c, size_t *at, uint64_t *ret_from, uint64_t *ret_to)
{
    if (*at >= c->n_segments)
        return false;
    size_t first = *at;
    do {
        ++*at;
    } while (*at < c->n_segments && c->segments[*at] == c->segments[*at - 1] + 1);
    *ret_from = c->segments[first] * STORE_SEGMENT_BYTES;
    *ret_to = (c->segments[*at - 1] + 1) * STORE_SEGMENT_BYTES;
    if (c->want.bytes && *ret_to > c->want.bytes)
        *ret_to = c->want.bytes;
    return true;
}

/* ---- text ------------------------------------------------------------------------------------------------------- */

static void result_cell(struct os_table *t, const struct verify_file *f)
{
    const struct store_check *c = f->check;
    if (f->repaired)
        os_table_cell(t, OS_GREEN, "repaired and proven");
    else if (f->unlisted)
        os_table_cell(t, OS_RED, "not in the lock of '%s': 'berth lock'", f->model->name);
    else if (verify_sound(c))
        os_table_cell(t, OS_GREEN, "%s",
                      c->verdict == STORE_RECORDED   ? "recorded: nothing says yet what it must be"
                      : c->verdict == STORE_UNCHANGED ? "unchanged since it was proven"
                                                      : "proven");
    else
        os_table_cell(t, OS_RED, "%s", word_of(c->verdict));
}

static void add_notes(const struct verify *v, const struct verify_file *f, struct buf *out)
{
    const struct store_check *c = f->check;
    uint64_t from, to;
    size_t at = 0;
    if (verify_sound(c))
        return;
    buf_addf(out, "%s: %s\n", f->path, c->why.text);
    for (unsigned n = 0; next_range(c, &at, &from, &to); n++) {
        if (n == RANGES_SHOWN) {
            buf_addf(out, "  and more; --json has all\n");
            break;
        }
        buf_addf(out, "  damaged: bytes %" PRIu64 " to %" PRIu64 "\n", from, to - 1);
    }
    if (f->repair.code < 0)
        buf_addf(out, "  not repaired: %s\n", f->repair.text);
    else if (f->model->source == FLEET_MODEL_FILE && !f->locked && c->verdict == STORE_DAMAGED)
        buf_addf(out, "  if you have put another file there, 'berth lock' pins it\n");
    else if (f->model->source != FLEET_MODEL_FILE && !(f->pin.parts && !c->located) && !cmd_given(v->c, v->a, "repair"))
        buf_addf(out, "  'berth verify --repair %s' %s\n", f->model->name, !c->located ? "fetches it" : c->n_segments ? "fetches only these" : "cuts it");
}

static int print_text(const struct verify *v)
{
    static const char *const headings[] = {"MODEL", "FILE", "SIZE", "RESULT"};
    static const enum os_align aligns[] = {OS_LEFT, OS_LEFT, OS_RIGHT, OS_LEFT};
    base_autobuf struct buf notes = BUF_INIT(4u << 20);
    if (!v->n_files)
        return cmd_failf(CMD_OK, "the fleet has no models");
    struct os_table *t = os_table_new(headings, aligns, BASE_COUNT(headings));
    if (!t)
        return cmd_nomem();
    for (size_t i = 0; i < v->n_files; i++) {
        const struct verify_file *f = &v->files[i];
        char size[UNITS_TEXT];
        os_table_cell(t, OS_BOLD, "%s", f->model->name);
        os_table_cell(t, OS_PLAIN, "%s", f->file);
        os_table_cell(t, OS_PLAIN, "%s", f->check->verdict == STORE_MISSING ? "-" : units_show_bytes(f->check->bytes, size));
        result_cell(t, f);
        if (f->same == i)
            add_notes(v, f, &notes);
    }
    for (size_t i = 0; i < v->n_sets; i++)
        if (v->sets[i].why.code < 0)
            buf_addf(&notes, "model %s: %s\n", v->sets[i].model->name, v->sets[i].why.text);
    if (buf_status(&notes) < 0) {
        os_table_free(t);
        return cmd_nomem();
    }
    int code = cmd_print_table(t);
    return code == CMD_OK && notes.len ? cmd_print(buf_str(&notes)) : code;
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static void write_file(struct json_out *o, const struct verify_file *f)
{
    const struct store_check *c = f->check;
    char hex[OS_SHA256_HEX];
    uint64_t from, to;
    size_t at = 0;
    json_out_obj(o, NULL);
    json_out_cstr(o, "file", f->file);
    json_out_cstr(o, "role", f->role);
    json_out_cstr(o, "path", f->path);
    json_out_cstr(o, "verdict", f->unlisted ? "not locked" : word_of(c->verdict));
    json_out_bool(o, "sound", verify_sound(c) && !f->unlisted);
    if (c->verdict != STORE_MISSING)
        json_out_u64(o, "bytes", c->bytes);
    if (verify_sound(c))
        json_out_cstr(o, "sha256", os_hex(c->sha256, sizeof c->sha256, hex));
    if (c->why.code < 0)
        json_out_cstr(o, "why", c->why.text);
    if (c->located) {
        json_out_arr(o, "damaged");
        while (next_range(c, &at, &from, &to)) {
            json_out_obj(o, NULL);
            json_out_u64(o, "from", from);
            json_out_u64(o, "bytes", to - from);
            json_out_end(o);
        }
        json_out_end(o);
    }
    if (f->repaired)
        json_out_u64(o, "fetched_bytes", f->fetched_bytes);
    if (f->repair.code < 0)
        json_out_cstr(o, "not_repaired", f->repair.text);
    json_out_end(o);
}

static int print_json(const struct verify *v)
{
    struct json_out *o = json_out_new();
    if (!o)
        return cmd_nomem();
    json_out_arr(o, NULL);
    for (size_t i = 0; i < v->n_sets; i++) {
        const struct verify_set *s = &v->sets[i];
        json_out_obj(o, NULL);
        json_out_cstr(o, "model", s->model->name);
        json_out_cstr(o, "commit", s->model->commit);
        json_out_bool(o, "locked", fleet_lock_of(v->s.fleet, s->model) != NULL);
        json_out_arr(o, "files");
        for (size_t k = 0; k < v->n_files; k++)
            if (v->files[k].model == s->model)
                write_file(o, &v->files[k]);
        json_out_end(o);
        if (s->checked)
            json_out_bool(o, "consistent", s->why.code == 0);
        if (s->why.code < 0)
            json_out_cstr(o, "why", s->why.text);
        json_out_end(o);
    }
    json_out_end(o);
    return cmd_print_json(o);
}

int verify_print(const struct verify *v)
{
    return cmd_given(v->c, v->a, "json") ? print_json(v) : print_text(v);
}
