/* SPDX-License-Identifier: MIT
 *
 * Shared inside client: formats as pairs of writer and reader.
 */
#pragma once

#include "client.h"

#include <conf/conf.h>

/* The claims that a reader collects. */
struct client_reading {
    struct str text;
    struct arena *a;
    struct client_claim *list;
    size_t n, cap;
    struct err *err;
};
/* A new claim, all zero but its name and line; text is copied. NULL with err set. */
struct client_claim *client_add(struct client_reading *r, struct str name, unsigned line);
int client_add_effort(struct client_reading *r, struct client_claim *c, size_t *cap, struct str word) BASE_MUST_USE;
/* A copy in the arena; empty without memory, which is then set. */
int client_keep(struct client_reading *r, struct str s, struct str *ret) BASE_MUST_USE;
/* The first line on which a text stands in double quotes, for JSON, whose tree keeps no places. 0: nowhere. */
unsigned client_line_of(struct str text, struct str key);

/* json.c */
int client_write_opencode(const struct client_plan *p, struct json_out *o) BASE_MUST_USE;
int client_write_aider(const struct client_plan *p, struct json_out *o) BASE_MUST_USE;
int client_write_json(const struct client_plan *p, struct json_out *o) BASE_MUST_USE;
int client_read_opencode(struct client_reading *r, json_val root) BASE_MUST_USE;
int client_read_aider(struct client_reading *r, json_val root) BASE_MUST_USE;
int client_read_json(struct client_reading *r, json_val root) BASE_MUST_USE;
/* yaml.c */
void client_write_continue(const struct client_plan *p, struct buf *out);
void client_write_litellm(const struct client_plan *p, struct buf *out);
int client_read_continue(struct client_reading *r, const struct yaml_node *root) BASE_MUST_USE;
int client_read_litellm(struct client_reading *r, const struct yaml_node *root) BASE_MUST_USE;
